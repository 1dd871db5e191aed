"""Attentive convolutions of planes: launch the kernels for all samples, or for a few at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...._checks import is_symbolic
from ...backend import recompute
from ...graph_cache import graph_cache
from ..reference import channel_attention, padded
from .launch import response_peaks, weighted_responses

__all__ = ["planes_residual"]

#: bytes that the kernels may save for the backward pass; if they need more, samples are recomputed
SAVED_BYTES = 1 << 28


def planes_residual(
    x: Tensor, kernel: Tensor, maps: tuple[Tensor | None, ...], boundary: str, is_flipped: bool = False
) -> Tensor:
    """Compute :func:`~kernelfield.ops.attentive.attentive_residual` of planes; the arguments are the same."""
    # Saved for each output and input element are the sum, the maximum and its channel, and the gate of the sum.
    saved = 0
    if maps[2] is not None:
        saved = 14 * kernel[:, :, 0].numel() // math.prod(kernel.shape[4:]) * math.prod(x.shape[3:])
    samples = max(1, SAVED_BYTES // max(saved, 1))

    def block(x: Tensor, kernel: Tensor, *maps: Tensor | None) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return _residual(x, kernel, *maps, boundary=boundary, is_flipped=is_flipped)

    if is_symbolic(x.shape[0]) or samples >= x.shape[0]:
        return block(x, kernel, *maps).to(x.dtype)
    return torch.cat([recompute(block, some, kernel, *maps) for some in x.split(samples)]).to(x.dtype)


def _residual(
    x: Tensor,
    kernel: Tensor,
    squeeze: Tensor | None,
    excite: Tensor | None,
    psi: Tensor | None,
    *,
    boundary: str,
    is_flipped: bool,
) -> Tensor:
    """Return the residual of all samples at once, in float32."""
    inputs, points, outputs = kernel.shape[2], kernel.shape[4:], kernel.shape[:2]
    x = padded(x, points, boundary).float().contiguous()
    # Flipped, with outputs last: (*points, c, h̃, out·h).
    w = (kernel if is_flipped else kernel.flip((4, 5))).float().permute(4, 5, 2, 3, 0, 1).flatten(4).contiguous()
    channel = None
    if squeeze is not None and excite is not None:
        # The mean response is linear in the mean of the samples under each point of the kernel. These are all samples
        # except a few rows and columns.
        (height, width), (above, across) = x.shape[3:], points
        rows, columns = _window_means(height, above, x.device), _window_means(width, across, x.device)
        mean = torch.einsum("bcgij,ijcgn->bcgn", rows.mT @ (x @ columns), w)
        mean, maximum = mean.unflatten(3, outputs), response_peaks(x, w).unflatten(3, outputs)
        channel = channel_attention(mean, maximum, squeeze.float(), excite.float()).flatten(3)
    if psi is not None:
        # Kernels on the sum (instead of the mean) and on the maximum: (*points, 2, h̃, out·h).
        both = (psi if is_flipped else psi.flip((4, 5))).float() * _statistic_factors(inputs, x.device)
        psi = both.permute(4, 5, 2, 3, 0, 1).flatten(4)
    return weighted_responses(x, w, channel, psi).unflatten(3, outputs).movedim((1, 2), (3, 4))


@graph_cache(256)
def _window_means(length: int, points: int, device: torch.device) -> Tensor:
    """Return the (length, points) matrix that averages a line over the samples under each point of a kernel."""
    with torch.inference_mode(False):  # training may use these tensors later
        ones = torch.ones(length, points, device=device).tril().triu(points - length)
        return ones / (length - points + 1)


@graph_cache(256)
def _statistic_factors(inputs: int, device: torch.device) -> Tensor:
    """Return the factors of both kernels: 1 / inputs turns the sum over channels into a mean; 1 for the maximum."""
    with torch.inference_mode(False):
        return torch.tensor([1 / inputs, 1.0], device=device).view(2, 1, 1, 1)
