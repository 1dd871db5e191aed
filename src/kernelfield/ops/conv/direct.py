"""Convolution as a sum over the kernel's points, by torch's own convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from .shape import centres

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["direct_conv"]

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def direct_conv(
    x: Tensor, kernel: Tensor, *, causal: bool, boundary: tuple[str, ...], groups: int, is_reversed: bool = False
) -> Tensor:
    """Convolve by sums. Arguments are those of :func:`kernelfield.ops.conv`, already checked.

    Torch's convolutions are correlations. ``is_reversed`` says whether the kernel is already flipped for them.
    """
    dim = x.dim() - 2
    reaches = [(k - 1 - c, c) for k, c in zip(kernel.shape[2:], centres(kernel.shape[2:], causal), strict=True)]
    flipped = kernel if is_reversed else kernel.flip(tuple(range(2, 2 + dim)))
    padding: list[int] = [0] * dim
    for d, (before, after) in enumerate(reaches):
        if boundary[d] == "valid":
            continue
        if boundary[d] == "periodic":
            x = _wrap(x, 2 + d, before, after)
        elif before == after:
            padding[d] = before
        else:
            x = F.pad(x, (0, 0) * (dim - 1 - d) + (before, after))
    return _CONV[dim](x, flipped, padding=padding, groups=groups)


def _wrap(x: Tensor, axis: int, before: int, after: int) -> Tensor:
    """Extend ``x`` periodically by any number of samples on both sides."""
    index = torch.arange(-before, x.shape[axis] + after, device=x.device) % x.shape[axis]
    return x.index_select(axis, index)
