"""Neighbours against brute force on clouds of every kind, and the edges made of them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelfield import grids
from kernelfield.ops import Edges, aggregate, bilateral_edges, nearest, nearest_nodes, pass_messages
from kernelfield.ops.points import cell_list as cells
from kernelfield.ops.points import messages, neighbors
from kernelfield.testing import assert_compiles
from tests.largest import Largest

KINDS = ("uniform", "lattice", "duplicates", "line", "one place", "clusters", "far away")


def draw_cloud(kind: str, batch: int, count: int, dim: int, generator: torch.Generator) -> torch.Tensor:
    points = torch.rand(batch, count, dim, generator=generator, dtype=torch.float64) * 2 - 1
    if kind == "lattice":  # ties everywhere
        return (2 * points).round() / 2
    if kind == "duplicates":
        return points[:, torch.randint(max(1, count // 4), (count,), generator=generator)]
    if kind == "line":
        return points * torch.tensor([1.0] + [0.0] * (dim - 1))
    if kind == "one place":
        return points * 0 + 0.25
    if kind == "clusters":
        where = torch.randint(0, 5, (batch, count, 1), generator=generator)
        return 1e-3 * points + (3 * points[:, :1]).round() * where
    return points + 1e4 if kind == "far away" else points


clouds = st.tuples(
    st.sampled_from(KINDS),
    st.integers(1, 3),
    st.integers(1, 70),
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(0, 2**20),
)


def brute_force(queries: torch.Tensor, points: torch.Tensor, count: int, mask: torch.Tensor) -> torch.Tensor:
    squared = (queries.unsqueeze(2) - points.unsqueeze(1)).square().sum(dim=-1)
    return squared.masked_fill(~mask.unsqueeze(1), math.inf).sort(dim=-1).values[..., : min(count, points.shape[1])]


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("method", ["all", "cells"])
@given(drawn=clouds)
def test_nearest_is_exact(
    method: str, dtype: torch.dtype, rtol: float, drawn: tuple[str, int, int, int, int, int]
) -> None:
    kind, batch, count, dim, k, seed = drawn
    generator = torch.Generator().manual_seed(seed)
    points = draw_cloud(kind, batch, count, dim, generator).to(dtype)
    queries = torch.cat([draw_cloud("uniform", batch, 9, dim, generator).to(dtype) * 3, points[:, :5]], dim=1)
    mask = torch.rand(batch, count, generator=generator) < 0.8
    index, squared = nearest(queries, points, k, mask=mask, method=method)
    assert squared.dtype == dtype
    # What is right is known in float64, of the very coordinates that were given.
    queries, points, squared = queries.double(), points.double(), squared.double()
    wanted = brute_force(queries, points, k, mask)
    torch.testing.assert_close(squared, wanted, rtol=rtol, atol=0)
    # The distances belong to the points that are named, each of them once, none of them padding.
    named = points.gather(1, index.flatten(1).unsqueeze(-1).expand(-1, -1, dim)).view(*index.shape, dim)
    found = squared.isfinite()
    own = (queries.unsqueeze(2) - named).square().sum(dim=-1)
    torch.testing.assert_close(own[found], squared[found], rtol=rtol, atol=0)
    assert mask.gather(1, index.flatten(1)).view(index.shape)[found].all()
    for row, there in zip(index.flatten(0, 1), found.flatten(0, 1), strict=True):
        assert len(set(row[there].tolist())) == int(there.sum())


@given(drawn=clouds, shape=st.tuples(*[st.integers(1, 6)] * 3))
def test_nearest_nodes_are_exact(drawn: tuple[str, int, int, int, int, int], shape: tuple[int, ...]) -> None:
    kind, batch, count, dim, k, seed = drawn
    points = draw_cloud(kind, batch, count, dim, torch.Generator().manual_seed(seed))
    points = torch.where(points.abs() > 100, 1.5, points)  # outside of the grid, but not by so much that all is alike
    low, high = (-1.0, -0.5, -2.0)[:dim], (1.0, 1.5, 0.0)[:dim]
    nodes = grids.box_grid(shape[:dim], low, high, dtype=torch.float64).flatten(0, -2)
    index = nearest_nodes(points, shape[:dim], k, low=low, high=high)
    squared = (points.unsqueeze(2) - nodes).square().sum(dim=-1)
    wanted = squared.sort(dim=-1).values[..., : min(k, len(nodes))]
    torch.testing.assert_close(squared.gather(2, index), wanted, rtol=0, atol=1e-12)
    assert all(len(set(row.tolist())) == index.shape[-1] for row in index.flatten(0, 1))


@given(drawn=clouds)
def test_edges_are_the_union_of_both_sides_each_once(drawn: tuple[str, int, int, int, int, int]) -> None:
    _, batch, count, dim, k, seed = drawn
    generator = torch.Generator().manual_seed(seed)
    points = draw_cloud("uniform", batch, count, dim, generator)  # without ties there is one right answer
    mask = torch.rand(batch, count, generator=generator) < 0.8
    shape = (3, 4, 2)[:dim]
    nodes = grids.box_grid(shape, dtype=torch.float64).flatten(0, -2)
    edges = bilateral_edges(points, shape, k, mask=mask)
    assert edges.source.shape[1] == min(k, count) * len(nodes) + min(k, len(nodes)) * count
    for b in range(batch):
        squared = (nodes.unsqueeze(1) - points[b]).square().sum(dim=-1)
        seen = mask[b].nonzero().flatten().tolist()
        wanted = {(int(seen[j]), i) for i in range(len(nodes)) for j in squared[i, seen].argsort()[:k]}
        wanted |= {(j, int(i)) for j in seen for i in squared[:, j].argsort()[:k]}
        valid = edges.valid[b]
        got = list(zip(edges.source[b, valid].tolist(), edges.target[b, valid].tolist(), strict=True))
        assert len(got) == len(set(got))
        assert set(got) == wanted


@pytest.mark.parametrize("kind", ["uniform", "lattice", "clusters", "duplicates"])
@pytest.mark.parametrize("k", [1, 4, 9])
def test_every_point_and_node_has_its_edges(kind: str, k: int) -> None:
    """Section 2.5.2: at least k each. At most 2k is true of the average, and of no single node that a crowd is near."""
    generator = torch.Generator().manual_seed(k)
    points = draw_cloud(kind, 1, 200, 3, generator).clamp(-1, 1)
    edges = bilateral_edges(points, (5, 5, 5), k)
    at_points = torch.bincount(edges.source[edges.valid], minlength=200)
    at_nodes = torch.bincount(edges.target[edges.valid], minlength=125)
    assert at_points.min() >= k
    assert at_nodes.min() >= k
    assert (at_points.sum() + at_nodes.sum()) / (200 + 125) <= 2 * k


def test_a_node_in_a_crowd_has_more_than_2k_edges() -> None:
    points = 0.01 * torch.rand(1, 100, 2)
    edges = bilateral_edges(points, (3, 3), 2)
    assert torch.bincount(edges.target[edges.valid])[4] == 100


def test_a_cloud_that_fills_the_grid_evenly_keeps_to_2k() -> None:
    generator = torch.Generator().manual_seed(0)
    nodes = grids.box_grid((6, 6, 6)).flatten(0, -2).unsqueeze(0)
    points = nodes + 0.1 * torch.rand(1, 216, 3, generator=generator)
    edges = bilateral_edges(points, (6, 6, 6), 9)
    for side in (edges.source, edges.target):
        count = torch.bincount(side[edges.valid], minlength=216)
        assert count.min() >= 9
        assert count.max() <= 18


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, points = torch.rand(2, 50, 3), torch.rand(2, 80, 3)
    wanted = [nearest(queries, points, 5, method=m)[1] for m in ("all", "cells")]
    nodes = nearest_nodes(points, (4, 4, 4), 5)
    for module in (cells, neighbors):
        monkeypatch.setattr(module, "CHUNK_VALUES", 200)
    for method, squared in zip(("all", "cells"), wanted, strict=True):
        torch.testing.assert_close(nearest(queries, points, 5, method=method)[1], squared)
    assert torch.equal(nearest_nodes(points, (4, 4, 4), 5), nodes)


def test_cells_compute_few_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work grows with the points, not with their square: candidates per query stay what they are."""
    counts = []
    original = cells.ragged

    def counting(start: torch.Tensor, length: torch.Tensor, total: int) -> tuple[torch.Tensor, torch.Tensor]:
        counts[-1] += total
        return original(start, length, total)

    monkeypatch.setattr(cells, "ragged", counting)
    sizes = ((8_000, 20), (27_000, 30))
    for n, r in sizes:
        counts.append(0)
        points = torch.rand(1, n, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
        nearest(grids.box_grid((r, r, r)).flatten(0, -2).unsqueeze(0), points, 9, method="cells")
    each = [count / n for count, (n, _) in zip(counts, sizes, strict=True)]
    assert each[1] < 1.15 * each[0]
    assert each[1] < 150  # rows of cubes and points looked at for each query, of 27,000 points


@pytest.mark.parametrize("method", ["all", "cells"])
def test_memory_is_linear(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 points and 1,728 nodes are 3.5 million pairs; no tensor is much larger than the list of edges."""

    for module in (cells, neighbors):
        monkeypatch.setattr(module, "CHUNK_VALUES", 1 << 15)
    monkeypatch.setattr(neighbors, "search_cells", cells.search_cells._init_fn)  # the function in the operator
    points = torch.rand(1, 2_000, 3) * 2 - 1
    with Largest() as largest:
        edges = bilateral_edges(points, (12, 12, 12), 4, method=method)
    assert edges.source.shape[1] == 4 * (2_000 + 1_728)
    assert largest.elements < 6 * edges.source.shape[1]


def test_search_in_cells_compiles_as_one_graph() -> None:
    points = torch.rand(2, 50, 3)
    assert_compiles(lambda p: nearest(p, p, 3, method="cells")[1], points)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["all", "cells"])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_on_a_gpu(method: str, dim: int) -> None:
    """Without ties, in float64, the same points are nearest as on a CPU, and the same edges are found."""
    generator = torch.Generator().manual_seed(dim)
    points, queries = (draw_cloud("uniform", 3, count, dim, generator) for count in (300, 70))
    mask = torch.rand(3, 300, generator=generator) < 0.8
    here, there = (
        nearest(queries.to(device), points.to(device), 7, mask=mask.to(device), method=method)
        for device in ("cpu", "cuda")
    )
    assert there[0].is_cuda
    assert torch.equal(there[0].cpu(), here[0])
    torch.testing.assert_close(there[1].cpu(), here[1], rtol=1e-12, atol=0)
    shape = (5, 4, 3)[:dim]
    nodes = [nearest_nodes(points.to(device), shape, 4).cpu() for device in ("cpu", "cuda")]
    assert torch.equal(*nodes)
    edges = [bilateral_edges(points.to(d), shape, 4, mask=mask.to(d), method=method) for d in ("cpu", "cuda")]
    for ours, theirs in zip(*edges, strict=True):
        assert torch.equal(ours, theirs.cpu())


@pytest.mark.parametrize("reduce", ["mean", "max", "sum"])
def test_aggregate_equals_a_loop(reduce: str) -> None:
    messages = torch.randn(2, 30, 4, dtype=torch.float64, requires_grad=True)
    edges = Edges(torch.zeros(2, 30, dtype=torch.long), torch.randint(6, (2, 30)), torch.rand(2, 30) < 0.7)
    got = aggregate(messages, edges, 8, reduce)
    for b in range(2):
        for i in range(8):
            mine = messages[b, edges.valid[b] & (edges.target[b] == i)]
            wanted = torch.zeros(4, dtype=torch.float64)
            if len(mine):
                wanted = {"mean": mine.mean(0), "sum": mine.sum(0), "max": mine.amax(0)}[reduce]
            torch.testing.assert_close(got[b, i], wanted)
    assert torch.autograd.gradcheck(lambda m: aggregate(m, edges, 8, reduce), (messages,))


def test_messages_of_values_and_offsets() -> None:
    points, nodes = torch.rand(1, 5, 2), torch.rand(1, 4, 2)
    edges = Edges(torch.tensor([[0, 3]]), torch.tensor([[2, 2]]), torch.tensor([[True, True]]))
    values = torch.randn(1, 5, 2)
    got = pass_messages(values, points, nodes, edges, lambda x, offset: x * offset, channels=2, reduce="sum")
    wanted = sum(values[0, j] * (nodes[0, 2] - points[0, j]) for j in (0, 3))
    torch.testing.assert_close(got[0, 2], wanted)
    assert got[0, [0, 1, 3]].abs().max() == 0


@pytest.mark.parametrize("chunk", ["one", "kept", "recomputed"])
@pytest.mark.parametrize("reduce", ["mean", "max", "sum"])
@pytest.mark.parametrize("shared", ["sources", "targets", "neither"])
def test_messages_without_padding_equal_those_with(
    chunk: str, reduce: str, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropping padding, summing in place and keeping chunks change neither the values nor any gradient."""
    torch.manual_seed(0)
    counts = {"sources": 1 if shared == "sources" else 3, "targets": 1 if shared == "targets" else 3}
    sources, targets = (torch.randn(n, m, 2, dtype=torch.float64) for n, m in zip(counts.values(), (7, 5), strict=True))
    values = torch.randn(3, 7, 4, dtype=torch.float64)
    valid = torch.rand(3, 40) < 0.7
    valid[1] = False  # a sample without an edge
    edges = Edges(torch.randint(7, (3, 40)), torch.randint(5, (3, 40)), valid)
    leaves = [t.requires_grad_() for t in (values, sources, targets)]
    weight = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)

    def run() -> list[torch.Tensor]:
        got = pass_messages(
            values, sources, targets, edges, lambda x, c: x * torch.sin(c @ weight), channels=4, reduce=reduce
        )
        return [got, *torch.autograd.grad(got.square().sum(), [*leaves, weight])]

    with monkeypatch.context() as with_padding:
        with_padding.setattr(messages, "_packs", lambda _: False)
        wanted = run()
    if chunk != "one":
        monkeypatch.setitem(messages.CHUNK_VALUES, "cpu", (60, 60))
        monkeypatch.setitem(messages.KEPT_VALUES, "cpu", 0 if chunk == "recomputed" else 1 << 24)
    for ours, theirs in zip(run(), wanted, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert wanted[0][1].abs().max() == 0


def test_no_message_is_computed_for_padding() -> None:
    seen = []

    def message(_: torch.Tensor | None, offsets: torch.Tensor) -> torch.Tensor:
        seen.append(offsets.shape[:-1].numel())
        return offsets

    cloud, nodes = torch.rand(2, 6, 2), torch.rand(2, 4, 2)
    valid = torch.tensor([[True, True, False], [False, False, False]])
    index = torch.zeros(2, 3, dtype=torch.long)
    got = pass_messages(None, cloud, nodes, Edges(index, index, valid), message, channels=2, reduce="sum")
    assert seen == [2]
    assert got.shape == (2, 4, 2)
    got = pass_messages(None, cloud, nodes, Edges(index, index, valid & False), message, channels=2)
    assert got.abs().max() == 0


def test_bad_arguments() -> None:
    cloud = torch.rand(2, 5, 3)
    with pytest.raises(ValueError, match=r"\bpoints must"):
        nearest(cloud, cloud[0], 2)
    with pytest.raises(ValueError, match=r"\bqueries\b"):
        nearest(cloud[..., :2], cloud, 2)
    with pytest.raises(TypeError, match=r"\bmask must"):
        nearest(cloud, cloud, 2, mask=torch.ones(2, 5))
    with pytest.raises(ValueError, match=r"\bmethod must"):
        nearest(cloud, cloud, 2, method="tree")
    with pytest.raises(ValueError, match=r"\bshape must"):
        bilateral_edges(cloud, (3, 3), 2)
    with pytest.raises(ValueError, match=r"\breduce must"):
        aggregate(cloud, bilateral_edges(cloud, (3, 3, 3), 2), 27, "min")
