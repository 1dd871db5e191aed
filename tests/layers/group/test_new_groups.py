"""A group that the library has never seen works in every layer: one finite, one continuous, one with filter banks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from kernelfield.fields import SIREN, Table
from kernelfield.groups import Group
from kernelfield.groups.rotation import rotation_generator, rotation_matrix
from kernelfield.layers.group import (
    GroupBatchNorm,
    GroupConv,
    GroupDropout,
    GroupLayerNorm,
    GroupPool,
    GroupSignal,
    LiftingConv,
    PartialGroupConv,
    PartialResidualBlock,
    SeparableGroupConv,
    SpatialPool,
)
from kernelfield.testing import assert_equivariant

from ...contracts.group_layers import DOUBLE, GroupLayerContract, tensor_of
from ...contracts.groups import GroupContract
from . import test_contract

F64 = {"dtype": torch.float64}


class Transposition(Group):
    """The identity and the exchange of the two axes of the plane. An element is 0 or 1."""

    dim, order, table_size, on_grid = 2, 2, (2,), True

    def __init__(self):
        self.matrices = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])

    def product(self, a, b):
        return torch.remainder(a + b, 2)

    def inverse(self, a):
        return a

    def exp(self, v):
        return torch.remainder(v.round(), 2)

    def log(self, a):
        return a

    def chart(self, a):
        return 2 * a - 1

    def matrix(self, a):
        return self.matrices.to(a)[a[..., 0].round().long()]

    def generator(self, v):
        return v.new_zeros(*v.shape[:-1], 2, 2)

    def elements(self, dtype=None, device=None):
        return torch.arange(2, dtype=dtype or torch.get_default_dtype(), device=device)[:, None]


class Turns(Group):
    """The rotations of the plane. An element is a number of turns in [-1/2, 1/2)."""

    dim = 2

    def product(self, a, b):
        return self.exp(a + b)

    def inverse(self, a):
        return self.exp(-a)

    def exp(self, v):
        return torch.remainder(v + 0.5, 1.0) - 0.5

    def log(self, a):
        return torch.remainder(a + 0.5 + 1e-5, 1.0) - 0.5 - 1e-5

    def chart(self, a):
        return 2 * self.log(a)

    def matrix(self, a):
        return rotation_matrix(2 * math.pi * a[..., 0])

    def generator(self, v):
        return rotation_generator(2 * math.pi * v[..., 0])

    def spread(self, n, at):
        parts = torch.arange(n, dtype=at.dtype, device=at.device)
        return ((parts[:, None] + at).flatten() / n - 0.5)[:, None]


class Zoom(Group):
    """The identity and the dilation of the line by 3, as a window of all powers. An element is its exponent."""

    dim, order, table_size, isometric = 1, 2, (3,), False
    convolution = "filter_bank"

    def product(self, a, b):
        return a + b

    def inverse(self, a):
        return -a

    def exp(self, v):
        return v / math.log(3)

    def log(self, a):
        return a * math.log(3)

    def chart(self, a):
        return a

    def matrix(self, a):
        return (3.0**a)[..., None]

    def generator(self, v):
        return v[..., None]

    def elements(self, dtype=None, device=None):
        return torch.arange(2, dtype=dtype or torch.get_default_dtype(), device=device)[:, None]


class TestTransposition(GroupContract):
    def make(self):
        return Transposition()


class TestTurns(GroupContract):
    def make(self):
        return Turns()


CASES = [
    case for case in vars(test_contract).values() if isinstance(case, type) and issubclass(case, GroupLayerContract)
]
CASES = [case for case in CASES if case.__name__.startswith("Test")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_new_finite_group_in_every_layer(case):
    contract, group = case(), Transposition()
    layer = contract.layer(group, torch.float64)
    x = contract.values(group, **F64)
    assert_equivariant(lambda values: tensor_of(layer(values)), group, x, **DOUBLE)
    assert tensor_of(layer(x)).shape == (2, contract.out_channels, 2, contract.out_size, contract.out_size)


def continuous_layers():
    group, field = Turns(), SIREN
    options = {"group": group, "samples": 4, "field": field}
    shortcut = GroupConv(3, 3, group=group, field=field, kernel_size=1, resample=False)
    yield GroupConv(3, 3, **options)
    yield SeparableGroupConv(3, 3, **options)
    yield PartialGroupConv(3, 3, **options)
    yield PartialResidualBlock(GroupConv(3, 3, **options), PartialGroupConv(3, 3, **options), shortcut, 3)
    yield nn.Sequential(GroupBatchNorm(3), GroupLayerNorm(), nn.ReLU(), GroupDropout(), SpatialPool(2))


@pytest.mark.parametrize("index", range(5))
def test_a_new_continuous_group_in_every_layer(index):
    """Quarter turns map the four elements of evaluation to each other, and the grid to itself."""
    torch.manual_seed(0)
    group = Turns()
    lift = LiftingConv(1, 3, group=group, samples=4, field=SIREN)
    net = nn.Sequential(lift, list(continuous_layers())[index]).double().eval()
    x = torch.randn(2, 1, 6, 6, **F64)
    y, turned = net(x), net(torch.rot90(x, 1, (-2, -1)))
    wanted = group.act(torch.tensor([0.25]), y.values, y.elements)
    torch.testing.assert_close(turned.values, wanted, rtol=0, atol=1e-9)
    assert y.group == group
    pooled = GroupPool("max", "all")
    torch.testing.assert_close(pooled(turned), pooled(y), rtol=0, atol=1e-9)


@pytest.mark.parametrize("field", [Table, SIREN])
def test_a_new_group_with_kernels_of_its_own_sizes(field):
    """A signal that is stretched by 3 has at the dilation what the signal had at the identity."""
    torch.manual_seed(0)
    group = Zoom()
    lift = LiftingConv(1, 2, group=group, field=SIREN, kernel_size=5, bias=False).double()
    short = torch.zeros(1, 1, 21, **F64)
    short[..., 10] = 1.0
    long = torch.zeros(1, 1, 63, **F64)
    long[..., 31] = 3.0  # an impulse of the same integral
    small, large = lift(short).values[:, :, 0], lift(long).values[:, :, 1]
    # The kernel is 5 samples long at the identity and 13 at the dilation, where every third lies on one of them.
    torch.testing.assert_close(large[..., 31 - 6 : 31 + 7 : 3], small[..., 10 - 2 : 10 + 3], rtol=0, atol=1e-12)
    conv = GroupConv(2, 3, group=group, field=field, kernel_size=3).double()
    y = conv(lift(short))
    assert isinstance(y, GroupSignal)
    assert y.shape == (1, 3, 2, 21)
    y.values.square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in conv.parameters())
