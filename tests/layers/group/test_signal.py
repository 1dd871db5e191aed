"""Signals on a group: arithmetic, moves, what they refuse."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from kernelfield.fields import SIREN
from kernelfield.groups import O2, SO2, Cyclic, Dihedral, Group, Product, Scale
from kernelfield.layers.group import (
    GroupBatchNorm,
    GroupConv,
    GroupDropout,
    GroupPool,
    GroupSignal,
    LiftingConv,
    PartialGroupConv,
    SpatialPool,
)
from kernelfield.layers.group.signal import as_signal


def signal(group=None, **options):
    group = group or Cyclic(4)
    elements = None if group.finite else group.sample(5)
    n = group.order or 5
    return GroupSignal(torch.randn(2, 3, n, 6, 6), elements, group=group, **options)


@pytest.mark.parametrize("group", [Cyclic(4), SO2()], ids=str)
def test_arithmetic_acts_on_the_values(group):
    a = signal(group)
    b, t = a.replace(torch.randn_like(a.values)), torch.randn(3, 1, 1, 1)
    pairs = [(a + b, a.values + b.values), (a - b, a.values - b.values), (a * b, a.values * b.values)]
    pairs += [(2 * a + 1, 2 * a.values + 1), (1 - a, 1 - a.values), (-a / 2, -a.values / 2)]
    pairs += [(a + t, a.values + t), (t * a, t * a.values), (t - a, t - a.values), (a / t, a.values / t)]
    for got, wanted in pairs:
        assert isinstance(got, GroupSignal)
        assert got.group is group
        assert got.elements.equal(a.elements)
        torch.testing.assert_close(got.values, wanted)


def test_pointwise_functions_take_signals():
    x = signal()
    for module in (nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Tanh(), nn.Softplus(), nn.ELU(), nn.Dropout(0.0)):
        assert module(x).values.equal(module(x.values))
    for module in (nn.PReLU(), nn.PReLU(3), nn.Threshold(0.1, 0.0), nn.Softshrink(), nn.RReLU().eval()):
        assert module(x).values.equal(module(x.values))
    assert (x**2).values.equal(x.values**2)
    assert torch.maximum(x, -x).values.equal(x.values.abs())
    assert torch.maximum(x, other=-x).values.equal(x.values.abs())
    assert torch.add(input=x, other=x).values.equal(2 * x.values)
    assert F.relu(x).values.equal(x.map(F.relu).values)
    with pytest.raises(TypeError, match=r"signal\.values"):
        torch.softmax(x, dim=2)


def test_cat_joins_channels_on_the_same_elements():
    a = signal(SO2())
    b = a.replace(torch.randn(2, 1, 5, 6, 6))
    for joined in (torch.cat([a, b], 1), torch.cat((a, b), dim=-4)):
        assert joined.values.equal(torch.cat([a.values, b.values], dim=1))
        assert joined.elements is a.elements
    with pytest.raises(ValueError, match=r"\bdim of torch.cat"):
        torch.cat([a, b], dim=2)
    with pytest.raises(TypeError, match=r"\btensors of torch.cat"):
        torch.cat([a, b.values], dim=1)
    with pytest.raises(ValueError, match="same elements"):
        torch.cat([a, signal(SO2())], dim=1)


@pytest.mark.parametrize("combine", [torch.add, lambda a, b: torch.cat([a, b], dim=1)], ids=["add", "cat"])
def test_signals_on_different_elements_give_nan_where_the_host_cannot_compare(combine):
    a, b = signal(SO2()), signal(SO2())
    compiled = torch.compile(combine, fullgraph=True, backend="eager")
    assert compiled(a, b).values.isnan().all()
    same = GroupSignal(b.values, a.elements.clone(), group=SO2())
    assert compiled(a, same).values.equal(combine(a, same).values)


class Shear(Group):
    """Shears of the plane by -1, 0 or 1 times ``slope``, a group of a user's own."""

    dim, order = 2, 3

    def __init__(self, slope):
        self.slope = slope

    def elements(self, dtype=None, device=None):
        return torch.tensor([[0.0], [1.0], [-1.0]], dtype=dtype, device=device)

    def matrix(self, a):
        one = torch.ones_like(a[..., 0])
        rows = [torch.stack([one, a[..., 0] * self.slope], -1), torch.stack([0 * one, one], -1)]
        return torch.stack(rows, -2)


@pytest.mark.parametrize(
    ("a", "b"),
    [(Shear(1.0), Shear(2.0)), (Scale(3, base=2.0), Scale(3, base=3.0)), (SO2(), Scale(5, continuous=True, dim=2))],
    ids=str,
)
def test_groups_of_one_class_with_other_parameters_are_not_the_same(a, b):
    x, y = (
        GroupSignal(torch.randn(1, 3, 3, *(6,) * g.dim), g.sample(3) if g.order is None else None, group=g)
        for g in (a, b)
    )
    same = GroupSignal(y.values, None if a.order else x.elements, group=copy.deepcopy(a))
    compiled = torch.compile(torch.add, fullgraph=True, backend="eager")
    assert torch.isfinite(compiled(x, same).values).all()
    if type(a) is type(b):
        assert compiled(x, y).values.isnan().all()
    for combine in (torch.add, lambda s, t: torch.cat([s, t], dim=1)):
        with pytest.raises(ValueError, match="signals must be on one group"):
            combine(x, y)
    with pytest.raises(ValueError, match="x must be a signal on"):
        as_signal(x, b, 3)
    assert as_signal(x, copy.deepcopy(a), 3) is x


def test_attributes_that_are_arrays_are_part_of_the_kind():
    one, other = (Shear(torch.arange(2000.0) + k) for k in (0, 1e-3))
    assert one.kind == Shear(one.slope.clone()).kind != other.kind
    assert SO2("circle").kind == SO2().kind


def test_sums_carry_the_gates_of_all_their_terms():
    one, two = torch.ones(4, requires_grad=True), torch.tensor([1.0, 0.0, 1.0, 1.0], requires_grad=True)
    a, b = signal(gates=one), signal(gates=two, gated=True)
    total = a + b + a
    assert total.gated
    assert total.present.flatten().tolist() == [1, 0, 1, 1]
    GroupPool("sum", "all")(total).sum().backward()
    assert one.grad.abs().sum() > 0
    assert two.grad.abs().sum() > 0
    assert (a + a).gates is one


def test_moves_and_copies():
    x = signal(SO2(), gates=torch.ones(5, requires_grad=True))
    low = x.to(torch.bfloat16)
    assert (low.dtype, low.elements.dtype) == (torch.bfloat16, torch.float32)
    assert x.to("meta").elements.device.type == x.to("meta").device.type == "meta"
    copy = x.clone()
    copy.values.zero_()
    assert bool(x.values.any())
    assert x.gates.requires_grad
    assert not x.detach().gates.requires_grad
    assert signal().to(torch.float64).elements.dtype == torch.float64


def test_large_finite_groups_keep_their_elements_in_half_precision():
    group = Cyclic(300)
    x = GroupSignal(torch.zeros(1, 1, 300, 1, 1, dtype=torch.bfloat16), group=group)
    assert x.elements.equal(group.elements())


def test_flattens_as_a_pytree():
    x = signal(SO2())
    leaves, spec = pytree.tree_flatten(x)
    back = pytree.tree_unflatten(leaves, spec)
    assert back.values is x.values
    assert back.group is x.group
    assert pytree.tree_flatten(signal(SO2()))[1] == spec


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GroupSignal(torch.randn(1, 1, 3, 5, 5), group=SO2()), "elements must"),
        (lambda: GroupSignal(torch.randn(1, 1, 3, 5, 5), group=Cyclic(4)), "values must"),
        (lambda: GroupSignal(torch.randn(1, 1, 3, 5, 5), torch.zeros(4, 1), group=SO2()), "elements must"),
        (lambda: signal() + signal(Dihedral(4)), "one group"),
        (lambda: signal(SO2()) + signal(SO2()), "same elements"),
        (lambda: GroupConv(3, 2, group=SO2(), samples=2, field=SIREN)(torch.randn(1, 3, 2, 5, 5)), "x must"),
        (lambda: GroupConv(3, 2, group=Cyclic(4))(torch.randn(1, 3, 3, 5, 5)), "x must"),
        (lambda: GroupConv(3, 2, group=Cyclic(4))([1.0]), "x must"),
    ],
)
def test_errors_name_the_argument(make, message):
    with pytest.raises((ValueError, TypeError), match=rf"\b{message}"):
        make()


def networks():
    p4 = Cyclic(4)
    yield nn.Sequential(
        LiftingConv(1, 4, group=p4),
        GroupConv(4, 4, group=p4),
        GroupBatchNorm(4),
        nn.ReLU(),
        GroupDropout(0.1),
        SpatialPool(2),
        GroupPool("max", "all"),
    )
    yield nn.Sequential(
        LiftingConv(1, 4, group=SO2(), samples=4, field=SIREN),
        PartialGroupConv(4, 4, group=SO2(), samples=4),
        GroupBatchNorm(4),
        nn.ReLU(),
        SpatialPool(2),
        GroupPool("mean", "all"),
    )


@pytest.mark.parametrize("index", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_sequential_networks_run_compiled_and_exported(index):
    net = list(networks())[index].eval()
    x = torch.randn(2, 1, 8, 8)
    y = net(x)
    assert y.shape == (2, 4)
    torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="eager")(x), y)
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(net, (x,), dynamic_shapes=({0: batch},)).module()
    more = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(exported(more), net(more))


def test_the_documented_form_takes_the_path_of_all_elements(monkeypatch):
    lift, conv = LiftingConv(1, 4, group=Cyclic(4)), GroupConv(4, 4, group=Cyclic(4))
    seen = []
    real = conv.kernel.flipped
    monkeypatch.setattr(conv.kernel, "flipped", lambda *elements: seen.append(elements) or real(*elements))
    x = torch.randn(2, 1, 8, 8)
    assert conv(lift(x)).values.equal(conv(lift(x).values).values)
    assert seen == [(None, None)] * 2
    full = GroupSignal(lift(x).values, Cyclic(4).elements(), group=Cyclic(4))
    torch.testing.assert_close(conv(full).values, conv(lift(x)).values)


@pytest.mark.parametrize(
    ("layer", "replacement"),
    [
        (nn.BatchNorm3d(3), "GroupBatchNorm"),
        (nn.GroupNorm(1, 3), "GroupLayerNorm"),
        (nn.MaxPool2d(2), "SpatialPool"),
        (nn.AdaptiveAvgPool2d(1), "GroupPool"),
        (nn.Upsample(scale_factor=2), "SpatialUpsample"),
        (nn.Conv2d(3, 2, 1), "GroupConv"),
    ],
)
def test_torch_layers_name_the_layer_for_signals(layer, replacement):
    with pytest.raises(TypeError, match=rf"GroupSignal.*kernelfield\.layers\.{replacement} "):
        layer(signal())


@pytest.mark.parametrize("joined", [lambda x, y: x + y, lambda x, y: torch.cat([x, y], dim=1)], ids=["sum", "cat"])
def test_a_copy_has_the_gates_of_its_signal(joined):
    """Otherwise gates are multiplied with themselves, and their gradient is twice as large."""
    gates = torch.ones(4, requires_grad=True)
    x = GroupSignal(torch.randn(2, 3, 4, 5, 5), None, gates, group=Cyclic(4))
    found = [torch.autograd.grad(GroupPool("sum", "all")(joined(x, other)).sum(), gates)[0] for other in (x, x.clone())]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("group", "elements"),
    [
        (Cyclic(4), [[0.0], [1.5708]]),
        (Dihedral(4), [[1.0, 1.0], [1.0, 0.0]]),
        (O2(), [[0.3, 1.0], [0.3, 2.0]]),
        (Product(Cyclic(4), Scale(2, dim=2)), [[0.0, 0.5], [0.5, 0.0]]),
    ],
    ids=str,
)
def test_values_between_elements_are_refused(group, elements):
    """Angles in place of indices, or a sign of 0, would be kernels of no element."""
    elements = torch.tensor(elements)
    with pytest.raises(ValueError, match=r"elements must be elements of .*, such as"):
        GroupSignal(torch.randn(1, 2, 2, 5, 5), elements, group=group)
    GroupSignal(torch.randn(1, 2, 1, 5, 5), elements[:1], group=group)
