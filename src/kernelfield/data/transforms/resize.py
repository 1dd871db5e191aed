"""Resizing of images and volumes with a low-pass filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._arguments import checked
from ..._object_kinds import TensorOf
from ...ops.resample import apply_along

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["resize"]


@checked(x=TensorOf("float"))
def resize(x: Tensor, size: Sequence[int]) -> Tensor:
    r"""Resize the last axes of ``x`` to ``size`` without aliasing; pixels are areas, as in image libraries.

    .. math:: y_i = \sum_j w_{ij} x_j, \qquad w_{ij} \propto k\Big(\frac{(j + \frac12) - (i + \frac12) N / M}
        {\max(1, N / M)}\Big)

    with the cubic kernel k of Keys (1981), stretched to the coarser of the two grids. Weights beyond the edge are
    dropped. :func:`kernelfield.ops.resample`, which crops the spectrum, would treat the image as periodic and ring at
    its edges.

    Args:
        x: (…, \*space) values.
        size: new length of the last ``len(size)`` axes.

    >>> fine = torch.cos(2.8 * torch.arange(32))         # above the Nyquist frequency of half as many samples
    >>> bool(resize(fine, (16,))[2:-2].abs().max() < 0.1), bool(fine[::2].abs().max() > 0.9)
    (True, True)
    >>> resize(torch.ones(2, 1, 9, 9), (4, 6)).shape
    torch.Size([2, 1, 4, 6])
    """
    if len(size) > x.dim():
        raise ValueError(f"size must have at most {x.dim()} entries for x of shape {tuple(x.shape)}, got {tuple(size)}")
    for axis, new in enumerate(size, start=x.dim() - len(size)):
        old = x.shape[axis]
        if new != old:
            x = apply_along(x, _weights(old, new, x), axis)
    return x


def _weights(old: int, new: int, like: Tensor) -> Tensor:
    """Return the weights (new, old) of an axis."""
    ratio = old / new
    centre = (torch.arange(new, dtype=torch.float64, device=like.device) + 0.5) * ratio
    offset = (torch.arange(old, dtype=torch.float64, device=like.device) + 0.5 - centre.unsqueeze(1)) / max(1.0, ratio)
    d = offset.abs()
    near = 1.5 * d**3 - 2.5 * d**2 + 1
    far = -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2
    weights = torch.where(d <= 1, near, torch.where(d < 2, far, 0.0))
    return (weights / weights.sum(dim=1, keepdim=True)).to(like.dtype)
