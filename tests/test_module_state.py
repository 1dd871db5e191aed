"""Computed buffers are no part of a state, and survive what empties a module before its state is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import kernelfield as kf
from kernelfield.layers import CyclicSelfAttention, LiftingSelfAttention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P4, SCALES = kf.groups.Cyclic(4), kf.groups.Scale(3)
BUILD: dict[str, Callable[[], nn.Module]] = {
    "CKConv": lambda: kf.CKConv(1, 2, dim=2, size=4),
    "NJet": lambda: kf.CKConv(1, 2, dim=2, size=4, field=kf.fields.NJet),
    "table": lambda: kf.LiftingConv(1, 2, group=P4, kernel_size=3),
    "rotated table": lambda: kf.LiftingConv(1, 2, group=kf.groups.Cyclic(8), kernel_size=3),
    "scales": lambda: kf.GroupConv(1, 2, group=SCALES, kernel_size=3),
    "Bernoulli": lambda: nn.Sequential(
        kf.LiftingConv(1, 2, group=P4, kernel_size=3),
        kf.PartialGroupConv(2, 2, group=P4, kernel_size=3),
        kf.GroupPool(over="all"),
    ),
    "self-attention": lambda: nn.Sequential(LiftingSelfAttention(1, 2, group=P4, neighborhood=3), kf.GroupPool()),
    "co-attention": lambda: nn.Sequential(
        kf.LiftingConv(1, 2, group=P4, kernel_size=3), CyclicSelfAttention(2, group=P4, form="blocks"), kf.GroupPool()
    ),
}


@pytest.fixture
def filled() -> Iterator[None]:
    """Fill empty tensors with NaN or the largest integer, instead of what the memory holds."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("name", BUILD)
def test_an_emptied_module_needs_only_its_state(name: str) -> None:
    first, second = BUILD[name]().eval(), BUILD[name]().eval()
    x = torch.randn(2, 1, 3, 9) if name == "scales" else torch.randn(2, 1, 6, 6)
    wanted = first(x)
    second.to_empty(device="cpu").load_state_dict(first.state_dict())
    got = second(x)
    assert torch.equal(*(y if isinstance(y, torch.Tensor) else y.values for y in (got, wanted)))


@pytest.mark.parametrize("name", BUILD)
def test_a_module_without_data_is_refused(name: str) -> None:
    with (
        pytest.raises(ValueError, match=r"must be (built )?on a device that holds data, got meta"),
        torch.device("meta"),
    ):
        BUILD[name]()
    with pytest.raises(ValueError, match=r"\w+ must be on a device that holds data, got meta"):
        BUILD[name]().to("meta").to_empty(device="cpu")
    with pytest.raises(ValueError, match=r"\w+ must be on a device that holds data, got meta"):
        BUILD[name]().to("meta").load_state_dict(BUILD[name]().state_dict(), assign=True)


def test_a_cast_changes_computed_buffers_like_others() -> None:
    layer = LiftingSelfAttention(1, 2, group=P4, neighborhood=3)
    assert layer.double().all_elements.dtype == torch.float64
    assert layer.all_elements.flatten().tolist() == [0, 1, 2, 3]
    assert "all_elements" not in layer.state_dict()
