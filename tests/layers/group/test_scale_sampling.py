"""Layers on dilations of the line (chapter 10): scales that are drawn at random, and subsets that are learned."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernelfield.fields import BSpline
from kernelfield.groups import Scale
from kernelfield.layers.group import GroupConv, GroupSignal, LiftingConv, PartialGroupConv
from tests.layers.group.scale_layers import F64, Smooth, burst, seeded


def monte_carlo(samples, layer=GroupConv, scales=4, field=Smooth):
    group = Scale(scales, continuous=True)
    lift = seeded(LiftingConv, 1, 2, group=group, field=field, kernel_size=5, samples=samples)
    conv = seeded(
        layer, 2, 2, group=group, field=field, kernel_size=5, samples=samples, interactions=3, scale_boundary="valid"
    )
    return lift, conv


def test_drawn_scales_lie_in_the_window():
    lift, conv = monte_carlo(6)
    x = torch.randn(2, 1, 60, **F64)
    signal = lift(x)
    assert signal.values.shape == (2, 2, 6, 60)
    assert 0 <= float(signal.elements.min()) <= float(signal.elements.max()) <= 3
    out = conv(signal)
    assert float(out.elements.max()) <= 1  # what spans three scales of four begins at the first two
    assert not lift(x).elements.equal(signal.elements)
    assert lift.eval()(x).elements.equal(lift(x).elements)
    assert torch.allclose(
        Scale(4, continuous=True).spread(3, torch.tensor([0.5])).flatten(), torch.tensor([0.5, 1.5, 2.5])
    )


def test_monte_carlo_scales_are_unbiased():
    """The mean over draws of few scales is the integral over all of them."""
    lift, conv = monte_carlo(2)
    x = torch.randn(1, 1, 40, **F64)
    here = torch.tensor([[0.5]], **F64)
    with torch.no_grad():
        lift.distribution.samples = 1000
        truth = conv(lift.eval()(x), out_elements=here).values
        lift.train().distribution.samples = 2
        draws = torch.stack([conv(lift(x), out_elements=here).values for _ in range(600)])
    one = float((draws - truth).square().mean().sqrt())
    mean = float((draws.mean(dim=0) - truth).square().mean().sqrt())
    assert mean < 0.1 * one
    assert mean < 0.05 * float(truth.square().mean().sqrt())


def test_monte_carlo_scales_are_equivariant_in_expectation():
    """… to dilations between those of any grid: by √2, half a step of the window."""
    lift, conv = monte_carlo(3, scales=5, field=BSpline)
    t = torch.arange(-120, 121, **F64) / 4
    limits, means, errors = [], [], []
    for stretch, at in ((1.0, 1.0), (2**0.5, 1.5)):
        x, here = burst(t / stretch)[None, None], torch.tensor([[at]], **F64)
        with torch.no_grad():
            lift.eval().distribution.samples = 1000
            limits.append(conv(lift(x), out_elements=here).values[..., 120])
            lift.train().distribution.samples = 3
            # The middle of the signal stays where it is.
            draws = torch.stack([conv(lift(x), out_elements=here).values[..., 120] for _ in range(150)])
        means.append(draws.mean(dim=0))
        errors.append(draws.std(dim=0) / 150**0.5)
    assert float((limits[0] - limits[1]).norm() / limits[0].norm()) < 1e-3
    for mean, error in zip(means, errors, strict=True):
        assert bool(((mean - limits[0]).abs() < 4 * error).all())
    assert float(max(e.max() for e in errors)) < 0.1 * float(limits[0].norm())


@pytest.mark.parametrize("continuous", [False, True])
def test_a_partial_layer_on_all_scales_is_the_full_one(continuous):
    group = Scale(4, continuous=continuous)
    options = {"group": group, "field": Smooth, "samples": 4 if continuous else None, "interactions": 2}
    options |= {"scale_boundary": "valid", "kernel_size": 5}
    full, part = seeded(GroupConv, 2, 3, **options), seeded(PartialGroupConv, 2, 3, **options)
    part.kernel.load_state_dict(full.kernel.state_dict())
    with torch.no_grad():
        for name, p in part.distribution.named_parameters():
            p.fill_(1.0 if name.endswith("width") else 50.0)
    elements = group.spread(5, torch.tensor([0.5], **F64)) if continuous else group.elements(**F64)
    x = torch.randn(2, 2, len(elements), 30, **F64)
    x = GroupSignal(x, elements, group=group)
    a, b = full.eval()(x), part.eval()(x)
    torch.testing.assert_close(a.elements, b.elements)
    torch.testing.assert_close(a.values, b.values)


@pytest.mark.parametrize("continuous", [False, True])
def test_a_subset_of_one_scale_is_an_ordinary_convolution(continuous):
    group = Scale(4, continuous=continuous)
    part = seeded(PartialGroupConv, 2, 3, group=group, samples=6 if continuous else None, kernel_size=5, field=Smooth)
    with torch.no_grad():
        for name, p in part.distribution.named_parameters():
            p.fill_(0.0 if name.endswith("width") else -50.0)
    e = group.identity(**F64)[None]
    x = torch.randn(2, 2, 30, **F64)
    y = part.eval()(GroupSignal(x[:, :, None], e, group=group))
    assert y.elements.equal(e)
    weight = part.kernel(e, e)[:, 0, :, 0].flip(-1)
    measure = group.weight(1)
    torch.testing.assert_close(y.values[:, :, 0], measure * F.conv1d(x, weight, padding=weight.shape[-1] // 2))


def test_the_subset_of_scales_is_learned():
    """Asked for the response of the finest scale the interval shrinks, asked for that of all it grows."""
    for start, wanted, direction in ((0.9, 0.0, -1), (0.3, 1.0, 1)):
        lift, part = monte_carlo(6, PartialGroupConv)
        signal = lift.eval()(torch.randn(4, 1, 40, **F64))
        width = part.distribution.width
        with torch.no_grad():
            width.fill_(wanted)
            target = part.eval()(signal).values.mean(2)
            width.fill_(start)
        part.train()
        optimiser = torch.optim.SGD([width], lr=0.2)
        for _ in range(40):
            loss = (part(signal.detach()).values.mean(2) - target).square().mean()
            optimiser.zero_grad()
            (loss / target.square().mean()).backward()
            optimiser.step()
        assert direction * (float(width.detach()) - start) > 0.1
    counts = []
    for value in (1.0, 0.5, 0.0):
        with torch.no_grad():
            width.fill_(value)
        counts.append(part.eval()(signal).values.shape[2])
    assert counts == [6, 3, 1]
