"""Edges between a grid and queries, against those of the points and by their definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelfield import grids
from kernelfield.ops import Edges, bilateral_edges, limit_point_memory, query_edges
from kernelfield.ops.points import queries
from kernelfield.testing import assert_compiles, assert_exports
from tests.largest import Largest

SHAPE = (3, 4, 2)
#: batch, points, queries, dimension, neighbours, seed
drawn_clouds = st.tuples(*(st.integers(1, n) for n in (3, 25, 12, 3, 9)), st.integers(0, 10**6))


def pairs_of(edges: Edges, sample: int) -> set[tuple[int, int]]:
    """Return the edges of a sample as pairs, each of which must occur once."""
    valid = edges.valid[sample]
    found = list(zip(edges.source[sample, valid].tolist(), edges.target[sample, valid].tolist(), strict=True))
    assert len(found) == len(set(found))
    return set(found)


@given(drawn=drawn_clouds)
def test_points_as_queries_have_their_own_edges(drawn: tuple[int, ...]) -> None:
    batch, count, _, dim, k, seed = drawn
    generator = torch.Generator().manual_seed(seed)
    points = 2 * torch.rand(batch, count, dim, dtype=torch.float64, generator=generator) - 1
    mask = torch.rand(batch, count, generator=generator) < 0.8
    wanted = bilateral_edges(points, SHAPE[:dim], k, mask=mask)
    found = query_edges(points, points.masked_fill(~mask.unsqueeze(-1), torch.nan), SHAPE[:dim], k, mask=mask)
    for sample in range(batch):
        seen = {(q, n) for q, n in pairs_of(found, sample) if mask[sample, q]}
        assert seen == pairs_of(wanted, sample)


@given(drawn=drawn_clouds)
def test_a_query_has_its_nearest_nodes_and_those_it_is_near_to(drawn: tuple[int, ...]) -> None:
    batch, count, asked, dim, k, seed = drawn
    generator = torch.Generator().manual_seed(seed)
    points = 2 * torch.rand(batch, count, dim, dtype=torch.float64, generator=generator) - 1
    at = 3 * torch.rand(batch, asked, dim, dtype=torch.float64, generator=generator) - 1.5
    edges = query_edges(at, points, SHAPE[:dim], k)
    nodes = grids.box_grid(SHAPE[:dim], dtype=torch.float64).flatten(0, -2)
    for sample in range(batch):
        far = (nodes.unsqueeze(1) - points[sample]).square().sum(dim=-1).sort(dim=1).values
        reach = [float((row[k - 1] + row[k]) / 2) if k < count else float("inf") for row in far]
        squared = (at[sample].unsqueeze(1) - nodes).square().sum(dim=-1)
        wanted = {(q, n) for q in range(asked) for n in range(len(nodes)) if squared[q, n] < reach[n]}
        wanted |= {(q, int(n)) for q in range(asked) for n in squared[q].argsort()[:k]}
        assert pairs_of(edges, sample) == wanted


def test_edges_of_a_query_depend_on_no_other_query() -> None:
    points, at = 2 * torch.rand(2, 30, 3) - 1, 2 * torch.rand(2, 8, 3) - 1
    together = query_edges(at, points, (4, 4, 4), 3)
    alone = query_edges(at[:, 5:6], points, (4, 4, 4), 3)
    for sample in range(2):
        wanted = {n for q, n in pairs_of(together, sample) if q == 5}
        assert {n for _, n in pairs_of(alone, sample)} == wanted


@pytest.mark.parametrize("kind", ["lattice", "duplicates"])
def test_every_query_has_k_edges_where_points_are_equally_far(kind: str) -> None:
    points = grids.box_grid((4, 4, 4)).flatten(0, -2).unsqueeze(0) if kind == "lattice" else torch.zeros(1, 20, 3)
    edges = query_edges(points, points, (4, 4, 4), 9)
    assert torch.bincount(edges.source[edges.valid], minlength=points.shape[1]).min() >= 9


def test_compiled_and_exported_edges() -> None:
    points, at = 2 * torch.rand(2, 20, 2) - 1, 2 * torch.rand(2, 5, 2) - 1

    def adjacency(at: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        edges = query_edges(at, points, (3, 3), 2)
        pair = edges.source * 9 + edges.target
        return torch.zeros(at.shape[0], at.shape[1] * 9).scatter_add(1, pair, edges.valid.float())

    assert_compiles(adjacency, at, points)
    batch, n, q = torch.export.Dim("batch"), torch.export.Dim("n", min=3), torch.export.Dim("q", min=2)
    assert_exports(adjacency, (at, points), ({0: batch, 1: q}, {0: batch, 1: n}), [(at[:1, :3], points[:1, :7])])


def test_chunks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    points, at = 2 * torch.rand(2, 40, 3) - 1, 2 * torch.rand(2, 30, 3) - 1
    wanted = query_edges(at, points, (5, 5, 5), 4)
    monkeypatch.setattr(queries, "CHUNK_VALUES", 2 * 125 * 7)
    for found, want in zip(query_edges(at, points, (5, 5, 5), 4), wanted, strict=True):
        assert torch.equal(found, want)


def test_a_bound_on_memory_is_kept() -> None:
    points, at = 2 * torch.rand(1, 500, 3) - 1, 2 * torch.rand(1, 3000, 3) - 1
    with limit_point_memory(8 << 20), Largest() as largest:
        edges = query_edges(at, points, (9, 9, 9), 3)
    assert largest.elements < max(3 * edges.source.numel(), (8 << 20) // 4)
    assert largest.elements < 3000 * 729


def test_no_samples() -> None:
    edges = query_edges(torch.rand(0, 4, 2), torch.rand(0, 6, 2), (3, 3), 2)
    assert edges.source.shape[0] == edges.valid.shape[0] == 0


def test_bad_arguments() -> None:
    points = torch.rand(1, 6, 2)
    with pytest.raises(ValueError, match=r"\bshape must"):
        query_edges(points, points, (3, 3, 3), 2)
    with pytest.raises(ValueError, match=r"\bpoints must"):
        query_edges(points, torch.rand(1, 6, 3), (3, 3), 2)
    with pytest.raises(ValueError, match=r"\bqueries must"):
        query_edges(torch.rand(1, 0, 2), points, (3, 3), 2)
    with pytest.raises(ValueError, match=r"\bpoints must"):
        query_edges(points, torch.rand(1, 0, 2), (3, 3), 2)
    with pytest.raises(ValueError, match=r"\bneighbors must"):
        query_edges(points, points, (3, 3), 0)
