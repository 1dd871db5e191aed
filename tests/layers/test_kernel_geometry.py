"""Weights of kernels of another size or group do not load in silence."""

from __future__ import annotations

import io
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

import kernelfield as kf

if TYPE_CHECKING:
    from collections.abc import Callable


def grid_kernel(**options: Any) -> Callable[..., torch.nn.Module]:
    return lambda **other: kf.CKConv(2, 2, **{"size": 8, **options, **other})


def group_kernel(**other: Any) -> torch.nn.Module:
    options = {"group": kf.groups.SO2(), "kernel_size": 5, "samples": 4, "field": kf.fields.SIREN, **other}
    return kf.LiftingConv(1, 2, **options)


def table_kernel(**other: Any) -> torch.nn.Module:
    return kf.GroupConv(2, 2, **{"group": kf.groups.Mirror(), "kernel_size": 3, **other})


def attention(**other: Any) -> torch.nn.Module:
    return kf.layers.LiftingSelfAttention(1, 2, group=kf.groups.Cyclic(4), **{"neighborhood": 5, **other})


CASES = [
    (grid_kernel(), {"size": 16}, "size"),
    (grid_kernel(), {"causal": True}, "causal"),
    (grid_kernel(dim=2), {"size": (8, 9)}, "size"),
    (group_kernel, {"kernel_size": 7}, "kernel_size"),
    (group_kernel, {"group": kf.groups.Cyclic(8), "samples": None}, r"group=SO2 .* group=Cyclic\(8\)"),
    (table_kernel, {"group": kf.groups.Cyclic(2)}, "group"),
    (attention, {"neighborhood": 7}, r"reach=2.0 .* reach=3.0"),
    (attention, {"neighborhood": None, "size": 9}, "reach=9.0"),
]


@pytest.mark.parametrize(("make", "change", "name"), CASES)
def test_other_sizes_are_announced(make: Callable[..., torch.nn.Module], change: dict[str, Any], name: str) -> None:
    state, other = make().state_dict(), make(**change)
    with pytest.warns(UserWarning, match=name):
        other.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make().load_state_dict(state)
        other.load_state_dict(other.state_dict())


def test_saved_states_and_networks_keep_the_size() -> None:
    """Files keep it, a layer inside a network warns, and no key shows it."""
    net = torch.nn.Sequential(kf.CKConv(1, 2, size=8), torch.nn.ReLU())
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    with pytest.warns(UserWarning, match="size"):
        torch.nn.Sequential(kf.CKConv(1, 2, size=9), torch.nn.ReLU()).load_state_dict(state)


def test_other_numbers_of_elements_load_without_a_word() -> None:
    file = io.BytesIO()
    torch.save(group_kernel().state_dict(), file)
    file.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group_kernel(samples=8).load_state_dict(torch.load(file, weights_only=True))
        attention(neighborhood=None, size=2).load_state_dict(attention(neighborhood=5).state_dict())


def test_plain_dictionaries_and_copies_load_without_a_word() -> None:
    layer = kf.CKConv(1, 2, size=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kf.CKConv(1, 2, size=9).load_state_dict(dict(layer.state_dict()))
        pickle.loads(pickle.dumps(layer)).load_state_dict(layer.state_dict())
