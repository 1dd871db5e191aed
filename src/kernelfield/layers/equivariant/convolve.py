"""The one convolution of all layers on groups: group axes folded into channels, even kernels, whole windows only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ops import conv

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BOUNDARIES", "check_even", "convolve"]

BOUNDARIES = ("zero", "periodic", "valid")

# Up to this many points along every axis a dense kernel is summed directly. With the group among the channels there are
# far more products of channels than points to share a transform, whatever the size of the map.
DIRECT_POINTS = 15


def convolve(x: Tensor, kernel: Tensor, boundary: str, groups: int = 1) -> Tensor:
    r"""Convolve (batch, in, \*space) with (out, in / groups, \*points), by :func:`kernelfield.ops.conv`.

    With ``boundary="valid"`` only those outputs are returned whose window lies within the signal, n - points + 1 along
    each axis. They lie symmetrically for even kernels too, whose centre is between two samples.
    """
    method = "direct" if max(kernel.shape[2:]) <= DIRECT_POINTS else "auto"
    return conv(x, kernel, boundary=boundary, groups=groups, method=method)


def check_even(kernel_size: int, boundary: str) -> None:
    """Refuse what no output grid can hold: an even kernel whose output is as large as its input."""
    if kernel_size % 2 == 0 and boundary != "valid":
        raise ValueError(
            f"kernel_size must be odd for boundary={boundary!r}, got {kernel_size}: the output of an even kernel lies "
            "between the samples; boundary='valid' takes it"
        )
