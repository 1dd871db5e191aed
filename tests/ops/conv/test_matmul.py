"""Convolution by matrix products: the contract, digits of transforms, bfloat16 and memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelfield.ops import conv
from kernelfield.ops.conv import matmul
from kernelfield.ops.conv.matmul import has_products
from kernelfield.ops.conv.triton import plan as plans
from tests.contracts.convolutions import KINDS, Case, ConvContract, cases
from tests.ops.conv.test_fft import peak_bytes


class TestMatmul(ConvContract):
    method = "matmul"


def assert_equals_the_fft(case: Case) -> None:
    tensors = [t.requires_grad_() for t in case.tensors()]
    y, expected = (conv(*tensors, **case.how, method=method) for method in ("matmul", "fft"))
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)
    weights = torch.randn_like(y)
    found, wanted = (torch.autograd.grad(t, tensors, weights) for t in (y, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


LONG = {
    "line of two digits": Case((2, 3, 700), (2, 3, 1399)),
    "causal line": Case((2, 3, 300), (2, 3, 600), causal=True),
    "circle of two digits": Case((1, 2, 270), (2, 2, 540), boundary="periodic"),
    "tall plane": Case((1, 2, 300, 5), (2, 2, 599, 9)),
    "groups": Case((2, 6, 260), (4, 3, 17), groups=2),
}


@pytest.mark.parametrize("case", LONG.values(), ids=LONG)
def test_long_axes_equal_the_fft(case: Case) -> None:
    assert_equals_the_fft(case)


@settings(max_examples=40)
@given(case=cases(), single=st.integers(1, 4))
def test_any_shape_in_several_digits_equals_the_fft(case: Case, single: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"LONGEST_SINGLE": single, "LONGEST_DIGIT": 16, "ALIGNMENT": 1}.items():
            patch.setattr(plans, name, value)
        clear()
        try:
            assert_equals_the_fft(case)
        finally:
            clear()


def clear() -> None:
    plans.find_digits.cache_clear()
    matmul._products.cache_clear()


def test_lengths_without_products_use_the_fft() -> None:
    assert has_products((16384,), (16384,), True, (False,))
    assert has_products((512, 512), (1023, 1023), False, (False, False))
    assert not has_products((16385,), (16385,), True, (False,))
    assert not has_products((257,), (257,), False, (True,))  # a prime number
    x, kernel = torch.randn(2, 3, 257), torch.randn(2, 3, 257)
    how = {"boundary": "periodic"}
    assert conv(x, kernel, **how, method="matmul").equal(conv(x, kernel, **how, method="fft"))


@pytest.mark.parametrize("name", ["dense", "causal", "plane", "space"])
def test_products_in_bfloat16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a GPU. There products of spectra are rounded too.
    monkeypatch.setattr(matmul, "_working_dtype", lambda x: x.dtype)
    case = LONG["causal line"] if name == "causal" else KINDS[name]
    tensors = [t.requires_grad_() for t in case.tensors(torch.bfloat16)]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    y, expected = conv(*tensors, **case.how, method="matmul"), conv(*exact, **case.how, method="fft")
    weights = torch.randn_like(y)
    found = y, *torch.autograd.grad(y, tensors, weights)
    wanted = expected, *torch.autograd.grad(expected, exact, weights.double())
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == torch.bfloat16
        assert (a.double() - b).norm() <= 1.2e-2 * b.norm()


def test_operators_pass_opcheck() -> None:
    case = KINDS["causal"]
    x, kernel = (t.requires_grad_() for t in case.tensors())
    how = case.causal, [False], case.groups
    grad = torch.randn(x.shape[0], kernel.shape[0], x.shape[2], dtype=x.dtype, requires_grad=True)
    torch.library.opcheck(torch.ops.kernelfield.matmul_conv.default, (x, kernel, *how))
    torch.library.opcheck(torch.ops.kernelfield.matmul_conv_grads.default, (grad, x, kernel, True, True, *how))


@pytest.mark.slow
def test_training_takes_less_memory_than_the_formula() -> None:
    x, kernel = torch.randn(8, 16, 1024, requires_grad=True), torch.randn(16, 16, 1024, requires_grad=True)

    def formula() -> torch.Tensor:
        spectra = (torch.fft.rfft(t, 2048) for t in (x, kernel))
        return torch.fft.irfft(torch.einsum("bif,oif->bof", *spectra), 2048)[..., :1024]

    def ours() -> torch.Tensor:
        return conv(x, kernel, causal=True, method="matmul")

    torch.testing.assert_close(ours(), formula(), rtol=1e-3, atol=1e-2)
    conv(x, kernel, causal=True, method="matmul")
    peaks = [peak_bytes(lambda f=f: torch.autograd.grad(f().sum(), (x, kernel))) for f in (ours, formula)]
    assert peaks[0] < 0.6 * peaks[1]  # half of that in bfloat16
