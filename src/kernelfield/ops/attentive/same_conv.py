"""A zero-padded convolution for the small kernels of spatial attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["same_conv"]

_CONVS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def same_conv(x: Tensor, kernel: Tensor, *, groups: int = 1, dilation: int = 1, is_flipped: bool = False) -> Tensor:
    r"""Convolve a signal with a kernel of an odd number of points, which may be much longer than the signal.

    Args:
        x: (batch, in, \*space) signal.
        kernel: (out, in / groups, \*points) kernel, which is cast to the dtype of ``x``.
        groups: number of groups of channels.
        dilation: distance between the kernel's points.
        is_flipped: whether the kernel is already flipped along the axes of space.

    >>> import torch
    >>> same_conv(torch.tensor([[[0.0, 1.0, 0.0]]]), torch.tensor([[[1.0, 2.0, 3.0]]]))
    tensor([[[1., 2., 3.]]])
    """
    dim = x.dim() - 2
    # Torch's convolutions are correlations.
    flipped = (kernel if is_flipped else kernel.flip(tuple(range(2, 2 + dim)))).to(x.dtype)
    padding = [dilation * (n // 2) for n in kernel.shape[2:]]
    return _CONVS[dim](x, flipped, padding=padding, dilation=dilation, groups=groups)
