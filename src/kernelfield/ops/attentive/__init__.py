"""The responses of attentive convolutions (chapter 8), their statistics, and what attention takes away of their sum."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..attention.windows import windows
from ..backend import recompute, use_triton
from ..conv.shape import is_symbolic
from .same_conv import same_conv

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["attended", "residual", "responses"]

#: bytes of intermediate responses held at once, or as many as this many times the input if that is more
CHUNK_BYTES = 1 << 26
CHUNK_INPUTS = 2
#: bytes that kernels may keep for the backward pass instead of computing them again
KEPT_BYTES = 1 << 28

# W₁ (out, hidden, h, c, h̃), W₂ (out, c, h, hidden, h̃) and ψ (out, h, 2, h̃, *points); those that there are.
Maps = tuple[Tensor | None, Tensor | None, Tensor | None]


def attended(x: Tensor, kernel: Tensor, maps: Maps, boundary: str, chunk: int | None = None) -> Tensor:
    r"""Return Σ α⁻ f̃, what attention takes away: (batch, out, h, \*space).

    On a GPU, of planes, by kernels that write no response (:mod:`kernelfield.ops.attentive.triton.launch`). Elsewhere
    :func:`residual`, a few samples and output channels at a time, and again in the backward pass.

    Args:
        x: (batch, c, h̃, \*space) signal.
        kernel: (out, h, c, h̃, \*points) kernel.
        maps: W₁, W₂ and ψ.
        boundary: "zero", "periodic" or "valid".
        chunk: output channels, of all samples, whose responses are held at once.
    """
    # Kernels add the gradients of maxima over space in no certain order.
    if chunk is None and x.dim() == 5 and use_triton(x) and not torch.are_deterministic_algorithms_enabled():
        return _without_responses(x, kernel, maps, boundary)

    def block(x: Tensor, kernel: Tensor, *maps: Tensor | None) -> Tensor:
        return residual(responses(x, kernel, boundary), *maps)[0]

    outs, samples = _chunk(x, kernel, boundary, chunk)
    rows = []
    for some in x.split(samples) if samples < len(x) else (x,):
        parts = []
        for start in range(0, len(kernel), outs):
            these = slice(start, start + outs)
            parts.append(recompute(block, some, kernel[these], *(None if m is None else m[these] for m in maps)))
        rows.append(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _once(block: Callable[..., Tensor], *arguments: Tensor | None) -> Tensor:
    return block(*arguments)


def responses(x: Tensor, kernel: Tensor, boundary: str) -> Tensor:
    r"""Return all responses: (batch, c, h̃, \*space) and (out, h, c, h̃, \*points) to (batch, c, h̃, out, h, \*space).

    One matrix product for every input channel and element, with the samples under the kernel along the rows: torch's
    convolutions take no such number of groups in their stride.
    """
    points = kernel.shape[4:]
    dim = len(points)
    patches = windows(_reached(x, points, boundary), points, [0] * dim)
    space = patches.shape[3 : 3 + dim]
    patches = patches.flatten(1, 2).flatten(2, 1 + dim).flatten(3)  # (batch, c·h̃, positions, points)
    rows = kernel.flip(tuple(range(4, 4 + dim))).flatten(2, 3).flatten(3).permute(2, 0, 1, 3)
    y = rows.flatten(1, 2) @ patches.mT
    return y.unflatten(1, x.shape[1:3]).unflatten(3, kernel.shape[:2]).unflatten(5, space)


def residual(
    responses: Tensor, squeeze: Tensor | None, excite: Tensor | None, kernel: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    r"""Return :math:`\sum_{c, \tilde h} \alpha^- \tilde f` and the maps whose product α⁻ is.

    Args:
        responses: (batch, c, h̃, out, h, \*space).
        squeeze: (out, hidden, h, c, h̃) or None.
        excite: (out, c, h, hidden, h̃) or None.
        kernel: (out, h, 2, h̃, \*points) or None.

    Returns:
        (batch, out, h, \*space); α_C (batch, c, h̃, out, h), α_X (batch, out, h, h̃, \*space).
    """
    dim = responses.dim() - 5
    channel = None
    weighted = responses
    if squeeze is not None and excite is not None:
        space = tuple(range(5, 5 + dim))
        channel = _gates(responses.mean(dim=space), responses.amax(dim=space), squeeze, excite).to(responses.dtype)
        weighted = responses * channel.view(*channel.shape, *[1] * dim)
    total = weighted.sum(dim=1)  # (batch, h̃, out, h, *space): all that is needed of the responses, but their maximum
    if kernel is None:
        return total.sum(dim=1), channel, None
    # Mean and maximum over c, each (out, h, h̃) by itself. Libraries are faster with one channel a group than with two.
    statistics = torch.stack([total / responses.shape[1], weighted.amax(dim=1)], dim=-dim - 1).movedim(1, 3)
    filters = kernel.transpose(2, 3).flatten(0, 3).unsqueeze(1)  # (out·h·h̃·2, 1, *points)
    both = same_conv(statistics.flatten(1, 4), filters, groups=len(filters))
    spatial = torch.sigmoid(both.unflatten(1, statistics.shape[1:5]).sum(dim=4))
    return (spatial * total.movedim(1, 3)).sum(dim=3), channel, spatial


def _gates(mean: Tensor, peak: Tensor, squeeze: Tensor, excite: Tensor) -> Tensor:
    """Return α_C of the statistics of all responses, each (batch, c, h̃, out, h)."""
    # Autocast would round the statistics; they are few.
    both = torch.cat([mean, peak]).to(squeeze.dtype)
    hidden = torch.relu(torch.einsum("ouhcg,bcgoh->bugoh", squeeze, both))
    hidden = hidden[: len(mean)] + hidden[len(mean) :]  # before W₂, which is linear
    return torch.sigmoid(torch.einsum("okhug,bugoh->bkgoh", excite, hidden))


def _reached(x: Tensor, points: Sequence[int], boundary: str) -> Tensor:
    r"""Return a (batch, c, h̃, \*space) signal with what kernels reach beyond it."""
    if boundary == "valid" or max(points) == 1:
        return x
    sides = [(n - 1) // 2 for n in reversed(points) for _ in range(2)]
    if boundary == "zero":
        return nn.functional.pad(x, sides)
    return nn.functional.pad(x.flatten(1, 2), sides, mode="circular").unflatten(1, x.shape[1:3])


def _chunk(x: Tensor, kernel: Tensor, boundary: str, chunk: int | None) -> tuple[int, int]:
    """Return how many output channels of how many samples are computed at once."""
    out, h = kernel.shape[:2]
    if chunk is not None:
        return min(chunk, out), len(x)
    if is_symbolic(*x.shape):
        return out, len(x)
    lost = [n - 1 if boundary == "valid" else 0 for n in kernel.shape[4:]]
    places = math.prod([n - m for n, m in zip(x.shape[3:], lost, strict=True)])
    one = x.shape[1] * x.shape[2] * h * places * x.element_size()
    count = max(1, max(CHUNK_BYTES, CHUNK_INPUTS * x.numel() * x.element_size()) // max(one, 1))
    return (min(out, count // len(x)), len(x)) if count >= len(x) else (1, count)


def _without_responses(x: Tensor, kernel: Tensor, maps: Maps, boundary: str) -> Tensor:
    """Return :func:`_fused` of all samples, or of some at a time if it would keep too much of all of them."""
    # Of every output and input element the sum, the maximum and its place, and what the sum is multiplied by.
    kept = (
        0 if maps[2] is None else 14 * kernel[:, :, 0].numel() // math.prod(kernel.shape[4:]) * math.prod(x.shape[3:])
    )
    samples = max(1, KEPT_BYTES // max(kept, 1))

    def block(x: Tensor, kernel: Tensor, *maps: Tensor | None) -> Tensor:
        with torch.autocast("cuda", enabled=False):
            return _fused(x, kernel, *maps, boundary=boundary)

    run = recompute if samples < len(x) else _once
    parts = [run(block, some, kernel, *maps) for some in x.split(samples)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(x.dtype)


def _fused(
    x: Tensor, kernel: Tensor, squeeze: Tensor | None, excite: Tensor | None, psi: Tensor | None, *, boundary: str
) -> Tensor:
    """Return the first result of :func:`residual` of a signal on planes, in float32; arguments as there."""
    from .triton.launch import response_peaks, weighted_responses  # noqa: PLC0415

    into, points, outputs = kernel.shape[2], kernel.shape[4:], kernel.shape[:2]
    x = _reached(x, points, boundary).float().contiguous()
    # Reversed, with outputs last: (*points, c, h̃, out·h).
    w = kernel.float().flip((4, 5)).permute(4, 5, 2, 3, 0, 1).flatten(4).contiguous()
    channel = None
    if squeeze is not None and excite is not None:
        # A mean is linear: of the samples under each point of the kernel, which are all but a few rows and columns.
        rows, columns = (x.new_ones(m, n).tril().triu(n - m) for m, n in zip(x.shape[3:], points, strict=True))
        places = math.prod(m - n + 1 for m, n in zip(x.shape[3:], points, strict=True))
        mean = torch.einsum("bcgij,ijcgn->bcgn", rows.mT @ (x @ columns), w) / places
        mean, peak = mean.unflatten(3, outputs), response_peaks(x, w).unflatten(3, outputs)
        channel = _gates(mean, peak, squeeze.float(), excite.float()).flatten(3)
    if psi is not None:
        # Kernels of the sum, instead of the mean, and of the maximum: (*points, 2, h̃, out·h).
        both = torch.stack([psi[:, :, 0] / into, psi[:, :, 1]]).float().flip((4, 5))
        psi = both.permute(4, 5, 0, 3, 1, 2).flatten(4)
    return weighted_responses(x, w, channel, psi).unflatten(3, outputs).movedim((1, 2), (3, 4))
