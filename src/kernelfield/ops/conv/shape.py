"""Shapes of convolutions: argument checks, index arithmetic, and kernels on the periodic grid of a transform."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from ..._checks import is_symbolic
from ..._kinds import Choice, ListOf
from ..._object_kinds import TensorOf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["KINDS", "centres", "check_conv", "place", "take", "whole_windows"]

_BOUNDARY = Choice("zero", "periodic", "valid")
#: kinds of the arguments of :func:`kernelfield.ops.conv` and its reference
KINDS = {"x": TensorOf("float"), "kernel": TensorOf("float"), "boundary": _BOUNDARY | ListOf(_BOUNDARY)}


def check_conv(x: Tensor, kernel: Tensor, causal: bool, boundary: str | Sequence[str], groups: int) -> tuple[str, ...]:
    """Check that the arguments of a convolution fit together; return the boundary of each axis."""
    if not 3 <= x.dim() <= 5:
        raise ValueError(f"x must have shape (batch, channels, *space) with 1 to 3 spatial axes, got {tuple(x.shape)}")
    if kernel.dim() != x.dim():
        raise ValueError(
            f"kernel must have shape (out, in / groups, *points) with {x.dim() - 2} spatial axes like x, "
            f"got {tuple(kernel.shape)}"
        )
    _check_channels(x, kernel, groups)
    boundaries = _check_boundary(boundary, causal, dim=x.dim() - 2)
    for axis, (length, points, name) in enumerate(zip(x.shape[2:], kernel.shape[2:], boundaries, strict=True)):
        _check_axis(axis, length, points, name)
    return boundaries


def _check_channels(x: Tensor, kernel: Tensor, groups: int) -> None:
    if 0 in (x.shape[1], *kernel.shape[:2]):
        raise ValueError(f"x and kernel must have channels, got {tuple(x.shape)} and {tuple(kernel.shape)}")
    if x.shape[1] % groups or kernel.shape[0] % groups:
        raise ValueError(
            f"groups must divide the channels of x ({x.shape[1]}) and of the output ({kernel.shape[0]}), got {groups}"
        )
    if kernel.shape[1] * groups != x.shape[1]:
        raise ValueError(
            f"kernel must have in / groups = {x.shape[1]} / {groups} = {x.shape[1] // groups} input channels to go "
            f"with x, got {kernel.shape[1]}"
        )


def _check_boundary(boundary: str | Sequence[str], causal: bool, dim: int) -> tuple[str, ...]:
    if causal and dim != 1:
        raise ValueError(f"causal must be False for a signal with {dim} spatial axes, got True")
    boundaries = (boundary,) * dim if isinstance(boundary, str) else tuple(boundary)
    if len(boundaries) != dim:
        raise ValueError(f"boundary must be a name or {dim} names, one per spatial axis, got {boundary!r}")
    if causal and boundaries[0] == "periodic":
        raise ValueError("boundary must be 'zero' if causal is True: a periodic axis has no past, got 'periodic'")
    return boundaries


def _check_axis(axis: int, length: int, points: int, boundary: str) -> None:
    if is_symbolic(length, points):
        return  # a comparison would fix a dynamic length
    if length == 0 or points == 0:
        raise ValueError(f"x and kernel must not be empty, got lengths {length} and {points} along spatial axis {axis}")
    if boundary == "valid" and points > length:
        raise ValueError(
            f"kernel must have at most as many points as x along an axis with boundary 'valid', got {points} for "
            f"{length} along spatial axis {axis}"
        )
    if points > 2 * length:
        raise ValueError(
            f"kernel must have at most twice as many points as x along each axis, got {points} for {length} "
            f"along spatial axis {axis}"
        )


def centres(points: Sequence[int], causal: bool) -> tuple[int, ...]:
    """Return, for each spatial axis, the index of the kernel point that multiplies the sample at the output's position.

    This is the first point of a causal kernel and the middle of a centred one. For an even kernel it is the lower of
    the two middles (as in numpy's and scipy's ``mode="same"``).
    """
    return tuple(0 if causal else (k - 1) // 2 for k in points)


def whole_windows(y: Tensor, points: Sequence[int], causal: bool, boundary: Sequence[str]) -> Tensor:
    """Crop the output along "valid" axes to the positions at which the kernel lies within the signal.

    Output t depends on samples t + c - points + 1 … t + c, where c is the kernel's centre.
    """
    for axis, (k, c, name) in enumerate(zip(points, centres(points, causal), boundary, strict=True), start=2):
        if name == "valid":
            y = y.narrow(axis, k - 1 - c, y.shape[axis] - k + 1)
    return y


def place(kernels: Tensor, axis: int, sizes: Sequence[int], centres: Sequence[int]) -> Tensor:
    """Move kernel point j to index j - centre modulo the transform's size; points that coincide are added.

    Args:
        kernels: (…, *points, …) kernels.
        axis: first axis of the points.
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
    """Read every kernel point from the index to which :func:`place` moved it, as the gradient requires."""
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
