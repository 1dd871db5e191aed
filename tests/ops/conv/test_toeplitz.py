"""Toeplitz products for short lines against float64, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import builtins

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime import interpreter as interpreter_module

from kernelfield.ops import conv
from kernelfield.ops.conv import triton as tensorcore
from kernelfield.ops.conv.triton import selfcheck
from tests.contracts.convolutions import Case
from tests.ops.interpreted import DEVICE, interpreter, launch, lines, poisoned

__all__ = ["interpreter"]

TILES = {
    "small tiles": lines.ToeplitzTile(outputs=64),
    "copies": lines.ToeplitzTile(copies=True),
    "wide window": lines.ToeplitzTile(window=256, inputs=32),
}


@st.composite
def short_lines(draw: st.DrawFn) -> Case:
    length = draw(st.integers(1, 300))
    points, batch, channels = draw(st.integers(1, 2 * length)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return Case((batch, channels, length), (channels, 1, points), channels, causal=draw(st.booleans()))


def assert_right(case: Case, tile: lines.ToeplitzTile, rounding: float = 3e-6) -> None:
    """Compare output and both gradients with float64. Outputs are filled with NaN first."""
    x, kernel = (t.to(DEVICE) for t in case.tensors(torch.float32))
    grad = torch.randn(x.shape).to(DEVICE)
    with poisoned():
        got = [lines.toeplitz_conv(x, kernel, case.causal, tile)]
        got += lines.toeplitz_grads(grad, x, kernel, (True, True), case.causal, tile)
    exact = [t.double().requires_grad_() for t in (x, kernel)]
    y = conv(*exact, **case.how, method="fft")
    for a, b in zip(got, [y, *torch.autograd.grad(y, exact, grad.double())], strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= rounding * b.abs().max().clamp(min=1e-6)


@settings(max_examples=8)
@given(case=short_lines(), tile=st.sampled_from(list(TILES.values())))
def test_any_short_line_equals_float64(case: Case, tile: lines.ToeplitzTile) -> None:
    assert_right(case, tile)


@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
def test_more_signals_than_one_product_has_rows(tile: lines.ToeplitzTile) -> None:
    assert_right(Case((70, 1, 65), (1, 1, 129), 1), tile)


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU does nothing else")
@pytest.mark.parametrize("causal", [True, False])
def test_loops_only_over_needed_inputs(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a GPU every program computes its own bounds; numpy makes no numbers of the interpreter's scalars any more.
    class Whole(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, builtins.int)

        def __call__(cls, number: object) -> int:
            return builtins.int(number.item() if isinstance(number, np.ndarray) else number)  # type: ignore[call-overload]

    usual = lines._arguments

    def as_on_gpu(*args: object) -> object:
        kernel, numbers, how = usual(*args)
        return kernel, numbers, how | {"STEPS": 0}

    monkeypatch.setattr(interpreter_module, "int", Whole("int", (), {}), raising=False)
    monkeypatch.setattr(lines, "_arguments", as_on_gpu)
    for points in (7, 200, 399):
        assert_right(Case((2, 1, 200), (1, 1, points), 1, causal=causal), lines.ToeplitzTile(outputs=64))


def test_short_lines_use_toeplitz_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorcore, "FEWEST", 2)
    used = []
    usual = lines.toeplitz_conv
    monkeypatch.setattr(lines, "toeplitz_conv", lambda *args: used.append(args) or usual(*args))
    case = Case((2, 2, 45), (2, 1, 45), 2, causal=True)
    x, kernel = (t.to(DEVICE).requires_grad_() for t in case.tensors(torch.bfloat16))
    y = conv(x, kernel, **case.how, method="triton")
    got = torch.autograd.grad(y.float().square().sum(), (x, kernel))
    exact = [t.detach().double().requires_grad_() for t in (x, kernel)]
    expected = torch.autograd.grad(conv(*exact, **case.how, method="fft").square().sum(), exact)
    assert len(used) == 1
    for a, b in zip(got, expected, strict=True):
        assert (a - b).norm() <= 2e-2 * b.norm()


@pytest.mark.parametrize(
    ("shape", "dtype", "periodic"),
    [
        ((64, 1, 513), torch.bfloat16, False),
        ((3, 1, 40), torch.bfloat16, False),
        ((64, 1, 40), torch.float32, False),
        ((64, 1, 40), torch.float16, False),
        ((64, 1, 40), torch.bfloat16, True),
        ((64, 1, 8, 8), torch.bfloat16, False),
    ],
)
def test_long_lines_small_batches_and_other_dtypes_use_the_transform(
    shape: tuple[int, ...], dtype: torch.dtype, periodic: bool
) -> None:
    x = torch.empty(shape, dtype=dtype, device="meta")
    assert not tensorcore._is_short(x, [periodic])
    assert tensorcore._is_short(torch.empty(64, 1, 512, dtype=torch.bfloat16, device="meta"), [False])


def test_a_single_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorcore, "FEWEST", 1)
    case = Case((1, 1, 30), (1, 1, 30), 1, causal=True)
    for learned in (0, 1):
        tensors = [t.to(DEVICE) for t in case.tensors(torch.bfloat16)]
        tensors[learned].requires_grad_()
        got, expected = (
            torch.autograd.grad(conv(*tensors, **case.how, method=m).float().square().sum(), tensors[learned])[0]
            for m in ("triton", "fft")
        )
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2 * expected.abs().max().item())


def test_toeplitz_tiles_that_do_not_fit_fall_back_to_the_fft(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise launch.TooLarge(300_000, 232_448, "shared memory")

    monkeypatch.setattr(tensorcore, "FEWEST", 1)
    monkeypatch.setattr(selfcheck, "_refused", set())
    monkeypatch.setattr(lines, "toeplitz_conv", fail)
    x, kernel = (torch.randn(1, n, 30, dtype=torch.bfloat16, device=DEVICE) for n in (1, 1))
    with pytest.warns(UserWarning, match="does not fit this GPU"):
        y = conv(x, kernel, method="triton")
    assert y.equal(conv(x, kernel, method="fft"))
