"""The torch path of attentive convolutions: the reference for a few samples and output channels at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ..._checks import is_symbolic
from ..backend import recompute
from .reference import attend_responses, responses

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["chunked_residual"]

#: bytes of responses in memory at once, or ``CHUNK_INPUTS`` times the input if that is more
CHUNK_BYTES = 1 << 26
CHUNK_INPUTS = 2


def chunked_residual(
    x: Tensor,
    kernel: Tensor,
    maps: tuple[Tensor | None, ...],
    boundary: str,
    chunk: int | None = None,
    is_flipped: bool = False,
) -> Tensor:
    """Compute :func:`~kernelfield.ops.attentive.attentive_residual` in chunks; the arguments are the same.

    Outputs do not depend on each other. The backward pass computes chunks again, so no response is kept.
    """

    def block(x: Tensor, kernel: Tensor, *maps: Tensor | None) -> Tensor:
        return attend_responses(responses(x, kernel, boundary, is_flipped), *maps, is_flipped=is_flipped)[0]

    outs, samples = _chunk_size(x, kernel, boundary, chunk)
    rows = []
    for some in (x,) if is_symbolic(x.shape[0]) or samples >= x.shape[0] else x.split(samples):
        parts = []
        for start in range(0, len(kernel), outs):
            these = slice(start, start + outs)
            parts.append(recompute(block, some, kernel[these], *(None if m is None else m[these] for m in maps)))
        rows.append(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _chunk_size(x: Tensor, kernel: Tensor, boundary: str, chunk: int | None) -> tuple[int, int]:
    """Return the numbers of output channels and of samples to compute at once."""
    out, h = kernel.shape[:2]
    if chunk is not None:
        return min(chunk, out), len(x)
    if is_symbolic(*x.shape):
        return out, x.shape[0]
    lost = [n - 1 if boundary == "valid" else 0 for n in kernel.shape[4:]]
    positions = math.prod([n - m for n, m in zip(x.shape[3:], lost, strict=True)])
    one = x.shape[1] * x.shape[2] * h * positions * x.element_size()
    count = max(1, max(CHUNK_BYTES, CHUNK_INPUTS * x.numel() * x.element_size()) // max(one, 1))
    return (min(out, count // max(1, len(x))), len(x)) if count >= len(x) else (1, count)
