"""Plans of convolutions between points: Python numbers for all sizes that depend on the coordinates."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CellPlan", "GridPlan", "PointPlan"]


class CellPlan(NamedTuple):
    """Sizes of a search for pairs within reach.

    Attributes:
        per_axis: number of cells along each axis.
        per_range: largest number of points in one row of cells that a query searches.
    """

    per_axis: int
    per_range: int


class GridPlan(NamedTuple):
    """A grid on which the window interpolates the kernel.

    Attributes:
        span: largest difference of coordinates along each axis, in training steps.
        size: reach of the kernel along each axis, in training steps.
        spacing: distance between grid points in training steps.
        tolerance: error of the window along one axis.
    """

    span: tuple[float, ...]
    size: tuple[float, ...]
    spacing: float
    tolerance: float


class PointPlan(NamedTuple):
    """A method for convolutions between points and its sizes, measured once by :func:`kernelfield.ops.plan_points`.

    With a plan the host never waits for the device, and shapes depend only on the numbers of points and queries. The
    convolution can therefore be compiled, exported and captured as a CUDA graph. Outputs of samples whose points do not
    fit into the plan are NaN.

    Attributes:
        method: "pairs", "cells" or "grid".
        grid: the grid, for "grid".
        cells: the search, for "cells", and for "grid" if it is causal.

    >>> PointPlan("cells", cells=CellPlan(per_axis=1, per_range=12)).method
    'cells'
    """

    method: str
    grid: GridPlan | None = None
    cells: CellPlan | None = None
