"""Exact nearest neighbours of points in another cloud or in a regular grid."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..._arguments import checked
from ..._checks import is_symbolic
from ..._kinds import FINITE, Choice, PerAxis
from ..._object_kinds import TensorOf
from ...grids import box_grid, check_box
from ..graph_cache import graph_cache
from .cell_list import search_cells
from .chunks import chunk_values
from .finite import check_finite, check_seen_finite

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Edges", "bilateral_edges", "nearest", "nearest_nodes"]

#: number of distances in memory at once
CHUNK_VALUES = 1 << 24
#: number of distances above which cell lists are faster than computing all of them, by device
FEWEST_FOR_CELLS = {"cpu": 1 << 22, "cuda": 1 << 29}
METHODS = ("auto", "cells", "all")


_POINTS = TensorOf("float", "batch, points, dim")
_MASK = TensorOf("bool", "batch, points") | None
_END = PerAxis(FINITE, "shape")


class Edges(NamedTuple):
    """Edges from points to the nodes of a grid or back, one row per sample.

    Args:
        source: (batch, edges) index of the point or node at which each edge begins.
        target: (batch, edges) index of the node or point at which each edge ends.
        valid: (batch, edges), True for edges, False for padding.

    >>> edges = Edges(torch.tensor([[0, 1]]), torch.tensor([[7, 7]]), torch.tensor([[True, True]]))
    >>> edges.reversed().source
    tensor([[7, 7]])
    """

    source: Tensor
    target: Tensor
    valid: Tensor

    def reversed(self) -> Edges:
        """Return the edges with source and target swapped."""
        return Edges(self.target, self.source, self.valid)


@checked(queries=TensorOf("float", "batch|1, queries, dim"), points=_POINTS, mask=_MASK, method=Choice(*METHODS))
def nearest(
    queries: Tensor, points: Tensor, count: int, *, mask: Tensor | None = None, method: str = "auto"
) -> tuple[Tensor, Tensor]:
    r"""Return, for each query, the ``count`` nearest points, the nearest first.

    Ties are broken arbitrarily. Memory is linear in queries and points. All distances are computed in chunks, or only
    those to the points in cells around each query (:mod:`kernelfield.ops.points.cell_list`). The latter takes time
    linear in the number of points for clouds that fill a space or a surface evenly.

    Args:
        queries: (batch or 1, queries, dim) coordinates.
        points: (batch, points, dim) coordinates.
        count: number of neighbours; at most as many as there are points.
        mask: (batch, points), True for points, False for padding.
        method: "all" distances, "cells", or "auto" for the faster of the two.

    Returns:
        (batch, queries, count) indices of points and squares of their distances, which are infinite if a sample has
        fewer points than ``count``.

    >>> points = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]]])
    >>> index, squared = nearest(torch.tensor([[[2.5, 0.0]]]), points, 2)
    >>> index, squared
    (tensor([[[2, 1]]]), tensor([[[0.2500, 2.2500]]]))
    """
    check_finite(queries=queries)
    check_seen_finite(mask, points=points)
    if not is_symbolic(points.shape[1]):  # a dynamic number of points is assumed to suffice
        count = min(count, points.shape[1])
    with torch.no_grad():
        # In half precision, different points may have equal squared distances.
        queries, points = (c.float() if c.dtype in (torch.float16, torch.bfloat16) else c for c in (queries, points))
        queries = queries.expand(points.shape[0], -1, -1)
        seen = torch.ones(points.shape[:2], dtype=torch.bool, device=points.device) if mask is None else mask
        sizes = (points.shape[0], queries.shape[1], points.shape[1])
        if method == "auto":
            # An exported program with dynamic sizes may only contain torch's own operators.
            few = is_symbolic(*sizes) or math.prod(sizes) < FEWEST_FOR_CELLS.get(points.device.type, 1 << 29)
            method = "all" if few else "cells"
        if method == "cells":
            return search_cells(queries.contiguous(), points.contiguous(), seen, count)
        if is_symbolic(*sizes):
            return _all_distances(queries, points, seen, count)
        step = max(1, chunk_values(points.device.type, CHUNK_VALUES) // max(1, sizes[0] * sizes[2]))
        found = [_all_distances(part, points, seen, count) for part in queries.split(step, dim=1)]
        return torch.cat([index for index, _ in found], dim=1), torch.cat([squared for _, squared in found], dim=1)


def _all_distances(queries: Tensor, points: Tensor, seen: Tensor, count: int) -> tuple[Tensor, Tensor]:
    # Axis by axis, because a tensor of all offsets would be ``dim`` times as large.
    squared = queries.new_zeros(())
    for q, p in zip(queries.unbind(-1), points.unbind(-1), strict=True):
        squared = squared + (q.unsqueeze(2) - p.unsqueeze(1)).square()
    squared, index = squared.masked_fill(~seen.unsqueeze(1), math.inf).topk(count, dim=-1, largest=False)
    return index, squared


@checked(points=_POINTS, low=_END, high=_END)
def nearest_nodes(
    points: Tensor,
    shape: Sequence[int],
    count: int,
    *,
    low: float | Sequence[float] = -1.0,
    high: float | Sequence[float] = 1.0,
) -> Tensor:
    r"""Return, for each point, the ``count`` nearest nodes of a regular grid, in time independent of the grid's size.

    Along each axis, the coordinate of a point determines its nearest nodes. Let :math:`i_d` be the rank of a node along
    axis d, where the nearest has rank 1. All :math:`\prod_d i_d` nodes whose ranks are not larger are at most as far
    away. The ``count`` nearest nodes therefore have :math:`\prod_d i_d \le \mathrm{count}`. For 9 neighbours in space,
    44 nodes satisfy this.

    Args:
        points: (batch, points, dim) coordinates, inside the grid or not.
        shape: nodes along each axis.
        count: number of neighbours; at most as many as there are nodes.
        low: first node along each axis.
        high: last node along each axis.

    Returns:
        (batch, points, count) indices of nodes, row-major, the nearest first.

    >>> nearest_nodes(torch.tensor([[[0.9, -1.0]]]), (3, 3), 2)
    tensor([[[6, 3]]])
    """
    check_finite(points=points)
    sizes = _check_axes(points, shape)
    lows, highs = check_box(low, high, len(sizes))
    count = min(count, math.prod(sizes))
    table = _ranks.function if torch.compiler.is_compiling() else _ranks
    ranks = table(tuple(min(count, n) for n in sizes), count, points.device)
    with torch.no_grad():
        points = points.float() if points.dtype in (torch.float16, torch.bfloat16) else points
        if is_symbolic(*points.shape[:2]):
            return _nearest_nodes(points, sizes, lows, highs, ranks, count)
        most = chunk_values(points.device.type, CHUNK_VALUES)
        step = max(1, most // max(1, 2 * points.shape[0] * len(ranks)))
        return torch.cat(
            [_nearest_nodes(part, sizes, lows, highs, ranks, count) for part in points.split(step, dim=1)], dim=1
        )


def _nearest_nodes(
    points: Tensor,
    sizes: tuple[int, ...],
    lows: tuple[float, ...],
    highs: tuple[float, ...],
    ranks: Tensor,
    count: int,
) -> Tensor:
    squared, index = points.new_zeros(()), torch.zeros((), dtype=torch.long, device=points.device)
    for d, (size, low, high) in enumerate(zip(sizes, lows, highs, strict=True)):
        taken = ranks[:, d]
        node, far = _axis_ranks(points[..., d], size, low, high, min(count, size))
        squared = squared + far[..., taken]
        index = index * size + node[..., taken]
    chosen = squared.topk(count, dim=-1, largest=False).indices
    return index.gather(-1, chosen)


def _axis_ranks(x: Tensor, size: int, low: float, high: float, count: int) -> tuple[Tensor, Tensor]:
    """Return the ``count`` nodes of one axis nearest to each x, in order, and the squares of their distances."""
    spacing = (high - low) / (size - 1) if size > 1 else 1.0
    first = low if size > 1 else (low + high) / 2
    # The window has two nodes more than needed, since rounding may have moved it by one.
    width = min(count + 2, size)
    # NaN, which is not checked on a GPU, must not become an index.
    start = torch.ceil((x - first) / spacing - width / 2).nan_to_num(nan=0.0).clamp(0, size - width)
    node = start.unsqueeze(-1) + torch.arange(width, dtype=x.dtype, device=x.device)
    far, order = (x.unsqueeze(-1) - (first + spacing * node)).square().sort(dim=-1, stable=True)
    return node.long().gather(-1, order[..., :count]), far[..., :count]


@graph_cache(32)
def _ranks(largest: tuple[int, ...], most: int, device: torch.device) -> Tensor:
    """Return :func:`_low_products` on a device, cached because a copy at every call would wait for the device."""
    return torch.tensor(_low_products(largest, most), device=device)


def _low_products(largest: tuple[int, ...], most: int) -> list[tuple[int, ...]]:
    """Return all tuples of ranks i, counted from 0, with Π (i + 1) of at most ``most``.

    >>> _low_products((2, 2), 2)
    [(0, 0), (0, 1), (1, 0)]
    """
    found: list[tuple[tuple[int, ...], int]] = [((), 1)]
    for limit in largest:
        found = [
            ((*ranks, i), product * (i + 1)) for ranks, product in found for i in range(min(limit, most // product))
        ]
    return [ranks for ranks, _ in found]


@checked(points=_POINTS, low=_END, high=_END, mask=_MASK, method=Choice(*METHODS))
def bilateral_edges(
    points: Tensor,
    shape: Sequence[int],
    neighbors: int,
    *,
    low: float | Sequence[float] = -1.0,
    high: float | Sequence[float] = 1.0,
    mask: Tensor | None = None,
    method: str = "auto",
) -> Edges:
    r"""Connect every node of a grid with its k nearest points, and every point with its k nearest nodes.

    This is the connectivity of chapter 4, section 2.5.2: the union of both sets of edges. Every point and every node
    has at least k edges, and at most 2k **on average** over points and nodes. A single node that is near to many points
    may have more.

    Args:
        points: (batch, points, dim) coordinates.
        shape: nodes of the grid along each axis.
        neighbors: number k of neighbours; if a sample has fewer points, or a grid fewer nodes, all of them.
        low: first node along each axis.
        high: last node along each axis.
        mask: (batch, points), True for points, False for padding.
        method: how to find the nearest points of the nodes; see :func:`nearest`.

    Returns:
        Edges from points to nodes, ordered by node and then by point.

    >>> edges = bilateral_edges(torch.tensor([[[-1.0], [-0.9], [1.0]]]), (2,), 1)
    >>> torch.stack([edges.source, edges.target])[:, edges.valid]
    tensor([[0, 1, 2],
            [0, 0, 1]])
    """
    batch, count = points.shape[:2]
    sizes = _check_axes(points, shape)
    if count == 0:
        raise ValueError(f"points must hold at least one point per cloud, got shape {tuple(points.shape)}")
    check_seen_finite(mask, points=points)
    nodes = math.prod(sizes)
    with torch.no_grad():
        if mask is not None:
            points = torch.where(mask.unsqueeze(-1), points, 0.0)  # padding may have any coordinates, even NaN
        grid = box_grid(sizes, low, high, dtype=points.dtype, device=points.device).flatten(0, -2)
        from_points, squared = nearest(grid.unsqueeze(0), points, neighbors, mask=mask, method=method)
        to_nodes = nearest_nodes(points, sizes, neighbors, low=low, high=high)
        node = torch.arange(nodes, device=points.device).view(1, -1, 1)
        point = torch.arange(count, device=points.device).view(1, -1, 1)
        first = node * count + from_points
        second = to_nodes * count + point
        none = nodes * count  # larger than the key of any edge
        if mask is not None:
            first = torch.where(squared.isfinite(), first, none)
            second = torch.where(mask.unsqueeze(-1), second, none)
        key = torch.cat([first.flatten(1), second.flatten(1)], dim=1).sort(dim=1).values
        again = torch.cat([key.new_zeros(batch, 1, dtype=torch.bool), key[:, 1:] == key[:, :-1]], dim=1)
        valid = ~again & (key < none)
        key = key.clamp(max=none - 1)
        return Edges(key % count, key // count, valid)


def _check_axes(points: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a grid if it has as many axes as the points."""
    if len(shape) != points.shape[-1]:
        raise ValueError(
            f"shape must have one entry per axis of points or coords, {points.shape[-1]}, got {tuple(shape)}"
        )
    return tuple(shape)
