"""Convolutions at any points: how large the tensors are that they make on their way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelfield import CKConv, FlexConv
from kernelfield.fields import SIREN, MAGNet
from kernelfield.ops import limit_point_memory, point_conv, point_sums
from kernelfield.ops.points import chunks
from kernelfield.ops.points.window import gather, spread, stencil
from tests.largest import Largest, Peak

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


LAYERS: dict[str, Any] = {
    "pairs": lambda: CKConv(8, 8, size=300, depthwise=True, point_method="pairs"),
    "dense": lambda: CKConv(8, 8, size=300, point_method="pairs"),
    "cells": lambda: FlexConv(8, 8, size=300, depthwise=True, sigma=0.05, point_method="cells"),
    "grid": lambda: CKConv(8, 8, size=400, field=MAGNet, depthwise=True, point_method="grid"),
    "neighbors": lambda: FlexConv(8, 8, size=300, depthwise=True, sigma=0.3, neighbors=40),
}


@pytest.mark.parametrize(
    "name", ["grid", "neighbors", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dense", "pairs", "cells"))]
)
def test_a_memory_bound_is_kept(name: str) -> None:
    torch.manual_seed(0)
    layer, points = LAYERS[name](), 150
    x, coords = torch.randn(1, 8, points, requires_grad=True), 300 * torch.rand(1, points, 1)
    results, peaks = [], []
    for limit in (1 << 30, 1 << 20):
        layer.zero_grad()
        with limit_point_memory(limit), Peak() as peak:
            y = layer(x, coords=coords)
            y.square().sum().backward()
        results.append([y.detach(), *(p.grad for p in layer.parameters())])
        peaks.append(peak.bytes)
    assert peaks[1] <= 1 << 20
    assert peaks[0] > 1 << 20
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_memory_bounds_end_with_their_block() -> None:
    before = chunks.chunk_values("cpu")
    with limit_point_memory(1 << 20):
        assert chunks.chunk_values("cpu") < before
    assert chunks.chunk_values("cpu") == before
    with pytest.raises(ValueError, match="limit"):
        limit_point_memory(0)


def test_windows_are_transformed_by_vmap() -> None:
    first, weights = stencil(torch.tensor([[4.3], [6.8]], dtype=torch.float64), 1e-2)
    where = ((1, 14), torch.zeros(2, dtype=torch.long))
    rows, grids = torch.randn(3, 2, 2, dtype=torch.float64), torch.randn(3, 14, 2, dtype=torch.float64)
    for function, values in ((spread, rows), (gather, grids)):
        one_by_one = torch.stack([function(v, first, weights, *where) for v in values])
        torch.testing.assert_close(torch.vmap(lambda v, f=function: f(v, first, weights, *where))(values), one_by_one)


@pytest.mark.parametrize("points", [12, 300])
def test_layers_at_points_are_transformed_by_vmap(points: int) -> None:
    layer = CKConv(2, 3, size=20, causal=True)
    x, coords = torch.randn(3, 2, points), (20 * torch.rand(3, points, 1)).sort(dim=1).values
    mapped = torch.vmap(lambda v, c: layer(v.unsqueeze(0), coords=c.unsqueeze(0)).squeeze(0))(x, coords)
    torch.testing.assert_close(mapped, layer(x, coords=coords), rtol=1e-3, atol=1e-3)
