"""Attentive convolutions of planes: arguments of the kernels, for all samples or a few at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...backend import recompute
from ..reference import channel_attention, padded
from .launch import response_peaks, weighted_responses

__all__ = ["planes_residual"]

#: bytes that the kernels may save for the backward pass; beyond them samples are recomputed
SAVED_BYTES = 1 << 28


def planes_residual(x: Tensor, kernel: Tensor, maps: tuple[Tensor | None, ...], boundary: str) -> Tensor:
    """Compute :func:`~kernelfield.ops.attentive.attentive_residual` of planes; arguments as there."""
    # For each output and input element: the sum, the maximum and its place, and the factor of the sum.
    saved = 0
    if maps[2] is not None:
        saved = 14 * kernel[:, :, 0].numel() // math.prod(kernel.shape[4:]) * math.prod(x.shape[3:])
    samples = max(1, SAVED_BYTES // max(saved, 1))

    def block(x: Tensor, kernel: Tensor, *maps: Tensor | None) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return _residual(x, kernel, *maps, boundary=boundary)

    if samples >= len(x):
        return block(x, kernel, *maps).to(x.dtype)
    return torch.cat([recompute(block, some, kernel, *maps) for some in x.split(samples)]).to(x.dtype)


def _residual(
    x: Tensor, kernel: Tensor, squeeze: Tensor | None, excite: Tensor | None, psi: Tensor | None, *, boundary: str
) -> Tensor:
    """Return the residual of all samples at once, in float32."""
    inputs, points, outputs = kernel.shape[2], kernel.shape[4:], kernel.shape[:2]
    x = padded(x, points, boundary).float().contiguous()
    # Flipped, with outputs last: (*points, c, h̃, out·h).
    w = kernel.float().flip((4, 5)).permute(4, 5, 2, 3, 0, 1).flatten(4).contiguous()
    channel = None
    if squeeze is not None and excite is not None:
        # The mean response is linear in the sum of the samples under each point of the kernel: all but a few rows and
        # columns.
        rows, columns = (x.new_ones(m, n).tril().triu(n - m) for m, n in zip(x.shape[3:], points, strict=True))
        positions = math.prod(m - n + 1 for m, n in zip(x.shape[3:], points, strict=True))
        mean = torch.einsum("bcgij,ijcgn->bcgn", rows.mT @ (x @ columns), w) / positions
        mean, maximum = mean.unflatten(3, outputs), response_peaks(x, w).unflatten(3, outputs)
        channel = channel_attention(mean, maximum, squeeze.float(), excite.float()).flatten(3)
    if psi is not None:
        # Kernels on the sum, instead of the mean, and on the maximum: (*points, 2, h̃, out·h).
        both = torch.stack([psi[:, :, 0] / inputs, psi[:, :, 1]]).float().flip((4, 5))
        psi = both.permute(4, 5, 0, 3, 1, 2).flatten(4)
    return weighted_responses(x, w, channel, psi).unflatten(3, outputs).movedim((1, 2), (3, 4))
