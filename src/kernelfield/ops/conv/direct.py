"""Convolution as a sum over the kernel's points, by torch's own convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from ..._checks import is_symbolic
from .shape import centres

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["direct_conv", "prepared_direct_conv"]

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
#: spatial axes of a signal, by their number
_AXES = {1: (2,), 2: (2, 3), 3: (2, 3, 4)}


def direct_conv(
    x: Tensor, kernel: Tensor, *, causal: bool, boundary: tuple[str, ...], groups: int, is_flipped: bool = False
) -> Tensor:
    """Convolve by direct sums. The arguments are those of :func:`kernelfield.ops.conv`, already checked.

    Torch's convolutions are correlations, so the kernel is flipped unless ``is_flipped``.
    """
    return prepared_direct_conv(x, kernel, causal, boundary, groups, is_flipped)(x, kernel)


def prepared_direct_conv(
    x: Tensor, kernel: Tensor, causal: bool, boundary: tuple[str, ...], groups: int, is_flipped: bool = False
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return :func:`direct_conv` for signals and kernels of the shapes and on the device of ``x`` and ``kernel``.

    The padding is computed once, because that takes as long as a small convolution.
    """
    dim = x.dim() - 2
    axes, convolve = _AXES[dim], _CONV[dim]
    padding, wrapped, padded = _padding(kernel.shape[2:], causal, boundary)
    if dim == 2 and _writes_out_of_bounds(x, padding[0]):
        padded[2:], padding = [padded[2] + padding[0], padded[3] + padding[0]], (0, padding[1])
    pads = any(is_symbolic(n) or n > 0 for n in padded)

    def run(x: Tensor, kernel: Tensor) -> Tensor:
        for axis, before, after in wrapped:
            x = _wrap(x, axis, before, after)
        if pads:
            x = F.pad(x, padded)
        return convolve(x, kernel if is_flipped else kernel.flip(axes), None, 1, padding, 1, groups)

    return run


def _writes_out_of_bounds(x: Tensor, rows: int) -> bool:
    """Return whether torch may write out of bounds in the backward pass of a plane padded by ``rows`` on both sides.

    With torch 2.13 on CPUs with AVX-512, kernels with few columns and at least 2n - 1 rows, for a plane of n rows, gave
    wrong gradients or a crash. Padding the plane beforehand gives correct gradients.
    """
    return x.device.type == "cpu" and (is_symbolic(x.shape[2]) or is_symbolic(rows) or rows >= x.shape[2] - 1 > 0)


def _padding(
    points: tuple[int, ...], causal: bool, boundary: tuple[str, ...]
) -> tuple[tuple[int, ...], list[tuple[int, int, int]], list[int]]:
    """Return the padding that torch's convolution adds itself, the axes to wrap, and the zeros to add beforehand."""
    dim = len(points)
    padding, wrapped, padded = [0] * dim, [], [0] * (2 * dim)
    for d, (k, c) in enumerate(zip(points, centres(points, causal), strict=True)):
        before, after = k - 1 - c, c
        if boundary[d] == "periodic":
            wrapped.append((2 + d, before, after))
        elif boundary[d] == "zero" and before == after:
            padding[d] = before
        elif boundary[d] == "zero":
            padded[2 * (dim - 1 - d) : 2 * (dim - d)] = before, after
    return tuple(padding), wrapped, padded


def _wrap(x: Tensor, axis: int, before: int, after: int) -> Tensor:
    """Extend ``x`` periodically by any number of samples on both sides."""
    index = torch.arange(-before, x.shape[axis] + after, device=x.device) % x.shape[axis]
    return x.index_select(axis, index)
