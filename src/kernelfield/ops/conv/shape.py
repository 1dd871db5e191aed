"""Index arithmetic shared by all convolution methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["centres", "is_symbolic", "whole_windows"]


def centres(points: Sequence[int], causal: bool) -> tuple[int, ...]:
    """Return, for each spatial axis, the index of the kernel point that multiplies the sample at the output's position.

    This is the first point of a causal kernel and the middle of a centred one. Of the two middles of an even kernel it
    is the lower (as in numpy's and scipy's ``mode="same"``).
    """
    return tuple(0 if causal else (k - 1) // 2 for k in points)


def whole_windows(y: Tensor, points: Sequence[int], causal: bool, boundary: Sequence[str]) -> Tensor:
    """Crop the output to the positions where the kernel lies within the signal, along each axis that is "valid".

    Output t depends on samples t + c - points + 1 … t + c, where c is the kernel's centre.
    """
    for axis, (k, c, name) in enumerate(zip(points, centres(points, causal), boundary, strict=True), start=2):
        if name == "valid":
            y = y.narrow(axis, k - 1 - c, y.shape[axis] - k + 1)
    return y


def is_symbolic(*numbers: int) -> bool:
    """Return whether any of these lengths is only known at run time (torch.export, dynamic torch.compile)."""
    return any(type(n) is not int for n in numbers)
