"""Grids: where samples lie, at every step, and that a subsampled signal keeps its positions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kernelfield.grids import box_grid, kernel_axis, kernel_grid, local_grid, positions, reach, signal_grid
from kernelfield.testing import assert_compiles, assert_exports

STEPS = [1, 2, 3, 0.5, 0.4, 0.37, 1.7]


@given(size=st.integers(1, 1000), step=st.fractions(Fraction(1, 50), 20, max_denominator=100))
@example(size=1, step=Fraction(1, 49))  # floating-point division gives a little more than 49
@example(size=3, step=Fraction(3, 47))
def test_reach_counts_the_offsets_under_the_size(size: int, step: Fraction) -> None:
    # Offset k · step is under the size for k = 0 … ⌈size / step⌉ - 1, in exact arithmetic.
    assert reach(size, float(step)) == -(-Fraction(size) // step)


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (79, 79), (80, 80), (81, 80)])
def test_reach_is_limited_by_the_input(limit: int, expected: int) -> None:
    assert reach(32, 0.4, limit) == expected


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("size", [1, 7, 32])
def test_kernel_axis_is_pinned_at_zero_and_stays_inside(size: int, step: float, dtype: torch.dtype) -> None:
    axis = kernel_axis(size, step, dtype=dtype)
    n = reach(size, step)
    assert axis.dtype == dtype
    assert axis.shape == (2 * n - 1,)
    assert axis[n - 1] == 0
    assert (axis.abs() < 1).all()
    assert axis.equal(-axis.flip(0))
    torch.testing.assert_close(axis.diff(), torch.full((2 * n - 2,), step / size, dtype=dtype))
    assert kernel_axis(size, step, causal=True, dtype=dtype).equal(axis[n - 1 :])


@pytest.mark.parametrize("n", [2, 3, 5, 7])
@pytest.mark.parametrize("size", [7, 10, 784])
def test_every_nth_point_of_a_kernel_to_the_bit(size: int, n: int, dtype: torch.dtype) -> None:
    fine, coarse = kernel_axis(size, dtype=dtype), kernel_axis(size, n, dtype=dtype)
    middle, half = size - 1, len(coarse) // 2
    assert coarse.equal(fine[middle - half * n : middle + half * n + 1 : n])
    lags = kernel_grid(size, causal=True, dtype=dtype)
    assert kernel_grid(size, n, causal=True, dtype=dtype).equal(lags[::n])


@pytest.mark.parametrize("steps", [(2, 3), (3, 1), (5, 2)])
def test_every_nth_point_of_a_plane_to_the_bit(steps: tuple[int, int], dtype: torch.dtype) -> None:
    fine, coarse = kernel_grid((9, 11), dim=2, dtype=dtype), kernel_grid((9, 11), steps, dim=2, dtype=dtype)
    rows, columns = (
        torch.arange(-(count // 2), count // 2 + 1) * n + size - 1
        for count, n, size in zip(coarse.shape[:2], steps, (9, 11), strict=True)
    )
    assert coarse.equal(fine[rows][:, columns])


@pytest.mark.parametrize("n", [2, 3, 5, 7])
@pytest.mark.parametrize("length", [1, 10, 784, 785])
def test_every_nth_sample_of_a_signal_to_the_bit(length: int, n: int, dtype: torch.dtype) -> None:
    count = len(torch.arange(length)[::n])
    fine = signal_grid([length], 784, dtype=dtype)
    assert signal_grid([count], 784, n, dtype=dtype).equal(fine[::n])
    assert positions([count], n, dtype=dtype).equal(positions([length], dtype=dtype)[::n])


def test_every_nth_sample_of_a_plane_to_the_bit(dtype: torch.dtype) -> None:
    assert signal_grid([4, 5], (10, 20), (3, 2), dtype=dtype).equal(
        signal_grid([10, 10], (10, 20), dtype=dtype)[::3, ::2]
    )
    assert positions([4, 5], (3, 2), dtype=dtype).equal(positions([10, 10], dtype=dtype)[::3, ::2])


@pytest.mark.parametrize("step", [0.4, 0.37, 1.7])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_every_nth_sample_at_steps_that_binary_numbers_round(step: float, n: int, dtype: torch.dtype) -> None:
    # n · step is itself rounded here, so that positions agree to one unit of rounding and not to the bit.
    unit = torch.finfo(dtype).eps
    for fine, coarse in (
        (positions([60], step, dtype=dtype), positions([60 // n], n * step, dtype=dtype)),
        (signal_grid([60], 100, step, dtype=dtype), signal_grid([60 // n], 100, n * step, dtype=dtype)),
        (
            kernel_grid(50, step, causal=True, dtype=dtype),
            kernel_grid(50, n * step, causal=True, dtype=dtype),
        ),
    ):
        shared = fine[::n][: len(coarse)]
        assert len(shared) >= len(coarse) - 1
        torch.testing.assert_close(coarse[: len(shared)], shared, atol=2 * unit, rtol=2 * unit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_finer_grid_meets_the_training_grid(dtype: torch.dtype) -> None:
    # 5 steps of 0.4 are 2 training steps, and 100 steps of 0.37 are 37.
    unit = torch.finfo(dtype).eps
    training = kernel_grid(80, causal=True, dtype=dtype)
    for step, ours, theirs in ((0.4, 5, 2), (0.37, 100, 37), (2.5, 2, 5)):
        finer = kernel_grid(80, step, causal=True, dtype=dtype)[::ours]
        torch.testing.assert_close(finer, training[::theirs][: len(finer)], atol=unit, rtol=2 * unit)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_axes_in_order(dim: int) -> None:
    sizes, steps = (3, 5, 4)[:dim], (1, 2, 0.5)[:dim]
    grid = kernel_grid(sizes, steps, dim=dim)
    assert grid.shape == (*(2 * reach(n, s) - 1 for n, s in zip(sizes, steps, strict=True)), dim)
    for d, (n, s) in enumerate(zip(sizes, steps, strict=True)):
        line = grid[tuple(slice(None) if e == d else 0 for e in range(dim))]
        assert line[:, d].equal(kernel_axis(n, s))
        others = [e for e in range(dim) if e != d]
        assert (line[:, others] == line[:1, others]).all()


def test_limit_crops_the_outside() -> None:
    whole = kernel_grid((10, 20), dim=2)
    assert kernel_grid((10, 20), dim=2, limit=(4, 50)).equal(whole[6:-6])
    assert kernel_grid(10, causal=True, limit=[4]).equal(kernel_grid(10, causal=True)[:4])


def test_local_grid_ends_at_one() -> None:
    grid = local_grid((3, 4, 1), dim=3)
    assert grid.shape == (3, 4, 1, 3)
    assert grid[:, 0, 0, 0].tolist() == [-1, 0, 1]
    assert grid[0, :, 0, 1].tolist() == pytest.approx([-1, -1 / 3, 1 / 3, 1])
    assert (grid[..., 2] == 0).all()


@pytest.mark.parametrize("size", [2, 3, 10, 784])
def test_the_training_signal_spans_the_domain(size: int, dtype: torch.dtype) -> None:
    grid = signal_grid([size], size, dtype=dtype)[:, 0]
    assert grid[0] == -1
    assert grid[-1] == 1
    torch.testing.assert_close(grid, torch.linspace(-1, 1, size, dtype=dtype), atol=1e-6, rtol=0)


def test_positions_are_in_training_steps() -> None:
    grid = positions([3, 2], (0.5, 2))
    assert grid[:, 0, 0].tolist() == [0, 0.5, 1]
    assert grid[0, :, 1].tolist() == [0, 2]


@pytest.mark.parametrize(
    "grid",
    [
        lambda **to: kernel_grid(4, **to),
        lambda **to: local_grid(3, **to),
        lambda **to: local_grid(1, **to),
        lambda **to: signal_grid([4], 4, **to),
        lambda **to: positions([4], **to),
    ],
)
def test_dtype_and_device(grid: Any) -> None:
    assert grid().dtype == torch.float32
    assert grid(dtype=torch.float64).dtype == torch.float64
    assert grid(device="meta").device.type == "meta"
    torch.set_default_dtype(torch.float64)
    try:
        assert grid().dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def on_the_grid_of(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    space = x.shape[2:]
    return (
        x.sum() + kernel_grid(32, 0.4, limit=space),
        x.sum() + kernel_grid(32, causal=True, limit=space),
        x.sum() + signal_grid(space, 32, 2),
        x.sum() + positions(space, 0.37),
    )


def test_export_with_a_dynamic_length() -> None:
    signals = [(torch.randn(1, 2, n),) for n in (5, 31, 32, 33, 79, 80, 200)]
    assert_exports(on_the_grid_of, (torch.randn(1, 2, 16),), ({2: torch.export.Dim("length")},), signals)


def test_compiles_with_a_dynamic_length() -> None:
    assert_compiles(on_the_grid_of, torch.randn(1, 2, 16), dynamic=True)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: reach(0), ValueError, "size .*got 0"),
        (lambda: reach(8, -1), ValueError, "step .*got -1"),
        (lambda: kernel_axis(8, causal=1), TypeError, "causal .*got 1"),
        (lambda: kernel_grid(-4), ValueError, "size .*got -4"),
        (lambda: kernel_grid(4.0), TypeError, r"size .*got 4\.0"),
        (lambda: kernel_grid((3, 3, 3), dim=2), ValueError, "size must"),
        (lambda: kernel_grid(4, 0), ValueError, "step .*got 0"),
        (lambda: kernel_grid(4, float("nan")), ValueError, "step .*got nan"),
        (lambda: kernel_grid(4, float("inf")), ValueError, "step .*got inf"),
        (
            lambda: kernel_grid(4, (1, 2)),
            ValueError,
            r"step .*got \(1, 2\)",
        ),
        (lambda: kernel_grid(4, "1"), TypeError, "step .*got '1'"),
        (lambda: kernel_grid(4, dim=0), ValueError, "dim .*got 0"),
        (lambda: kernel_grid(4, dim=2, causal=True), ValueError, "causal must"),
        (
            lambda: kernel_grid(4, dim=2, limit=[5]),
            ValueError,
            "limit must",
        ),
        (lambda: local_grid(0), ValueError, "kernel_size .*got 0"),
        (lambda: signal_grid([4], 1), ValueError, "size .*got 1"),
        (
            lambda: signal_grid([4], 4, float("nan")),
            ValueError,
            "step .*got nan",
        ),
        (lambda: positions([4], -0.5), ValueError, r"step .*got -0\.5"),
        (
            lambda: positions([4], (1, 1)),
            ValueError,
            r"step .*got \(1, 1\)",
        ),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=rf"\b{says}"):
        call()


def test_a_box_grid_has_its_outermost_nodes_on_the_faces() -> None:
    nodes = box_grid((3, 1, 5), (-1.0, 0.0, 2.0), (1.0, 4.0, 3.0), dtype=torch.float64)
    assert nodes.shape == (3, 1, 5, 3)
    assert nodes[0, 0, 0].tolist() == [-1.0, 2.0, 2.0]  # of a single node along an axis, the middle
    assert nodes[-1, -1, -1].tolist() == [1.0, 2.0, 3.0]
    torch.testing.assert_close(nodes.diff(dim=2)[..., 2], torch.full((3, 1, 4), 0.25, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"\bhigh must"):
        box_grid((3,), 1.0, 1.0)
