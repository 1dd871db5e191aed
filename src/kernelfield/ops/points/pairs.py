"""Convolution between points, pair by pair: the readable reference, and the way for few points."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..backend import recompute
from ..conv.shape import is_symbolic
from .chunks import points_per_chunk

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
        # Do not repeat offsets that all samples share.
        shared, values = ("", values.squeeze(0)) if values.shape[0] == 1 else ("b", values)
        return torch.einsum(f"{shared}qngoi,bgin->bgoq", values, signals).flatten(1, 2)

    samples, points = max(c.coords.shape[0], c.at.shape[0]), c.coords.shape[1]
    return _in_chunks(block, signals, c.at, samples * points * max(c.values, c.coords.shape[-1]))


def nearest_pairs(c: PointConv, neighbors: int) -> Tensor:
    """Return the sum over the nearest points of each query, (batch, out, queries)."""
    batch, points = c.x.shape[0], c.coords.shape[1]
    # A depthwise convolution reads one contiguous row of all channels per neighbour.
    rows = c.fan_in == 1 and c.out_channels == c.groups
    signals = c.x.mT.contiguous() if rows else c.x.unflatten(1, (c.groups, c.fan_in))
    seen = None if c.mask is None else c.mask.unsqueeze(1)

    def block(signals: Tensor, queries: Tensor) -> Tensor:
        offsets = (queries.unsqueeze(2) - c.coords.unsqueeze(1)) / c.size
        meets = c.meets(offsets)
        offsets, meets, index = _nearest(offsets, meets if seen is None else meets & seen, c.size, neighbors)
        values = c.sample(offsets, meets)
        index = index.expand(batch, -1, -1)
        if rows:
            # Concatenate the rows of all samples: their gradient is then added row by row, without sorting the index.
            sample = torch.arange(batch, device=c.x.device).view(-1, 1, 1)
            met = signals.flatten(0, 1).index_select(0, (index + sample * signals.shape[1]).flatten())
            return (values[..., 0, 0] * met.unflatten(0, index.shape)).sum(dim=2).mT
        values = values.expand(batch, *(-1,) * 5)
        index = index.flatten(1)[:, None, None].expand(-1, *signals.shape[1:3], -1)
        met = signals.gather(-1, index).unflatten(-1, values.shape[1:3])
        return torch.einsum("bqngoi,bgiqn->bgoq", values, met).flatten(1, 2)

    samples = max(c.coords.shape[0], c.at.shape[0])
    return _in_chunks(
        block,
        signals,
        c.at,
        samples * points * c.coords.shape[-1],  # offsets from all points, to find the neighbours
        0 if c.mask is None else batch * points,  # distances, which differ between samples if there is a mask
        batch * neighbors * c.values,
    )


def _in_chunks(block: Callable[[Tensor, Tensor], Tensor], signals: Tensor, at: Tensor, *values: int) -> Tensor:
    step = points_per_chunk(at, *values)
    if step >= at.shape[1]:
        return block(signals, at)
    return torch.cat([recompute(block, signals, queries) for queries in at.split(step, dim=1)], dim=-1)


def _nearest(offsets: Tensor, meets: Tensor, size: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return offsets, validity and indices of the ``count`` nearest points that each query interacts with."""
    if not is_symbolic(meets.shape[-1]):  # a dynamic number of points is assumed to suffice
        count = min(count, meets.shape[-1])
    distance = (offsets.detach() * size).square().sum(dim=-1).masked_fill(~meets, math.inf)
    index = distance.topk(count, dim=-1, largest=False, sorted=False).indices  # (batch or 1, queries, count)
    if offsets.shape[0] != index.shape[0]:
        offsets = offsets.expand(index.shape[0], *(-1,) * 3)
    offsets = offsets.gather(2, index.unsqueeze(-1).expand(*index.shape, offsets.shape[-1]))
    return offsets, meets.gather(2, index), index
