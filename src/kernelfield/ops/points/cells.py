"""Convolution between points whose kernel reaches a small part of them: only pairs within reach are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..backend import recompute
from .chunks import CHUNK_VALUES
from .reach import find_candidates

if TYPE_CHECKING:
    from .shape import PointConv

__all__ = ["cell_pairs"]


def cell_pairs(c: PointConv) -> Tensor:
    """Return the sum over pairs within reach, (batch, out, queries): the same as over all pairs, in O(N k) time.

    Nothing has the size of all pairs. The host waits once for the device, to learn how many pairs there are.
    """
    batch, queries = c.x.shape[0], c.at.shape[1]
    shared = c.coords.shape[0] == c.at.shape[0] == 1 and c.mask is None
    coords, at = c.coords, c.at
    if not shared:
        coords, at = coords.expand(batch, -1, -1), at.expand(batch, -1, -1)
    # One row for each point: (rows, samples that share the coordinates, groups, in / groups)
    rows = c.x.permute(2, 0, 1).unflatten(2, (c.groups, c.fan_in)) if shared else c.x.mT.reshape(-1, 1, *_split(c))
    candidates = find_candidates(at, coords, c.mask, c.size, causal=c.causal)
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

    parts = [
        recompute(block, rows, at[some], which, point)
        for some, which, point in candidates.parts(held, CHUNK_VALUES.get(c.x.device.type, 1 << 26))
    ]
    y = torch.cat(parts)  # (queries of all samples, samples that share them, out)
    return y.permute(1, 2, 0) if shared else y.view(batch, queries, -1).mT


def _split(c: PointConv) -> tuple[int, int]:
    return c.groups, c.fan_in
