"""Resampling in the frequency domain (chapter 6, section 2.4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from .._checks import check_int
from .fft import working_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["resample"]


def resample(x: Tensor, size: int | Sequence[int]) -> Tensor:
    r"""Resample ``x`` to ``size`` samples per axis by cropping or padding its spectrum.

    The samples are taken to cover one period each, sample s of N at s/N. Exact for signals that both grids can hold;
    sampling down removes what the new grid cannot hold, so nothing is aliased.

    .. math:: y = \tfrac{M}{N}\, \mathcal{F}^{-1}_M\big[\mathrm{crop\ or\ pad}\; \mathcal{F}_N[x]\big]

    Args:
        x: (…, \*space) signal; the last ``len(size)`` axes are resampled.
        size: new length of the last axis, or of the last axes.

    Returns:
        (…, \*size) signal.

    >>> t = torch.arange(8) / 8
    >>> wave = torch.cos(2 * torch.pi * t)
    >>> finer = resample(wave, 12)
    >>> torch.allclose(finer, torch.cos(2 * torch.pi * torch.arange(12) / 12), atol=1e-6)
    True
    """
    if not (isinstance(x, Tensor) and x.is_floating_point()):
        raise TypeError(f"x must be a floating-point tensor, got {getattr(x, 'dtype', type(x).__name__)}")
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    if not 0 < len(sizes) <= x.dim():
        raise ValueError(f"size must be 1 to {x.dim()} ints for x of shape {tuple(x.shape)}, got {size!r}")
    dtype = x.dtype
    x = x.to(working_dtype(x))
    for axis, new in enumerate(sizes, start=x.dim() - len(sizes)):
        check_int("size", new)
        if x.shape[axis] == 0:
            raise ValueError(f"x must not be empty along axis {axis}, got {tuple(x.shape)}")
        x = _resample_axis(x, axis, new)
    return x.to(dtype)


def _resample_axis(x: Tensor, axis: int, new: int) -> Tensor:
    old = x.shape[axis]
    if old == new:
        return x
    least = min(old, new)
    spectrum = torch.fft.rfft(x.movedim(axis, -1))[..., : least // 2 + 1]
    if least % 2 == 0:
        # The last bin of an even grid holds f and -f together. Sampling down joins the two, sampling up parts them.
        share = 2.0 if new < old else 0.5
        spectrum = torch.cat([spectrum[..., :-1], share * spectrum[..., -1:]], dim=-1)
    spectrum = F.pad(spectrum, (0, new // 2 + 1 - spectrum.shape[-1]))
    return (torch.fft.irfft(spectrum, n=new) * (new / old)).movedim(-1, axis)
