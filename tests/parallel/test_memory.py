"""A process keeps its share of the activations, and not much more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from . import cases

if TYPE_CHECKING:
    from .workers import Workers

_PLAIN: dict[str, Any] = {"in_channels": 1, "out_channels": 3, "blocks": 2}
NETWORKS = {
    "masked": ("ccnn_4_140", {**_PLAIN, "size": 2048, "channels": 32, "dropout": 0.1}, (2, 1, 2048)),
    "global": ("ccnn_4_140", {**_PLAIN, "size": 2048, "channels": 32, "sigma": None}, (2, 1, 2048)),
    "dense": ("ckcnn_2_30", {**_PLAIN, "size": 512, "channels": 16}, (4, 1, 512)),
    "image": ("flexnet_3", {"in_channels": 3, "out_channels": 3, "size": 32, "channels": 8}, (4, 3, 32, 32)),
    "volume": ("ccnn_4_140", {**_PLAIN, "dim": 3, "size": 16, "channels": 16}, (2, 1, 16, 16, 16)),
}


@pytest.mark.parametrize("name", ["masked", "dense"])
def test_activations_of_two(two: Workers, name: str) -> None:
    assert max(two.run(cases.memory_case, *NETWORKS[name])) <= 1.15 / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_activations_of_four(four: Workers, name: str) -> None:
    assert max(four.run(cases.memory_case, *NETWORKS[name])) <= 1.15 / 4
