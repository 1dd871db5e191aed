"""Which way to convolve between points: a count of operations."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import torch

from .grid import SPACINGS, TRANSITION, extent, plan_grid
from .window import window_points

if TYPE_CHECKING:
    from .plan import GridPlan
    from .shape import PointConv

__all__ = ["choose_method"]

#: pairs below which the choice costs more than it can save; a GPU computes many at once, and has to be waited for
FEW_PAIRS = {"cpu": 1 << 16, "cuda": 1 << 18}
#: operations of one pair found by cells, relative to one of a full table: indices are read, and sums are scattered
CELL_OVERHEAD = 2.0
#: operations of one value that the window spreads or gathers, relative to one of the kernel
WINDOW_OVERHEAD = 1.0


def choose_method(c: PointConv, tolerance: float) -> tuple[str, GridPlan | None]:
    """Return "pairs", "cells" or "grid", whichever is expected to take the least time, and the plan of the grid.

    The host waits for the device to learn how far the points extend; while a CUDA graph is captured it may not, and
    the answer is "pairs".
    """
    dim, points, queries = c.coords.shape[-1], c.coords.shape[1], c.at.shape[1]
    samples = max(c.coords.shape[0], c.at.shape[0])
    if samples * points * queries <= FEW_PAIRS.get(c.x.device.type, FEW_PAIRS["cuda"]):
        return "pairs", None
    if c.x.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return "pairs", None
    span, size = extent(c), c.size.tolist()
    pairs = samples * points * queries * (c.values + c.x.shape[1])
    reach = math.prod(min(1.0, 1.5 * side / max(length, 1e-9)) for side, length in zip(size, span, strict=True))
    share = {"pairs": 1.0, "cells": CELL_OVERHEAD * reach * (0.5 if c.causal else 1.0)}
    best = min(share, key=lambda name: share[name])
    window, spacing = window_points(tolerance / dim), SPACINGS[0]
    counts = [length / spacing + window for length in span]
    kernel = math.prod(2 * n for n in counts) * c.values
    fft = 6 * math.prod(2 * n for n in counts) * math.log2(max(2.0, *counts)) * samples * c.x.shape[1]
    moved = WINDOW_OVERHEAD * samples * (points + queries) * window**dim * c.x.shape[1]
    near = samples * queries * TRANSITION * points / max(span[0], 1.0) * c.values if c.causal else 0.0
    if kernel + fft + moved + near < share[best] * pairs:
        with contextlib.suppress(ValueError):  # no grid is fine enough for this kernel
            return "grid", plan_grid(c, tolerance, span)
    return best, None
