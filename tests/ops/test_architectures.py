"""Plans are chosen for GPUs that are not there, and fit their limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelfield.ops.architectures import ARCHITECTURES, Architecture, architecture
from kernelfield.ops.conv.triton import plan_of
from kernelfield.ops.conv.triton.toeplitz_launch import choose
from kernelfield.ops.conv.triton.tuning import tuning
from tests.ops.interpreted import interpreter

__all__ = ["interpreter"]

ROOT = Path(__file__).parents[2]
architectures = pytest.mark.parametrize("limits", ARCHITECTURES.values(), ids=str)
#: lines, planes and volumes, and points of their kernels
SHAPES = [
    *(((n,), (2 * n - 1,)) for n in (16, 100, 256, 784, 1024, 2048, 4096, 16_000, 2**16, 2**20)),
    *(((n, n), (2 * n - 1,) * 2) for n in (16, 28, 32, 64, 128, 256)),
    *(((n,) * 3, (2 * n - 1,) * 3) for n in (8, 16, 32)),
]
DTYPES = [torch.bfloat16, torch.float32]


def assert_fits(
    lengths: tuple[int, ...], points: tuple[int, ...], dtype: torch.dtype, periodic: bool, limits: Architecture
) -> None:
    plan = plan_of(lengths, points, False, [periodic] * len(lengths), dtype, limits)
    if plan is None:
        return
    assert limits.multiplies_bfloat16
    assert plan.shared_bytes <= limits.shared_bytes
    chosen = tuning(plan, dtype == torch.float32)
    threads = 32 * chosen.warps
    assert threads <= limits.threads
    assert threads * limits.thread_registers <= 2 * limits.registers
    # A spectrum, real and imaginary parts in float32, stays in registers.
    _, _, k1, k2 = plan.tile
    assert 2 * chosen.stack * k1 * k2 / chosen.split_columns <= threads * limits.thread_registers
    assert 2 * chosen.stack * k1 * k2 <= limits.registers


@architectures
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_plans_fit(limits: Architecture, dtype: torch.dtype) -> None:
    for precision in ("high", "highest"):
        torch.set_float32_matmul_precision(precision)
        try:
            for lengths, points in SHAPES:
                for periodic in (False, True):
                    assert_fits(lengths, points, dtype, periodic, limits)
        finally:
            torch.set_float32_matmul_precision("highest")


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    capability=st.sampled_from(sorted(ARCHITECTURES)),
    dtype=st.sampled_from(DTYPES),
    periodic=st.booleans(),
)
def test_plans_of_any_shape_fit(
    lengths: list[int], capability: tuple[int, int], dtype: torch.dtype, periodic: bool
) -> None:
    assert_fits(tuple(lengths), tuple(2 * n - 1 for n in lengths), dtype, periodic, ARCHITECTURES[capability])


def test_a_smaller_gpu_gets_a_plan_of_its_own_or_none() -> None:
    assert plan_of((1024,), (1024,), True, [False], torch.bfloat16, architecture((8, 6))) is not None
    for capability in ((7, 0), (7, 5)):
        assert plan_of((1024,), (1024,), True, [False], torch.bfloat16, architecture(capability)) is None
    torch.set_float32_matmul_precision("highest")
    shape = (64, 64), (127, 127), False, [False, False], torch.float32
    larger, smaller = (plan_of(*shape, architecture(c)) for c in ((9, 0), (8, 6)))
    assert smaller is None or smaller.shared_bytes <= 99 << 10
    assert larger is None or larger.shared_bytes <= 227 << 10


@architectures
def test_toeplitz_tiles_fit(limits: Architecture) -> None:
    if not limits.multiplies_bfloat16:
        pytest.skip("has no bfloat16 products")
    for length in (64, 256, 512):
        tile = choose(length)
        loads = 2 * tile.stages * (64 * tile.inputs + tile.inputs * tile.outputs)
        assert loads <= limits.shared_bytes
        assert 64 * tile.outputs / (32 * tile.warps) <= limits.thread_registers


def test_unknown_architectures_take_the_next_older() -> None:
    assert architecture((9, 9)) is ARCHITECTURES[9, 0]
    assert architecture((99, 0)) is ARCHITECTURES[max(ARCHITECTURES)]
    assert architecture((5, 0)) is ARCHITECTURES[7, 0]


@pytest.mark.slow
def test_kernels_compile_and_fit() -> None:
    """Compile with Triton and ptxas for an architecture with little shared memory."""
    command = [sys.executable, ROOT / "benchmarks" / "long_conv_architectures.py", "--quick", "--architectures", "86"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "sm_86" in done.stdout
