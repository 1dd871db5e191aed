r"""Residual branches at a learned resolution (chapter 6, section 2.4).

A sigmoid mask on the spectrum of a signal sets the highest frequency that a block keeps. Its axis maps frequency 0 to
-1 and the highest frequency of the training grid to 1, so a mask with offset μ ends at the same physical frequency on
every grid. For a signal of n samples at sampling step s, and a mask that keeps the share c of the training grid's
frequencies, the block computes

.. math:: M = \min\big(n,\; 2 \lfloor c\, n s / 2 \rfloor + 1\big)

samples, which hold exactly the frequencies that the mask keeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._checks import floats_per_axis
from ...ops import resample
from ...ops.resample import apply_along, resample_matrix
from .sampling import sample_weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .continuous_conv import ContinuousConv

__all__ = ["BandLimit", "FixedShapeBandLimit", "cutoff"]

#: shares are rounded up to a multiple of 1/GRAIN; otherwise a moving mask would give a new shape at every step
GRAIN = 128


def cutoff(root: Any) -> Any:
    """Return the share of the training grid's frequencies below ``root``: 0 at -1, 1 at 1.

    Args:
        root: number or tensor, the end of a mask on [-1, 1]. The share is rounded up to a multiple of 1/128.

    >>> cutoff(0.0), cutoff(torch.tensor([0.001], dtype=torch.float64)).item()
    (0.5, 0.5078125)
    """
    up = torch.ceil if isinstance(root, Tensor) else math.ceil
    return up((root + 1) * (GRAIN / 2)) / GRAIN


@dataclass(frozen=True)
class BandLimit:
    """The highest frequencies of a block as Python numbers, so the block is computed at the resolution they need.

    Args:
        cutoffs: share of the training grid's frequencies to keep along each axis.
        offsets: offset of the sigmoid mask on the spectrum along each axis, on [-1, 1].
        temperature: steepness of the masks.
        threshold: mask values below it are zero.

    >>> BandLimit((0.5,), (0.0,), temperature=25.0, threshold=0.1).grid((64,), (1.0,))[0]
    (33,)
    """

    cutoffs: tuple[float, ...]
    offsets: Sequence[float] | Tensor
    temperature: float
    threshold: float

    def grid(self, lengths: Sequence[int], steps: tuple[float, ...]) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return the lengths and sampling steps at which the block computes a signal of these lengths and steps."""
        low = tuple(_samples(n, c * s) for n, c, s in zip(lengths, self.cutoffs, steps, strict=True))
        return low, tuple(s * n / m if m is not n else s for n, m, s in zip(lengths, low, steps, strict=True))

    def down(self, layer: ContinuousConv, x: Tensor, sampling: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """Return ``x`` at the low resolution, and the sampling arguments with which ``layer`` convolves it."""
        x, steps = _weighted(layer, x, sampling)
        lengths = x.shape[2:]
        low, low_steps = self.grid(lengths, steps)
        windows = [
            _window(torch.sym_min(n, m) // 2 + 1, n * s, self.offsets[d], self, x)
            for d, (n, m, s) in enumerate(zip(lengths, low, steps, strict=True))
        ]
        return resample(x, low, window=windows), {"step": low_steps, "kernel": sampling.get("kernel")}

    def up(self, x: Tensor, lengths: Sequence[int], sampling: dict[str, Any]) -> Tensor:  # noqa: ARG002
        """Return ``x`` at the input's resolution."""
        return resample(x, tuple(lengths))


@dataclass(frozen=True)
class FixedShapeBandLimit:
    """A :class:`BandLimit` with its frequencies on the device: the same results in tensors of constant shape.

    A signal of M samples occupies the first M entries of a tensor as long as the input; the rest is zero. Resampling is
    a matrix product, whose cost is quadratic in the length of an axis: use it for images and short sequences.

    Args:
        cutoffs: (dim,) share of the training grid's frequencies to keep, float64.
        offsets: (dim,) offsets of the sigmoid masks on the spectrum.
        temperature: steepness of the masks.
        threshold: mask values below it are zero.

    >>> from kernelfield import CKConv
    >>> half = torch.tensor([0.5], dtype=torch.float64)
    >>> limit = FixedShapeBandLimit(half, torch.zeros(1), temperature=25.0, threshold=0.1)
    >>> limit.down(CKConv(1, 1, size=8, depthwise=True), torch.randn(2, 1, 8), {})[0].shape
    torch.Size([2, 1, 8])
    """

    cutoffs: Tensor
    offsets: Tensor
    temperature: float
    threshold: float

    def down(self, layer: ContinuousConv, x: Tensor, sampling: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """Return ``x`` at the low resolution, and the sampling arguments with which ``layer`` convolves it."""
        x, steps = _weighted(layer, x, sampling)
        lengths = x.shape[2:]
        low, low_steps = self._samples(lengths, steps)
        for d, (n, s) in enumerate(zip(lengths, steps, strict=True)):
            window = _window(n // 2 + 1, n * s, self.offsets[d], self, x)
            x = apply_along(x, resample_matrix(n, low[d], n, n, window=window, like=x), 2 + d)
        return x, {"kernel": layer.sample_at(lengths, low_steps, x.shape[1])}

    def up(self, x: Tensor, lengths: Sequence[int], sampling: dict[str, Any]) -> Tensor:
        """Return ``x`` at the input's resolution."""
        low, _ = self._samples(lengths, floats_per_axis("step", sampling.get("step", 1.0), len(lengths)))
        for d, n in enumerate(lengths):
            x = apply_along(x, resample_matrix(low[d], n, n, n, like=x), 2 + d)
        return x

    def _samples(self, lengths: Sequence[int], steps: tuple[float, ...]) -> tuple[list[Tensor], list[Tensor]]:
        low = [
            (2 * torch.floor(self.cutoffs[d] * s * n / 2) + 1).clamp(max=n).long()
            for d, (n, s) in enumerate(zip(lengths, steps, strict=True))
        ]
        return low, [s * n / m.double() for n, m, s in zip(lengths, low, steps, strict=True)]


def _samples(n: int, share: float) -> int:
    """Return the number M of samples in the module's formula, for a length that may be symbolic."""
    return torch.sym_min(n, 2 * torch.sym_int(share * n / 2) + 1)


def _window(
    bins: int, period: float, offset: float | Tensor, limit: BandLimit | FixedShapeBandLimit, like: Tensor
) -> Tensor:
    """Return the mask at the frequencies 0, 1, … of a signal that is ``period`` training steps long."""
    dtype = offset.dtype if isinstance(offset, Tensor) else torch.float64 if like.dtype == torch.float64 else None
    frequency = torch.arange(bins, dtype=dtype or torch.float32, device=like.device)
    values = torch.sigmoid(limit.temperature * (offset - (frequency * (4 / period) - 1)))
    return torch.where(values >= limit.threshold, values, 0.0)


def _weighted(layer: ContinuousConv, x: Tensor, sampling: dict[str, Any]) -> tuple[Tensor, tuple[float, ...]]:
    """Return ``x``, zero at unseen samples and divided by the sample density elsewhere, and its sampling steps."""
    if sampling.get("coords") is not None:
        raise ValueError(
            "coords must be None for a block with a learned resolution, because points have no spectrum, got a tensor"
        )
    steps = floats_per_axis("step", sampling.get("step", 1.0), layer.dim)
    weight = sample_weight(None, sampling.get("mask"), sampling.get("density"), steps)
    return (x if weight is None else x * weight.unsqueeze(1).to(x.dtype)), steps
