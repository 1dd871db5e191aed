"""Kernels on the circle of a transform, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["place", "take"]


def place(kernels: Tensor, axis: int, sizes: Sequence[int], centres: Sequence[int]) -> Tensor:
    """Put kernel point j at index j - centre modulo the transform's size; points that coincide are added.

    Args:
        kernels: (…, *points, …).
        axis: first of the points' axes.
        sizes: size of the transform along each axis.
        centres: index of offset zero along each axis.
    """
    for d, (size, centre) in enumerate(zip(sizes, centres, strict=True)):
        points = kernels.shape[axis + d]
        if points > size:  # periodic boundary: the period is the input's length
            index = (torch.arange(points, device=kernels.device) - centre) % size
            shape = (*kernels.shape[: axis + d], size, *kernels.shape[axis + d + 1 :])
            kernels = kernels.new_zeros(shape).index_add(axis + d, index, kernels)
        elif centre > 0:
            past = kernels.narrow(axis + d, centre, points - centre)
            gap = (0, 0) * (kernels.dim() - 1 - axis - d) + (0, size - points)
            kernels = torch.cat([F.pad(past, gap), kernels.narrow(axis + d, 0, centre)], dim=axis + d)
    return kernels


def take(kernels: Tensor, axis: int, points: Sequence[int], sizes: Sequence[int], centres: Sequence[int]) -> Tensor:
    """Read every kernel point from where :func:`place` put it, as the gradient needs."""
    for d, (count, size, centre) in enumerate(zip(points, sizes, centres, strict=True), start=axis):
        if count > size:
            index = (torch.arange(count, device=kernels.device) - centre) % size
            kernels = kernels.index_select(d, index)
        elif centre == 0:
            kernels = kernels.narrow(d, 0, count)
        else:
            past = kernels.narrow(d, 0, count - centre)
            kernels = torch.cat([kernels.narrow(d, size - centre, centre), past], dim=d)
    return kernels
