"""The choice of a method for convolutions between points, by expected times from measured constants."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from ..._hooks import is_vmapped
from ..conv.cost import Work, seconds
from ..conv.measured import costs_of
from ..conv.shape import centres
from .grid import SPACINGS, TRANSITION, extent, plan_grid
from .window import window_points

if TYPE_CHECKING:
    from .plan import GridPlan
    from .shape import PointConv

__all__ = ["Costs", "choose_method", "expected_times", "point_costs"]

#: number of pairs below which choosing costs more than it can save; larger on a GPU, for which the host must wait
FEW_PAIRS = {"cpu": 1 << 16, "cuda": 1 << 18}


class Costs(NamedTuple):
    """Measured seconds on a kind of device, forward and backward; a forward pass alone takes a quarter.

    Attributes:
        value: time per value of a kernel, or of a channel that it multiplies, at one offset.
        found: the same for pairs found by cells, with indexed reads and scattered sums.
        moved: time per value that a window spreads or gathers, at one grid point.
        grid: fixed time of a fine grid, for its launches and measurement.
    """

    value: float
    found: float
    moved: float
    grid: float


#: one core of an AMD EPYC, and an H200 (``benchmarks/results/irregular-h200.json``)
COSTS = {"cpu": Costs(2.9e-8, 3.1e-8, 1e-8, 0.02), "cuda": Costs(3.4e-10, 4.6e-10, 2e-9, 0.008)}


def point_costs(device: torch.device) -> Costs:
    """Return the measured costs of a device, or those of the known device of its type."""
    measured = costs_of(device.type, device.index).get("points")
    return COSTS.get(device.type, COSTS["cuda"]) if measured is None else Costs(**measured)


def choose_method(c: PointConv, tolerance: float) -> tuple[str, GridPlan | None]:
    """Return the method with the least expected time, "pairs", "cells" or "grid", and the plan of the grid.

    The host waits for the device to learn the extent of the points. It must not wait while a CUDA graph is captured,
    and cannot under :func:`torch.vmap`: there the method is "pairs".
    """
    points, queries = c.coords.shape[1], c.at.shape[1]
    samples = max(c.coords.shape[0], c.at.shape[0])
    if samples * points * queries <= FEW_PAIRS.get(c.x.device.type, FEW_PAIRS["cuda"]):
        return "pairs", None
    if (c.x.device.type == "cuda" and torch.cuda.is_current_stream_capturing()) or is_vmapped([c.coords, c.at]):
        return "pairs", None
    span = extent(c)
    times = expected_times(c, tolerance, span)
    if min(times, key=lambda name: times[name]) == "grid":
        with contextlib.suppress(ValueError):  # no grid is fine enough for this kernel
            return "grid", plan_grid(c, tolerance, span)
    return ("pairs" if times["pairs"] <= times["cells"] else "cells"), None


def expected_times(c: PointConv, tolerance: float, span: list[float]) -> dict[str, float]:
    """Return the seconds that each method is expected to take for points that extend over ``span``."""
    dim, points, queries, channels = c.coords.shape[-1], c.coords.shape[1], c.at.shape[1], c.x.shape[1]
    device, samples = c.x.device, max(c.coords.shape[0], c.at.shape[0])
    cost = point_costs(device)
    pairs = samples * points * queries * (c.values + channels)
    reach = math.prod(
        min(1.0, 1.5 * side / max(length, 1e-9)) for side, length in zip(c.size.tolist(), span, strict=True)
    )
    window = window_points(tolerance / dim)
    counts = [math.ceil(length / SPACINGS[0]) + window for length in span]
    sides = tuple(n if c.causal else 2 * n - 1 for n in counts)
    shape, kernel = (c.x.shape[0], channels, *counts), (c.out_channels, c.fan_in, *sides)
    work = Work.of(shape, kernel, centres(sides, c.causal), [False] * dim)
    near = samples * queries * TRANSITION * points / max(span[0], 1.0) * c.values if c.causal else 0.0
    moved = samples * (points * channels + queries * c.out_channels) * window**dim
    return {
        "pairs": cost.value * pairs,
        "cells": cost.found * pairs * reach * (0.5 if c.causal else 1.0),
        "grid": cost.value * math.prod(sides) * c.values
        + seconds("fft", work, device, training=True)
        + cost.moved * moved
        + cost.found * near
        + cost.grid,
    }
