"""Penalties on generated kernels."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from kernelfield import CCNN, CKConv, FlexConv, FlexNet, aliasing_loss, kernel_l2
from kernelfield.fields import SIREN, FourierFilter, MAGNet
from kernelfield.layers import ContinuousConv, kernel_frequency, nyquist


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


@pytest.mark.parametrize("per_filter", [True, False])
@pytest.mark.parametrize("with_mask", [True, False])
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


def test_aliasing_loss_is_zero_under_nyquist_and_grows_above() -> None:
    layer = FlexConv(1, 1, size=64, field=partial(MAGNet, omega_0=0.01), sigma=0.5)
    assert aliasing_loss(layer) == 0
    assert aliasing_loss(layer, nyquist_factor=0.01) > 0
    with_mask, without = (aliasing_loss(layer, nyquist_factor=0.1, with_mask=flag) for flag in (True, False))
    assert with_mask > without


def test_aliasing_loss_reaches_every_parameter_it_is_about() -> None:
    layer = FlexConv(1, 1, size=8, sigma=0.05)
    aliasing_loss(layer).backward()
    assert layer.field.frequency.grad.abs().max() > 0
    assert layer.field.gamma.grad.abs().max() > 0
    assert layer.mask.sigma.grad.abs().max() > 0


def test_fields_of_unknown_frequency_are_passed_over() -> None:
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
