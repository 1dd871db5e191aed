"""Every way to convolve between points against the sum over all pairs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kernelfield import CKConv
from kernelfield.fields import MAGNet
from kernelfield.ops import conv, point_conv
from kernelfield.ops.points import within
from kernelfield.ops.points.choose import choose_method
from kernelfield.ops.points.shape import PointConv

TOLERANCE = {"cells": 1e-10, "grid": 1e-4}


class Waves(nn.Module):
    """A smooth kernel with parameters: waves up to half of the Nyquist frequency, decaying or not."""

    def __init__(self, dim: int, channels: int, size: float, decay: float) -> None:
        super().__init__()
        frequency = torch.rand(dim, channels, dtype=torch.float64) * 2 - 1
        self.frequency = nn.Parameter(frequency * size * math.pi / 2)
        self.phase = nn.Parameter(torch.rand(channels, dtype=torch.float64) * 6)
        self.decay = decay

    def forward(self, offsets: Tensor) -> Tensor:
        waves = torch.sin(offsets @ self.frequency.to(offsets) + self.phase.to(offsets))
        return waves * torch.exp(-self.decay * offsets.square().sum(dim=-1, keepdim=True))


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    dim = draw(st.integers(1, 3))
    groups = draw(st.sampled_from((1, 3)))
    return {
        "dim": dim,
        "batch": draw(st.integers(1, 3)),
        "points": draw(st.integers(1, 60)),
        "queries": draw(st.none() | st.integers(1, 20)),
        "shared": draw(st.booleans()),
        "masked": draw(st.booleans()),
        "in_channels": 3,
        "out_channels": draw(st.sampled_from((3, 6))),
        "groups": groups,
        "causal": draw(st.booleans()) if dim == 1 else False,
        "global": draw(st.booleans()),
        "seed": draw(st.integers(0, 10**6)),
    }


def build(problem: dict[str, Any], dtype: torch.dtype = torch.float64) -> tuple[tuple[Any, ...], dict[str, Any], Waves]:
    torch.manual_seed(problem["seed"])
    dim, batch, points = problem["dim"], problem["batch"], problem["points"]
    span = {1: 80.0, 2: 12.0, 3: 6.0}[dim]
    shared = 1 if problem["shared"] else batch
    coords = torch.rand(shared, points, dim, dtype=torch.float64) * span - 3
    at = None
    if problem["queries"] is not None:
        at = torch.rand(shared, problem["queries"], dim, dtype=torch.float64) * span - 3
    mask, x = None, torch.randn(batch, problem["in_channels"], points, dtype=torch.float64)
    if problem["masked"]:
        mask = torch.rand(batch, points) < 0.7
        x = x * mask.unsqueeze(1)
    size = 1.5 * span if problem["global"] else span / 3
    kernel = Waves(
        dim,
        problem["out_channels"] * problem["in_channels"] // problem["groups"],
        size,
        0.0 if problem["global"] else 12,
    )
    how = {"out_channels": problem["out_channels"], "groups": problem["groups"], "causal": problem["causal"]}
    how |= {"mask": mask, "at": None if at is None else at.to(dtype)}
    return (x.to(dtype), coords.to(dtype), kernel, torch.full((dim,), size, dtype=dtype)), how, kernel


def relative(found: Tensor, wanted: Tensor) -> float:
    return float(((found - wanted).norm() / wanted.norm().clamp(min=1e-12)).detach())


@pytest.mark.parametrize("method", ["cells", "grid"])
@given(problem=problems())
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
def test_methods_agree_with_all_pairs(method: str, problem: dict[str, Any]) -> None:
    arguments, how, _ = build(problem)
    with torch.no_grad():
        wanted = point_conv(*arguments, method="pairs", **how)
        found = point_conv(*arguments, method=method, tolerance=1e-4, **how)
    assert found.shape == wanted.shape
    # A sum that cancels has a larger relative error than its terms: compare with what the terms add up to.
    scale = max(float(wanted.norm()), float(arguments[0].norm()))
    assert float((found - wanted).norm()) <= TOLERANCE[method] * scale * 3


@pytest.mark.parametrize("method", ["cells", "grid"])
@pytest.mark.parametrize("dim", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_agree_with_those_of_all_pairs(method: str, dim: int, causal: bool) -> None:
    if causal and dim > 1:
        pytest.skip("only a line has a past")
    problem = {"dim": dim, "batch": 2, "points": 40, "queries": 15, "shared": False, "masked": True, "in_channels": 3}
    problem |= {"out_channels": 3, "groups": 3, "causal": causal, "global": True, "seed": 0}
    gradients = []
    for name in ("pairs", method):
        (x, coords, kernel, size), how, parameters = build(problem)
        at = how.pop("at").requires_grad_()
        inputs = [x.requires_grad_(), coords.requires_grad_(), at, *parameters.parameters()]
        y = point_conv(x, coords, kernel, size, at=at, method=name, tolerance=1e-6, **how)
        found = list(torch.autograd.grad(y.square().sum(), inputs))
        found[0] = found[0] * how["mask"].unsqueeze(1)  # padding has no gradient that means anything
        gradients.append(found)
    for wanted, found in zip(*gradients, strict=True):
        assert relative(found, wanted) < (1e-10 if method == "cells" else 2e-4)


@pytest.mark.parametrize("method", ["cells", "grid"])
def test_later_points_have_no_effect_on_causal_outputs(method: str) -> None:
    torch.manual_seed(0)
    times = torch.rand(1, 200, 1, dtype=torch.float64).sort(dim=1).values * 100
    x, kernel = torch.randn(1, 2, 200, dtype=torch.float64), Waves(1, 2, 120.0, 0.0)
    size = torch.tensor([120.0], dtype=torch.float64)
    y = [
        point_conv(x * weight, times, kernel, size, out_channels=2, groups=2, causal=True, method=method)
        for weight in (1.0, (torch.arange(200) < 100).double())
    ]
    assert torch.allclose(y[0][..., :100], y[1][..., :100], atol=1e-11, rtol=0)
    assert not torch.allclose(y[0][..., 100:], y[1][..., 100:])


def test_outputs_before_the_first_point_of_a_causal_convolution_are_zero() -> None:
    (x, coords, kernel, size), how, _ = build(
        {"dim": 1, "batch": 1, "points": 30, "queries": None, "shared": True, "masked": False, "in_channels": 2}
        | {"out_channels": 2, "groups": 2, "causal": True, "global": True, "seed": 1}
    )
    how["at"] = coords.min() - torch.tensor([[[5.0], [0.5]]], dtype=torch.float64)
    for method in ("pairs", "cells", "grid"):
        assert point_conv(x, coords, kernel, size, method=method, **how).abs().max() < 1e-12


@pytest.mark.parametrize("dim", [1, 2])
def test_points_on_a_grid_give_the_convolution_on_the_grid(dim: int) -> None:
    torch.manual_seed(0)
    n, kernel = {1: 40, 2: 9}[dim], Waves(dim, 2, 50.0, 0.0)
    x = torch.randn(1, 2, *(n,) * dim, dtype=torch.float64)
    lags = torch.arange(-(n - 1), n, dtype=torch.float64)
    sampled = kernel(torch.cartesian_prod(*[lags] * dim).view(-1, dim) / 50).mT.reshape(2, 1, *(2 * n - 1,) * dim)
    wanted = conv(x, sampled, groups=2).flatten(2)
    places = torch.cartesian_prod(*[torch.arange(n, dtype=torch.float64)] * dim).view(1, -1, dim)
    for method in ("pairs", "cells", "grid"):
        size = torch.full((dim,), 50.0, dtype=torch.float64)
        y = point_conv(x.flatten(2), places, kernel, size, out_channels=2, groups=2, method=method)
        assert relative(y, wanted) < (1e-4 if method == "grid" else 1e-12)


def test_methods_in_single_precision() -> None:
    problem = {"dim": 1, "batch": 2, "points": 300, "queries": None, "shared": True, "masked": False, "in_channels": 4}
    problem |= {"out_channels": 4, "groups": 4, "causal": True, "global": True, "seed": 2}
    (x, coords, kernel, size), how, _ = build(problem)
    wanted = point_conv(x, coords, kernel, size, method="pairs", **how)
    for method in ("pairs", "cells", "grid"):
        y = point_conv(x.float(), coords.float(), kernel, size.float(), method=method, **how)
        assert relative(y.double(), wanted) < 1e-3


def test_a_kernel_that_the_window_cannot_interpolate_is_refused() -> None:
    x, coords, size = torch.randn(1, 1, 50), torch.rand(1, 50, 1) * 60, torch.tensor([100.0])
    with pytest.raises(ValueError, match=r"method .*grid"):
        point_conv(x, coords, lambda o: torch.sign(o - 0.1), size, out_channels=1, method="grid")
    with pytest.raises(ValueError, match=r"method .*neighbors=3"):
        point_conv(x, coords, torch.ones_like, size, out_channels=1, method="cells", neighbors=3)
    with pytest.raises(ValueError, match="causal"):
        point_conv(x, torch.rand(1, 50, 2), lambda o: o[..., :1], torch.ones(2), out_channels=1, causal=True)


def test_auto_takes_cells_for_short_kernels_and_the_grid_for_long_smooth_ones() -> None:
    torch.manual_seed(0)
    coords, x = torch.rand(1, 4000, 1) * 4000, torch.randn(1, 4, 4000)
    long = Waves(1, 4, 6000.0, 0.0).float()

    def chosen(kernel: Any, size: float, points: int = 4000) -> str:
        at = coords[:, :points]
        given = PointConv(x[..., :points], at, at, kernel, torch.tensor([size]), 4, 4, False, None, 0)
        return choose_method(given, 1e-4)[0]

    def jumping(offsets: Tensor) -> Tensor:
        return torch.sign(offsets).expand(*offsets.shape[:-1], 4)

    assert chosen(long, 6000.0) == "grid"
    assert chosen(long, 10.0) == "cells"
    assert chosen(long, 6000.0, points=100) == "pairs"
    assert chosen(jumping, 6000.0) == "pairs"


@pytest.mark.parametrize("method", ["auto", "cells", "grid"])
def test_coordinates_that_are_not_finite_are_refused_where_they_would_be_skipped(method: str) -> None:
    coords = torch.rand(1, 600, 1) * 60
    coords[0, 3] = torch.nan
    with pytest.raises(ValueError, match="coords and at must be finite"):
        point_conv(torch.randn(1, 1, 600), coords, torch.cos, torch.tensor([100.0]), out_channels=1, method=method)


@pytest.mark.parametrize("method", ["pairs", "cells", "grid"])
def test_no_points_and_no_queries(method: str) -> None:
    size, how = torch.tensor([100.0]), {"out_channels": 1, "method": method}
    none = point_conv(torch.randn(2, 1, 0), torch.rand(2, 0, 1), torch.cos, size, at=torch.rand(2, 3, 1), **how)
    assert torch.equal(none, torch.zeros(2, 1, 3))
    asked = point_conv(torch.randn(2, 1, 5), torch.rand(2, 5, 1), torch.cos, size, at=torch.rand(2, 0, 1), **how)
    assert asked.shape == (2, 1, 0)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("size", [0.2, 0.6, 3.0])
@pytest.mark.parametrize("masked", [False, True])
def test_neighbours_found_by_cells_are_those_of_all_distances(
    dim: int, size: float, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 300, dtype=torch.float64)
    coords, at = torch.rand(3, 300, dim, dtype=torch.float64), torch.rand(3, 77, dim, dtype=torch.float64)
    mask = None
    if masked:
        mask = torch.rand(3, 300) < 0.6
        mask[0] = torch.arange(300) < 5  # fewer points than neighbours
        x = x * mask.unsqueeze(1)
    kernel, reach = Waves(dim, 4, 20.0, 1.0), torch.full((dim,), size, dtype=torch.float64)
    found = []
    for fewest in (1 << 40, 1):
        monkeypatch.setattr(within, "FEWEST_FOR_CELLS", {"cpu": fewest})
        found.append(point_conv(x, coords, kernel, reach, out_channels=4, groups=4, neighbors=12, mask=mask, at=at))
    assert torch.allclose(*found, atol=1e-10)


@pytest.mark.parametrize("method", ["pairs", "cells", "grid"])
def test_half_precision(method: str) -> None:
    torch.manual_seed(0)
    layer = CKConv(4, 4, size=350, field=MAGNet, depthwise=True, causal=False, point_method=method)
    x, coords = torch.randn(1, 4, 300), 300 * torch.rand(1, 300, 1)
    wanted = layer(x, coords=coords)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(x, coords=coords)
    found.sum().backward()
    assert relative(found.float(), wanted) < 1e-2
    # Times that are equal in half precision still differ.
    layer, x, coords = layer.bfloat16(), x.bfloat16(), coords.round() + 0.25
    late = layer(x, coords=coords + 4096)
    assert late.dtype == torch.bfloat16
    assert relative(late.float(), layer(x, coords=coords).float()) < 2e-2
