"""Gridification and back: the contract, gradients, and chapter 4's reconstruction experiment in small."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kernelfield import CKConv, Degridify, GridifiedNet, Gridify
from kernelfield.fields import SIREN
from kernelfield.groups import Cyclic, Trivial
from kernelfield.ops import bilateral_edges
from tests.contracts.clouds import CloudContract


class TestGridify(CloudContract):
    dims = (1, 3)
    traced = False

    def make(self, dim: int, low: float = -1.0) -> nn.Module:
        return Gridify(2, 6, dim=dim, grid=4, neighbors=5, extent=(low, low + 2), message="mlp", omega_0=0.5)


class TestGridifyOfMaxima(CloudContract):
    dims = (2,)
    traced = False

    def make(self, dim: int, low: float = -1.0) -> nn.Module:
        return Gridify(2, 6, dim=dim, grid=4, neighbors=5, extent=(low, low + 2), reduce="max", field=SIREN)


class _ThereAndBack(nn.Module):
    """What degridification is for: the contract speaks of clouds, and a grid alone has none."""

    def __init__(self, dim: int, low: float) -> None:
        super().__init__()
        shared: dict[str, Any] = {"dim": dim, "grid": (4, 3, 5)[:dim], "neighbors": 4, "extent": (low, low + 2)}
        self.there = Gridify(2, 5, **shared)
        self.back = Degridify(5, 3, **shared, reduce="sum")

    def forward(self, x: torch.Tensor, *, coords: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        edges = self.there.edges(coords, mask)
        return self.back(self.there(x, coords, mask=mask, edges=edges), coords, mask=mask, edges=edges)


class TestThereAndBack(CloudContract):
    at_points = True
    traced = False

    def make(self, dim: int, low: float = -1.0) -> nn.Module:
        return _ThereAndBack(dim, low)


@pytest.mark.parametrize("reduce", ["mean", "max", "sum"])
@pytest.mark.parametrize("message", ["product", "mlp"])
def test_values_on_the_grid_follow_from_the_equation(message: str, reduce: str) -> None:
    """Chapter 4, section 2.2, edge by edge; offsets are measured in halves of the extent."""
    layer = Gridify(2, 3, dim=2, grid=3, neighbors=2, extent=((0, -2), (4, 2)), message=message, reduce=reduce)
    parts = layer.messages.double()
    for name, parameter in parts.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    x, coords = torch.randn(1, 2, 12).double(), (torch.rand(1, 12, 2) * 4 - torch.tensor([0.0, 2.0])).double()
    edges = layer.edges(coords)

    def mlp(network: nn.Sequential, values: torch.Tensor) -> torch.Tensor:
        first, last = network[0], network[2]
        return F.gelu(values @ first.weight.T + first.bias) @ last.weight.T + last.bias

    rows = []
    for node in range(9):
        sources = edges.source[0][(edges.target[0] == node) & edges.valid[0]]
        offsets = (layer.nodes(torch.float64)[node] - coords[0, sources]) / 2
        values, position = mlp(parts.node, x[0].T)[sources], parts.position(offsets)
        each = values * position
        if message == "mlp":
            each = mlp(parts.message, torch.cat([values, position], dim=1))
        rows.append({"mean": each.mean(0), "sum": each.sum(0), "max": each.amax(0)}[reduce])
    wanted = mlp(parts.update, torch.stack(rows))
    torch.testing.assert_close(layer(x, coords).flatten(2)[0].T, wanted)


@pytest.mark.parametrize("reduce", ["mean", "max", "sum"])
def test_gradcheck_there_and_back(reduce: str) -> None:
    torch.manual_seed(2)
    shared: dict[str, Any] = {"dim": 2, "grid": 3, "neighbors": 2, "reduce": reduce, "channels": 4}
    there, back = Gridify(2, 3, **shared).double(), Degridify(3, 2, **shared).double()
    x, coords = torch.randn(1, 2, 6, dtype=torch.float64), 2 * torch.rand(1, 6, 2, dtype=torch.float64) - 1
    edges = there.edges(coords)
    inputs = (x.requires_grad_(), coords.requires_grad_())
    assert torch.autograd.gradcheck(lambda x, c: back(there(x, c, edges=edges), c, edges=edges), inputs)
    weight = there.messages.position.frequency
    assert torch.autograd.gradcheck(
        lambda w: back(torch.func.functional_call(there, {"messages.position.frequency": w}, (x, coords)), coords),
        (weight.detach().clone().requires_grad_(),),
    )


def test_clouds_without_values() -> None:
    layer = Gridify(0, 4, grid=3, neighbors=2)
    coords = 2 * torch.rand(2, 20, 3) - 1
    assert layer(None, coords).shape == (2, 4, 3, 3, 3)
    assert layer.messages.node is None
    with pytest.raises(ValueError, match=r"\bx must"):
        layer(torch.randn(2, 1, 20), coords)
    with pytest.raises(ValueError, match=r"\bx must"):
        Gridify(3, 4, grid=3)(None, coords)


def test_degridify_reverses_the_edges() -> None:
    layer = Gridify(1, 2, grid=3, neighbors=2, dim=2)
    coords = 2 * torch.rand(1, 9, 2) - 1
    there = layer.edges(coords)
    back = Degridify(2, 1, grid=3, neighbors=2, dim=2).edges(coords).reversed()
    assert torch.equal(there.source, back.target)
    assert torch.equal(there.target, back.source)


def test_a_layer_carries_over_to_clouds_of_another_scale() -> None:
    torch.manual_seed(0)
    small = Gridify(1, 4, grid=3, neighbors=3, dim=2).double()
    large = Gridify(1, 4, grid=3, neighbors=3, dim=2, extent=((0.0, -40.0), (20.0, 0.0))).double()
    large.load_state_dict(small.state_dict())
    x, coords = torch.randn(1, 1, 30, dtype=torch.float64), 2 * torch.rand(1, 30, 2, dtype=torch.float64) - 1
    # Nearest in one is nearest in the other only where the axes are stretched alike: the edges are given.
    edges = small.edges(coords)
    moved = torch.stack([10 * coords[..., 0] + 10, 20 * coords[..., 1] - 20], dim=-1)
    torch.testing.assert_close(large(x, moved, edges=edges), small(x, coords, edges=edges))


def test_padding_may_be_anything() -> None:
    layer = Gridify(2, 4, grid=3, neighbors=3)
    x, coords = torch.randn(1, 2, 20), 2 * torch.rand(1, 20, 3) - 1
    mask = torch.arange(20).unsqueeze(0) < 15
    wrong = torch.where(mask.unsqueeze(-1), coords, torch.nan)
    y = layer(x, wrong, mask=mask)
    torch.testing.assert_close(y, layer(x[..., :15], coords[:, :15]))
    y.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelfield.ops.points import messages  # noqa: PLC0415

    for reduce in ("mean", "max", "sum"):
        torch.manual_seed(0)
        layer = Gridify(2, 4, grid=3, neighbors=3, reduce=reduce, message="mlp").double()
        x, coords = torch.randn(2, 2, 20, dtype=torch.float64), 2 * torch.rand(2, 20, 3, dtype=torch.float64) - 1
        results = []
        for most in (1 << 26, 100):
            monkeypatch.setattr(messages, "CHUNK_VALUES", {"cpu": (most, most)})
            layer.zero_grad()
            layer(x, coords).square().sum().backward()
            with torch.no_grad():
                results.append((layer(x, coords), *[p.grad.clone() for p in layer.parameters()]))
        torch.testing.assert_close(results[0], results[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("message", ["product", "mlp"])
@pytest.mark.parametrize("reduce", ["mean", "max", "sum"])
def test_on_a_gpu(message: str, reduce: str) -> None:
    shared: dict[str, Any] = {"grid": 4, "neighbors": 3, "message": message, "reduce": reduce}
    there, back = Gridify(2, 5, **shared).double(), Degridify(5, 2, **shared).double()
    x, coords = torch.randn(2, 2, 60, dtype=torch.float64), 2 * torch.rand(2, 60, 3, dtype=torch.float64) - 1
    mask = torch.rand(2, 60) < 0.8
    results = []
    for device in ("cpu", "cuda"):
        where: dict[str, Any] = {"coords": coords.to(device), "mask": mask.to(device)}
        layers = nn.ModuleList([there, back]).to(device)
        layers.zero_grad()
        signal = x.clone().to(device).requires_grad_()
        grid = there(signal, **where)
        values = back(grid, **where)
        values.square().sum().backward()
        found = [grid, values, signal.grad, *(p.grad for p in layers.parameters())]
        results.append([t.detach().cpu().clone() for t in found if t is not None])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (3, 3)}, "grid must"),
        ({"neighbors": 0}, "neighbors .*got 0"),
        ({"extent": (1.0, -1.0)}, r"extent\[1\] must"),
        ({"message": "sum"}, "message .*got 'sum'"),
        ({"reduce": "min"}, "reduce .*got 'min'"),
        ({"group": Cyclic(4)}, "group must"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"\b{message}"):
        Gridify(3, 4, **change)


def test_the_trivial_group_is_accepted() -> None:
    assert Gridify(3, 4, grid=2, group=Trivial(3))(torch.randn(1, 3, 9), torch.rand(1, 9, 3)).shape == (1, 4, 2, 2, 2)


@pytest.mark.parametrize(
    ("coords", "message"),
    [(torch.rand(1, 9, 2), "coords must")],
)
def test_bad_inputs(coords: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=rf"\b{message}"):
        Gridify(3, 4, grid=2)(torch.randn(1, 3, 9), coords)
    with pytest.raises(ValueError, match=r"\bx must"):
        Degridify(3, 4, grid=2)(torch.randn(1, 3, 3, 3, 3), torch.rand(1, 9, 3))


def reconstruction_error(grid: int, channels: int, steps: int = 80) -> float:
    """Train a pair to give back the random values of random clouds, and return the squared error on other clouds."""
    torch.manual_seed(0)
    shared: dict[str, Any] = {"dim": 2, "blocks": 0, "neighbors": 4, "omega_0": 1.0, "norm": "none"}
    net = GridifiedNet(1, 1, grid=grid, channels=channels, readout="dense", **shared)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        coords = 2 * torch.rand(8, 25, 2, generator=generator) - 1
        x = 2 * torch.rand(8, 1, 25, generator=generator) - 1
        optimizer.zero_grad()
        (net(x, coords=coords) - x).square().mean().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        coords = 2 * torch.rand(64, 25, 2, generator=generator) - 1
        x = 2 * torch.rand(64, 1, 25, generator=generator) - 1
        return float((net(x, coords=coords) - x).square().mean())


def test_reconstruction_improves_with_resolution() -> None:
    coarse, fine = (reconstruction_error(grid, 16) for grid in (2, 8))
    assert fine < 0.6 * coarse


@pytest.mark.slow
def test_reconstruction_improves_with_channels() -> None:
    errors = [reconstruction_error(4, channels) for channels in (2, 8, 32)]
    assert errors[0] > errors[1] > errors[2], errors
    assert errors[2] < 0.6 * errors[0]


def test_no_point_is_lost_and_no_node_is_empty() -> None:
    # All points in one corner: every node hears of some, every point is heard.
    coords = torch.rand(1, 30, 3) * 0.05 - 1
    edges = bilateral_edges(coords, (4, 4, 4), 3)
    heard = torch.bincount(edges.source[edges.valid], minlength=30)
    hears = torch.bincount(edges.target[edges.valid], minlength=64)
    assert heard.min() >= 3
    assert hears.min() >= 3


def test_empty_batches_and_empty_clouds() -> None:
    net = GridifiedNet(2, 3, grid=3, channels=4, blocks=1, kernel_size=3)
    assert net(torch.randn(0, 2, 9), coords=torch.rand(0, 9, 3)).shape == (0, 3)
    with pytest.raises(ValueError, match=r"\bcoords must"):
        net(torch.randn(2, 2, 0), coords=torch.rand(2, 0, 3))
    conv = CKConv(2, 3, size=8)
    assert conv(torch.randn(0, 2, 5), coords=torch.rand(0, 5, 1)).shape == (0, 3, 5)
    assert conv(torch.randn(2, 2, 0), coords=torch.rand(2, 0, 1)).shape == (2, 3, 0)
