"""Tensor-core results are compared with an FFT the first time a shape is used."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from kernelfield.ops.conv.fft import transform_conv, transform_grads
from kernelfield.ops.conv.triton import selfcheck

HOW = True, [False]


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "_verified", set())
    monkeypatch.setattr(selfcheck, "_refused", set())


def problem(channels: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, channels, 40), torch.randn(channels, 1, 40), torch.randn(3, channels, 40)


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_a_correct_result_is_returned_and_not_compared_again(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, kernel, grad = problem(channels)
    y = transform_conv(x, kernel, *HOW, channels)
    grads = transform_grads(grad, x, kernel, (True, True), *HOW, channels)
    for _ in range(2):
        assert selfcheck.verified_conv(y, x, kernel, "tf32x3", *HOW) is y
        assert selfcheck.verified_grads(grads, grad, x, kernel, "tf32x3", (True, True), *HOW) is grads
        monkeypatch.setattr(selfcheck, "transform_conv", None)
        monkeypatch.setattr(selfcheck, "transform_grads", None)
    assert not selfcheck.is_refused(x, kernel)


def test_a_wrong_output_is_replaced_and_remembered() -> None:
    x, kernel, _ = problem()
    y = transform_conv(x, kernel, *HOW, 5)
    wrong = y.clone()
    wrong[2, 4, 7:] = 0
    with pytest.warns(UserWarning, match=r"of \(3, 5, 40\) with \(5, 1, 40\), torch.float32, is wrong on this GPU"):
        got = selfcheck.verified_conv(wrong, x, kernel, "bfloat16", *HOW)
    assert got.equal(y)
    assert selfcheck.is_refused(x, kernel)
    assert not selfcheck.is_refused(x[:2], kernel)


@pytest.mark.parametrize("which", [0, 1])
def test_a_wrong_gradient_is_replaced(which: int) -> None:
    x, kernel, grad = problem()
    grads = transform_grads(grad, x, kernel, (True, True), *HOW, 5)
    wrong = tuple(g.flip(-1) if i == which else g for i, g in enumerate(grads))
    with pytest.warns(UserWarning, match="wrong gradients"):
        got = selfcheck.verified_grads(wrong, grad, x, kernel, "bfloat16", (True, True), *HOW)
    assert all(a.equal(b) for a, b in zip(got, grads, strict=True))


def test_a_gradient_that_is_not_needed_is_not_compared() -> None:
    x, kernel, grad = problem()
    need = False, True
    grads = transform_grads(grad, x, kernel, need, *HOW, 5)
    assert selfcheck.verified_grads((x[:0], grads[1]), grad, x, kernel, "tf32", need, *HOW)[1] is grads[1]


def test_nan_is_wrong_unless_the_input_has_nan() -> None:
    x, kernel, _ = problem()
    with pytest.warns(UserWarning, match="is wrong"):
        selfcheck.verified_conv(torch.full_like(x, torch.nan), x, kernel, "bfloat16", *HOW)


@pytest.mark.parametrize("value", [0.0, torch.inf, torch.nan])
def test_inconclusive_values_are_compared_again(value: float) -> None:
    x, kernel, _ = problem()
    empty = torch.full_like(x, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert selfcheck.verified_conv(x, empty, kernel, "tf32", *HOW) is x
    with pytest.warns(UserWarning, match="is wrong"):
        selfcheck.verified_conv(x, x, kernel, "tf32", *HOW)


def test_rounding_of_signals_that_cancel_is_not_an_error() -> None:
    # Cosines of one frequency, a kernel of another: the output is tiny, the spectra it is computed from are not.
    t = torch.arange(64) / 64
    x, kernel = torch.cos(2 * torch.pi * 3 * t).view(1, 1, -1), torch.cos(2 * torch.pi * 9 * t).view(1, 1, -1)
    y = transform_conv(x, kernel, True, [True], 1)
    assert selfcheck.verified_conv(y + 1e-2, x, kernel, "bfloat16", True, [True]) is not None
    assert not selfcheck.is_refused(x, kernel)


def test_the_comparison_can_be_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "CHECKS", False)
    x, kernel, _ = problem()
    assert selfcheck.verified_conv(x, x, kernel, "tf32", *HOW) is x
