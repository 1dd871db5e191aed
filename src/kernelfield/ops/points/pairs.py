"""Convolution between points by a sum over pairs: the readable reference, and the method for few points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..backend import recompute
from .chunks import points_per_chunk
from .within import neighbors_within

if TYPE_CHECKING:
    from collections.abc import Callable

    from .shape import PointConv

__all__ = ["all_pairs", "nearest_pairs"]


def all_pairs(c: PointConv) -> Tensor:
    """Return the sum over all pairs of points, (batch, out, queries)."""
    signals = c.x.unflatten(1, (c.groups, c.fan_in))

    def block(signals: Tensor, queries: Tensor) -> Tensor:
        offsets = (queries.unsqueeze(2) - c.coords.unsqueeze(1)) / c.size  # (batch or 1, queries, points, dim)
        values = c.sample(offsets, c.meets(offsets))
        # Offsets that all samples share are not repeated.
        shared, values = ("", values.squeeze(0)) if values.shape[0] == 1 else ("b", values)
        return torch.einsum(f"{shared}qngoi,bgin->bgoq", values, signals).flatten(1, 2)

    samples, points = max(c.coords.shape[0], c.at.shape[0]), c.coords.shape[1]
    return _in_chunks(block, signals, c.at, samples * points * max(c.values, c.coords.shape[-1]))


def nearest_pairs(c: PointConv, neighbors: int) -> Tensor:
    """Return the sum over the nearest points of each query, (batch, out, queries).

    The neighbours are found first and only once; the backward pass does not search again.
    """
    batch = c.x.shape[0]
    # A depthwise convolution reads one contiguous row of all channels per neighbour.
    rows = c.fan_in == 1 and c.out_channels == c.groups
    signals = c.x.mT.contiguous() if rows else c.x.unflatten(1, (c.groups, c.fan_in))
    index = neighbors_within(c, neighbors)
    coords = c.coords.expand(index.shape[0], -1, -1)

    def block(signals: Tensor, queries: Tensor, index: Tensor) -> Tensor:
        there, index = index >= 0, index.clamp(min=0)
        found = coords.gather(1, index.flatten(1).unsqueeze(-1).expand(-1, -1, coords.shape[-1]))
        offsets = (queries.unsqueeze(2) - found.unflatten(1, index.shape[1:])) / c.size
        meets = c.meets(offsets) & there
        if c.mask is not None:
            meets = meets & c.mask.gather(1, index.flatten(1)).view(index.shape)
        values = c.sample(offsets, meets)
        index = index.expand(batch, -1, -1)
        if rows:
            # The rows of all samples are concatenated, so gradients are added row by row, without sorting the index.
            sample = torch.arange(batch, device=c.x.device).view(-1, 1, 1)
            met = signals.flatten(0, 1).index_select(0, (index + sample * signals.shape[1]).flatten())
            return (values[..., 0, 0] * met.unflatten(0, index.shape)).sum(dim=2).mT
        values = values.expand(batch, *(-1,) * 5)
        index = index.flatten(1)[:, None, None].expand(-1, *signals.shape[1:3], -1)
        met = signals.gather(-1, index).unflatten(-1, values.shape[1:3])
        return torch.einsum("bqngoi,bgiqn->bgoq", values, met).flatten(1, 2)

    step = points_per_chunk(c.at, batch * neighbors * max(c.values, c.x.shape[1]))
    if step >= c.at.shape[1]:
        return block(signals, c.at, index)
    parts = zip(c.at.split(step, dim=1), index.split(step, dim=1), strict=True)
    return torch.cat([recompute(block, signals, queries, near) for queries, near in parts], dim=-1)


def _in_chunks(block: Callable[[Tensor, Tensor], Tensor], signals: Tensor, at: Tensor, *values: int) -> Tensor:
    step = points_per_chunk(at, *values)
    if step >= at.shape[1]:
        return block(signals, at)
    return torch.cat([recompute(block, signals, queries) for queries in at.split(step, dim=1)], dim=-1)
