"""Argument checks of convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._kinds import Choice, ListOf
from ..._object_kinds import TensorOf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["KINDS", "check_conv"]

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
    if type(length) is not int or type(points) is not int:
        return  # a dynamic length; a guard on it would fix it
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
