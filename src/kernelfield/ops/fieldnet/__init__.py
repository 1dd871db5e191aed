"""Kernel networks on regular grids, in one launch: coordinates are computed where they are used and stored nowhere.

A kernel network is small: what takes time is that each of its operations reads and writes all of its hidden units at
all points, and that there are a hundred of them. Here one kernel computes the last hidden layer of any number of
networks from the numbers that describe the grid, and one their gradients, hidden units computed again. The last linear
map, which may have a thousand outputs, is a matrix product like any other and left to whoever makes those.

Products are of float32 with three products of tf32 each: what comes out is multiplied by large frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..backend import use_triton

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ...grids import KernelGrid

__all__ = ["Shape", "features_on"]

#: widest hidden layer that fits the registers of a program
MOST_HIDDEN = 64
#: values of all layers of a network on a grid, which programs index with 32 bits: fewer than these
MOST_VALUES = 1 << 31


@dataclass(frozen=True)
class Shape:
    """What kernel networks that are evaluated together have in common.

    Args:
        hidden: units of a layer.
        layers: filters, or layers of sines.
        widths: inverse widths of a unit's envelope: one, one per axis, or none at all; of filter networks.
        omega: factor on what enters a sine; None for a filter network.
    """

    hidden: int
    layers: int
    widths: int = 0
    omega: float | None = None


def features_on(
    shape: Shape, networks: list[list[Tensor]], grid: KernelGrid, formula: Callable[..., Tensor]
) -> Tensor | None:
    """Return the last hidden layers of kernel networks on a grid, or None where the kernels cannot.

    Args:
        shape: of the networks.
        networks: parameters of each, in the order in which ``kernels.py`` lists them.
        grid: where.
        formula: the same, of all parameters in a row, for second derivatives.

    Returns:
        (networks, hidden, points) features.
    """
    single = all(p.dtype == torch.float32 for network in networks for p in network)
    fits = shape.hidden <= MOST_HIDDEN and shape.layers * shape.hidden * grid.points < MOST_VALUES
    if not (single and fits and len(grid.count) <= 3 and use_triton(networks[0][0])):
        return None
    from .triton.launch import fused_features  # noqa: PLC0415

    return fused_features(shape, networks, grid, formula)
