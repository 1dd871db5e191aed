"""Convolutions take distributions over their own group only."""

from __future__ import annotations

import pytest

from kernelfield.fields import SIREN, BSpline
from kernelfield.groups import SO2, Cyclic, Scale, Uniform, learned
from kernelfield.layers.group import GroupConv, LiftingConv, SeparableGroupConv


@pytest.mark.parametrize("made", [LiftingConv, GroupConv, SeparableGroupConv])
@pytest.mark.parametrize(
    ("group", "distribution"),
    [
        (Cyclic(8), Uniform(Cyclic(4))),
        (Cyclic(8), learned(Cyclic(4))),
        (SO2(), learned(Cyclic(4))),
        (Scale(3), Uniform(Scale(5))),
    ],
    ids=str,
)
def test_a_distribution_over_another_group_is_refused(made, group, distribution):
    """Its elements would count as elements of the layer's group."""
    with pytest.raises(ValueError, match="distribution must be over"):
        made(2, 2, group=group, field=SIREN, distribution=distribution)


def test_samples_must_be_those_of_the_distribution():
    with pytest.raises(ValueError, match="samples must be None or that of distribution"):
        LiftingConv(2, 2, group=SO2(), field=SIREN, samples=3, distribution=learned(SO2(), 8))
    with pytest.raises(ValueError, match="samples must be None or that of distribution"):
        LiftingConv(2, 2, group=Cyclic(4), samples=3, distribution=learned(Cyclic(4)))
    conv = LiftingConv(2, 2, group=SO2(), field=SIREN, samples=8, distribution=learned(SO2(), 8))
    assert conv.distribution.size() == 8


def test_a_group_convolution_may_leave_out_the_last_dilations():
    conv = GroupConv(2, 2, group=Scale(5), field=BSpline, distribution=Uniform(Scale(3)))
    assert conv.distribution.group == Scale(3)
    with pytest.raises(ValueError, match="distribution must be over"):
        LiftingConv(2, 2, group=Scale(5), field=BSpline, distribution=Uniform(Scale(3)))
