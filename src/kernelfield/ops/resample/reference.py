"""The readable reference of resampling, which sums the trigonometric interpolant term by term."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._arguments import checked
from ..._kinds import Int, ListOf
from ..._object_kinds import TensorOf

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["resample_reference"]


@checked(x=TensorOf("float"), size=Int(1) | ListOf(Int(1)))
def resample_reference(x: Tensor, size: int | Sequence[int]) -> Tensor:
    r"""Return the trigonometric interpolant of ``x`` at ``size`` points per axis; see :func:`resample`.

    Along one axis of N samples, resampled to M, with n the smaller of the two,

    .. math:: y(m) = \frac1N \sum_{s} x(s) \sum_{|f| \le n/2} w_f \cos\big(2\pi f (m/M - s/N)\big)

    where :math:`w_f` is 1, except 1/2 at :math:`|f| = n/2`, the frequency that an even grid cannot distinguish from its
    negative. For downsampling, both signs of that frequency count in full, so it keeps its energy.

    Args:
        x: (…, \*space) signal; the last ``len(size)`` axes are resampled.
        size: new length of the last axis, or of the last axes.

    Returns:
        (…, \*size) signal.

    >>> resample_reference(torch.tensor([1.0, 0.0, -1.0, 0.0]), 2)
    tensor([ 1., -1.])
    """
    sizes = (size,) if isinstance(size, int) else tuple(size)
    if len(sizes) > x.dim() or 0 in x.shape[x.dim() - len(sizes) :]:
        raise ValueError(f"size must be 1 to {x.dim()} ints for x of shape {tuple(x.shape)}, got {size!r}")
    for d, new in enumerate(sizes, start=x.dim() - len(sizes)):
        old = x.shape[d]
        least = min(old, new)
        f = torch.arange(-(least // 2), least // 2 + 1, dtype=x.dtype)
        edge = 1.0 if new < old else 0.5
        weight = torch.where(2 * f.abs() == least, edge, 1.0).to(x)
        m, s = torch.arange(new, dtype=x.dtype) / new, torch.arange(old, dtype=x.dtype) / old
        waves = torch.cos(2 * torch.pi * f * (m[:, None, None] - s[:, None]))
        x = torch.movedim(torch.einsum("...s,msf,f->...m", x.movedim(d, -1), waves, weight.to(waves)) / old, -1, d)
    return x
