"""The blur of kernels that are sampled more finely than in training.

A point of a blurred kernel depends on all points within a training step, also on those that are longer than the input
or where a mask is zero. A kernel is therefore sampled on a :func:`widened` grid, blurred, and :func:`narrowed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..._checks import is_symbolic
from ...grids import KernelGrid
from ...ops import conv

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["narrowed", "smooth_kernel", "widened"]


def widened(grid: KernelGrid, causal: bool) -> KernelGrid:
    """Return the grid of all points that the blur of a kernel on ``grid`` reads, up to the ends of the kernel.

    >>> widened(KernelGrid.of((8,), (0.5,), limit=(3,)), causal=False).count  # -4 … 4 and not -2 … 2
    (9,)
    """
    limits = [a + n + _blurred_points(step) for a, n, step in zip(grid.first, grid.count, grid.step, strict=True)]
    return KernelGrid.of(grid.size, grid.step, causal=causal, limit=limits)


def narrowed(kernel: Tensor, before: KernelGrid, after: KernelGrid) -> Tensor:
    r"""Return a kernel (…, \*points) on the grid ``before`` at the points of the smaller grid ``after``."""
    axis = kernel.dim() - len(after.count)
    for d, (first, count) in enumerate(zip(after.first, after.count, strict=True)):
        start = first - before.first[d]
        if is_symbolic(start, count):  # narrow would fix a dynamic length
            kernel = kernel.index_select(axis + d, torch.arange(count, device=kernel.device) + start)
        else:
            kernel = kernel.narrow(axis + d, start, count)
    return kernel


def _blurred_points(step: float) -> int:
    """Return the number of points to each side over which the blur reaches."""
    return round(1 / step) if step < 1 else 0


def smooth_kernel(kernel: Tensor, steps: tuple[float, ...]) -> Tensor:
    r"""Blur a kernel, sampled finer than in training, with a Gaussian of half a training step.

    Chapter 2, appendix "Dealing with High-Frequency Components". The window reaches one training step to each side. At
    the ends of the kernel it is truncated and renormalised, so a constant kernel does not change.

    Args:
        kernel: (…, \*points) kernel.
        steps: its sampling step along each axis; axes with a step of at least 1 do not change.

    >>> smooth_kernel(torch.ones(1, 1, 7), (0.5,))
    tensor([[[1., 1., 1., 1., 1., 1., 1.]]])
    """
    for axis, step in enumerate(steps, start=kernel.dim() - len(steps)):
        points, reach = kernel.shape[axis], _blurred_points(step)
        if not is_symbolic(points):  # a comparison would fix a dynamic length
            reach = min(reach, points - 1)
        if reach < 1:
            continue
        offsets = torch.arange(-reach, reach + 1, dtype=kernel.dtype, device=kernel.device) * step
        window = torch.exp(-0.5 * (offsets / 0.5).square()).view(1, 1, -1)
        lines = kernel.movedim(axis, -1)
        flat = lines.flatten(0, -2).unsqueeze(1)
        blurred = conv(flat, window, method="direct") / conv(flat.new_ones(1, 1, points), window, method="direct")
        kernel = blurred.squeeze(1).unflatten(0, lines.shape[:-1]).movedim(-1, axis)
    return kernel
