"""Layers on continuous groups: equivariant within discretisation, in expectation, and partially."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch.nn import functional as F

from kernelfield.fields import SIREN, FourierFilter, GaborFilter, MAGNet
from kernelfield.groups import O2, SO2, Cyclic, Dihedral, Mirror
from kernelfield.layers.group import (
    GroupConv,
    GroupSignal,
    LiftingConv,
    PartialGroupConv,
    PartialResidualBlock,
)

Smooth = functools.partial(SIREN, omega_0=3.0, hidden=16)
F64 = {"dtype": torch.float64}


def blobs(size, angle):
    """A smooth image that is zero outside a disc, rotated by ``angle`` before it is sampled."""
    axis = (torch.arange(size, **F64) - (size - 1) / 2) / (size / 2)
    r, c = torch.meshgrid(axis, axis, indexing="ij")
    # f(A⁻¹x)
    y, x = math.cos(angle) * r + math.sin(angle) * c, -math.sin(angle) * r + math.cos(angle) * c
    image = torch.zeros_like(r)
    for a, b, s, w in ((0.25, 0.1, 0.12, 1.0), (-0.2, 0.3, 0.15, -0.7), (-0.1, -0.3, 0.1, 0.8)):
        image += w * torch.exp(-((y - a) ** 2 + (x - b) ** 2) / (2 * s**2))
    return image[None, None]


def turn_error(group, angle, size, samples=None):
    """Relative error of a lifting and a group convolution of a rotated image, with kernels of the same extent."""
    torch.manual_seed(0)
    k = size // 8 * 2 + 1
    lift = LiftingConv(1, 4, group=group, field=Smooth, kernel_size=k, samples=samples).double().eval()
    conv = GroupConv(4, 3, group=group, field=Smooth, kernel_size=k, samples=samples).double().eval()
    with torch.no_grad():
        plain = conv(lift(blobs(size, 0.0)))
        turned = conv(lift(blobs(size, angle))).values
        element = group.exp(torch.tensor([angle], **F64))
        wanted = group.act(element, plain.values, plain.elements)
    crop = slice(size // 8, -(size // 8))
    wanted, turned = wanted[..., crop, crop], turned[..., crop, crop]
    return float((turned - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(
    ("group", "samples", "angle"),
    [(Cyclic(8), None, math.pi / 4), (SO2(), 6, math.pi / 3), (SO2("circle"), 5, 0.4 * math.pi)],
)
def test_rotations_off_the_grid_within_a_bound_that_shrinks_with_resolution(group, samples, angle):
    """Bound: 12 percent at 16 samples, 4 at 32, 1.5 at 64."""
    errors = [turn_error(group, angle, size, samples) for size in (16, 32, 64)]
    assert errors[0] < 0.12
    assert errors[1] < 0.04
    assert errors[2] < 0.015


def test_quarter_turns_are_exact():
    group = SO2()
    for n in (4, 8):
        lift = LiftingConv(1, 4, group=group, field=SIREN, kernel_size=5, samples=n).double().eval()
        conv = GroupConv(4, 3, group=group, field=SIREN, kernel_size=5, samples=n).double().eval()
        x = torch.randn(1, 1, 9, 9, **F64)
        y = conv(lift(x))
        turned = conv(lift(torch.rot90(x, 1, (-2, -1)))).values
        wanted = group.act(torch.tensor([math.pi / 2]), y.values, y.elements)
        torch.testing.assert_close(turned, wanted, rtol=0, atol=1e-9)


def monte_carlo(group, samples):
    torch.manual_seed(0)
    lift = LiftingConv(1, 3, group=group, field=Smooth, kernel_size=5, samples=samples).double()
    conv = GroupConv(3, 2, group=group, field=Smooth, kernel_size=5, samples=samples).double()
    return lift.train(), conv.train()


def test_monte_carlo_error_falls_with_the_root_of_the_number_of_draws():
    group = SO2()
    lift, conv = monte_carlo(group, 2)
    x = torch.randn(1, 1, 7, 7, **F64)
    here = group.identity(**F64)[None]
    with torch.no_grad():
        lift.distribution.samples = 2000
        truth = conv(lift.eval()(x), out_elements=here).values
        lift.train().distribution.samples = 2
        draws = torch.stack([conv(lift(x), out_elements=here).values for _ in range(256)])
    error = {n: float((draws.view(-1, n, *truth.shape).mean(1) - truth).square().mean().sqrt()) for n in (1, 16)}
    assert error[1] / error[16] == pytest.approx(4, rel=0.5)


def test_the_size_of_a_response_does_not_depend_on_the_number_of_samples():
    sizes = []
    for samples in (8, 32):
        lift, conv = monte_carlo(SO2(), samples)
        x = torch.randn(1, 1, 9, 9, **F64, generator=torch.Generator().manual_seed(1))
        sizes.append(float(conv.eval()(lift.eval()(x)).values.detach().square().mean().sqrt()))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.2)


def test_a_sum_over_elements_is_their_mean_times_their_number():
    found = []
    signal = GroupSignal(torch.randn(1, 2, 6, 5, 5), SO2().sample(6, stratified=True), group=SO2())
    for reduction in ("mean", "sum"):
        torch.manual_seed(0)
        conv = GroupConv(2, 3, group=SO2(), field=SIREN, samples=4, resample=False, reduction=reduction)
        found.append(conv(signal).values)
    # The sum starts with a kernel that is smaller by the root of the expected number of terms.
    torch.testing.assert_close(found[1], found[0] * 6 / 4**0.5)


def test_kernel_is_continuous_at_the_identity():
    for group in (SO2(), SO2("circle")):
        kernel = GroupConv(2, 2, group=group, field=Smooth, samples=2).double().kernel
        e = group.identity(**F64)[None]
        before, after = kernel(e, e - 1e-5), kernel(e, e + 1e-5)
        assert float((before - after).detach().abs().max()) < 1e-4


def pair(group, samples, **options):
    """A full and a partial layer of the same kernel."""
    torch.manual_seed(0)
    full = GroupConv(2, 3, group=group, field=Smooth, kernel_size=5, samples=samples, **options).double()
    part = PartialGroupConv(2, 3, group=group, field=Smooth, kernel_size=5, samples=samples, **options).double()
    part.kernel.load_state_dict(full.kernel.state_dict())
    elements = group.elements(**F64) if group.finite else group.sample(4, stratified=True, **F64)
    return full, part, GroupSignal(torch.randn(2, 2, len(elements), 7, 7, **F64), elements, group=group)


@pytest.mark.parametrize(
    ("group", "samples"),
    [(SO2(), 6), (O2(), 6), (Mirror(), None), (Cyclic(4), None), (Dihedral(4), None)],
    ids=str,
)
@pytest.mark.parametrize("training", [True, False])
def test_a_partial_layer_on_all_of_the_group_is_the_full_one(group, samples, training):
    full, part, x = pair(group, samples)
    with torch.no_grad():
        for name, p in part.distribution.named_parameters():
            if name.endswith("logits"):
                p.fill_(50.0)  # kept for certain
    for layer in (full, part):
        layer.train(training)
        for m in layer.modules():
            if training and hasattr(m, "freeze"):
                m.freeze()
    a, b = full(x), part(x)
    torch.testing.assert_close(a.elements, b.elements)
    torch.testing.assert_close(a.values, b.values)


def test_the_same_draw_makes_the_same_layer():
    full, part, x = pair(SO2(), 6)
    torch.manual_seed(5)
    a = full(x).values
    torch.manual_seed(5)
    torch.testing.assert_close(part(x).values, a)


@pytest.mark.parametrize("training", [True, False])
def test_an_interval_shrunk_to_zero_is_an_ordinary_convolution(training):
    for group, samples in ((SO2(), 6), (O2(), 6), (Mirror(), None), (Cyclic(4), None)):
        _, part, _ = pair(group, samples)
        with torch.no_grad():
            for name, p in part.distribution.named_parameters():
                p.fill_(0.0 if name.endswith("width") else -50.0)
        part.train(training)
        e = group.identity(**F64)[None]
        x = torch.randn(2, 2, 7, 7, **F64)
        y = part(GroupSignal(x[:, :, None], e, group=group))
        assert y.elements.equal(e)
        weight = part.kernel(e, e)[:, 0, :, 0].flip((-2, -1))
        torch.testing.assert_close(y.values[:, :, 0], F.conv2d(x, weight, padding=2))


def test_gradients_move_the_interval_the_right_way():
    """The interval shrinks towards the response at the identity, and grows towards the mean over the group."""
    for start, wanted_width, direction in ((0.8, 0.0, -1), (0.4, 1.0, 1)):
        torch.manual_seed(0)
        part = PartialGroupConv(2, 3, group=SO2(), field=Smooth, kernel_size=5, samples=8).double()
        x = GroupSignal(torch.randn(4, 2, 8, 7, 7, **F64), SO2().sample(8, stratified=True, **F64), group=SO2())
        width = part.distribution.width
        with torch.no_grad():
            width.fill_(wanted_width)
            target = part.eval()(x).values.mean(2)
            width.fill_(start)
        part.train()
        optimiser = torch.optim.SGD([width], lr=0.2)
        for _ in range(60):
            loss = (part(x).values.mean(2) - target).square().mean() / target.square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        assert direction * (float(width.detach()) - start) > 0.15


def test_gradients_move_the_gates_the_right_way():
    """The mirror is dropped if the target is the identity's response, and kept if it includes the reflected one."""
    for keep in (False, True):
        torch.manual_seed(0)
        part = PartialGroupConv(2, 3, group=Mirror(), field=Smooth, kernel_size=5).double()
        x = torch.randn(4, 2, 2, 7, 7, **F64)
        with torch.no_grad():
            responses = part(x, out_elements=Mirror().elements(**F64)).values
            target = responses[:, :, 0] + (2 * responses[:, :, 1] if keep else 0)
            part.distribution.logits.fill_(0.0)
        optimiser = torch.optim.Adam(part.distribution.parameters(), lr=0.05)
        for _ in range(60):
            y = part(x)
            loss = ((y.values * y.gates.view(-1, 1, 1)).sum(2) - target).square().mean()
            optimiser.zero_grad()
            if loss.requires_grad:
                loss.backward()
            optimiser.step()
        logit = part.distribution.logits.item()
        assert logit > 0.5 if keep else logit < -0.5


def test_a_frozen_sampler_makes_outputs_reproducible():
    _, part, x = pair(SO2(), 6)
    part.train()
    assert not part(x).values.equal(part(x).values)
    part.distribution.freeze()
    assert part(x).values.equal(part(x).values)


def test_the_number_of_elements_falls_with_the_support():
    _, part, x = pair(O2(), 16)
    mirror, turns = part.distribution.parts
    counts = []
    for width, logit in ((1.0, 9.0), (0.5, 9.0), (0.5, -9.0), (0.0, -9.0)):
        with torch.no_grad():
            turns.width.fill_(width)
            mirror.logits.fill_(logit)
        counts.append(part.eval()(x).values.shape[2])
    assert counts == [16, 8, 4, 1]


def test_residual_block_on_drawn_elements():
    def conv(i, o, **options):
        return PartialGroupConv(i, o, group=SO2(), samples=4, field=Smooth, **options)

    shortcut = GroupConv(2, 3, group=SO2(), field=Smooth, kernel_size=1, resample=False, bias=False)
    block = PartialResidualBlock(conv(2, 3), conv(3, 3), shortcut, 3, pool=True, dropout=0.1)
    y = block(GroupSignal(torch.randn(2, 2, 5, 8, 8), SO2().sample(5), group=SO2()))
    assert y.shape == (2, 3, 4, 4, 4)
    assert y.elements.shape == (4, 1)


def test_gradcheck_through_the_elements():
    layer = PartialGroupConv(1, 1, group=SO2(), samples=3, field=Smooth, kernel_size=3).double()
    layer.distribution.freeze()
    x = GroupSignal(torch.randn(1, 1, 2, 4, 4, **F64), SO2().sample(2, **F64), group=SO2())

    def response(width):
        return torch.func.functional_call(layer, {"distribution.width": width}, (x,)).values

    assert torch.autograd.gradcheck(response, torch.tensor(0.6, requires_grad=True, **F64))


@pytest.mark.parametrize("field", [SIREN, MAGNet, FourierFilter, GaborFilter])
def test_fields_on_groups_begin_with_frequencies_that_their_kernel_can_hold(field):
    """Otherwise a layer does not commute with rotations that move points between those of the grid."""
    conv = LiftingConv(1, 64, group=SO2(), samples=8, kernel_size=9, field=field)
    offsets = torch.linspace(-1, 1, 9)
    line = torch.stack([torch.zeros(9), offsets], dim=1)
    between = torch.stack([torch.zeros(8), (offsets[1:] + offsets[:-1]) / 2], dim=1)
    with torch.no_grad():
        nodes, middle = conv.kernel.field(line), conv.kernel.field(between)
    cubic = (-nodes[:-3] + 9 * nodes[1:-2] + 9 * nodes[2:-1] - nodes[3:]) / 16  # interpolation from the nodes
    error = (cubic - middle[1:-1]).norm() / middle[1:-1].norm()
    assert error < 0.25  # 0.5 and more at frequencies beyond the grid


def test_other_frequencies_are_kept():
    conv = LiftingConv(1, 4, group=SO2(), samples=8, kernel_size=5, field=functools.partial(SIREN, omega_0=30.0))
    assert conv.kernel.field.omega_0 == 30.0
    torch.manual_seed(0)
    rough = LiftingConv(1, 4, group=SO2(), samples=8, kernel_size=5, field=functools.partial(MAGNet, bandwidth=4.0))
    assert rough.kernel.field.frequency.abs().max() > 2 * torch.pi * 3
