"""Penalties on generated kernels."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn

from kernelfield import CCNN, CKConv, FlexConv, FlexNet, aliasing_loss, create_model, kernel_l2, kernel_norm
from kernelfield.fields import SIREN, Field, FourierFilter, MAGNet
from kernelfield.groups import SO2, Cyclic
from kernelfield.layers import ContinuousConv, GroupConv, LiftingConv, kernel_frequency, nyquist
from kernelfield.layers.continuous.kernel_sampler import sampled_once
from kernelfield.models.partial_gcnn import PartialGCNN


def test_kernel_l2_sums_over_layers() -> None:
    net = nn.Sequential(CKConv(1, 2, size=8), nn.ReLU(), FlexConv(2, 2, size=8))
    wanted = sum((layer.kernel().square().sum() / 2 for layer in (net[0], net[2])), torch.zeros(()))
    torch.testing.assert_close(kernel_l2(net), wanted)
    assert kernel_l2(nn.Linear(2, 2)) == 0


def test_kernel_l2_shrinks_kernels() -> None:
    net = CCNN(1, 2, size=32, channels=4, blocks=1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    before = kernel_l2(net).item()
    for _ in range(20):
        optimizer.zero_grad()
        kernel_l2(net).backward()
        optimizer.step()
    assert kernel_l2(net) < before / 2


def test_kernel_norm_counts_the_selected_parameters() -> None:
    net = CCNN(1, 2, size=8, channels=4, blocks=1)
    layers = [m for m in net.modules() if isinstance(m, ContinuousConv)]
    kernels = torch.stack([layer.kernel().norm() for layer in layers]).sum()
    inside = {id(p) for m in net.modules() if isinstance(m, Field) for p in m.parameters()}
    others = torch.stack([p.norm() for p in net.parameters() if id(p) not in inside]).sum()
    biases = sum((layer.bias.norm() for layer in layers if layer.bias is not None), torch.zeros(()))
    torch.testing.assert_close(kernel_norm(net, parameters="none"), kernels)
    torch.testing.assert_close(kernel_norm(net, parameters="biases"), kernels + biases)
    torch.testing.assert_close(kernel_norm(net), kernels + others)
    assert kernel_norm(nn.Identity()) == 0
    with pytest.raises(ValueError, match=r"\bparameters must"):
        kernel_norm(net, parameters="some")


def test_kernel_norm_has_finite_gradients_where_parameters_are_zero() -> None:
    net = CCNN(1, 2, size=8, channels=4, blocks=1)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name.endswith("bias"):
                p.zero_()
    kernel_norm(net).backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in net.parameters())


def test_kernels_on_groups_are_penalised_as_rendered() -> None:
    net = nn.Sequential(
        LiftingConv(1, 2, group=Cyclic(4), kernel_size=3), GroupConv(2, 3, group=Cyclic(4), kernel_size=3)
    )
    kernels = [layer.kernel() for layer in net]
    torch.testing.assert_close(kernel_l2(net), torch.stack([k.square().sum() / 2 for k in kernels]).sum())
    torch.testing.assert_close(kernel_norm(net, parameters="none"), torch.stack([k.norm() for k in kernels]).sum())


@pytest.mark.parametrize("name", ["ckcnn_2_30", "ccnn_4_140", "partial"])
def test_penalties_sample_no_kernel_that_the_forward_pass_has_sampled(name: str) -> None:
    if name == "partial":
        net: nn.Module = PartialGCNN(1, 3, group=SO2(), samples=4, channels=(2, 2, 2, 2), kernel_size=3)
        x = torch.randn(2, 1, 12, 12)
    else:
        net, x = create_model(name, in_channels=1, out_channels=3, size=16, channels=4), torch.randn(2, 1, 16)
    calls: list[str] = []
    for module in net.modules():
        if isinstance(module, Field):
            module.register_forward_hook(lambda m, *_: calls.append(type(m).__name__))
    with sampled_once():
        net(x)
        before = len(calls)
        norm = kernel_norm(net)
        assert len(calls) == before
        norm.backward()
    assert all(p.grad is not None for m in net.modules() if isinstance(m, Field) for p in m.parameters())


def test_aliasing_loss_has_the_published_unit() -> None:
    """A kernel of k points over [-1, 1] has frequencies half of those it has where 1 is the input's length."""
    layer = FlexConv(1, 1, size=8, sigma=0.05)
    torch.testing.assert_close(aliasing_loss(layer), aliasing_loss(layer, unit=1.0) / 4)
    with pytest.raises(ValueError, match=r"\bunit must"):
        aliasing_loss(layer, unit=0)


@pytest.mark.parametrize(
    ("per_filter", "with_mask"),
    [(True, False), (False, True), *(pytest.param(flag, flag, marks=pytest.mark.slow) for flag in (True, False))],
)
def test_training_with_the_aliasing_loss_brings_frequencies_under_nyquist(per_filter: bool, with_mask: bool) -> None:
    net = FlexNet(1, 2, size=16, channels=4, widths=(1,), hidden=8, omega_0=0.5, sigma=0.3)
    layers = [m for m in net.modules() if isinstance(m, FlexConv)]

    def frequency(layer: FlexConv) -> torch.Tensor:
        return kernel_frequency(layer) if with_mask else layer.field.max_frequency()

    assert all(frequency(layer) > nyquist(layer) for layer in layers)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.5)
    for _ in range(600):
        optimizer.zero_grad()
        aliasing_loss(net, per_filter=per_filter, with_mask=with_mask).backward()
        optimizer.step()
    assert all(frequency(layer) < 1.02 * nyquist(layer) for layer in layers)


def test_frequencies_add_and_are_measured_against_the_shortest_axis() -> None:
    """Chapter 5, Eq. 10 to 12: the filters' frequencies, a Gaussian's 1/(2πσ) per deviation, half the samples."""
    layer = FlexConv(2, 2, dim=2, size=(24, 10), sigma=(0.3, 0.06))
    assert nyquist(layer) == 5
    for cut in (1.0, 2.0):
        filters, mask = layer.field.bandwidths(cut), cut / (2 * math.pi * 0.06)
        torch.testing.assert_close(kernel_frequency(layer, cut), filters.sum() + mask)
        each = (filters + (mask - 0.5 * 5) / len(filters)).clamp(min=0).square().sum()
        torch.testing.assert_close(aliasing_loss(layer, nyquist_factor=0.5, cut=cut, unit=1.0), each)
        together = (filters.sum() + mask - 0.5 * 5).clamp(min=0).square()
        found = aliasing_loss(layer, nyquist_factor=0.5, cut=cut, unit=1.0, per_filter=False)
        torch.testing.assert_close(found, together)


def test_aliasing_loss_is_zero_under_nyquist_and_grows_above() -> None:
    layer = FlexConv(1, 1, size=64, field=partial(MAGNet, omega_0=0.01, alpha=1.0), sigma=0.5)
    assert aliasing_loss(layer) == 0
    assert aliasing_loss(layer, nyquist_factor=0.01) > 0
    with_mask, without = (aliasing_loss(layer, nyquist_factor=0.1, with_mask=flag) for flag in (True, False))
    assert with_mask > without


def test_aliasing_loss_has_gradients_for_field_and_mask() -> None:
    layer = FlexConv(1, 1, size=8, sigma=0.05)
    aliasing_loss(layer).backward()
    assert layer.field.frequency.grad.abs().max() > 0
    assert layer.field.gamma.grad.abs().max() > 0
    assert layer.mask.sigma.grad.abs().max() > 0


def test_fields_of_unknown_frequency_are_skipped() -> None:
    assert aliasing_loss(CKConv(1, 1, size=8, field=SIREN)) == 0
    assert kernel_frequency(CKConv(1, 1, size=8, field=SIREN)) is None
    assert aliasing_loss(CKConv(1, 1, size=8, field=partial(FourierFilter, omega_0=20.0))) > 0


def test_the_closed_form_bounds_the_measured_spectrum() -> None:
    """Under one percent of a masked kernel's energy lies above the frequency that the loss is told."""
    layer = FlexConv(1, 8, size=32, field=partial(MAGNet, omega_0=1.0), sigma=0.2, threshold=1e-4)
    step = 1 / 32
    kernel = layer.kernel(step)
    spectrum = torch.fft.rfft(kernel).abs().square().sum((0, 1))
    cycles_per_unit = torch.fft.rfftfreq(kernel.shape[-1], d=step / 32)
    above = spectrum[cycles_per_unit > kernel_frequency(layer)].sum()
    assert above < 0.01 * spectrum.sum()


def test_kernels_of_many_layers_are_penalised_together() -> None:
    net = CCNN(1, 3, size=16, channels=4, blocks=2).double()
    layers = [m for m in net.modules() if isinstance(m, ContinuousConv)]
    alone = torch.stack([layer.kernel().square().sum() / 2 for layer in layers]).sum()
    penalty = kernel_l2(net)
    torch.testing.assert_close(penalty, alone)
    parameters = [p for layer in layers for p in layer.field.parameters()]
    for a, b in zip(*(torch.autograd.grad(y, parameters) for y in (penalty, alone)), strict=True):
        torch.testing.assert_close(a, b)
