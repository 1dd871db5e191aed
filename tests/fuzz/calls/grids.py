"""Grids of coordinates."""

from __future__ import annotations

import torch

from kernelfield import grids

from .call import Call

_KERNEL = {"size": 5, "step": 0.5, "causal": False, "limit": None, "dtype": torch.float32, "device": "cpu"}
_GRID = {"dtype": torch.float32, "device": "cpu"}

CALLS = [
    Call("grids.reach", grids.reach, lambda: {"size": 5, "step": 0.5, "limit": 7}),
    Call("grids.kernel_axis", grids.kernel_axis, lambda: _KERNEL),
    Call("grids.kernel_grid", grids.kernel_grid, lambda: {**_KERNEL, "dim": 2, "limit": (4, 4)}),
    Call("grids.kernel_grid (1D)", grids.kernel_grid, lambda: _KERNEL),
    Call("grids.local_grid", grids.local_grid, lambda: {"kernel_size": 3, "dim": 2, **_GRID}),
    Call("grids.box_grid", grids.box_grid, lambda: {"shape": (3, 4), "low": -1.0, "high": (1.0, 2.0), **_GRID}),
    Call("grids.signal_grid", grids.signal_grid, lambda: {"shape": (3, 4), "size": 5, **_GRID}),
    Call("grids.positions", grids.positions, lambda: {"shape": (3, 4), "step": 0.5, **_GRID}),
    Call(
        "grids.KernelGrid.of",
        grids.KernelGrid.of,
        lambda: {"size": (4,), "step": (2.0,), "limit": (3,)},
        lambda grid: grid.coords(),
    ),
]
