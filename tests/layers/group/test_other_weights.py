"""Weights of a layer with other settings that fit by their shapes are loaded with a warning."""

from __future__ import annotations

import warnings

import pytest

from kernelfield.fields import SIREN
from kernelfield.groups import SO2, Bernoulli, Cyclic, Dihedral, Interval, Mirror, Product, Scale
from kernelfield.layers.group import (
    CyclicSelfAttention,
    GroupConv,
    GroupSelfAttention,
    InputAttention,
    LiftingConv,
    LiftingSelfAttention,
)

FOUR = [Cyclic(4), Dihedral(2)]


def on_dilations(n, interactions):
    return GroupConv(2, 2, group=Scale(n), field=SIREN, interactions=interactions)


CASES = {
    "interactions": [on_dilations(4, n) for n in (3, 2)],
    "all interactions": [on_dilations(4, n) for n in (3, None)],
    "windows": [on_dilations(n, None) for n in (4, 5)],
    "windows of a factor": [GroupConv(2, 2, group=Product(Scale(n, dim=2), Cyclic(4)), field=SIREN) for n in (2, 3)],
    "blocks": [CyclicSelfAttention(2, group=group, form="blocks") for group in FOUR],
    "free": [CyclicSelfAttention(2, group=group, form="free") for group in FOUR],
    "attention": [GroupSelfAttention(2, 4, group=group) for group in FOUR],
    "lifting attention": [LiftingSelfAttention(2, 4, group=group) for group in FOUR],
    "heads": [
        GroupSelfAttention(2, 4, group=Cyclic(4), encoding="none", heads=heads, head_channels=8 // heads)
        for heads in (1, 2)
    ],
    "dilation": [InputAttention(2, group=Cyclic(4), dilation=dilation) for dilation in (1, 2)],
    "elements": [Bernoulli(group) for group in (Cyclic(4), Product(Cyclic(2), Mirror()))],
    "interval": [Interval(SO2(), 4), Interval(Scale(4, continuous=True), 4)],
}


@pytest.mark.parametrize("name", CASES)
def test_weights_of_another_function_are_announced(name):
    before, now = CASES[name]
    with pytest.warns(UserWarning, match="which is now a different function"):
        now.load_state_dict(before.state_dict())


@pytest.mark.parametrize(
    "layers",
    [
        [on_dilations(n, 3) for n in (4, 5)],
        [LiftingConv(2, 2, group=Scale(n), field=SIREN) for n in (4, 5)],
        [GroupConv(2, 2, group=SO2(), field=SIREN, samples=n) for n in (4, 5)],
    ],
    ids=["interactions", "lifting", "samples"],
)
def test_weights_of_the_same_function_are_not(layers):
    """A longer window or more samples of the same kernel."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layers[1].load_state_dict(layers[0].state_dict())
