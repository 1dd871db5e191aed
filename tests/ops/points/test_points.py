"""Convolutions at any points: how large the tensors are that they make on their way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelfield.fields import SIREN
from kernelfield.ops import point_conv, point_sums
from kernelfield.ops.points import chunks
from tests.largest import Largest

#: so many values were to be held without chunks: hidden ones, kernel values, offsets
CASES: dict[str, dict[str, Any]] = {
    "dense": {"channels": (3, 4), "hidden": 5},
    "hidden": {"channels": (3, 4), "hidden": 20},
    "depthwise": {"channels": (6, 6), "groups": 6, "hidden": 3},
    "neighbors": {"channels": (3, 4), "hidden": 20, "neighbors": 40},
    "rows": {"channels": (9, 9), "groups": 9, "hidden": 3, "neighbors": 40},
    "offsets": {"channels": (2, 2), "hidden": 3, "neighbors": 2},
    "masked": {"channels": (2, 2), "hidden": 3, "neighbors": 2, "masked": True},
}
BUDGET, POINTS = 12_000, 80


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_chunks_fill_the_memory_budget(case: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(chunks.CHUNK_VALUES, "cpu", BUDGET)
    options = dict(CASES[case])
    (into, out), hidden, groups = options.pop("channels"), options.pop("hidden"), options.get("groups", 1)
    field = SIREN(2, out * into // groups, hidden=hidden)
    mask = torch.rand(3, POINTS) < 0.8 if options.pop("masked", False) else None
    x = torch.randn(3, into, POINTS, requires_grad=True)
    coords = 2 * torch.rand(1 if shared else 3, POINTS, 2) - 1
    with Largest() as largest:
        y = point_conv(
            x, coords, field, torch.ones(2), out_channels=out, hidden=field.hidden_values(), mask=mask, **options
        )
        y.sum().backward()
    assert y.shape == (3, out, POINTS)
    assert BUDGET / 2 < largest.elements <= BUDGET


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("channels", "kernels", "hidden"), [(2, 4, 3), (2, 4, 20), (15, 1, 1)])
def test_sums_with_few_kernels_keep_to_the_budget(
    channels: int, kernels: int, hidden: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(chunks.CHUNK_VALUES, "cpu", BUDGET)
    field = SIREN(2, kernels, hidden=hidden)
    x = torch.randn(3, channels, POINTS, requires_grad=True)
    coords = 2 * torch.rand(1 if shared else 3, POINTS, 2) - 1
    with Largest() as largest:
        point_sums(x, coords, field, torch.ones(2), hidden=field.hidden_values()).sum().backward()
    assert BUDGET / 2 < largest.elements <= BUDGET
