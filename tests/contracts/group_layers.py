"""What every layer on groups must do. A test class supplies ``make`` and inherits the rest.

A layer is on a finite group that maps the grid to itself (p4 and p4m by default), so that equivariance is exact.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from kernelfield.groups import Cyclic, Dihedral, Group, Mirror
from kernelfield.layers.group import GroupConv, GroupPool, GroupSignal, LiftingConv
from kernelfield.testing import assert_equivariant, assert_state_dict_round_trip

GROUPS = [Cyclic(4), Dihedral(4)]
DOUBLE = {"rtol": 1e-11, "atol": 1e-12}


class GroupLayerContract:
    """Tests of a layer that takes a signal, or an image if ``lifts``, and returns a signal."""

    #: channels of the input and the output
    in_channels, out_channels = 2, 3
    #: whether the layer takes an image
    lifts = False
    #: whether the layer knows its group, and so can refuse others
    has_group = True
    #: whether the layer has parameters in a field of its own
    has_parameters = True
    #: whether it is compiled and exported by default, or only one of the two: "compiles" or "exports"
    traced = True
    #: whether the layer computes something else in training
    random = False
    #: positions that the layer takes off each end of each axis
    size, out_size = 6, 6

    def make(self, group: Group) -> nn.Module:
        raise NotImplementedError

    def values(self, group: Group, batch: int = 2, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        axis = () if self.lifts else (group.order,)
        shape = (batch, self.in_channels, *axis, self.size, self.size)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    def input(self, group: Group, **options):
        values = self.values(group, **options)
        return values if self.lifts else GroupSignal(values, group=group)

    def layer(self, group: Group, dtype: torch.dtype = torch.float32) -> nn.Module:
        torch.manual_seed(0)
        return self.make(group).to(dtype).eval()

    @pytest.mark.parametrize("group", GROUPS, ids=str)
    def test_equivariant_to_rounding(self, group):
        layer = self.layer(group, torch.float64)
        x = self.values(group, dtype=torch.float64)
        assert_equivariant(lambda values: tensor_of(layer(values)), group, x, **DOUBLE)

    @pytest.mark.parametrize("group", GROUPS, ids=str)
    def test_returns_a_complete_signal(self, group):
        x = self.input(group)
        y = self.layer(group)(x)
        assert isinstance(y, GroupSignal)
        assert y.shape == (2, self.out_channels, group.order, self.out_size, self.out_size)
        assert y.complete
        assert y.group == group

    def test_a_tensor_is_a_complete_signal(self):
        if self.lifts:
            pytest.skip("the layer takes an image")
        layer = self.layer(GROUPS[0])
        x = self.input(GROUPS[0])
        assert tensor_of(layer(x.values)).equal(layer(x).values)

    def test_composes_in_sequential(self):
        group = GROUPS[0]
        before = [] if self.lifts else [LiftingConv(1, self.in_channels, group=group)]
        after = [nn.ReLU(), GroupConv(self.out_channels, 2, group=group), GroupPool("max", "all")]
        net = nn.Sequential(*before, self.make(group), *after).eval()
        channels = self.in_channels if self.lifts else 1
        assert net(torch.randn(2, channels, self.size, self.size)).shape == (2, 2)

    def test_gradients(self):
        group = Mirror()
        layer = self.layer(group, torch.float64)
        x = self.values(group, batch=1, dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: tensor_of(layer(x)), x, fast_mode=True, atol=1e-4)

    def test_all_parameters_get_a_gradient(self):
        group = GROUPS[0]
        layer = self.layer(group).train()
        tensor_of(layer(self.input(group))).square().sum().backward()
        parameters = dict(layer.named_parameters())
        assert [n for n, p in parameters.items() if p.grad is None or not p.grad.isfinite().all()] == []
        assert bool(parameters) == self.has_parameters

    def test_pruned_weights_are_computed_at_every_call(self):
        """Torch computes them in a hook, so a layer must call the parts whose weights it uses."""
        layer, x = self.layer(GROUPS[0], torch.float64), self.input(GROUPS[0], dtype=torch.float64)
        twin = copy.deepcopy(layer)
        for module in [m for m in layer.modules() if not isinstance(m, nn.ParameterList)]:  # which is never called
            for name in [name for name, p in module.named_parameters(recurse=False) if p.dim() > 1]:
                prune.identity(module, name)
        with torch.no_grad():
            for parameter in [p for module in (layer, twin) for p in module.parameters() if p.dim() > 1]:
                parameter.mul_(1.1)
        torch.testing.assert_close(tensor_of(layer(x)), tensor_of(twin(x)), **DOUBLE)
        for _ in range(2 if self.has_parameters else 0):
            tensor_of(layer(x)).sum().backward()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_keeps_the_dtype(self, dtype):
        assert self.layer(GROUPS[0], dtype)(self.input(GROUPS[0], dtype=dtype)).dtype == dtype

    def test_autocast_to_bfloat16(self):
        layer, x = self.layer(GROUPS[0]), self.input(GROUPS[0])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = layer(x).values.float()
        high = layer(x).values
        assert float((low - high).detach().norm() / high.detach().norm()) < 0.05

    def test_compiles_as_one_graph(self):
        layer, x = self.layer(GROUPS[0]), self.input(GROUPS[0])
        y = torch.compile(layer, fullgraph=True, backend="eager")(x)
        assert y.group == GROUPS[0]
        torch.testing.assert_close(y.values, layer(x).values, rtol=1e-4, atol=1e-5)

    def test_exports(self):
        layer, x = self.layer(GROUPS[0]), self.input(GROUPS[0])
        y = torch.export.export(layer, (x,)).module()(x)
        assert y.group == GROUPS[0]
        torch.testing.assert_close(y.values, layer(x).values, rtol=1e-4, atol=1e-5)

    def test_state_dict_round_trip(self):
        assert_state_dict_round_trip(lambda: self.make(GROUPS[0]), self.input(GROUPS[0]))

    def test_copies_compute_the_same(self):
        layer, x = self.layer(GROUPS[0]), self.input(GROUPS[0])
        assert copy.deepcopy(layer)(x).values.equal(layer(x).values)

    def test_refuses_signals_on_another_group(self):
        if self.lifts or not self.has_group:
            pytest.skip("the layer takes signals on every group")
        with pytest.raises(ValueError, match=r"\bx must"):
            self.layer(Cyclic(4))(self.input(Mirror()))

    def test_refuses_other_channels(self):
        if not self.has_group and not self.has_parameters:
            pytest.skip("the layer takes any number of channels")
        x = self.input(GROUPS[0])
        values = torch.cat([tensor_of(x)] * 2, dim=1)
        with pytest.raises(ValueError, match=r"\bx must"):
            self.layer(GROUPS[0])(values if self.lifts else x.replace(values))

    def test_refuses_other_ranks(self):
        values = self.values(GROUPS[0])
        with pytest.raises(ValueError, match=r"\bx must"):
            self.layer(GROUPS[0])(values[:, :, 0, 0] if self.lifts else values[:, :, 0, 0, 0])


class ShapelessGroupLayerContract(GroupLayerContract):
    """Tests of a norm, dropout or pooling layer: it knows no group and returns the type that it is given."""

    out_channels = 2
    has_group = False
    has_parameters = False

    def test_a_tensor_is_a_complete_signal(self):
        layer, x = self.layer(GROUPS[0]), self.input(GROUPS[0])
        y = layer(x.values)
        assert isinstance(y, torch.Tensor)
        assert y.equal(layer(x).values)


def tensor_of(x: torch.Tensor | GroupSignal) -> torch.Tensor:
    return x.values if isinstance(x, GroupSignal) else x
