"""Elements with a gate of 0 are absent: layers return what they return without them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from kernelfield.fields import SIREN
from kernelfield.groups import O2, Bernoulli, Dihedral, Distribution, Group, Mirror, learned
from kernelfield.layers import (
    GroupBatchNorm,
    GroupConv,
    GroupLayerNorm,
    GroupPool,
    GroupSignal,
    LiftingConv,
    PartialGroupConv,
    ProjectionConv,
    SeparableGroupConv,
    SpatialPool,
    kernel_norm,
)
from kernelfield.models import Augerino

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

KEPT = torch.tensor([0, 3, 5])


@pytest.fixture(autouse=True)
def _no_compiled_code() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def signals(group: Group) -> tuple[GroupSignal, GroupSignal]:
    """Return a signal with absent elements, and the signal of the others."""
    torch.manual_seed(0)
    elements = group.elements(torch.float64) if group.finite else group.sample(8).double()
    values = torch.randn(2, 3, len(elements), 7, 7, dtype=torch.float64)
    gates = torch.zeros(len(elements), dtype=torch.float64).index_fill(0, KEPT, 1.0)
    values, gates = values.requires_grad_(), gates.requires_grad_()
    left = GroupSignal(values[:, :, KEPT], elements[KEPT], gates[KEPT], group=group)
    return GroupSignal(values, elements, gates, group=group, gated=True), left


def layer(name: str, group: Group) -> nn.Module:
    torch.manual_seed(1)
    options: dict[str, Any] = {"group": group, "field": SIREN, "kernel_size": 3}
    drawn = {} if group.finite else {"samples": 4}
    modules: dict[str, Callable[[], nn.Module]] = {
        "conv": lambda: GroupConv(3, 2, **options, **drawn),
        "sum": lambda: GroupConv(3, 2, **options, **drawn, reduction="sum"),
        "separable": lambda: SeparableGroupConv(3, 2, **options, **drawn),
        "projection": lambda: ProjectionConv(3, 2, **options),
        "batch norm": lambda: GroupBatchNorm(3),
        "layer norm": GroupLayerNorm,
        "windows": lambda: SpatialPool(2),
        **{
            f"{kind} {over}": lambda k=kind, o=over: GroupPool(k, o) for kind in ("max", "mean", "sum") for over in OVER
        },
    }
    return modules[name]().double()


OVER = ("group", "all", "space")
LAYERS = ["conv", "sum", "separable", "projection", "batch norm", "layer norm", "windows"]
POOLS = [f"{kind} {over}" for kind in ("max", "mean", "sum") for over in OVER]


@pytest.mark.parametrize("group", [Dihedral(4), O2()], ids=str)
@pytest.mark.parametrize("name", LAYERS + POOLS)
def test_layers_leave_absent_elements_out(name: str, group: Group) -> None:
    module = layer(name, group)
    twin = copy.deepcopy(module)
    gated, left = signals(group)
    torch.manual_seed(2)
    found = module(gated)
    torch.manual_seed(2)
    expected = twin(left)
    if isinstance(found, GroupSignal):
        assert found.gated == (found.gates is not None)
        found = found.values[:, :, KEPT] if found.gated else found.values
        expected = expected.values
    torch.testing.assert_close(found, expected)
    for before, after in zip(twin.buffers(), module.buffers(), strict=True):
        torch.testing.assert_close(after, before)
    weights = torch.randn_like(expected)
    inputs = (gated.values, *module.parameters())
    gradients = torch.autograd.grad((found * weights).sum(), inputs, allow_unused=True)
    others = torch.autograd.grad((expected * weights).sum(), (left.values, *twin.parameters()), allow_unused=True)
    assert gradients[0] is not None
    torch.testing.assert_close(gradients[0][:, :, KEPT], others[0])
    torch.testing.assert_close(gradients[1:], others[1:])


def test_arithmetic_copies_and_moves_keep_absent_elements_absent() -> None:
    gated, _ = signals(Dihedral(4))
    plain = GroupSignal(gated.values, gated.elements, group=gated.group)
    for made in (plain + gated, gated.map(torch.relu), gated.to(torch.float32), gated.clone(), gated.detach(), -gated):
        assert made.gated
        assert made.present is not None
        assert made.present.flatten().tolist() == [1, 0, 0, 1, 0, 1, 0, 0]
        assert int(made.count()) == 3
    assert plain.present is None
    assert plain.count() == 8


def evened(distribution: Distribution) -> Distribution:
    """Let compiled programs compute all elements, each of which is kept with probability one half."""
    with torch.no_grad():
        for part in distribution.modules():
            if isinstance(part, Bernoulli):
                part.logits.zero_()
    return distribution.fix_size().double()


def call(distribution: Any) -> tuple[Tensor, Tensor]:
    elements, gates = distribution(torch.zeros((), dtype=torch.float64))
    return elements, gates


@pytest.mark.parametrize("group", [Mirror(), Dihedral(4), O2()], ids=str)
def test_compiled_distributions_draw_what_eager_ones_draw(group: Group) -> None:
    distribution = evened(learned(group, None if group.finite else 8))
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    numbers = set()
    for seed in range(6):
        torch.manual_seed(seed)
        elements, gates = call(distribution)
        torch.manual_seed(seed)
        everything, present = compiled(distribution)
        numbers.add(len(elements))
        torch.testing.assert_close(everything[present > 0], elements)
        logits = [p for name, p in distribution.named_parameters() if name.endswith("logits")]
        expected = torch.autograd.grad(gates.square().sum(), logits)
        torch.testing.assert_close(torch.autograd.grad(present.square().sum(), logits), expected)
    assert len(numbers) > 1


def test_a_drawn_number_that_changes_shapes_is_named() -> None:
    conv = PartialGroupConv(2, 2, group=Mirror(), kernel_size=3).double()
    x = torch.randn(1, 2, 2, 5, 5, dtype=torch.float64)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="number of group elements is drawn"):
        torch.compile(conv, fullgraph=True, backend="eager")(x)
    torch.compiler.reset()
    conv.distribution.fix_size()
    assert torch.compile(conv, fullgraph=True, backend="eager")(x).gated


def test_a_signal_of_a_compiled_layer_can_leave_the_compiled_program() -> None:
    conv = PartialGroupConv(2, 3, group=Dihedral(4), kernel_size=3).double()
    evened(conv.distribution)
    rest = nn.Sequential(GroupBatchNorm(3), nn.ReLU(), GroupPool("mean", "all")).double()
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 2, 8, 5, 5, dtype=torch.float64)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = rest(conv(x))
        torch.manual_seed(seed)
        torch.testing.assert_close(rest(compiled(x)), expected)


def test_compiled_penalties_leave_absent_elements_out() -> None:
    conv = PartialGroupConv(2, 3, group=Dihedral(4), kernel_size=3).double()
    evened(conv.distribution)
    compiled = torch.compile(kernel_norm, fullgraph=True, backend="aot_eager")
    for seed in range(3):
        torch.manual_seed(seed)
        expected = kernel_norm(conv)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(conv), expected)


def test_augerino_computes_all_elements_only_of_networks_whose_norms_can_leave_some_out() -> None:
    lift = LiftingConv(1, 2, group=Mirror(), kernel_size=3)
    for norm, fixed in ((GroupBatchNorm(2), True), (nn.BatchNorm3d(2), False)):
        net = nn.Sequential(lift, norm, GroupPool("max", "all"))
        assert Augerino(net, group=O2(), samples=4).distribution.fixed_size is fixed
