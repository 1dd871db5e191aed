"""Convolution between points that computes only pairs within the kernel's reach."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._checks import is_symbolic
from ..backend import recompute
from .chunks import chunk_values, points_per_chunk
from .plan import CellPlan
from .reach import cells_per_axis, find_candidates

if TYPE_CHECKING:
    from .shape import PointConv

__all__ = ["cell_pairs", "plan_cells"]


def cell_pairs(c: PointConv, plan: CellPlan | None = None) -> Tensor:
    """Return the sum over pairs within reach, (batch, out, queries), which equals that over all pairs, in O(N k) time.

    No tensor has the size of all pairs. Without a plan, the host waits once for the device to learn the number of
    pairs. With a plan, every query has the same number of pairs, some of which are padding. Outputs of queries with
    more pairs are NaN.
    """
    batch, queries = c.x.shape[0], c.at.shape[1]
    shared = c.coords.shape[0] == c.at.shape[0] == 1 and c.mask is None
    coords, at = c.coords, c.at
    if not shared:
        coords, at = coords.expand(batch, -1, -1), at.expand(batch, -1, -1)
    # There is one row for each point: (rows, samples that share the coordinates, groups, in / groups).
    rows = c.x.permute(2, 0, 1).unflatten(2, (c.groups, c.fan_in)) if shared else c.x.mT.reshape(-1, 1, *_split(c))
    per_axis = None if plan is None else plan.per_axis
    candidates = find_candidates(at, coords, c.mask, c.size, causal=c.causal, per_axis=per_axis)
    coords, at = coords.reshape(-1, coords.shape[-1]), at.reshape(-1, at.shape[-1])
    held = max(c.values, rows.shape[1] * c.x.shape[1])

    def block(rows: Tensor, at: Tensor, which: Tensor, point: Tensor) -> Tensor:
        offsets = (at.index_select(0, which) - coords.index_select(0, point)) / c.size
        values = c.sample(offsets, c.meets(offsets))
        met = rows.index_select(0, point)
        if c.fan_in == 1 and c.out_channels == c.groups:
            met = met[..., 0] * values[..., 0, 0].unsqueeze(1)
        else:
            met = torch.einsum("pgoi,psgi->psgo", values, met).flatten(2)
        return met.new_zeros(len(at), *met.shape[1:]).index_add(0, which, met)

    def padded(rows: Tensor, at: Tensor, start: Tensor, length: Tensor) -> Tensor:
        assert plan is not None
        slot = torch.arange(plan.per_range, device=start.device)
        point = candidates.order[(start.unsqueeze(-1) + slot).clamp(max=coords.shape[0] - 1)]
        there = (slot < length.unsqueeze(-1)).flatten(1)
        offsets = (at.unsqueeze(1) - coords[point.flatten(1)]) / c.size
        values = c.sample(offsets, c.meets(offsets) & there)
        y = torch.einsum("qngoi,qnsgi->qsgo", values, rows[point.flatten(1)]).flatten(2)
        return torch.where((length <= plan.per_range).all(dim=1)[:, None, None], y, torch.nan)

    if plan is not None:
        held *= plan.per_range * candidates.start.shape[1]
        step = points_per_chunk(at.unsqueeze(0), held)
        lines = (at, candidates.start, candidates.length)
        if is_symbolic(queries, at.shape[0]) or step >= at.shape[0]:
            y = padded(rows, *lines)
        else:
            parts = zip(*(line.split(step) for line in lines), strict=True)
            y = torch.cat([recompute(padded, rows, *some) for some in parts])
        return y.permute(1, 2, 0) if shared else y.view(batch, queries, -1).mT
    found = [
        recompute(block, rows, at[some], which, point)
        for some, which, point in candidates.parts(held, chunk_values(c.x.device.type))
    ]
    y = torch.cat(found)  # (queries of all samples, samples that share them, out)
    return y.permute(1, 2, 0) if shared else y.view(batch, queries, -1).mT


@torch.no_grad()
def plan_cells(c: PointConv, slack: float) -> CellPlan:
    """Return the sizes of the search for pairs within reach, with room for ``slack`` times as many points."""
    batch, per_axis = max(c.coords.shape[0], c.at.shape[0]), cells_per_axis(c.coords.shape[1], c.coords.shape[-1])
    mask = c.mask
    if mask is not None:
        batch = len(mask)
    coords, at = c.coords.expand(batch, -1, -1), c.at.expand(batch, -1, -1)
    candidates = find_candidates(at, coords, mask, c.size, causal=c.causal, per_axis=per_axis)
    return CellPlan(per_axis, max(1, math.ceil(slack * int(candidates.length.max()))))


def _split(c: PointConv) -> tuple[int, int]:
    return c.groups, c.fan_in
