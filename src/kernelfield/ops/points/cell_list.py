"""Nearest neighbours by cell lists: points are sorted into cubes, and a query searches only the cubes around it.

Cubes are numbered consecutively along the last axis, and points are sorted by the number of their cube. The points of a
row of cubes are then one range of the sorted points. A table of partial sums gives the number of points in any box of
cubes. A search has two steps:

1. Find, by bisection, the smallest box of cubes around the query that holds enough points. The distance to the
   ``count``-th nearest of these is an upper bound.
2. Search all cubes within that bound, unless the first step already did.

There are about as many cubes as points, so memory is linear. Time is linear too for points that fill a space: the
number of points in a box depends on ``count`` but not on the size of the cloud. For points on a surface, queries far
from it search more cubes as the cubes get smaller. The result is always exact.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .chunks import chunk_values

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ragged", "ravel", "search_cells"]

#: cubes per point
CELLS_PER_POINT = 1
#: distances in memory at once; eight times as many on a GPU, which would be idle between small chunks
CHUNK_VALUES = 1 << 22


class _Cells(NamedTuple):
    """Points sorted into cubes.

    Args:
        per_axis: cubes along each axis.
        low: (batch, dim) corner of the first cube.
        width: (batch, 1) side of the cubes.
        order: (batch, points) indices of points, sorted by the number of their cube.
        start: (batch, cubes + 1) index in ``order`` at which each cube begins.
        sums: (batch, (per_axis + 1)^dim) number of points in all cubes up to a corner.
    """

    per_axis: int
    low: Tensor
    width: Tensor
    order: Tensor
    start: Tensor
    sums: Tensor


@torch.library.custom_op("kernelfield::search_cells", mutates_args=())
def search_cells(queries: Tensor, points: Tensor, seen: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the indices and squared distances of the ``count`` nearest points, both (batch, queries, count).

    This is a custom operator, because a compiler cannot trace a loop whose length depends on the data.

    Args:
        queries: (batch, queries, dim) coordinates.
        points: (batch, points, dim) coordinates.
        seen: (batch, points), True for points, False for padding.
        count: number of neighbours, at most the number of points.

    >>> line = torch.arange(5.0).view(1, 5, 1)
    >>> search_cells(line[:, 3:4] + 0.1, line, torch.ones(1, 5, dtype=torch.bool), 2)[0]
    tensor([[[3, 4]]])
    """
    batch, each, dim = queries.shape
    cells = _sort_into_cells(points, seen)
    flat = queries.reshape(-1, dim)
    sample = torch.arange(batch, device=points.device).repeat_interleave(each, output_size=batch * each)
    first, last = _boxes_with(cells, flat, sample, seen.sum(dim=1).clamp(max=count)[sample])
    index, squared = _search(cells, flat, points, first, last, sample, count)
    # A thousandth of a cube is added to the bound, for rounding.
    bound = squared[:, -1:].sqrt() * (1 + 1e-5) + 1e-3 * cells.width[sample]
    near, far = _cell_of(flat - bound, cells, sample), _cell_of(flat + bound, cells, sample)
    more = ((near < first) | (far > last)).any(dim=-1).nonzero().squeeze(-1)
    again = _search(cells, flat[more], points, near[more], far[more], sample[more], count, bound[more])
    index[more], squared[more] = again
    return index.view(batch, each, count), squared.view(batch, each, count)


@search_cells.register_fake
def _(queries: Tensor, points: Tensor, seen: Tensor, count: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    shape = (queries.shape[0], queries.shape[1], count)
    return queries.new_empty(shape, dtype=torch.long), queries.new_empty(shape)


def _sort_into_cells(points: Tensor, seen: Tensor) -> _Cells:
    batch, count, dim = points.shape
    per_axis = max(1, round((CELLS_PER_POINT * count) ** (1 / dim)))
    there = seen.unsqueeze(-1)
    low = torch.where(there, points, math.inf).amin(dim=1)
    high = torch.where(there, points, -math.inf).amax(dim=1)
    low = torch.where(low.isfinite(), low, 0.0)  # a sample without points
    width = (high - low).amax(dim=-1, keepdim=True) / per_axis
    width = torch.where(width.isfinite() & (width > 0), width, 1.0)
    none = torch.zeros(0, dtype=torch.long, device=points.device)
    total = per_axis**dim
    sample = torch.arange(batch, device=points.device).unsqueeze(1)
    number = ravel(_cell_of(points, _Cells(per_axis, low, width, none, none, none), sample), per_axis)
    number = torch.where(seen, number, total)  # padding comes after all cubes
    held = torch.zeros(batch, total + 1, dtype=torch.long, device=points.device)
    held = held.scatter_add_(1, number, torch.ones_like(number))[:, :-1]
    sums = held.view(batch, *(per_axis,) * dim)
    for axis in range(1, dim + 1):
        sums = sums.cumsum(dim=axis)
    start = pad(held.cumsum(dim=1), (1, 0))
    return _Cells(per_axis, low, width, number.argsort(dim=1), start, pad(sums, (1, 0) * dim).flatten(1))


def _cell_of(x: Tensor, cells: _Cells, sample: Tensor) -> Tensor:
    """Return the (…, dim) cube of each point, or the nearest cube for points outside all cubes."""
    at = ((x - cells.low[sample]) / cells.width[sample]).floor()
    return at.nan_to_num(nan=0.0).clamp(0, cells.per_axis - 1).long()


def ravel(cell: Tensor, per_axis: int) -> Tensor:
    """Return the number of each (…, dim) cube, counted along the last axis first."""
    number = cell[..., 0]
    for axis in range(1, cell.shape[-1]):
        number = number * per_axis + cell[..., axis]
    return number


def _held(cells: _Cells, first: Tensor, last: Tensor, sample: Tensor) -> Tensor:
    """Return the number of points in each box of cubes ``first`` … ``last``."""
    held = torch.zeros_like(sample)
    for corner in itertools.product((False, True), repeat=first.shape[-1]):
        at = torch.stack([last[:, a] + 1 if upper else first[:, a] for a, upper in enumerate(corner)], dim=-1)
        sign = -1 if corner.count(False) % 2 else 1
        held += sign * cells.sums[sample, ravel(at, cells.per_axis + 1)]
    return held


def _boxes_with(cells: _Cells, queries: Tensor, sample: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each query, the smallest box of cubes around its cube that holds at least ``wanted`` points."""
    home, most = _cell_of(queries, cells, sample), cells.per_axis - 1
    least, enough = torch.zeros_like(sample), torch.full_like(sample, most)
    for _ in range(cells.per_axis.bit_length()):
        middle = (least + enough) // 2
        reach = middle.unsqueeze(-1)
        holds = _held(cells, (home - reach).clamp(min=0), (home + reach).clamp(max=most), sample) >= wanted
        enough, least = torch.where(holds, middle, enough), torch.where(holds, least, middle + 1)
    reach = enough.unsqueeze(-1)
    return (home - reach).clamp(min=0), (home + reach).clamp(max=most)


def _search(
    cells: _Cells,
    queries: Tensor,
    points: Tensor,
    first: Tensor,
    last: Tensor,
    sample: Tensor,
    count: int,
    bound: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the nearest points of (n, dim) queries within boxes of cubes.

    Args:
        cells: the points, sorted.
        queries: (n, dim) coordinates.
        points: (batch, points, dim) coordinates.
        first: (n, dim) first cube of each query's box.
        last: (n, dim) last cube of each query's box.
        sample: (n,) sample that each query belongs to.
        count: number of neighbours.
        bound: (n, 1) distance beyond which no point matters.
    """
    n = len(queries)
    index = torch.zeros(n, count, dtype=torch.long, device=queries.device)
    squared = torch.full((n, count), math.inf, dtype=queries.dtype, device=queries.device)
    lines = (last - first + 1)[:, :-1].prod(dim=-1)  # rows of cubes in each box
    for some, (rows,) in _parts(torch.arange(n, device=queries.device), [lines]):
        box, begin, length = _ranges(
            cells, queries[some], first[some], last[some], sample[some], None if bound is None else bound[some], rows
        )
        count_rows = torch.zeros_like(some).index_add(0, box, torch.ones_like(box))
        held = torch.zeros_like(some).index_add(0, box, length)
        first_row = _before(count_rows)
        # Queries with similar numbers of candidates are grouped, so that little padding is needed.
        by_size = held.argsort()
        for few, (ranges, total, most) in _parts(by_size, [count_rows[by_size], held[by_size]], alike=1):
            which, row = ragged(first_row[few], count_rows[few], ranges)
            inner, place = ragged(begin[row], length[row], total)
            which = which[inner]
            query = some[few[which]]
            point = cells.order[sample[query], place]
            far = (queries[query] - points[sample[query], point]).square().sum(dim=-1)
            slot = torch.arange(total, device=queries.device) - _before(held[few])[which]
            shape = (len(few), max(most, count))
            distance = torch.full(shape, math.inf, dtype=queries.dtype, device=queries.device)
            candidate = torch.zeros(shape, dtype=torch.long, device=queries.device)
            distance[which, slot], candidate[which, slot] = far, point
            best = distance.topk(count, dim=1, largest=False)
            squared[some[few]], index[some[few]] = best.values, candidate.gather(1, best.indices)
    return index, squared


def _ranges(
    cells: _Cells, queries: Tensor, first: Tensor, last: Tensor, sample: Tensor, bound: Tensor | None, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the query, the start in ``order`` and the number of points of all non-empty rows of cubes in the boxes."""
    extent = last - first + 1
    box, rest = ragged(torch.zeros_like(sample), extent[:, :-1].prod(dim=-1), rows)
    begin, end = first[box, -1], last[box, -1]
    number, weight = torch.zeros_like(rest), cells.per_axis
    low, width, apart = cells.low[sample], cells.width[sample, 0], queries.new_zeros(())
    for axis in range(queries.shape[-1] - 2, -1, -1):
        cell = first[box, axis] + rest % extent[box, axis]
        rest = rest // extent[box, axis]
        number, weight = number + cell * weight, weight * cells.per_axis
        if bound is not None:
            at = ((queries[:, axis] - low[:, axis]) / width)[box]
            apart = apart + torch.maximum(cell - at, at - cell - 1).clamp(min=0).square()
    if bound is not None:
        # Only the part of each row inside the ball is kept; it may be empty.
        left = (bound[:, 0] / width).square()[box] - apart
        half = left.clamp(min=0).sqrt()
        at = ((queries[:, -1] - low[:, -1]) / width)[box]
        begin = torch.maximum(begin, (at - half).floor().clamp(0, cells.per_axis - 1).long())
        end = torch.minimum(end, (at + half).floor().clamp(0, cells.per_axis - 1).long())
        end = torch.where(left < 0, begin - 1, end)
    start = cells.start[sample[box], number + begin]
    length = (cells.start[sample[box], number + end + 1] - start).clamp(min=0)
    some = length.nonzero().squeeze(-1)
    return box[some], start[some], length[some]


def ragged(start: Tensor, length: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Concatenate the ranges start, start + 1, …; return the range of each element, and the elements.

    >>> ragged(torch.tensor([5, 0]), torch.tensor([2, 3]), 5)
    (tensor([0, 0, 1, 1, 1]), tensor([5, 6, 0, 1, 2]))
    """
    which = torch.arange(len(start), device=start.device).repeat_interleave(length, output_size=total)
    return which, torch.arange(total, device=start.device) + (start - _before(length))[which]


def _before(counts: Tensor) -> Tensor:
    """Return the exclusive cumulative sum."""
    return counts.cumsum(0) - counts


def _parts(items: Tensor, loads: list[Tensor], alike: int | None = None) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
    """Split items into parts whose loads fit into memory.

    Args:
        items: (n,) items to split.
        loads: (n,) loads of each item, one tensor per kind of load.
        alike: kind of load by which items are ordered. In a part, the largest load of this kind is at most 32 or twice
            the smallest.

    Returns:
        Items, the sum of each kind of load and, if ``alike`` is given, the largest load of that kind.
    """
    most = chunk_values(items.device.type, CHUNK_VALUES if items.device.type == "cpu" else 8 * CHUNK_VALUES)
    sizes = torch.stack(loads).cpu().numpy()  # a single synchronisation for all parts
    sums = sizes.cumsum(axis=1)
    begin, n = 0, sizes.shape[1]
    while begin < n:
        before = sums[:, begin - 1] if begin else 0 * sums[:, 0]
        end = min(int(kind.searchsorted(was + most, side="right")) for kind, was in zip(sums, before, strict=True))
        largest: tuple[int, ...] = ()
        if alike is not None:
            limit = max(32, 2 * int(sizes[alike, begin]))
            end = min(end, int(sizes[alike].searchsorted(limit, side="right")))
            end = min(end, begin + max(1, most // limit))
        end = max(end, begin + 1)
        if alike is not None:
            largest = (int(sizes[alike, end - 1]),)
        yield items[begin:end], (*(int(v) for v in sums[:, end - 1] - before), *largest)
        begin = end
