"""Pairs of points within the reach of a kernel, found by sorting points into cells."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .cell_list import ragged, ravel

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Candidates", "cells_per_axis", "find_candidates"]

#: relative widening of the reach in the search, for rounding; an exact test follows
SLACK = 1e-5
#: largest number of cells for each point
CELLS_PER_POINT = 2


class Candidates(NamedTuple):
    """Points with which each query may interact, as ranges of the sorted points.

    Attributes:
        order: (rows,) indices sample · points + point, sorted by cell.
        start: (queries, ranges) index in ``order`` at which each range begins.
        length: (queries, ranges) number of points in each range.
    """

    order: Tensor
    start: Tensor
    length: Tensor

    def parts(self, values: int, most: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield slices of queries, and their pairs as (query within the slice, row of the point).

        Args:
            values: number of values for one pair.
            most: largest number of values in memory at once.
        """
        total = self.length.sum(dim=1).cumsum(0).cpu()  # a single synchronisation for all parts
        begin, before, queries = 0, 0, len(total)
        while begin < queries:
            end = int(torch.searchsorted(total, before + max(1, most // max(1, values)), right=True))
            end = min(max(end, begin + 1), queries)
            length = self.length[begin:end].flatten()
            which, place = ragged(self.start[begin:end].flatten(), length, int(total[end - 1]) - before)
            yield slice(begin, end), which // self.length.shape[1], self.order[place]
            begin, before = end, int(total[end - 1])


def cells_per_axis(points: int, dim: int) -> int:
    """Return the number of cells along each axis into which ``points`` points are sorted.

    >>> cells_per_axis(1000, 3)
    12
    """
    return max(1, int((CELLS_PER_POINT * points) ** (1 / dim)))


@torch.no_grad()
def find_candidates(
    queries: Tensor,
    points: Tensor,
    seen: Tensor | None,
    reach: Tensor,
    *,
    causal: bool,
    sample: Tensor | None = None,
    per_axis: int | None = None,
) -> Candidates:
    """Return all points within ``reach`` of each query along every axis, and a few more.

    Cells are as wide as the reach, so a query searches its own cell and the adjacent ones. On a line, points are sorted
    by coordinate, and a query has one exact range.

    Args:
        queries: (batch, queries, dim) coordinates; (queries, dim) if ``sample`` is given.
        points: (batch, points, dim) coordinates.
        seen: (batch, points), True for points, False for padding; None if all are points.
        reach: (dim,) largest distance along each axis.
        causal: whether to return only points at or before the query; needs dim 1.
        sample: (queries,) index of the sample that each query belongs to, in 2 and more dimensions.
        per_axis: cells along each axis, in 2 and more dimensions; by default :func:`cells_per_axis`.
    """
    batch, count = points.shape[:2]
    dim = len(points.unbind(-1))  # a constant even in graphs that are traced with a symbolic last axis
    reach = reach.to(points.dtype) * (1 + SLACK)
    if seen is None:
        seen = torch.ones(batch, count, dtype=torch.bool, device=points.device)
    low = torch.where(seen.unsqueeze(-1), points, torch.inf).amin(dim=1, keepdim=True)
    high = torch.where(seen.unsqueeze(-1), points, -torch.inf).amax(dim=1, keepdim=True)
    low = torch.where(low.isfinite(), low, 0.0)
    if dim == 1:
        return _ranges_on_line(queries, points, seen, reach, causal=causal)
    most = cells_per_axis(count, dim) if per_axis is None else per_axis
    width = torch.maximum(reach, torch.where(high.isfinite(), high - low, 0.0) / most)
    at = ((points - low) / width).floor().clamp(0, most - 1).long()
    number = ravel(at, most) + torch.arange(batch, device=points.device).unsqueeze(1) * most**dim
    number = torch.where(seen, number, batch * most**dim).flatten()  # padding comes after all cells
    order = number.argsort()
    start = torch.searchsorted(number[order], torch.arange(batch * most**dim + 1, device=points.device))
    if sample is None:
        sample = torch.arange(batch, device=points.device).repeat_interleave(queries.shape[1])
        queries = queries.flatten(0, 1)
    home = ((queries - low[sample, 0]) / width[sample, 0]).floor()
    # A row of three cells along the last axis is one range.
    first, last = (home[..., -1] - 1).clamp(0, most - 1).long(), (home[..., -1] + 1).clamp(0, most - 1).long()
    starts, lengths = [], []
    for shift in itertools.product((-1, 0, 1), repeat=dim - 1):
        # Axis by axis, because a tensor of shifts would have to be copied to the device.
        cell = torch.stack([home[..., axis] + by for axis, by in enumerate(shift)], dim=-1)
        inside = ((cell >= 0) & (cell < most)).all(dim=-1) & (home[..., -1] >= -1) & (home[..., -1] <= most)
        row = ravel(cell.clamp(0, most - 1).long(), most) * most + sample * most**dim
        begin = start[row + first]
        starts.append(begin)
        lengths.append(torch.where(inside, start[row + last + 1] - begin, 0))
    return Candidates(order, torch.stack(starts, -1), torch.stack(lengths, -1))


def _ranges_on_line(queries: Tensor, points: Tensor, seen: Tensor, reach: Tensor, *, causal: bool) -> Candidates:
    line, order = points[..., 0].masked_fill(~seen, torch.inf).sort(dim=1)
    at = queries[..., 0].contiguous()
    slack = 8 * torch.finfo(at.dtype).eps * (reach + at.abs())  # for rounding of the sums below
    begin = torch.searchsorted(line, at - reach - slack)
    end = torch.searchsorted(line, at + (slack if causal else reach + slack), right=True)
    end = torch.minimum(end, seen.sum(dim=1, keepdim=True))
    sample = torch.arange(len(points), device=points.device).unsqueeze(1) * points.shape[1]
    length = (end - begin).clamp(min=0)
    return Candidates((order + sample).flatten(), (begin + sample).view(-1, 1), length.view(-1, 1))
