"""Edges between a grid and queries at any coordinates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..._arguments import checked
from ..._kinds import FINITE, PerAxis
from ..._object_kinds import TensorOf
from ...grids import box_grid
from ..graph_cache import capturing
from .chunks import chunk_values
from .finite import check_finite, check_seen_finite
from .neighbors import CHUNK_VALUES, Edges, nearest, nearest_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["query_edges"]

_END = PerAxis(FINITE, "shape")


@checked(
    queries=TensorOf("float", "batch, queries, dim", empty=False),
    points=TensorOf("float", "batch, points, dim", empty=False),
    low=_END,
    high=_END,
    mask=TensorOf("bool", "batch, points") | None,
)
def query_edges(
    queries: Tensor,
    points: Tensor,
    shape: Sequence[int],
    neighbors: int,
    *,
    low: float | Sequence[float] = -1.0,
    high: float | Sequence[float] = 1.0,
    mask: Tensor | None = None,
) -> Edges:
    r"""Connect queries with a grid as :func:`bilateral_edges` would connect them if they were points of the cloud.

    A query is connected with its k nearest nodes, and with every node that would have it among its k nearest points:
    it must be nearer to the node than the middle between the node's k-th and next points. The edges of a query
    therefore depend on the points but not on other queries, and a query at a point has the edges of that point. There
    is one exception: if the k-th and the next point of a node are equally far from it, :func:`bilateral_edges` connects
    one of them, and this function connects neither.

    Args:
        queries: (batch, queries, dim) coordinates.
        points: (batch, points, dim) coordinates.
        shape: nodes of the grid along each axis.
        neighbors: number k of neighbours.
        low: first node along each axis.
        high: last node along each axis.
        mask: (batch, points), True for points, False for padding.

    Returns:
        Edges from queries to nodes, ordered by query and then by node. Compiled graphs and CUDA graphs, whose shapes
        cannot depend on the data, return all pairs, most of which are not valid.

    >>> from kernelfield.ops import bilateral_edges
    >>> points = torch.tensor([[[-1.0], [-0.9], [1.0]]])
    >>> edges = query_edges(torch.tensor([[[-0.95], [0.1]]]), points, (2,), 1)
    >>> torch.stack([edges.source, edges.target])[:, edges.valid]
    tensor([[0, 1],
            [0, 1]])
    """
    if len(shape) != points.shape[-1]:
        raise ValueError(f"shape must have one entry per axis of points, {points.shape[-1]}, got {tuple(shape)}")
    check_finite(queries=queries)
    check_seen_finite(mask, points=points)
    sizes, nodes = tuple(shape), math.prod(shape)
    with torch.no_grad():
        queries, points = (c.float() if c.dtype in (torch.float16, torch.bfloat16) else c for c in (queries, points))
        grid = box_grid(sizes, low, high, dtype=points.dtype, device=points.device).flatten(0, -2)
        reach = _reach(grid, points, neighbors, mask)

        def connected(some: Tensor) -> Tensor:
            """Return a (batch, queries, nodes) mask of the nodes with which these queries are connected."""
            squared = points.new_zeros(())
            for q, n in zip(some.unbind(-1), grid.unbind(-1), strict=True):
                squared = squared + (n - q.unsqueeze(-1)).square()
            own = nearest_nodes(some, sizes, neighbors, low=low, high=high)
            return (squared < reach.unsqueeze(1)).scatter(2, own, True)

        if torch.compiler.is_exporting():
            return _only_edges([connected(queries)])
        if torch.compiler.is_compiling() or capturing():
            return _all_pairs(connected(queries))
        step = max(1, chunk_values(points.device.type, CHUNK_VALUES) // max(1, points.shape[0] * nodes))
        return _only_edges(connected(some) for some in queries.split(step, dim=1))


def _reach(grid: Tensor, points: Tensor, neighbors: int, mask: Tensor | None) -> Tensor:
    """Return the squared distance within which each node has k points, (batch, nodes); infinite if there are fewer.

    It lies in the middle between the k-th and the next point, so rounding cannot move a point across it.
    """
    batch, count = points.shape[:2]
    seen = torch.ones(batch, count, dtype=torch.bool, device=points.device) if mask is None else mask
    points = torch.where(seen.unsqueeze(-1), points, 0.0)  # padding may have any coordinates, even NaN
    # A point of padding is added, so that every cloud has a next point.
    points = torch.cat([points, points.new_zeros(batch, 1, points.shape[-1])], dim=1)
    seen = torch.cat([seen, seen.new_zeros(batch, 1)], dim=1)
    squared = nearest(grid.unsqueeze(0), points, neighbors + 1, mask=seen)[1]
    return (squared[..., -1] + squared[..., -2]) / 2


def _all_pairs(connected: Tensor) -> Edges:
    batch, queries, nodes = connected.shape
    pair = torch.arange(queries * nodes, device=connected.device).expand(batch, -1)
    return Edges(pair // nodes, pair % nodes, connected.flatten(1))


def _only_edges(parts: Iterable[Tensor]) -> Edges:
    """Return the edges of all parts of the queries, with rows padded to the longest; the host waits for the device."""
    found, before, batch = [], 0, 0
    for part in parts:
        sample, query, node = part.nonzero().unbind(-1)
        found.append((sample, query + before, node))
        before, batch = before + part.shape[1], part.shape[0]
    sample, query, node = (torch.cat(column) for column in zip(*found, strict=True))
    order = sample.argsort(stable=True)
    sample, query, node = sample[order], query[order], node[order]
    count = torch.zeros(batch, dtype=torch.long, device=sample.device).index_add(0, sample, torch.ones_like(sample))
    slot = torch.arange(sample.shape[0], device=sample.device) - (count.cumsum(0) - count)[sample]
    most: Any = pad(count, (0, 1)).max().item()  # 0 without samples; symbolic in an exported program
    source, target = (torch.zeros(batch, most, dtype=torch.long, device=sample.device) for _ in range(2))
    source[sample, slot], target[sample, slot] = query, node
    return Edges(source, target, torch.arange(most, device=sample.device) < count.unsqueeze(1))
