"""Elements of a continuous group drawn for each sample (chapter 11, section 6)."""

from __future__ import annotations

import copy

import pytest
import torch

from kernelfield.fields import SIREN
from kernelfield.groups import O2, SO2, Cyclic
from kernelfield.layers.group import GroupConv, GroupSignal, LiftingConv, PartialGroupConv, ProjectionConv
from kernelfield.models import PartialGCNN

D = torch.float64
OPTIONS = {"group": SO2(), "field": SIREN, "samples": 3, "kernel_size": 3}
SMALL = {"channels": (2, 2, 3, 3), "kernel_size": 3, "pool": (True, False, False)}


def each(layer):
    layer.distribution.per_sample = True
    return layer.double()


def test_every_sample_has_elements_of_its_own():
    lift = each(LiftingConv(1, 2, **OPTIONS))
    signal = lift(torch.randn(4, 1, 7, 7, dtype=D))
    assert signal.elements.shape == (4, 3, 1)
    assert len(signal.elements.flatten().unique()) == 12
    assert lift.eval()(torch.randn(4, 1, 7, 7, dtype=D)).elements.shape == (3, 1)  # nothing is drawn
    assert repr(signal) == "GroupSignal((4, 2, 3, 7, 7), group=SO2(), 3 elements)"


@pytest.mark.parametrize("kernel_size", [1, 3])
def test_samples_are_convolved_as_if_alone(kernel_size):
    lift = each(LiftingConv(1, 2, **OPTIONS))
    conv = each(PartialGroupConv(2, 4, **{**OPTIONS, "kernel_size": kernel_size}))
    signal = lift(torch.randn(3, 1, 7, 7, dtype=D))
    y = conv(signal)
    assert y.elements.shape == (3, 3, 1)
    for i in range(3):
        alone = GroupSignal(signal.values[i : i + 1], signal.elements[i], group=SO2())
        wanted = conv(alone, out_elements=y.elements[i])
        torch.testing.assert_close(y.values[i : i + 1], wanted.values)


def test_gradients_reach_the_width_of_the_interval():
    lift, conv = each(LiftingConv(1, 2, **OPTIONS)), each(PartialGroupConv(2, 2, **OPTIONS))
    conv(lift(torch.randn(2, 1, 7, 7, dtype=D))).values.square().sum().backward()
    assert conv.distribution.width.grad.abs() > 0


def test_the_network_trains_and_agrees_with_its_shared_form_in_evaluation():
    net = PartialGCNN(1, 3, group=SO2(), samples=4, per_sample=True, **SMALL)
    x = torch.randn(3, 1, 12, 12)
    net(x).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())
    shared = copy.deepcopy(net)
    shared.draw_per_sample(False)
    torch.testing.assert_close(net.eval()(x), shared.eval()(x))


def test_other_layers_and_groups_refuse_elements_of_samples():
    signal = each(LiftingConv(1, 2, **OPTIONS))(torch.randn(2, 1, 7, 7, dtype=D))
    with pytest.raises(ValueError, match=r"\bx must"):
        ProjectionConv(2, 2, group=SO2(), field=SIREN).double()(signal)
    with pytest.raises(ValueError, match=r"\bper_sample must"):
        PartialGCNN(1, 3, group=O2(), samples=4, per_sample=True, **SMALL)
    with pytest.raises(ValueError, match=r"\bper_sample must"):
        PartialGCNN(1, 3, group=Cyclic(4), per_sample=True, **SMALL)
    with pytest.raises(ValueError, match=r"\bper_sample must"):
        each(PartialGroupConv(2, 2, group=O2(), samples=4, field=SIREN)).distribution.draw_each(torch.zeros(()), 2)
    with pytest.raises(ValueError, match=r"\belements must"):
        GroupSignal(torch.randn(2, 1, 3, 5, 5), torch.zeros(4, 3, 1), group=SO2())


def test_a_full_layer_draws_for_each_sample_too():
    lift, conv = each(LiftingConv(1, 2, **OPTIONS)), each(GroupConv(2, 2, **OPTIONS))
    assert conv(lift(torch.randn(2, 1, 7, 7, dtype=D))).elements.shape == (2, 3, 1)
