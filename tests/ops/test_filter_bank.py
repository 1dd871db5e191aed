"""A bank of kernels of different lengths: every path against the convolution with each of them."""

from __future__ import annotations

import pytest
import torch

from kernelfield.fields import BSpline
from kernelfield.ops import Dilated, conv, conv_bank, conv_reference
from kernelfield.ops.conv.measured import forget
from kernelfield.ops.filter_bank import PATHS
from kernelfield.ops.filter_bank import _cheapest_paths as cheapest_paths
from kernelfield.ops.filter_bank import _known_paths as known_paths
from kernelfield.testing import assert_compiles, assert_exports

F64 = {"dtype": torch.float64}


def splines(dilations=(1, 2, 3, 8), out=2, into=3, taps=5, order=2, **options):
    return [Dilated(torch.randn(out, into, taps, **F64, **options), s, order) for s in dilations]


def reference(x, kernel, boundary="zero"):
    """The convolution with a kernel of any length, as a sum over its points."""
    dense = kernel.sampled() if isinstance(kernel, Dilated) else kernel
    centre, length = (dense.shape[-1] - 1) // 2, x.shape[-1]
    y = torch.zeros(len(x), len(dense), length, dtype=x.dtype)
    for t in range(length):
        for j in range(dense.shape[-1]):
            at = t + centre - j
            if boundary == "periodic":
                at %= length
            if 0 <= at < length:
                y[..., t] += x[..., at] @ dense[..., j].T
    return y


@pytest.mark.parametrize("method", PATHS)
@pytest.mark.parametrize("boundary", ["zero", "periodic"])
@pytest.mark.parametrize("length", [40, 13], ids=["long", "shorter than the kernels"])
def test_every_path_is_the_convolution(method, boundary, length):
    x = torch.randn(2, 3, length, **F64)
    kernels = [*splines(), *splines(taps=1), *splines(order=1), torch.randn(4, 3, 6, **F64)]
    for y, kernel in zip(conv_bank(x, kernels, boundary=boundary, method=method), kernels, strict=True):
        torch.testing.assert_close(y, reference(x, kernel, boundary))


@pytest.mark.parametrize("order", [0, 1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2, 3, 4])
def test_a_dilated_kernel_is_the_spline_field(order, dilation):
    field = BSpline(1, 1, size=5, order=order).double()
    kernel = Dilated(field.coefficients.detach().view(1, 1, -1), dilation, order)
    radius = (kernel.points - 1) // 2
    offset = torch.arange(-radius, radius + 1, **F64)
    values = field(offset[:, None] / (2 * dilation))[:, 0]
    torch.testing.assert_close(kernel.sampled()[0, 0], values)


@pytest.mark.parametrize("method", PATHS)
def test_gradients(method):
    x = torch.randn(1, 2, 9, **F64, requires_grad=True)
    bank = splines((1, 3), into=2, taps=3, requires_grad=True)

    def call(signal, *weights):
        return tuple(
            conv_bank(signal, [k._replace(weights=w) for k, w in zip(bank, weights, strict=True)], method=method)
        )

    assert torch.autograd.gradcheck(call, (x, *(k.weights for k in bank)))


def test_planes_share_a_transform_too():
    x = torch.randn(2, 3, 9, 12, **F64)
    kernels = [torch.randn(2, 3, 3, 3, **F64), torch.randn(5, 3, 8, 5, **F64)]
    for method in ("auto", "direct", "fft"):
        for y, kernel in zip(conv_bank(x, kernels, method=method), kernels, strict=True):
            torch.testing.assert_close(y, conv_reference(x, kernel))


def test_short_kernels_are_summed_and_long_ones_transformed_once():
    shape = (1, 1, 80_200)
    shapes = tuple((16, 1, 78 * 2**j + 1) for j in range(9))
    for training in (False, True):
        paths = cheapest_paths(shape, shapes, (None,) * 9, False, "cpu", training)
        assert paths == sorted(paths)  # direct, then fft
        assert (paths[0], paths[-1]) == ("direct", "fft")
        forms = tuple((79, 2 * (3 * 2**j // 2) + 1) for j in range(9))
        assert "dilated" in cheapest_paths(shape, shapes, forms, False, "cpu", training)


def test_the_transform_of_the_signal_is_shared(monkeypatch):
    x = torch.randn(1, 1, 500)
    kernels = [torch.randn(3, 1, n) for n in (201, 401, 801)]
    seen = []
    transform = torch.fft.rfft
    monkeypatch.setattr(torch.fft, "rfft", lambda v, *a, **k: seen.append(tuple(v.shape)) or transform(v, *a, **k))
    conv_bank(x, kernels, method="fft")
    assert len(seen) == 2  # the signal, and all kernels
    seen.clear()
    for kernel in kernels:
        conv(x, kernel, method="fft")
    assert len(seen) == 6


class Bank(torch.nn.Module):
    def __init__(self, method="auto"):
        super().__init__()
        self.weights, self.method = torch.nn.Parameter(torch.randn(4, 2, 5)), method

    def forward(self, x):
        return torch.stack(conv_bank(x, [Dilated(self.weights, s) for s in (1, 2, 8)], method=self.method), dim=2)


def test_compiles_exports_and_takes_half_precision():
    net, x = Bank(), torch.randn(2, 2, 60)
    assert_compiles(net, x)
    shapes = {"x": {0: torch.export.Dim("batch"), 2: torch.export.Dim("length", min=50)}}
    assert_exports(net.eval(), (x,), shapes, [(torch.randn(3, 2, 97),)])
    wanted = net(x)
    for method in PATHS:
        net.method = method
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = net(x)
        assert y.dtype == torch.bfloat16
        assert float((y - wanted).detach().norm() / wanted.detach().norm()) < 0.02


def test_signals_of_many_lengths_are_compiled_twice():
    compiled = []

    def count(module, _):
        compiled.append(module)
        return module.forward

    kernels = [torch.randn(3, 2, 5), torch.randn(3, 2, 9)]
    torch.compiler.reset()
    run = torch.compile(lambda x: conv_bank(x, kernels), backend=count, fullgraph=True)
    for batch, length in ((2, 40), (3, 50), (1, 300), (2, 64)):
        x = torch.randn(batch, 2, length)
        torch.testing.assert_close(run(x), conv_bank(x, kernels), rtol=1e-4, atol=1e-4)
    torch.compiler.reset()
    assert len(compiled) <= 3


@pytest.mark.parametrize("boundary", ["zero", "periodic"])
def test_compiles_with_every_size_symbolic(boundary):
    torch.compiler.reset()
    banks = {
        "kernels": lambda x, w: conv_bank(x, [w, w[:2]], boundary=boundary),
        "splines": lambda x, w: conv_bank(x, [Dilated(w, 2), Dilated(w, 4)], boundary=boundary),
    }
    for bank in banks.values():
        run = torch.compile(bank, backend="eager", fullgraph=True, dynamic=True)
        for length, points in ((40, 5), (33, 7)):
            x, weights = torch.randn(2, 3, length), torch.randn(4, 3, points)
            torch.testing.assert_close(run(x, weights), bank(x, weights), rtol=1e-4, atol=1e-4)
    torch.compiler.reset()


def test_bad_method():
    with pytest.raises(ValueError, match=r"\bmethod must"):
        conv_bank(torch.randn(1, 1, 9), [torch.randn(1, 1, 3)], method="dct")


@pytest.mark.parametrize("length", [1, 2, 7, 30, 60])
def test_only_the_part_of_a_long_kernel_that_meets_the_signal_is_sampled(length):
    for kernel in splines(dilations=(1, 2, 16), taps=7):
        whole = torch.nn.functional.pad(kernel.sampled(), (length, length))
        centre = (whole.shape[-1] - 1) // 2
        torch.testing.assert_close(kernel.near(length), whole[..., centre + 1 - length : centre + length])


@pytest.mark.parametrize("method", PATHS)
@pytest.mark.parametrize("length", [20, 5], ids=["long", "shorter than the kernels"])
def test_boxes_of_even_length(method, length):
    x, kernels = torch.randn(2, 3, length, **F64), splines(dilations=(2, 4), order=0)
    for y, kernel in zip(conv_bank(x, kernels, method=method), kernels, strict=True):
        torch.testing.assert_close(y, reference(x, kernel))


def test_choices_are_made_again_when_costs_change():
    conv_bank(torch.randn(1, 1, 30), [torch.randn(1, 1, 3)])
    assert known_paths.cache_info().currsize > 0
    forget()
    assert known_paths.cache_info().currsize == 0
