"""Modules that are cast to half precision: signals follow, kernels and coordinates keep their digits."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import kernelfield as kf
from kernelfield.fields import SIREN, BSpline, MAGNet, Morlet
from kernelfield.groups import SO2, Cyclic, Interval, Scale, warp
from kernelfield.layers import AttentiveGroupConv, GroupConv, LiftingConv
from kernelfield.models.readout import Readout
from kernelfield.parallel import layers as split_layers

# Long, and of high frequencies: a kernel of rounded parameters or offsets has little in common with it.
SIZE = 4000
LAYERS: dict[str, Any] = {
    "depthwise": lambda: kf.CKConv(4, 4, size=SIZE, field=MAGNet, depthwise=True, causal=False),
    "dense, causal": lambda: kf.CKConv(4, 4, size=SIZE, field=MAGNet, causal=True),
    "masked": lambda: kf.FlexConv(4, 4, size=SIZE, depthwise=True),
    "separable": lambda: kf.SeparableConv(4, 4, size=SIZE, bias=False),
}


def relative(found: Tensor, wanted: Tensor) -> float:
    return float(((found.float() - wanted).norm() / wanted.norm()).detach())


def points(n: int = 400) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(1, 4, n), SIZE * torch.rand(1, n, 1).sort(dim=1).values


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LAYERS)
def test_kernels_keep_their_digits(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer, (x, coords), signal = LAYERS[name](), points(), torch.randn(1, 4, 300)
    kernel, at_points, on_grid = layer.kernel(), layer(x, coords=coords), layer(signal)
    layer = layer.to(dtype)
    assert torch.equal(layer.kernel(), kernel)
    for found, wanted in ((layer(x.to(dtype), coords=coords), at_points), (layer(signal.to(dtype)), on_grid)):
        assert found.dtype == dtype
        assert relative(found, wanted) < 1e-2


def test_a_shared_kernel_network_keeps_its_digits() -> None:
    net, x = kf.CCNN(1, 3, size=64, channels=8, blocks=1, shared_field=True).eval(), torch.randn(2, 1, 64)
    wanted, half = net(x), copy.deepcopy(net).bfloat16()
    assert relative(half(x.bfloat16()), wanted) < 0.05
    assert torch.equal(half.blocks[0].conv.kernel(), net.blocks[0].conv.kernel())


GROUP_LAYERS: dict[str, Any] = {
    "drawn rotations": (lambda: LiftingConv(2, 3, group=SO2(), samples=8, field=SIREN, kernel_size=7), (2, 9, 9)),
    "rotations": (lambda: LiftingConv(2, 3, group=Cyclic(16), field=MAGNet, kernel_size=7), (2, 9, 9)),
    "table": (lambda: LiftingConv(2, 3, group=Cyclic(8), kernel_size=5), (2, 9, 9)),
    "on a group": (lambda: GroupConv(2, 3, group=Cyclic(8), field=SIREN, kernel_size=5), (2, 8, 9, 9)),
    "dilations": (lambda: LiftingConv(1, 4, group=Scale(5), field=Morlet, kernel_size=33), (1, 300)),
    "long splines": (lambda: LiftingConv(1, 2, group=Scale(4, base=1.5), field=BSpline, kernel_size=301), (1, 400)),
    "attentive": (lambda: AttentiveGroupConv(2, 3, group=Scale(2, dim=2), kernel_size=3), (2, 2, 9, 9)),
    "attention": (lambda: AttentiveGroupConv(2, 3, group=Scale(2), attention="input"), (2, 2, 9)),
}


@pytest.mark.parametrize("name", GROUP_LAYERS)
def test_kernels_on_groups_keep_their_digits(name: str) -> None:
    torch.manual_seed(0)
    make, shape = GROUP_LAYERS[name]
    layer, x = make().eval(), torch.randn(2, *shape)
    wanted = layer(x).values
    found = layer.bfloat16()(x.bfloat16())
    assert found.dtype == torch.bfloat16
    assert found.elements.dtype == torch.float32
    assert relative(found.values, wanted) < 1.5e-2
    found.values.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("method", ["pairs", "cells", "grid"])
def test_every_point_method(method: str) -> None:
    torch.manual_seed(0)
    layer = kf.CKConv(4, 4, size=SIZE, field=MAGNet, depthwise=True, causal=False, point_method=method)
    x, coords = points()
    wanted = layer(x, coords=coords)
    found = layer.bfloat16()(x.bfloat16(), coords=coords)
    assert relative(found, wanted) < 1e-2
    found.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_casts_return() -> None:
    layer = LAYERS["masked"]()
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items() if name != "bias"}
    after = layer.bfloat16().float().state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert {p.dtype for p in layer.double().parameters()} == {torch.float64}
    assert {name for name, p in layer.half().named_parameters() if p.dtype == torch.float16} == {"bias"}
    assert layer.reach.dtype == torch.float32


@pytest.mark.parametrize("message", ["product", "mlp"])
@pytest.mark.parametrize("channels", [0, 3])
def test_messages(channels: int, message: str) -> None:
    torch.manual_seed(0)
    layer = kf.Gridify(channels, 8, dim=2, grid=32, message=message, omega_0=5.0)
    coords, x = 2 * torch.rand(1, 200, 2) - 1, torch.randn(1, channels, 200)
    wanted = layer(x if channels else None, coords)
    found = layer.bfloat16()(x.bfloat16() if channels else None, coords)
    assert found.dtype == torch.bfloat16
    assert relative(found, wanted) < 2e-2


def test_a_network_on_points() -> None:
    torch.manual_seed(0)
    net = kf.CCNN(4, 3, dim=1, size=SIZE, channels=8, blocks=2).eval()
    x, coords = points(200)
    wanted = net(x, coords=coords)
    assert relative(net.bfloat16()(x.bfloat16(), coords=coords), wanted) < 3e-2
    with pytest.raises(TypeError, match="x must have the dtype"):
        net(x, coords=coords)
    net.reset_classifier(5)
    assert net(x.bfloat16(), coords=coords).shape == (1, 5)


@pytest.mark.parametrize("name", ["partial_gcnn_se2", "augerino_e2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_learned_distributions_keep_their_width(name: str, dtype: torch.dtype) -> None:
    """In bfloat16, a width of 0.5005 would be 0.5: four of eight elements instead of five."""
    torch.manual_seed(0)
    net, x = kf.create_model(name, channels=(2, 2, 3, 3), kernel_size=3).eval(), torch.randn(2, 1, 14, 14)
    learned = [m for m in net.modules() if isinstance(m, Interval)]
    for interval in learned:
        torch.nn.init.constant_(interval.width, 0.5005)
    wanted, counts = net(x), [interval.count for interval in learned]
    found = net.to(dtype)(x.to(dtype))
    assert found.dtype == dtype
    assert [interval.count for interval in learned] == counts
    assert relative(found, wanted) < 2e-2


def test_warped_signals_keep_their_coordinates() -> None:
    x = torch.linspace(0, 1, 257).expand(1, 257, 257)
    angles = torch.tensor([[0.3]])
    assert relative(warp(x.bfloat16(), SO2().matrix(angles)), warp(x, SO2().matrix(angles))) < 3e-3


def test_a_field_of_an_image_keeps_its_digits() -> None:
    net, x = kf.create_model("image_siren"), 2 * torch.rand(1, 2, 5, 5) - 1
    wanted = net(x)
    assert torch.equal(net.bfloat16()(x), wanted)
    with pytest.raises(TypeError, match="x must have the dtype of the field"):
        net(x.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("positions", [1000, 70000])
def test_the_mean_over_seen_positions_is_finite_in_half_precision(dtype: torch.dtype, positions: int) -> None:
    x, seen = torch.full((1, 2, positions), 100.0, dtype=dtype), torch.ones(1, positions, dtype=torch.bool)
    pooled = Readout(2, 3, "mean").pool(x, seen)
    assert pooled.dtype == dtype
    assert torch.equal(pooled, x[..., 0])


@pytest.mark.parametrize("masked", [False, True])
def test_the_mean_over_slabs_is_finite_in_half_precision(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_layers, "sum_over_processes", lambda sums, _: sums)  # a single process
    readout = split_layers.SplitReadout(2, 3, "mean")
    readout.slabs = SimpleNamespace(group=None, lengths=[1000], rank=0, total=1000)  # type: ignore[assignment]
    x = torch.full((1, 2, 1000), 100.0, dtype=torch.float16)
    pooled = readout.pool(x, torch.ones(1, 1000, dtype=torch.bool) if masked else None)
    assert torch.equal(pooled, x[..., 0])
