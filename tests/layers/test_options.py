"""Options that layers pass on are still checked by name."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING

import pytest

from kernelfield import layers
from kernelfield.groups import Cyclic

if TYPE_CHECKING:
    from collections.abc import Callable

CONTINUOUS = [partial(kind, 2, 2, size=8) for kind in (layers.CKConv, layers.FlexConv, layers.SeparableConv)]
ON_GROUPS = [
    partial(kind, 2, 2, group=Cyclic(4))
    for kind in (
        layers.LiftingConv,
        layers.GroupConv,
        layers.SeparableGroupConv,
        layers.AttentiveLiftingConv,
        layers.AttentiveGroupConv,
    )
]


@pytest.mark.parametrize("make", [*CONTINUOUS, *ON_GROUPS], ids=lambda make: make.func.__name__)
def test_an_unknown_option_is_named_with_its_class(make: Callable[..., object]) -> None:
    make()
    with pytest.raises(TypeError, match=rf"{make.func.__name__}.*'bandwith'"):  # type: ignore[attr-defined]
        make(bandwith=3)


@pytest.mark.parametrize("make", [*CONTINUOUS, *ON_GROUPS], ids=lambda make: make.func.__name__)
def test_signatures_list_the_options_that_are_passed_on(make: partial[object]) -> None:
    parameters = inspect.signature(make.func).parameters
    assert {"in_channels", "out_channels", "boundary", "bias"} <= set(parameters)
    assert all(p.kind is not p.VAR_KEYWORD for p in parameters.values())


def test_a_plain_kernel_takes_no_mask() -> None:
    with pytest.raises(TypeError, match="mask"):
        layers.CKConv(2, 2, size=8, mask=None)  # type: ignore[call-arg]


def test_options_of_a_mask_have_no_effect_without_one() -> None:
    layer = layers.SeparableConv(2, 2, size=8, sigma=None, isotropic=True, learn_sigma=False)
    assert isinstance(layer.depthwise, layers.CKConv)


def test_lifting_attention_has_no_hidden_width() -> None:
    with pytest.raises(ValueError, match="hidden"):
        layers.AttentiveLiftingConv(2, 2, group=Cyclic(4), hidden=1)
