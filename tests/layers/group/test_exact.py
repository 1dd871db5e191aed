"""p4 and p4m layers are exactly equivariant, in float64 to 1e-10."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kernelfield._hooks import pause_step_hooks
from kernelfield.fields import SIREN, Table
from kernelfield.groups import Cyclic, Dihedral, Mirror, Trivial
from kernelfield.layers.group import (
    GroupBatchNorm,
    GroupConv,
    GroupKernel,
    GroupPool,
    LiftingConv,
    SeparableGroupConv,
    SpatialPool,
)
from kernelfield.layers.group import (
    correlate as convolve,
)
from kernelfield.models.gcnn import GCNN
from kernelfield.ops.fused.folded_norm import is_folded
from kernelfield.testing import assert_equivariant
from tests.pairwise import pairwise

GROUPS = [Cyclic(4), Dihedral(4), Mirror(), Cyclic(2), Dihedral(1)]
EXACT = {"rtol": 1e-10, "atol": 1e-12}
CASES = [(1, "zero"), (3, "zero"), (5, "zero"), (3, "periodic"), (3, "valid"), (2, "valid"), (4, "valid")]


def signal(group=None, size=7, channels=3):
    elements = () if group is None else (group.order,)
    return torch.randn(2, channels, *elements, size, size, dtype=torch.float64)


@pairwise(group=GROUPS, case=CASES, size=[6, 7], field=[Table, SIREN])
def test_convolutions(group, case, size, field):
    kernel_size, boundary = case
    options = {"group": group, "kernel_size": kernel_size, "boundary": boundary, "field": field}
    assert_equivariant(LiftingConv(3, 4, **options).double(), group, signal(size=size), **EXACT)
    assert_equivariant(GroupConv(3, 4, **options).double(), group, signal(group, size), **EXACT)


@pytest.mark.parametrize("group", GROUPS[:2], ids=str)
@pytest.mark.parametrize("form", ["pointwise", "depthwise"])
@pytest.mark.parametrize(("kernel_size", "boundary"), [(3, "zero"), (4, "valid")])
def test_separable(group, form, kernel_size, boundary):
    layer = SeparableGroupConv(3, 3, group=group, form=form, kernel_size=kernel_size, boundary=boundary)
    assert_equivariant(layer.double(), group, signal(group), **EXACT)


@pytest.mark.parametrize("size", [6, 7, 9])
@pytest.mark.parametrize("group", GROUPS[:2], ids=str)
def test_pooling(group, size):
    pools = [SpatialPool(2), SpatialPool(2, "mean"), *([SpatialPool(3)] if size % 3 == 0 else [])]
    for pool in (*pools, GroupPool("max", "group"), GroupPool("mean", "group")):
        assert_equivariant(pool, group, signal(group, size), **EXACT)
    for kind in ("max", "mean"):
        assert_equivariant(GroupPool(kind, "all"), group, signal(group, size), invariant=True, **EXACT)


@pytest.mark.parametrize("group", GROUPS[:2], ids=str)
def test_equivariant_in_float32(group):
    net = GroupConv(3, 4, group=group)
    assert_equivariant(net, group, signal(group).float(), rtol=1e-5)


def test_a_net_that_is_not_equivariant_fails():
    x = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(nn.Conv2d(3, 3, 3, padding=1).double(), Cyclic(4), x)


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("kernel_size", [1, 3, 4])
def test_looked_up_kernels_are_the_field_at_the_moved_points(group, kernel_size):
    for on_group in (True, False):
        kernel = GroupKernel(group, Table, 3, 2, kernel_size=kernel_size, on_group=on_group).double()
        elements = group.elements(torch.float64)
        wanted = kernel._arrange(kernel.field(kernel.coordinates(elements, elements)))
        torch.testing.assert_close(kernel(), wanted, rtol=0, atol=1e-12)
        assert kernel(elements, elements).equal(kernel())
        part = elements[: max(1, len(elements) // 2)]
        torch.testing.assert_close(kernel(part, elements), wanted[:, : len(part)], rtol=0, atol=1e-12)


@pytest.mark.parametrize("group", [Cyclic(4), Dihedral(4), Cyclic(8)], ids=str)
@pytest.mark.parametrize("on_group", [True, False])
def test_gradients_of_looked_up_kernels(group, on_group):
    kernel = GroupKernel(group, Table, 2, 1, kernel_size=3, on_group=on_group)
    table = kernel.field.coefficients
    weights = torch.randn_like(kernel())
    elements = group.elements()
    (got,) = torch.autograd.grad(kernel(), table, weights)
    (wanted,) = torch.autograd.grad(kernel(elements, elements), table, weights)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)

    def rendered(values):
        return torch.func.functional_call(kernel, {"field.coefficients": values}, ())

    double = torch.randn_like(table)
    pulled = torch.func.grad(lambda values: (rendered(values) * weights).sum())(double)
    torch.testing.assert_close(pulled, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("group", [Cyclic(8), Dihedral(3)], ids=str)
@pytest.mark.parametrize("kernel_size", [1, 3])
def test_mapped_tables_are_the_field_at_the_moved_points(group, kernel_size):
    for on_group in (True, False):
        kernel = GroupKernel(group, Table, 3, 2, kernel_size=kernel_size, on_group=on_group)
        assert kernel.rotation is not None or (kernel_size == 1 and not on_group)
        assert kernel.look_up is not None
        torch.testing.assert_close(kernel(), kernel(group.elements(), group.elements()), rtol=1e-4, atol=1e-5)
        wide = kernel.double()
        elements = group.elements(torch.float64)
        assert wide().dtype == torch.float64
        torch.testing.assert_close(wide(), wide(elements, elements), rtol=0, atol=1e-6)


@pytest.mark.parametrize("group", [Cyclic(4), Dihedral(4)], ids=str)
def test_group_convolution_is_its_definition(group):
    """The sum over all positions and elements, one term at a time."""
    n, size, k = group.order, 4, 3
    layer = GroupConv(1, 1, group=group, kernel_size=k, bias=False).double()
    x = torch.randn(1, 1, n, size, size, dtype=torch.float64)
    e = group.elements(torch.float64)
    got = layer(x).values[0, 0].detach()
    wanted = torch.zeros_like(got)
    steps = (-1, 0, 1)
    offsets = torch.tensor([(r, c) for r in steps for c in steps], dtype=torch.float64)
    for h in range(n):
        points = group.act_on(group.inverse(e[h]), offsets)
        for other in range(n):
            relative = group.chart(group.relative(e[h], e[other])).expand(9, -1)
            psi = layer.kernel.field(torch.cat([relative, points], dim=-1)).detach().view(3, 3).tolist()
            for r in range(size):
                for c in range(size):
                    for rr in range(max(0, r - 1), min(size, r + 2)):
                        for cc in range(max(0, c - 1), min(size, c + 2)):
                            wanted[h, r, c] += psi[r - rr + 1][c - cc + 1] * x[0, 0, other, rr, cc]
    torch.testing.assert_close(got, wanted)


def test_the_trivial_group_is_an_ordinary_convolution():
    lift = LiftingConv(3, 5, group=Trivial(), kernel_size=3)
    x = torch.randn(2, 3, 8, 8)
    weight = lift.kernel()[:, 0, :, 0].flip((-2, -1))
    torch.testing.assert_close(lift(x).values[:, :, 0], F.conv2d(x, weight, lift.bias, padding=1))


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(
    ("group", "field"),
    [(Cyclic(4), Table), (Dihedral(4), Table), (Cyclic(8), Table), (Cyclic(8), SIREN), (Mirror(), Table)],
    ids=str,
)
def test_flipped_kernels(group, field, flip):
    for kernel_size, on_group in ((3, True), (3, False), (1, True)):
        kernel = GroupKernel(group, field, 3, 2, kernel_size=kernel_size, on_group=on_group, flip=flip)
        axes = tuple(range(4, 4 + group.dim))
        torch.testing.assert_close(kernel.flipped(), kernel().flip(axes))
        some = group.elements()[:2]
        torch.testing.assert_close(kernel.flipped(some, some), kernel(some, some).flip(axes))


def test_channels_stay_last():
    net = GCNN(group=Cyclic(4), channels=3)
    seen = []
    for norm in net.norms:
        norm.register_forward_hook(
            lambda _, inputs, output: seen.append(is_folded(inputs[0].values) and is_folded(output.values))
        )
    x = torch.randn(2, 1, 28, 28, requires_grad=True)
    net(x).sum().backward()
    assert seen == [True] * 6


def test_channels_are_last_on_a_gpu_only_where_a_step_is_captured(monkeypatch):
    monkeypatch.setitem(convolve.CHANNELS_LAST, "cpu", convolve.CHANNELS_LAST["cuda"])
    lift, norm = LiftingConv(1, 3, group=Cyclic(4)), GroupBatchNorm(3)
    x = torch.randn(2, 1, 8, 8)
    plain = norm(lift(x).values)
    assert plain.is_contiguous()
    with pause_step_hooks():
        captured = norm(lift(x).values)
    assert is_folded(captured)
    torch.testing.assert_close(captured, plain)


def test_takes_one_convolution_call(monkeypatch):
    calls = []
    real = convolve._CONVS[2]
    monkeypatch.setitem(convolve._CONVS, 2, lambda *a, **k: calls.append(a[1].shape) or real(*a, **k))
    GroupConv(3, 4, group=Dihedral(4), boundary="valid")(torch.randn(2, 3, 8, 6, 6))
    assert calls == [(4 * 8, 3 * 8, 3, 3)]


def test_batch_norms_add_the_published_number_to_the_variance():
    x = 1e-2 * torch.randn(8, 2, 4, 6, 6)
    y = GroupBatchNorm(2)(x).detach()
    variance = x.var(dim=(0, 2, 3, 4), correction=0)
    torch.testing.assert_close(y.var(dim=(0, 2, 3, 4), correction=0), variance / (variance + 2e-5))


def test_values_keep_their_variance():
    x = torch.randn(4, 16, 24, 24)
    lift = LiftingConv(16, 32, group=Cyclic(4), kernel_size=5)
    y = lift(x).values
    z = GroupConv(32, 32, group=Cyclic(4), kernel_size=5)(y).values
    assert 0.6 < float(y.detach().std()) < 1.4
    assert 0.5 < float(z.detach().std()) < 1.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GroupConv(3, 4, group=Cyclic(4), kernel_size=4), "kernel_size must"),
        (lambda: GroupConv(3, 4, group="p4"), "group must"),
        (lambda: GroupConv(3, 0, group=Cyclic(4)), "out_channels must"),
        (lambda: GroupConv(3, 4, group=Cyclic(4), boundary="same"), "boundary must"),
        (lambda: SeparableGroupConv(3, 4, group=Cyclic(4), form="depthwise"), "out_channels must"),
        (lambda: SpatialPool(3)(torch.randn(1, 1, 4, 8, 8)), "size must"),
        (
            lambda: LiftingConv(3, 4, group=Cyclic(4), kernel_size=4, boundary="valid")(torch.randn(1, 3, 3, 3)),
            "at most as many points as x",
        ),
        (lambda: LiftingConv(3, 4, group=Cyclic(4))(torch.randn(1, 2, 8, 8)), "x must"),
    ],
)
def test_errors_name_the_argument(make, message):
    with pytest.raises((ValueError, TypeError), match=rf"\b{message}"):
        make()


def test_rotated_tables_have_the_digits_of_every_dtype():
    kernel = GroupKernel(Cyclic(6), Table, 2, 3, kernel_size=5)
    before, state = kernel(), torch.get_rng_state()
    kernel.double()
    elements = kernel.group.elements(torch.float64)
    torch.testing.assert_close(kernel(), kernel(elements, elements), rtol=1e-12, atol=1e-13)
    assert kernel.float()().equal(before)
    assert torch.get_rng_state().equal(state)
    rotation = kernel.rotation.clone()
    assert kernel.bfloat16().float().rotation.equal(rotation)


def test_training_after_a_prediction_in_inference_mode(monkeypatch):
    """As on a GPU, where planes are not channels last."""
    monkeypatch.setitem(convolve.CHANNELS_LAST, "cpu", lambda: False)
    for net, shape in (
        (LiftingConv(2, 3, group=Cyclic(4)), (1, 2, 5, 5)),
        (GCNN(1, 2, group=Cyclic(4), channels=2), (1, 1, 28, 28)),
    ):
        x = torch.randn(shape)
        with torch.inference_mode():
            net.eval()(x)
        y = net.train()(x)
        (y.values if isinstance(net, LiftingConv) else y).square().sum().backward()
        assert all(p.grad is not None for p in net.parameters())
