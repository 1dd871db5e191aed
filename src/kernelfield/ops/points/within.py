"""The nearest points within the reach of a query."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._checks import is_symbolic
from ..graph_cache import capturing
from .chunks import chunk_values, points_per_chunk
from .neighbors import FEWEST_FOR_CELLS, nearest
from .reach import find_candidates

if TYPE_CHECKING:
    from .shape import PointConv

__all__ = ["neighbors_within"]

#: relative slack, for rounding, of the test whether a ball lies inside the kernel's reach
SLACK = 1e-4


@torch.no_grad()
def neighbors_within(c: PointConv, count: int) -> Tensor:
    """Return the ``count`` nearest points within reach of each query, (batch or 1, queries, count) indices.

    A query with fewer points within reach also gets points out of reach, or -1; test them with ``c.meets`` and the
    mask. Memory is linear in the number of points. For many points, time is linear too: cell lists find the nearest
    points, and a query is searched again, among all points within reach, only if its neighbours extend beyond the
    reach. While a CUDA graph is captured or a graph is traced, all distances are computed.
    """
    if c.coords.dtype in (torch.bfloat16, torch.float16):  # squares of distances would be equal, or infinite
        c = c._replace(coords=c.coords.float(), at=c.at.float(), size=c.size.float())
    points, queries = c.coords.shape[1], c.at.shape[1]
    samples = max(c.coords.shape[0], c.at.shape[0], 1 if c.mask is None else c.mask.shape[0])
    if is_symbolic(points, queries):  # a dynamic number of points is assumed to suffice
        return _all_distances(c, c.at, count)
    count = min(count, points)
    # A cell list costs as much as about 32 distances for each neighbour.
    few = points < 32 * count or samples * points * queries < FEWEST_FOR_CELLS.get(c.x.device.type, 1 << 29)
    if few or c.causal or torch.compiler.is_compiling() or capturing():
        step = points_per_chunk(c.at, samples * points)
        return torch.cat([_all_distances(c, part, count) for part in c.at.split(step, dim=1)], dim=1)
    coords, at = c.coords.expand(samples, -1, -1), c.at.expand(samples, -1, -1)
    index, squared = nearest(at, coords, count, mask=c.mask, method="cells")
    index = index.masked_fill(squared.isinf(), -1)
    if at.shape[-1] == 1:  # on a line the nearest points are those within reach
        return index
    # A nearer point outside a face of the box may have displaced one inside a corner of it.
    again = (squared[..., -1] >= (c.size.min() * (1 - SLACK)).square()).flatten().nonzero().squeeze(-1)
    index.flatten(0, 1)[again] = _in_cells(c, coords, at.flatten(0, 1)[again], again // queries, count)
    return index


def _all_distances(c: PointConv, queries: Tensor, count: int) -> Tensor:
    """Return the nearest points within reach of (batch or 1, queries, dim) queries, by all distances."""
    squared = queries.new_zeros(())
    inside = None if c.mask is None else c.mask.unsqueeze(1)
    # Axis by axis, because a tensor of all offsets would be ``dim`` times as large.
    for q, p, size in zip(queries.unbind(-1), c.coords.unbind(-1), c.size.unbind(), strict=True):
        offset = (q.unsqueeze(2) - p.unsqueeze(1)) / size
        near = c.meets(offset.unsqueeze(-1))
        inside = near if inside is None else inside & near
        squared = squared + (offset * size).square()
    assert inside is not None
    return squared.masked_fill(~inside, math.inf).topk(count, dim=-1, largest=False, sorted=False).indices


def _in_cells(c: PointConv, coords: Tensor, queries: Tensor, sample: Tensor, count: int) -> Tensor:
    """Return the nearest points within reach of (n, dim) queries of the given samples, (n, count), by cells."""
    points = coords.shape[1]
    index = torch.full((len(queries), count), -1, dtype=torch.long, device=queries.device)
    candidates = find_candidates(queries, coords, c.mask, c.size, causal=c.causal, sample=sample)
    # Half of the usual chunk, because rows of unequal length are padded.
    for some, which, row in candidates.parts(queries.shape[-1], chunk_values(queries.device.type) // 2):
        offsets = (queries[some][which] - coords.flatten(0, 1)[row]) / c.size
        squared = (offsets * c.size).square().sum(dim=-1).masked_fill(~c.meets(offsets), math.inf)
        held = candidates.length[some].sum(dim=1)
        slot = torch.arange(len(which), device=which.device) - (held.cumsum(0) - held)[which]
        shape = (len(held), max(count, int(held.max())))
        distance = torch.full(shape, math.inf, dtype=squared.dtype, device=squared.device)
        point = torch.full(shape, -1, dtype=torch.long, device=squared.device)
        distance[which, slot], point[which, slot] = squared, row % points
        best = distance.topk(count, dim=1, largest=False, sorted=False).indices
        index[some] = point.gather(1, best)
    return index
