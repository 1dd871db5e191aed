"""Attentive lifting and group convolutions (chapter 8)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..._checks import check_choice, check_int
from ...fields import Table
from ...ops.shape import is_symbolic
from ...ops.windows import windows
from .gconv import GroupConv, LiftingConv, check_group_signal
from .input_attention import InputAttention, hidden_width, same_conv, takes_kernels
from .kernel import GroupKernel
from .signal import GroupSignal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...groups import Group

__all__ = ["AttentiveGroupConv", "AttentiveLiftingConv"]

ATTENTION = ("full", "channel", "spatial", "input")
#: bytes of intermediate responses held at once, or as many as this many times the input if that is more
CHUNK_BYTES = 1 << 26
CHUNK_INPUTS = 2
#: bytes that kernels may keep for the backward pass instead of computing them again
KEPT_BYTES = 1 << 28


class _Attention(nn.Module):
    r"""The residual maps of the responses of one kernel to one signal, before they are summed.

    Responses are :math:`\tilde f[b, o, h, c, \tilde h, x]`; a lifted signal has one :math:`\tilde h`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        group: Group,
        kind: str,
        hidden: int,
        kernel_size: int,
        lifting: bool,
    ) -> None:
        super().__init__()
        self.group, self.lifting = group, lifting
        self.hidden, self.shape = hidden, (out_channels, in_channels)
        channel, spatial = kind in ("full", "channel"), kind in ("full", "spatial")
        self.squeeze = self._matrices(hidden, in_channels) if channel else None
        self.excite = self._matrices(in_channels, hidden) if channel else None
        self.kernel = (
            GroupKernel(group, Table, out_channels, 2, kernel_size=kernel_size, on_group=not lifting)
            if spatial
            else None
        )

    def rendered(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return W₁ (out, hidden, h, in, h̃), W₂ (out, in, h, hidden, h̃) and ψ (out, h, 2, h̃, *points) for all h."""
        n_out, into = self.shape
        first = None if self.squeeze is None else self._render(self.squeeze, n_out, self.hidden, into)
        second = None if self.excite is None else self._render(self.excite, n_out, into, self.hidden)
        return first, second, None if self.kernel is None else self.kernel()

    def _matrices(self, rows: int, columns: int) -> nn.Module:
        if not self.lifting:
            return GroupKernel(
                self.group, Table, self.shape[0] * rows, columns, kernel_size=1, on_space=False, fan_in=columns
            )
        bound = 1 / math.sqrt(columns)
        weight = torch.empty(self.shape[0] * rows, columns).uniform_(-bound, bound)
        return nn.ParameterList([nn.Parameter(weight)])

    def _render(self, matrices: nn.Module, n_out: int, rows: int, columns: int) -> Tensor:
        if isinstance(matrices, GroupKernel):
            return matrices().flatten(4).squeeze(-1).unflatten(0, (n_out, rows))
        assert isinstance(matrices, nn.ParameterList)
        weight = matrices[0].view(n_out, rows, 1, columns, 1)
        return weight.expand(-1, -1, self.group.order or 1, -1, -1)


def _gates(mean: Tensor, peak: Tensor, squeeze: Tensor, excite: Tensor) -> Tensor:
    """Return α_C of the statistics of all responses, each (batch, c, h̃, out, h)."""
    # Autocast would round the statistics; they are few.
    both = torch.cat([mean, peak]).to(squeeze.dtype)
    hidden = torch.relu(torch.einsum("ouhcg,bcgoh->bugoh", squeeze, both))
    hidden = hidden[: len(mean)] + hidden[len(mean) :]  # before W₂, which is linear
    return torch.sigmoid(torch.einsum("okhug,bugoh->bkgoh", excite, hidden))


def _residual(
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
    # Mean and maximum over c, as the channels of a convolution of each (out, h, h̃) by itself.
    statistics = torch.stack([total / responses.shape[1], weighted.amax(dim=1)], dim=-dim - 1).movedim(1, 3)
    out, h, _, g = kernel.shape[:4]
    groups = kernel.transpose(2, 3).flatten(0, 2)  # (out·h·h̃, 2, *points)
    spatial = same_conv(statistics.flatten(1, 4), groups, groups=out * h * g)
    spatial = torch.sigmoid(spatial).unflatten(1, (out, h, g))
    return (spatial * total.movedim(1, 3)).sum(dim=3), channel, spatial


def _prepare(
    layer: LiftingConv | GroupConv,
    attention: str,
    hidden: int | None,
    attention_size: int,
    dilation: int,
    chunk: int | None,
    lifting: bool,
) -> tuple[nn.Module, int | None]:
    """Return the attention branch of a convolution and the chunk it is computed in, checked."""
    group, into, out = layer.group, layer.in_channels, layer.out_channels
    if not group.finite:
        raise ValueError(f"group must be finite for an attentive convolution, got {group}")
    check_choice("attention", attention, ATTENTION)
    if check_int("attention_size", attention_size) % 2 == 0:
        raise ValueError(f"attention_size must be odd, got {attention_size}")
    chunk = None if chunk is None else check_int("chunk", chunk)
    if attention == "input":
        branch = InputAttention(
            into, group=group, lifting=lifting, hidden=hidden, kernel_size=attention_size, dilation=dilation
        )
        return branch, chunk
    width = hidden_width(into, hidden, lifting)
    return _Attention(into, out, group, attention, width, attention_size, lifting), chunk


def _responses(x: Tensor, kernel: Tensor, boundary: str) -> Tensor:
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


def _reached(x: Tensor, points: Sequence[int], boundary: str) -> Tensor:
    r"""Return a (batch, c, h̃, \*space) signal with what kernels reach beyond it."""
    if boundary == "valid" or max(points) == 1:
        return x
    sides = [(n - 1) // 2 for n in reversed(points) for _ in range(2)]
    if boundary == "zero":
        return nn.functional.pad(x, sides)
    return nn.functional.pad(x.flatten(1, 2), sides, mode="circular").unflatten(1, x.shape[1:3])


def _fused(
    x: Tensor, kernel: Tensor, squeeze: Tensor | None, excite: Tensor | None, psi: Tensor | None, boundary: str
) -> Tensor:
    """Return Σ α⁻ f̃ of a signal on planes without making responses. Arguments as in :func:`_residual`."""
    from ...ops.attentive_fused import response_peaks, weighted_responses  # noqa: PLC0415

    out, h, into, g, *points = kernel.shape
    x = _reached(x, points, boundary).float()
    # Reversed, with outputs last: (*points, c, h̃, out·h).
    w = kernel.float().flip((4, 5)).permute(4, 5, 2, 3, 0, 1).flatten(4)
    channel = None
    if squeeze is not None and excite is not None:
        # A mean is linear: of the samples under each point of the kernel, which are all but a few rows and columns.
        rows, columns = (x.new_ones(m, n).tril().triu(n - m) for m, n in zip(x.shape[3:], points, strict=True))
        sums = rows.mT @ (x @ columns)
        places = math.prod(m - n + 1 for m, n in zip(x.shape[3:], points, strict=True))
        mean = torch.einsum("bcgij,ijcgn->bcgn", sums, w) / places
        shape = (out, h)
        channel = _gates(mean.unflatten(3, shape), response_peaks(x, w).unflatten(3, shape), squeeze.float(), excite.float())
        channel = channel.flatten(3)
    if psi is not None:
        # Kernels of the sum, instead of the mean, and of the maximum: (*points, 2, h̃, out·h).
        both = torch.stack([psi[:, :, 0] / into, psi[:, :, 1]]).float().flip((4, 5))
        psi = both.permute(4, 5, 0, 3, 1, 2).flatten(4)
    return weighted_responses(x, w, channel, psi).unflatten(3, (out, h)).movedim((1, 2), (3, 4))


def _subtracted(layer: AttentiveLiftingConv | AttentiveGroupConv, x: Tensor) -> Tensor:
    r"""Return Σ α⁻ f̃ of a (batch, c, h̃, \*space) signal, a few samples and output channels at a time."""
    assert isinstance(layer.branch, _Attention)
    kernel = layer.kernel()
    maps = layer.branch.rendered()

    if _fusable(layer, x):
        return _by_samples(layer, x, kernel, maps)

    def block(x: Tensor, kernel: Tensor, *maps: Tensor | None) -> Tensor:
        return _residual(_responses(x, kernel, layer.boundary), *maps)[0]

    outs, samples = _chunk(x, kernel, layer.boundary, layer.chunk)
    rows = []
    for some in x.split(samples) if samples < len(x) else (x,):
        parts = []
        for start in range(0, len(kernel), outs):
            these = slice(start, start + outs)
            arguments = (some, kernel[these], *(None if m is None else m[these] for m in maps))
            if torch.is_grad_enabled():
                parts.append(checkpoint(block, *arguments, use_reentrant=False, preserve_rng_state=False))
            else:
                parts.append(block(*arguments))
        rows.append(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _fusable(layer: AttentiveLiftingConv | AttentiveGroupConv, x: Tensor) -> bool:
    # Kernels add the gradients of maxima over space in no certain order.
    settled = layer.chunk is not None or torch.are_deterministic_algorithms_enabled()
    return not settled and takes_kernels(x, layer.group.dim)


def _by_samples(
    layer: AttentiveLiftingConv | AttentiveGroupConv, x: Tensor, kernel: Tensor, maps: tuple[Tensor | None, ...]
) -> Tensor:
    """Return :func:`_fused` of all samples, or of some at a time if what it would keep of all of them is too much."""
    # Sums and maxima of each element, what they are multiplied by, and where the maxima are.
    kept = 3.5 * 4 * kernel.shape[0] * kernel.shape[1] * x.shape[2] * math.prod(x.shape[3:]) if maps[2] is not None else 0
    samples = max(1, int(KEPT_BYTES / max(kept, 1)))

    def block(x: Tensor, *rest: Tensor | None) -> Tensor:
        with torch.autocast("cuda", enabled=False):
            return _fused(x, *rest, boundary=layer.boundary)

    if samples >= len(x) or not torch.is_grad_enabled():
        parts = [block(some, kernel, *maps) for some in x.split(samples)]
    else:
        parts = [
            checkpoint(block, some, kernel, *maps, use_reentrant=False, preserve_rng_state=False)
            for some in x.split(samples)
        ]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(x.dtype)


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


def _maps(layer: AttentiveLiftingConv | AttentiveGroupConv, x: Tensor) -> Tensor:
    r"""Return α⁺ = 1 - α⁻, its mean over everything but samples, output elements and positions."""
    branch = layer.branch
    dim = layer.group.dim
    if isinstance(branch, InputAttention):
        channel, space = branch.maps(x.squeeze(2) if branch.lifting else x)
        alpha = 1 - (channel * space).mean(dim=1)
        shape = (len(x), layer.group.order or 1, *x.shape[3:])
        return alpha.unsqueeze(1).expand(shape) if branch.lifting else alpha
    assert isinstance(branch, _Attention)
    responses = _responses(x, layer.kernel(), layer.boundary)
    _, alpha_c, alpha_x = _residual(responses, *branch.rendered())
    batch, _, _, out, h = responses.shape[:5]
    minus = responses.new_ones(batch, out, h, 1, *[1] * dim)
    if alpha_c is not None:
        minus = minus * alpha_c.mean(dim=1).movedim(1, 3).view(batch, out, h, -1, *[1] * dim)
    if alpha_x is not None:
        minus = minus * alpha_x
    return (1 - minus.mean(dim=(1, 3))).expand(batch, h, *responses.shape[5:])


class AttentiveLiftingConv(LiftingConv):
    r"""A lifting convolution whose responses are weighted before they are summed (chapter 8, Eq. 13 to 18).

    .. math:: y_o(x, h) = \sum_c \big(1 - \alpha_X(x, h)\, \alpha_C(h)_c\big)\, \tilde f_{oc}(x, h), \qquad
        \tilde f_{oc} = \mathcal{L}_h \psi_{oc} * f_c

    Arguments as in :class:`AttentiveGroupConv`; the maps between channels are not reduced.

    >>> from kernelfield.groups import Cyclic
    >>> AttentiveLiftingConv(3, 4, group=Cyclic(4))(torch.randn(2, 3, 9, 9)).values.shape
    torch.Size([2, 4, 4, 9, 9])
    """

    reverses = False  # attention takes the kernel as it is

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        group: Group,
        kernel_size: int = 3,
        boundary: str = "zero",
        bias: bool = False,
        attention: str = "full",
        attention_size: int = 7,
        dilation: int = 1,
        chunk: int | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, group=group, kernel_size=kernel_size, boundary=boundary, bias=bias)
        self.branch, self.chunk = _prepare(self, attention, None, attention_size, dilation, chunk, lifting=True)

    def forward(self, x: Tensor) -> GroupSignal:
        if isinstance(self.branch, InputAttention):
            return super().forward(self.branch(x))
        y, elements, gates = super().forward(x)
        return GroupSignal(y - _subtracted(self, x.unsqueeze(2)), elements, gates)

    @torch.no_grad()
    def maps(self, x: Tensor) -> Tensor:
        r"""Return α⁺ of each output element, its mean over channels and outputs: (batch, group, \*space)."""
        return _maps(self, x.unsqueeze(2))


class AttentiveGroupConv(GroupConv):
    r"""A group convolution whose responses are weighted before they are summed (chapter 8, Eq. 13 to 18).

    .. math::
        y_o(x, h) &= \sum_{c, \tilde h} \big(1 - \alpha_X(x, h, \tilde h)\, \alpha_C(h, \tilde h)_c\big)\,
            \tilde f_{oc}(x, h, \tilde h), \qquad \tilde f_{oc} = \mathcal{L}_h \psi_{oc} * f_c \\
        \alpha_C(h, \tilde h) &= \sigma\big(W_2 [W_1 \bar f]^+ + W_2 [W_1 \hat f]^+\big), \qquad
            W_i = W_i(h^{-1} \tilde h) \\
        \alpha_X(x, h, \tilde h) &= \sigma\big([\overline{\alpha_C \tilde f}, \widehat{\alpha_C \tilde f}] *
            \mathcal{L}_h \psi^X\big)

    with mean and maximum over space in α_C and over channels in α_X. There are |H|² · in times as many responses as the
    output has values. They are computed for a few samples and output channels at a time, which do not depend on each
    other, and again in the backward pass: never are all of them held, nor any kept. What reaches the output of them is
    an ordinary convolution less a sum that the statistics already contain.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        group: a finite group.
        kernel_size: points of the kernel along each axis.
        boundary: "zero", "periodic" or "valid".
        bias: whether to add a learned number to each output channel.
        attention: "full", channel and then spatial attention; "channel"; "spatial"; or "input", attention that does not
            know the output (:class:`~kernelfield.layers.equivariant.InputAttention`).
        hidden: width between W₁ and W₂; half of the input channels by default.
        attention_size: points of ψ^X along each axis, odd.
        dilation: distance of its points; for "input" only.
        chunk: output channels, of all samples, whose responses are held at once; by default as many of both as make
            64 MiB or twice the input, whichever is more.

    >>> from kernelfield.groups import Cyclic
    >>> layer = AttentiveGroupConv(3, 4, group=Cyclic(4), kernel_size=3)
    >>> layer(torch.randn(2, 3, 4, 9, 9)).values.shape
    torch.Size([2, 4, 4, 9, 9])
    """

    reverses = False  # attention takes the kernel as it is

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        group: Group,
        kernel_size: int = 3,
        boundary: str = "zero",
        bias: bool = False,
        attention: str = "full",
        hidden: int | None = None,
        attention_size: int = 7,
        dilation: int = 1,
        chunk: int | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, group=group, kernel_size=kernel_size, boundary=boundary, bias=bias)
        self.branch, self.chunk = _prepare(self, attention, hidden, attention_size, dilation, chunk, lifting=False)

    def forward(  # type: ignore[override]
        self, x: Tensor, elements: Tensor | None = None, gates: Tensor | None = None
    ) -> GroupSignal:
        r"""Return the convolved (batch, in_channels, group, \*space) signal and its elements, all of the group."""
        check_group_signal(x, None, self.group, self.in_channels)
        if gates is not None:
            raise ValueError("gates must be None for an attentive convolution, got a tensor")
        if isinstance(self.branch, InputAttention):
            return super().forward(self.branch(x))
        y, chosen, _ = super().forward(x)
        return GroupSignal(y - _subtracted(self, x), chosen if elements is None else elements)

    @torch.no_grad()
    def maps(self, x: Tensor) -> Tensor:
        r"""Return α⁺ of each output element, its mean over channels, inputs and outputs: (batch, group, \*space)."""
        return _maps(self, x)
