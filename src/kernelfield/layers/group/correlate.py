"""Convolutions for group layers, which fold group axes into channels; with even kernels and boundary "valid"."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from ..._hooks import step_hooks_paused
from ...ops import Dilated, conv, conv_bank
from ...ops.conv import reversed_conv
from ...ops.filter_bank import fit_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = [
    "BOUNDARIES",
    "check_even",
    "convolve",
    "convolve_bank",
    "correlate",
    "match_precision",
    "prefers_channels_last",
]

_CONVS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
BOUNDARIES = ("zero", "periodic", "valid")

# Kernels of at most this many points along every axis are convolved directly. With the group folded into channels there
# are so many pairs of channels that the FFT does not pay off.
DIRECT_POINTS = 15
#: whether planes are convolved in channels-last memory format, by device. Tensor cores prefer it, but norms over the
#: group then need many small launches, which cost nothing only in a captured step or its warm-up
CHANNELS_LAST: dict[str, Callable[[], bool]] = {"cpu": lambda: True, "cuda": step_hooks_paused}


def convolve(x: Tensor, kernel: Tensor, boundary: str, groups: int = 1) -> Tensor:
    r"""Convolve (batch, in, \*space) with (out, in / groups, \*points), by :func:`kernelfield.ops.conv`.

    ``boundary="valid"`` returns only outputs whose window lies within the signal, n - points + 1 along each axis. They
    are centred in the signal for even kernels too, whose centre lies between two samples.
    """
    kernel = match_precision(kernel, x)
    if boundary != "valid" and _is_too_long(kernel, x):
        if groups == 1:
            return conv_bank(x, [kernel], boundary=boundary)[0]
        kernel = fit_kernel(kernel, x, boundary)
    method = "direct" if max(kernel.shape[2:]) <= DIRECT_POINTS else "auto"
    return conv(x, kernel, boundary=boundary, groups=groups, method=method)


def correlate(x: Tensor, kernel: Tensor, boundary: str) -> Tensor:
    """Return :func:`convolve` for a kernel that is already flipped along the axes of space."""
    kernel = match_precision(kernel, x)
    points = kernel.shape[2]  # kernels have the same length along every axis
    if points > DIRECT_POINTS:
        return convolve(x, kernel.flip(tuple(range(2, kernel.dim()))), boundary)
    whole = boundary == "valid" and not torch.compiler.is_compiling() and points <= min(x.shape[2:])
    if (boundary == "zero" or whole) and x.dtype == kernel.dtype:  # torch's own correlation, without choosing a method
        return _CONVS[x.dim() - 2](*_laid_out(x, kernel), padding=0 if whole else points // 2)
    if not _is_too_long(kernel, x):
        return reversed_conv(*_laid_out(x, kernel), boundary=boundary)
    return convolve(x, kernel.flip(tuple(range(2, kernel.dim()))), boundary)


def match_precision(kernel: Tensor, x: Tensor) -> Tensor:
    """Return a kernel in the dtype of a half-precision signal; modules of half precision keep kernels in float32."""
    keeps = kernel.dtype == torch.float32 and x.dtype in (torch.bfloat16, torch.float16)
    return kernel.to(x.dtype) if keeps and not torch.is_autocast_enabled(x.device.type) else kernel


def prefers_channels_last(device: torch.device) -> bool:
    """Return whether planes are convolved in channels-last memory format on a device at the moment.

    >>> prefers_channels_last(torch.device("cpu"))
    True
    """
    prefers = CHANNELS_LAST.get(device.type)
    return prefers is not None and prefers()


def _laid_out(x: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """Return a signal and a kernel in the memory format in which their convolution is fastest."""
    if kernel.dim() != 4 or not prefers_channels_last(x.device):
        return x, kernel.contiguous()
    # A tensor with a single channel may count as either format, depending on its strides. These mean channels-last.
    return (x.squeeze(1).unsqueeze(-1).movedim(-1, 1) if x.shape[1] == 1 else x), kernel


def convolve_bank(x: Tensor, kernels: Sequence[Tensor | Dilated], boundary: str) -> list[Tensor]:
    r"""Convolve (batch, in, \*space) with each of several kernels, by :func:`kernelfield.ops.conv_bank`.

    ``boundary="valid"`` returns only outputs for which the windows of all kernels lie within the signal.
    """
    kernels = [
        k._replace(weights=match_precision(k.weights, x)) if isinstance(k, Dilated) else match_precision(k, x)
        for k in kernels
    ]
    if boundary != "valid":
        return conv_bank(x, kernels, boundary=boundary)
    sizes = [(k.points,) if isinstance(k, Dilated) else tuple(k.shape[2:]) for k in kernels]
    results = conv_bank(x, kernels)
    for axis in range(2, x.dim()):
        length, points = x.shape[axis], max(size[axis - 2] for size in sizes)
        if length < points:
            raise ValueError(
                f"x must be at least as long as the largest kernel for boundary='valid', got {length} for {points} "
                f"points along spatial axis {axis - 2}"
            )
        results = [y.narrow(axis, points - 1 - (points - 1) // 2, length - points + 1) for y in results]
    return results


def _is_too_long(kernel: Tensor, x: Tensor) -> bool:
    """Return whether a kernel is too long for :func:`kernelfield.ops.conv`; symbolic lengths are assumed to fit."""
    pairs = zip(kernel.shape[2:], x.shape[2:], strict=True)
    return any(type(n) is int and type(k) is int and k > 2 * n for k, n in pairs)


def check_even(kernel_size: int, boundary: str) -> None:
    """Raise if an even kernel is used with a boundary that keeps the length."""
    if kernel_size % 2 == 0 and boundary != "valid":
        raise ValueError(
            f"kernel_size must be odd for boundary={boundary!r}, got {kernel_size}: outputs of an even kernel lie "
            "between the samples; use boundary='valid'"
        )
