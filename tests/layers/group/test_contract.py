"""Every layer on groups against the contract of group layers."""

from __future__ import annotations

import pytest
import torch

from kernelfield.fields import SIREN
from kernelfield.layers.group import (
    AttentiveGroupConv,
    AttentiveLiftingConv,
    CoAttentive,
    CyclicSelfAttention,
    GateAttention,
    GroupBatchNorm,
    GroupConv,
    GroupDropout,
    GroupLayerNorm,
    GroupPool,
    GroupResidualBlock,
    GroupSelfAttention,
    GroupSignal,
    InputAttention,
    LiftingConv,
    LiftingSelfAttention,
    PartialGroupConv,
    PartialResidualBlock,
    SelfAttentionBlock,
    SeparableGroupConv,
    SpatialPool,
    SpatialUpsample,
)

from ...contracts.group_layers import GROUPS, GroupLayerContract, ShapelessGroupLayerContract


class TestLiftingConv(GroupLayerContract):
    traced = "exports"
    lifts = True

    def make(self, group):
        return LiftingConv(2, 3, group=group)


class TestGroupConv(GroupLayerContract):
    def make(self, group):
        return GroupConv(2, 3, group=group)


class TestGroupConvOfAField(GroupLayerContract):
    traced = "exports"
    size = 4
    out_size = 3

    def make(self, group):
        return GroupConv(2, 3, group=group, field=SIREN, kernel_size=2, boundary="valid")


class TestSeparableGroupConv(GroupLayerContract):
    traced = False

    def make(self, group):
        return SeparableGroupConv(2, 3, group=group)


class TestPartialGroupConv(GroupLayerContract):
    traced = "compiles"

    def make(self, group):
        return PartialGroupConv(2, 3, group=group, field=SIREN)

    @pytest.mark.parametrize("group", GROUPS, ids=str)
    def test_returns_a_complete_signal(self, group):
        y = self.layer(group)(self.input(group))
        assert y.shape == (2, 3, group.order, 6, 6)
        torch.testing.assert_close(y.elements, group.elements())
        assert not y.complete  # which elements it has is learned

    def test_all_parameters_get_a_gradient(self):
        layer = self.layer(GROUPS[0]).train()
        y = GroupPool("mean", "all")(layer(self.input(GROUPS[0])))
        y.square().sum().backward()
        assert all(p.grad is not None for p in layer.parameters())


class TestAttentiveLiftingConv(GroupLayerContract):
    traced = False
    lifts = True

    def make(self, group):
        return AttentiveLiftingConv(2, 3, group=group, attention_size=3)


class TestInputAttentiveLiftingConv(GroupLayerContract):
    traced = False
    lifts = True

    def make(self, group):
        return AttentiveLiftingConv(2, 3, group=group, attention="input", attention_size=3)


class TestGatedLiftingConv(GroupLayerContract):
    traced = False
    lifts = True

    def make(self, group):
        return AttentiveLiftingConv(2, 3, group=group, attention="gate")


class TestAttentiveGroupConv(GroupLayerContract):
    traced = "exports"
    size = out_size = 4

    def make(self, group):
        return AttentiveGroupConv(2, 3, group=group, attention_size=3)


class TestInputAttentiveGroupConv(GroupLayerContract):
    traced = False

    def make(self, group):
        return AttentiveGroupConv(2, 3, group=group, attention="input", attention_size=3)


class TestCoAttentiveOfFilters(GroupLayerContract):
    traced = False

    def make(self, group):
        return CoAttentive(GroupConv(2, 3, group=group), per="filter")


class TestGateAttention(GroupLayerContract):
    traced = False
    in_channels = out_channels = 3

    def make(self, group):
        return GateAttention(3, group=group)


class TestInputAttention(GroupLayerContract):
    traced = False
    out_channels = 2

    def make(self, group):
        return InputAttention(2, group=group, kernel_size=3)


class TestCyclicSelfAttention(GroupLayerContract):
    traced = False
    out_channels = 2

    def make(self, group):
        return CyclicSelfAttention(2, group=group)


class TestCoAttentive(GroupLayerContract):
    traced = False

    def make(self, group):
        return CoAttentive(GroupConv(2, 3, group=group))


class TestLiftingSelfAttention(GroupLayerContract):
    traced = False
    lifts = True
    size = out_size = 4

    def make(self, group):
        return LiftingSelfAttention(2, 3, group=group, neighborhood=3, heads=2)


class TestGroupSelfAttention(GroupLayerContract):
    traced = False
    size = out_size = 4

    def make(self, group):
        return GroupSelfAttention(2, 3, group=group, neighborhood=3, heads=2)


class TestSelfAttentionBlock(GroupLayerContract):
    traced = "compiles"
    size, out_size = 5, 3

    def make(self, group):
        return SelfAttentionBlock(2, 3, group=group, neighborhood=3, crop=1)


class TestGroupResidualBlock(GroupLayerContract):
    traced = False
    out_size = 3

    def make(self, group):
        return GroupResidualBlock(2, 3, group=group, pool=True)


class TestPartialResidualBlock(GroupLayerContract):
    traced = False

    def make(self, group):
        shortcut = GroupConv(2, 3, group=group, kernel_size=1, resample=False, bias=False)
        return PartialResidualBlock(GroupConv(2, 3, group=group), GroupConv(3, 3, group=group), shortcut, 3)


class TestGroupBatchNorm(ShapelessGroupLayerContract):
    has_parameters = True

    def make(self, group):
        return GroupBatchNorm(2)


class TestGroupLayerNorm(ShapelessGroupLayerContract):
    def make(self, group):
        return GroupLayerNorm()

    def test_all_parameters_get_a_gradient(self):
        assert not list(self.make(GROUPS[0]).parameters())


class TestGroupDropout(TestGroupLayerNorm):
    def make(self, group):
        return GroupDropout(0.5)


class TestSpatialPool(TestGroupLayerNorm):
    out_size = 3

    def make(self, group):
        return SpatialPool(2)


class TestSpatialUpsample(TestGroupLayerNorm):
    out_size = 12

    def make(self, group):
        return SpatialUpsample()


@pytest.mark.parametrize("kind", ["max", "mean", "sum"])
@pytest.mark.parametrize(("over", "axes"), [("group", (2,)), ("space", (3, 4)), ("all", (2, 3, 4))])
def test_group_pool(kind, over, axes):
    values = torch.randn(2, 3, 4, 5, 5)
    wanted = {"max": values.amax, "mean": values.mean, "sum": values.sum}[kind](dim=axes)
    pool = GroupPool(kind, over)
    assert pool(values).equal(wanted)
    y = pool(GroupSignal(values, group=GROUPS[0]))
    assert (y.values if over == "space" else y).equal(wanted)
    with pytest.raises(ValueError, match=r"\bx must"):
        pool(values[:, :, 0, 0, 0])


def test_gates_weight_the_elements_that_are_pooled():
    gates = torch.tensor([1.0, 0.0, 1.0, 2.0])
    signal = GroupSignal(torch.ones(1, 1, 4, 3, 3), group=GROUPS[0], gates=gates)
    assert float(GroupPool("sum", "group")(signal)[0, 0, 0, 0]) == 4.0
