"""Measure the costs of convolutions between points."""

from __future__ import annotations

from typing import Any

import torch

from ..points import point_conv
from ..points.choose import Costs, point_costs
from .timing import least_seconds

__all__ = ["measure_points"]

#: number of points on a line, number of channels, and reach of the kernel in mean spacings
POINTS, CHANNELS, REACH = {"cpu": 1000, "cuda": 8000}, 8, 64.0


def measure_points(costs: dict[str, Any], device: torch.device) -> str:
    """Measure the three methods on one line of points, scale their costs, and return a line about it."""
    count, width = POINTS.get(device.type, POINTS["cuda"]), 16
    generator = torch.Generator().manual_seed(0)
    coords = (torch.rand(1, count, 1, generator=generator) * count).sort(dim=1).values.to(device)
    x = torch.randn(1, CHANNELS, count, generator=generator).to(device).requires_grad_()
    first, second = (torch.randn(size, generator=generator).to(device) for size in ((1, width), (width, CHANNELS)))
    size = torch.tensor([REACH], device=device)

    def kernel(offsets: torch.Tensor) -> torch.Tensor:
        return torch.sin(3 * offsets @ first) @ second  # about the work of a small kernel network

    def call(method: str, reach: torch.Tensor) -> Any:
        def step() -> object:
            y = point_conv(x, coords, kernel, reach, out_channels=CHANNELS, groups=CHANNELS, method=method)
            return torch.autograd.grad(y.sum(), x)

        return step

    calls = {"pairs": call("pairs", size * count), "cells": call("cells", size), "grid": call("grid", size * count)}
    times = least_seconds(calls, device)
    known = point_costs(device)
    pairs = count * count * 2 * CHANNELS
    near = count * min(1.0, 1.5 * REACH / count) * count * 2 * CHANNELS
    # The FFT, whose costs are already measured, takes only a small part of the grid method's time.
    factor = min(10.0, max(0.1, times["grid"] / known.grid))
    found = Costs(times["pairs"] / pairs, times["cells"] / near, known.moved * factor, known.grid * factor)
    costs["points"] = {name: float(f"{value:.3g}") for name, value in found._asdict().items()}
    return ", ".join(f"{name} {1e3 * value:.3g} ms" for name, value in times.items())
