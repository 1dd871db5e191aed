"""Precision of the convolution on tensor cores: tf32, and scaled float16 products in its place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
import pytest
import torch

from kernelfield.ops import conv
from kernelfield.ops.conv import triton as tensorcore
from kernelfield.ops.conv.triton import plan_of, precision
from tests.contracts.convolutions import Case
from tests.ops.interpreted import DEVICE, LAYOUTS, assert_right, interpreter, launch, results

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["interpreter"]


@pytest.mark.parametrize(("setting", "expected"), [("highest", "tf32x3"), ("high", "tf32"), ("medium", "tf32")])
def test_precision_follows_the_setting_of_torch(setting: str, expected: str) -> None:
    with mock.patch.object(torch, "get_float32_matmul_precision", return_value=setting):
        assert precision(torch.float32) == expected
        assert precision(torch.float16) == "tf32"


@pytest.fixture
def unscaled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute with tf32 products."""
    monkeypatch.setattr(tensorcore, "SCALED", False)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    launch.make_call.cache_clear()
    yield
    launch.make_call.cache_clear()


TF32 = ("line", "circle", "plane", "rows of a torus", "slices")


@pytest.mark.usefixtures("unscaled")
@pytest.mark.parametrize("name", [n if n in TF32 else pytest.param(n, marks=pytest.mark.slow) for n in LAYOUTS])
def test_tf32_errors_are_within_rounding(name: str) -> None:
    case = LAYOUTS[name]
    boundary = case.boundary if isinstance(case.boundary, tuple) else (case.boundary,) * (len(case.x) - 2)
    periodic = [name == "periodic" for name in boundary]
    assert plan_of(case.x[2:], case.kernel[2:], case.causal, periodic, torch.float32).element == 4
    errors = relative_errors(case, *case.tensors(torch.float32))
    assert errors.max() <= 2e-3
    assert errors.max() >= 2e-5  # these are no products of float32


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute with scaled float16 products."""
    monkeypatch.setattr(tensorcore, "SCALED", True)
    monkeypatch.setattr(tensorcore, "UNSCALED", 0)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")


SCALED = ["line", "upright line", "line of blocks", "plane", "upright plane", "slices with kernels of more rows"]
SCALED += ["longer rows of a plane"]


def tensors(case: Case, kind: str) -> list[torch.Tensor]:
    """Return signal and kernel of a kind."""
    x, kernel = case.tensors(torch.float32)
    if kind == "constant":  # the largest spectrum there is, beyond the range of float16
        x, kernel = x.abs() + 1e5, kernel.abs() + 1e4
    elif kind == "tiny":
        x, kernel = x * 1e-12, kernel * 1e-9
    elif kind == "huge":
        x, kernel = x * 1e12, kernel * 1e9
    elif kind == "uneven":  # blocks that differ by orders, and one of zeros
        x = x * torch.logspace(-4, 0, x.shape[-1]) * (torch.arange(x.shape[-1]) >= 1024)
    return [x, kernel]


@pytest.mark.usefixtures("scaled")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "noise") for name in SCALED if name != "line of blocks"),
        *((name, kind) for name in ("line", "plane") for kind in ("constant", "tiny", "huge")),
        *(
            pytest.param(name, kind, marks=pytest.mark.slow)
            for name in SCALED
            if name not in ("line", "plane")
            for kind in ("constant", "tiny", "huge")
        ),
        pytest.param("line of blocks", "noise", marks=pytest.mark.slow),
    ],
)
def test_scaled_products_are_as_precise_as_tf32(name: str, kind: str) -> None:
    case = LAYOUTS[name]
    assert relative_errors(case, *tensors(case, kind)).max() <= 4e-3


@pytest.mark.usefixtures("scaled")
@pytest.mark.parametrize("kind", ["uneven", *(pytest.param(k, marks=pytest.mark.slow) for k in ("constant", "huge"))])
def test_blocks_scaled_separately(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = launch.tuning
    monkeypatch.setattr(launch, "tuning", lambda *how: replace(usual(*how), by_library=True))
    launch.make_call.cache_clear()
    case = Case((1, 1, 8192), (1, 1, 8192), 1, causal=True)
    assert launch.Call((1, 1, 8192), (8192,), torch.float32, torch.device(DEVICE), True, (False,)).by_rows
    assert relative_errors(case, *tensors(case, kind)).max() <= 4e-3
    launch.make_call.cache_clear()


@pytest.mark.usefixtures("scaled")
@pytest.mark.parametrize("name", ["line", "plane", "rows of a torus"])
def test_scaled_products_with_channels_of_very_different_size(name: str) -> None:
    case = LAYOUTS[name]
    x, kernel = case.tensors(torch.float32)
    x[:, 0] *= 1e6
    kernel[-1] *= 1e6
    assert relative_errors(case, x, kernel).max() <= 2e-3


@pytest.mark.usefixtures("scaled")
@pytest.mark.parametrize(
    "name",
    [
        "rows of a plane",
        "slices with kernels of more rows",
        pytest.param("line of blocks", marks=pytest.mark.slow),
    ],
)
def test_scaled_products_of_few_signals(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = launch.tuning
    monkeypatch.setattr(launch, "tuning", lambda *how: replace(usual(*how), fused_batch=2, fused_batch_backward=2))
    launch.make_call.cache_clear()
    case = LAYOUTS[name]
    x, kernel = case.tensors(torch.float32)
    assert relative_errors(case, x * 1e3, kernel * 1e-3).max() <= 2e-3
    launch.make_call.cache_clear()


@pytest.mark.usefixtures("scaled")
def test_scaled_products_of_half_precision() -> None:
    for name in ("line", "slices"):
        assert_right(LAYOUTS[name], torch.float16)


def relative_errors(case: Case, x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """Return the errors of output and both gradients, (3, channels)."""
    errors = []
    for a, b, axis in zip(*results(case, x, kernel), (1, 1, 0), strict=True):
        rest = [d for d in range(a.dim()) if d != axis]
        errors.append((a - b).square().sum(rest).sqrt() / b.square().sum(rest).sqrt())
    return torch.stack(errors).detach()


def test_tf32_precision_uses_scaled_products(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tensorcore.scaled(torch.float32, (1024,))  # torch's own setting is "highest"
    assert tensorcore.scaled(torch.float16, (1024,))
    assert not tensorcore.scaled(torch.bfloat16, (1024,))
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert tensorcore.scaled(torch.float32, (1024,))
    assert tensorcore.scaled(torch.float32, (32, 8))
    assert not tensorcore.scaled(torch.float32, (256,))
    monkeypatch.setattr(tensorcore, "SCALED", False)
    assert not tensorcore.scaled(torch.float32, (1024,))


@pytest.mark.usefixtures("scaled")
def test_zeros_and_infinities_are_preserved() -> None:
    case = LAYOUTS["line"]
    x, kernel = (t.to(DEVICE) for t in case.tensors(torch.float32))
    x[0, 0], x[1, 1, 7] = 0.0, float("inf")
    with np.errstate(invalid="ignore"):
        y = conv(x, kernel, **case.how, method="triton")
    assert (y[0, 0] == 0).all()
    assert not y[1, 1].isfinite().all()
    others = torch.ones(2, 3, dtype=torch.bool)
    others[1, 1] = False
    assert y[others].isfinite().all()
