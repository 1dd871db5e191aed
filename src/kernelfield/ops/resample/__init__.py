"""Resampling in the frequency domain (chapter 6, section 2.4.2).

Short axes are multiplied by a matrix (``matrix.py``); long axes take two FFTs (``fft.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._arguments import checked
from ..._checks import is_symbolic
from ..._kinds import Int, ListOf
from ..._object_kinds import TensorOf
from .fft import resample_axis
from .matrix import apply_along, resample_matrix
from .reference import resample_reference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["apply_along", "resample", "resample_matrix", "resample_reference"]

#: largest number of samples for which a product with a matrix is faster than two FFTs
MATRIX_UP_TO = 128


@checked(x=TensorOf("float"), size=Int(1) | ListOf(Int(1)), window=ListOf(TensorOf("float", "n") | None) | None)
def resample(x: Tensor, size: int | Sequence[int], *, window: Sequence[Tensor | None] | None = None) -> Tensor:
    r"""Resample ``x`` to ``size`` samples per axis by cropping or padding its spectrum.

    The samples cover one period; sample s of N lies at s/N. The result is exact for signals that both grids can
    represent. Downsampling removes the frequencies that the new grid cannot represent, so there is no aliasing.

    .. math:: y = \tfrac{M}{N}\, \mathcal{F}^{-1}_M\big[\mathrm{crop\ or\ pad}\; m \cdot \mathcal{F}_N[x]\big]

    Args:
        x: (…, \*space) signal; the last ``len(size)`` axes are resampled.
        size: new length of the last axis, or of the last axes.
        window: factors m of the spectrum for each of these axes, or None. They are values at the frequencies 0, 1, … of
            the shorter grid, at least (min(M, N) // 2 + 1,).

    Returns:
        (…, \*size) signal.

    >>> import torch
    >>> t = torch.arange(8) / 8
    >>> wave = torch.cos(2 * torch.pi * t)
    >>> finer = resample(wave, 12)
    >>> torch.allclose(finer, torch.cos(2 * torch.pi * torch.arange(12) / 12), atol=1e-6)
    True
    >>> half = torch.tensor([1.0, 0.5, 0.0, 0.0, 0.0])
    >>> torch.allclose(resample(wave, 8, window=[half]), wave / 2, atol=1e-6)
    True
    """
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    if not 0 < len(sizes) <= x.dim():
        raise ValueError(f"size must be 1 to {x.dim()} ints for x of shape {tuple(x.shape)}, got {size!r}")
    windows: Sequence[Tensor | None] = (None,) * len(sizes) if window is None else window
    if len(windows) != len(sizes):
        raise ValueError(f"window must have an entry for each of the {len(sizes)} axes, got {len(windows)}")
    if 0 in x.shape[x.dim() - len(sizes) :]:
        raise ValueError(f"x must not be empty along the axes that are resampled, got {tuple(x.shape)}")
    for axis, (new, m) in enumerate(zip(sizes, windows, strict=True), start=x.dim() - len(sizes)):
        old = x.shape[axis]
        if m is not None and not is_symbolic(old, new, m.shape[0]) and len(m) < min(old, new) // 2 + 1:
            raise ValueError(f"window must have min(size, length) // 2 + 1 entries per axis, got {len(m)} for {new}")
        if m is None and (old is new or (not is_symbolic(old, new) and old == new)):
            continue
        if not is_symbolic(old, new) and max(old, new) <= MATRIX_UP_TO:
            x = apply_along(x, resample_matrix(old, new, new, old, window=m, like=x), axis)
        else:
            x = resample_axis(x, axis, new, m)
    return x
