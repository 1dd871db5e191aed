"""Convolutions from a group to space, and co-attention before a convolution sums (chapter 7)."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernelfield.fields import SIREN
from kernelfield.groups import SO2, Cyclic, Dihedral, Mirror, Scale
from kernelfield.layers.group import CoAttentive, GroupConv, GroupSignal, LiftingConv, ProjectionConv
from kernelfield.layers.group.factory import make_group_conv, make_projection_conv
from kernelfield.testing import (
    assert_compiles,
    assert_equivariant,
    assert_state_dict_round_trip,
    count_parameters,
    equivariance_error,
)

D = torch.float64
EXACT = {"rtol": 1e-9, "atol": 1e-11}
GROUPS = [Cyclic(4), Dihedral(4), Mirror()]


def signal(group, size=6, channels=3, batch=2):
    return torch.randn(batch, channels, group.order, size, size, dtype=D)


def randomised(layer):
    for p in layer.parameters():
        torch.nn.init.normal_(p)
    return layer.double()


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize(("kernel_size", "boundary"), [(3, "zero"), (4, "valid"), (3, "periodic"), (1, "zero")])
def test_a_transformed_input_gives_a_transformed_output(group, kernel_size, boundary):
    layer = randomised(ProjectionConv(3, 2, group=group, kernel_size=kernel_size, boundary=boundary))
    for size in (6, 7):
        assert_equivariant(layer, group, signal(group, size), **EXACT)


def test_the_kernel_is_turned_and_the_responses_are_summed():
    group = Cyclic(4)
    layer = randomised(ProjectionConv(2, 3, group=group, kernel_size=3, boundary="valid"))
    x = signal(group, channels=2)
    kernel = layer.kernel()[:, 0, :, 0]
    wanted = sum(
        F.conv2d(x[:, :, i], kernel.rot90(i, (-2, -1)).flip((-2, -1)))
        for i in range(4)  # a convolution flips its kernel
    )
    torch.testing.assert_close(layer(x), wanted + layer.bias.view(-1, 1, 1))
    torch.testing.assert_close(layer.add_bias(layer.responses(x).sum(dim=2)), layer(x))
    assert count_parameters(layer) == 2 * 3 * 9 + 3


def test_continuous_groups_and_gates():
    group = SO2()
    lift = LiftingConv(1, 2, group=group, field=SIREN, samples=5, kernel_size=5)
    layer = ProjectionConv(2, 3, group=group, field=SIREN, kernel_size=5)
    x = lift(torch.randn(2, 1, 9, 9))
    y = layer(x)
    assert y.shape == (2, 3, 9, 9)
    # The total measure is 1: repeating every element changes nothing.
    twice = GroupSignal(torch.cat([x.values] * 2, dim=2), torch.cat([x.elements] * 2), group=group)
    torch.testing.assert_close(layer(twice), y, rtol=1e-4, atol=1e-5)
    gated = GroupSignal(x.values, x.elements, torch.zeros(5), group=group)
    torch.testing.assert_close(layer(gated), layer.add_bias(torch.zeros_like(y)))


def test_arguments_of_a_projection_are_checked():
    with pytest.raises(ValueError, match=r"\bgroup must"):
        ProjectionConv(1, 1, group=Scale(3))
    with pytest.raises(ValueError, match=r"\battention must"):
        make_projection_conv(2, 2, group=Cyclic(4), attention="full")
    with pytest.raises(ValueError, match=r"\bx must"):
        ProjectionConv(3, 2, group=Cyclic(4))(torch.randn(2, 3, 8, 8, 8))


def test_a_projection_compiles_trains_and_is_stored():
    layer, x = ProjectionConv(3, 2, group=Cyclic(4)), torch.randn(2, 3, 4, 6, 6)
    assert_compiles(layer, x)
    assert_state_dict_round_trip(lambda: ProjectionConv(3, 2, group=Cyclic(4)), x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x).float().square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())


# Co-attention before the sum


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("kernel_size", [1, 3])
def test_attention_of_filters_is_equivariant(group, kernel_size):
    n = group.order
    conv = randomised(CoAttentive(GroupConv(3, 2, group=group, kernel_size=kernel_size), per="filter"))
    last = randomised(CoAttentive(ProjectionConv(3, 2, group=group, kernel_size=kernel_size), per="filter"))
    assert (count_parameters(conv.attention), count_parameters(last.attention)) == (2 * n * n, 2 * n)
    for size in (6, 7):
        assert_equivariant(conv, group, signal(group, size), **EXACT)
        assert_equivariant(last, group, signal(group, size), **EXACT)


def test_free_attention_of_a_projection_is_not_equivariant():
    layer = randomised(make_projection_conv(3, 2, group=Cyclic(4), attention="free"))
    assert equivariance_error(layer, Cyclic(4), signal(Cyclic(4))) > 1e-2


@pytest.mark.parametrize("group", [Cyclic(4), Dihedral(4)], ids=str)
@pytest.mark.parametrize("kind", [GroupConv, ProjectionConv])
def test_constant_attention_leaves_the_convolution(group, kind):
    conv = kind(3, 2, group=group).double()
    layer = CoAttentive(conv, per="filter").double()
    for p in layer.attention.parameters():
        torch.nn.init.zeros_(p)
    x = signal(group)
    y, wanted = (z.values if isinstance(z, GroupSignal) else z for z in (layer(x), conv(x)))
    torch.testing.assert_close(y, wanted)


def test_responses_of_a_filter_are_those_of_its_own_kernel():
    """A kernel that is zero but for one relative element has responses in the place of that filter alone."""
    group = Dihedral(4)
    layer = CoAttentive(GroupConv(2, 1, group=group, kernel_size=1, bias=False), per="filter").double()
    h = group.elements(D)
    table = layer.conv.kernel.field.coefficients
    places = []
    for node in range(len(table)):
        with torch.no_grad():
            table.zero_()[node] = 1.0
            z = layer._filter_responses(GroupSignal(signal(group, channels=2), group=group), layer.conv)
        alive = (z.abs().amax(dim=(0, 2, 3, 4)) > 0).nonzero().flatten().tolist()
        assert len(alive) == 1
        places += alive
    assert sorted(places) == list(range(len(h)))


def test_attention_of_filters_needs_all_elements():
    layer = make_group_conv(2, 2, group=SO2(), samples=3, field=SIREN)
    with pytest.raises(ValueError, match=r"\bgroup must"):
        CoAttentive(layer, per="filter")
    with pytest.raises(ValueError, match=r"\bper must"):
        CoAttentive(GroupConv(2, 2, group=Cyclic(4)), per="pixel")
