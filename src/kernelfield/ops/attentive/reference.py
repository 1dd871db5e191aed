r"""The readable reference of attentive convolutions (chapter 8), which computes all responses at once (Eq. 14 to 19).

:func:`input_attention_maps` has the maps of attention that depends on the input alone (Eq. 20).

Axes: batch, input channels c, input elements h̃, output channels o, output elements h, space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention.windows import windows
from .same_conv import same_conv

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["attend_responses", "channel_attention", "input_attention_maps", "padded", "responses"]


def responses(x: Tensor, kernel: Tensor, boundary: str, is_flipped: bool = False) -> Tensor:
    r"""Return the response of every input channel and element to every output's kernel, :math:`\psi * f`.

    Torch's convolutions are slow with so many groups, so this is a matrix product for each input channel and element,
    whose rows are the samples under the kernel.

    Args:
        x: (batch, c, h̃, \*space) signal.
        kernel: (out, h, c, h̃, \*points) kernel.
        boundary: "zero", "periodic" or "valid".
        is_flipped: whether the kernel is already flipped along the axes of space.

    Returns:
        (batch, c, h̃, out, h, \*space) responses; their sum over c and h̃ is the group convolution.

    >>> responses(torch.randn(2, 3, 4, 9, 9), torch.randn(5, 4, 3, 4, 3, 3), "zero").shape
    torch.Size([2, 3, 4, 5, 4, 9, 9])
    """
    points = kernel.shape[4:]
    dim = len(points)
    patches = windows(padded(x, points, boundary), points, [0] * dim)
    space = patches.shape[3 : 3 + dim]
    patches = patches.flatten(1, 2).flatten(2, 1 + dim).flatten(3)  # (batch, c·h̃, positions, points)
    flipped = kernel if is_flipped else kernel.flip(tuple(range(4, 4 + dim)))
    rows = flipped.flatten(2, 3).flatten(3).permute(2, 0, 1, 3)
    y = rows.flatten(1, 2) @ patches.mT
    return y.unflatten(1, x.shape[1:3]).unflatten(3, kernel.shape[:2]).unflatten(5, space)


def attend_responses(
    responses: Tensor,
    squeeze: Tensor | None,
    excite: Tensor | None,
    psi: Tensor | None,
    *,
    is_flipped: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    r"""Return :math:`\sum_{c, \tilde h} \alpha_X \alpha_C \tilde f`, and the maps α_C and α_X.

    Args:
        responses: (batch, c, h̃, out, h, \*space) responses f̃.
        squeeze: (out, hidden, h, c, h̃) matrices W₁, or None without channel attention.
        excite: (out, c, h, hidden, h̃) matrices W₂, or None.
        psi: (out, h, 2, h̃, \*points) kernels of spatial attention, or None without it.
        is_flipped: whether ψ is already flipped along the axes of space.

    Returns:
        (batch, out, h, \*space) sums, α_C (batch, c, h̃, out, h) and α_X (batch, out, h, h̃, \*space); None for a map
        that is not used.

    >>> f, psi = torch.randn(2, 3, 4, 5, 4, 9), torch.randn(5, 4, 2, 4, 7)
    >>> y, _, alpha = attend_responses(f, None, None, psi)
    >>> y.shape, alpha.shape
    (torch.Size([2, 5, 4, 9]), torch.Size([2, 5, 4, 4, 9]))
    """
    dim = responses.dim() - 5
    channel = None
    weighted = responses
    if squeeze is not None and excite is not None:
        space = tuple(range(5, 5 + dim))
        mean, maximum = responses.mean(dim=space), responses.amax(dim=space)
        channel = channel_attention(mean, maximum, squeeze, excite).to(responses.dtype)
        weighted = responses * channel.view(*channel.shape, *[1] * dim)
    total = weighted.sum(dim=1)  # (batch, h̃, out, h, *space)
    if psi is None:
        return total.sum(dim=1), channel, None
    # Mean and maximum over c for each (out, h, h̃) are separate groups, because libraries are faster without pairs.
    statistics = torch.stack([total / responses.shape[1], weighted.amax(dim=1)], dim=-dim - 1).movedim(1, 3)
    filters = psi.transpose(2, 3).flatten(0, 3).unsqueeze(1)  # (out·h·h̃·2, 1, *points)
    both = same_conv(statistics.flatten(1, 4), filters, groups=len(filters), is_flipped=is_flipped)
    spatial = torch.sigmoid(both.unflatten(1, statistics.shape[1:5]).sum(dim=4))
    return (spatial * total.movedim(1, 3)).sum(dim=3), channel, spatial


def channel_attention(mean: Tensor, maximum: Tensor, squeeze: Tensor, excite: Tensor) -> Tensor:
    r"""Return :math:`\alpha_C = \sigma(W_2 [W_1 \bar f]^+ + W_2 [W_1 \hat f]^+)`, (batch, c, h̃, out, h).

    Args:
        mean: (batch, c, h̃, out, h) mean of the responses over space.
        maximum: (batch, c, h̃, out, h) maximum of the responses over space.
        squeeze: (out, hidden, h, c, h̃) matrices W₁.
        excite: (out, c, h, hidden, h̃) matrices W₂.
    """
    batch, channels, elements, *outputs = mean.shape
    # In the precision of the matrices, because autocast would round the statistics. There is one matrix product over
    # the channels for each (h̃, out, h): (h̃·out·h, c, 2·batch).
    both = torch.stack([mean, maximum]).to(squeeze.dtype).permute(3, 4, 5, 2, 0, 1).flatten(0, 2).flatten(2)
    first, second = (w.permute(4, 0, 2, 1, 3).flatten(0, 2) for w in (squeeze, excite))
    hidden = torch.relu(first @ both)
    hidden = hidden.view(*hidden.shape[:2], 2, batch).sum(dim=2)  # W₂ is linear, so the sum may come first
    return torch.sigmoid(second @ hidden).view(elements, *outputs, channels, batch).permute(4, 3, 0, 1, 2)


def padded(x: Tensor, points: Sequence[int], boundary: str) -> Tensor:
    r"""Pad a (batch, c, h̃, \*space) signal by the samples that kernels of ``points`` reach beyond its ends."""
    if boundary == "valid" or max(points) == 1:
        return x
    sides = [(n - 1) // 2 for n in reversed(points) for _ in range(2)]
    if boundary == "zero":
        return F.pad(x, sides)
    return F.pad(x.flatten(1, 2), sides, mode="circular").unflatten(1, x.shape[1:3])


def input_attention_maps(
    x: Tensor, squeeze: Tensor, excite: Tensor, psi: Tensor, *, lifting: bool = False, dilation: int = 1
) -> tuple[Tensor, Tensor]:
    r"""Return the maps of :func:`input_attention`: α_C, (batch, c, g, 1, …), and α_X, (batch, 1, g, \*space).

    The arguments are those of :func:`~kernelfield.ops.attentive.input_attention`.

    >>> x, w = torch.randn(2, 3, 4, 9), torch.randn(5, 12)
    >>> [tuple(a.shape) for a in input_attention_maps(x, w, w.mT, torch.randn(4, 8, 7))]
    [(2, 3, 4, 1), (2, 1, 4, 9)]
    """
    space = tuple(range(3, x.dim()))
    statistics = (x.mean(dim=space), x.amax(dim=space))
    both = [F.linear(F.relu(F.linear(s.flatten(1), squeeze)), excite).view(s.shape) for s in statistics]
    channel = torch.sigmoid(both[0] + both[1])
    channel = channel.view(*channel.shape, *[1] * len(space))
    weighted = channel * x
    found = torch.cat([weighted.mean(dim=1), weighted.amax(dim=1)], dim=1)  # (batch, 2·g, *space)
    spatial = same_conv(found, psi, dilation=dilation).unsqueeze(1)
    if lifting:
        spatial = spatial.amax(dim=2, keepdim=True)
    return channel, torch.sigmoid(spatial)
