"""Attentive lifting and group convolutions (chapter 8)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..._arguments import checked, with_arguments_of
from ..._checks import check_options
from ..._kinds import Choice, Int
from ..._object_kinds import TensorOf
from ...fields import Table
from ...ops.attentive import attend_responses, attentive_residual, responses
from .correlate import correlate, match_precision
from .gconv import BaseGroupConv, GroupConv, LiftingConv, folded
from .input_attention import GateAttention, InputAttention, hidden_width
from .kernel import GroupKernel
from .neighborhood import check_complete
from .signal import SIGNAL, GroupSignal, as_signal

if TYPE_CHECKING:
    from ...groups import Group

__all__ = ["AttentiveGroupConv", "AttentiveLiftingConv"]

ATTENTION = ("full", "channel", "spatial", "input", "gate")


class _Attention(nn.Module):
    r"""The learned maps that weight the responses of a kernel to a signal before they are summed.

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
            GroupKernel(group, Table, out_channels, 2, kernel_size=kernel_size, on_group=not lifting, flip=True)
            if spatial
            else None
        )

    def rendered(self, *, flip: bool = False) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return W₁ (out, hidden, h, in, h̃), W₂ (out, in, h, hidden, h̃) and ψ (out, h, 2, h̃, *points) for all h.

        Args:
            flip: whether to flip ψ along the axes of space.
        """
        n_out, into = self.shape
        first = None if self.squeeze is None else self._render(self.squeeze, n_out, self.hidden, into)
        second = None if self.excite is None else self._render(self.excite, n_out, into, self.hidden)
        if self.kernel is None:
            return first, second, None
        return first, second, self.kernel.flipped() if flip else self.kernel()

    def _matrices(self, rows: int, columns: int) -> nn.Module:
        if not self.lifting:
            terms = columns * (self.group.order or 1)  # the authors' code counts the group too
            return GroupKernel(
                self.group, Table, self.shape[0] * rows, columns, kernel_size=1, on_space=False, fan_in=terms
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


class _AttentiveConv(BaseGroupConv):
    """Base class of attentive convolutions, with the branch that computes the attention."""

    lifting = False
    kernel: GroupKernel

    @checked(attention=Choice(*ATTENTION), attention_size=Int(1, odd=True))
    @with_arguments_of(BaseGroupConv.__init__, without=("samples", "distribution"))
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        group: Group,
        attention: str = "full",
        hidden: int | None = None,
        attention_size: int = 7,
        dilation: int = 1,
        chunk: int | None = None,
        bias: bool = False,
        **options: Any,
    ) -> None:
        check_options(self, options, ("kernel_size", "boundary"))
        super().__init__(in_channels, out_channels, group=group, bias=bias, **options)
        if not group.finite:
            raise ValueError(f"group must be finite for an attentive convolution, got {group}")
        if self.lifting and hidden is not None:
            raise ValueError(f"hidden must be None for a lifting convolution, got {hidden}")
        self.chunk = chunk
        self.branch: nn.Module
        if attention == "input":
            size = {"kernel_size": attention_size, "dilation": dilation}
            self.branch = InputAttention(in_channels, group=group, lifting=self.lifting, hidden=hidden, **size)
        elif attention == "gate":
            self.branch = GateAttention(in_channels, group=group, lifting=self.lifting)
        else:
            width = hidden_width(in_channels, hidden, self.lifting)
            sizes = width, attention_size
            self.branch = _Attention(in_channels, out_channels, group, attention, *sizes, self.lifting)

    def _attended(self, x: Tensor) -> GroupSignal:
        r"""Return the convolution of (batch, in, h̃, \*space) values minus the part that attention removes."""
        assert isinstance(self.branch, _Attention)
        kernel = match_precision(self.kernel.flipped(), x)
        y = correlate(x.flatten(1, 2), folded(kernel), self.boundary).unflatten(1, (self.out_channels, -1))
        maps = self.branch.rendered(flip=True)
        removed = attentive_residual(x, kernel, maps, self.boundary, self.chunk, is_flipped=True)
        return self._output(y - removed, None, None, self.group)

    def _maps(self, x: Tensor) -> Tensor:
        r"""Return α⁺ = 1 - α⁻, averaged over all axes except samples, output elements and positions."""
        branch, dim = self.branch, self.group.dim
        if isinstance(branch, (InputAttention, GateAttention)):
            channel, space = branch.maps(x.squeeze(2) if branch.lifting else x)
            alpha = 1 - (channel * space).mean(dim=1)
            shape = (len(x), self.group.order or 1, *x.shape[3:])
            return alpha.unsqueeze(1).expand(shape) if branch.lifting else alpha
        assert isinstance(branch, _Attention)
        found = responses(x, match_precision(self.kernel(), x), self.boundary)
        _, alpha_c, alpha_x = attend_responses(found, *branch.rendered())
        batch, _, _, out, h = found.shape[:5]
        minus = found.new_ones(batch, out, h, 1, *[1] * dim)
        if alpha_c is not None:
            minus = minus * alpha_c.mean(dim=1).movedim(1, 3).view(batch, out, h, -1, *[1] * dim)
        if alpha_x is not None:
            minus = minus * alpha_x
        return (1 - minus.mean(dim=(1, 3))).expand(batch, h, *found.shape[5:])


class AttentiveLiftingConv(_AttentiveConv, LiftingConv):
    r"""A lifting convolution whose responses are weighted before they are summed (chapter 8, Eq. 14 to 19).

    .. math:: y_o(x, h) = \sum_c \big(1 - \alpha_X(x, h)\, \alpha_C(h)_c\big)\, \tilde f_{oc}(x, h), \qquad
        \tilde f_{oc} = \mathcal{L}_h \psi_{oc} * f_c

    The arguments are those of :class:`AttentiveGroupConv`, except ``hidden``: here W₁ and W₂ keep all input channels.

    >>> from kernelfield.groups import Cyclic
    >>> AttentiveLiftingConv(3, 4, group=Cyclic(4))(torch.randn(2, 3, 9, 9)).values.shape
    torch.Size([2, 4, 4, 9, 9])
    """

    lifting = True

    @checked(x=TensorOf("float", "batch, .in_channels, *space", empty=False))
    def forward(self, x: Tensor) -> GroupSignal:
        r"""Lift (batch, in_channels, \*space) to a signal of values (batch, out_channels, group, \*space)."""
        if isinstance(self.branch, (InputAttention, GateAttention)):
            return super().forward(self.branch(x))
        self._check_axes(x)
        return self._attended(x.unsqueeze(2))

    @torch.no_grad()
    def maps(self, x: Tensor) -> Tensor:
        r"""Return α⁺ of each output element, its mean over channels and outputs: (batch, group, \*space)."""
        return self._maps(x.unsqueeze(2))


class AttentiveGroupConv(_AttentiveConv, GroupConv):
    r"""A group convolution whose responses are weighted before they are summed (chapter 8, Eq. 14 to 19).

    .. math::
        y_o(x, h) &= \sum_{c, \tilde h} \big(1 - \alpha_X(x, h, \tilde h)\, \alpha_C(h, \tilde h)_c\big)\,
            \tilde f_{oc}(x, h, \tilde h), \qquad \tilde f_{oc} = \mathcal{L}_h \psi_{oc} * f_c \\
        \alpha_C(h, \tilde h) &= \sigma\big(W_2 [W_1 \bar f]^+ + W_2 [W_1 \hat f]^+\big), \qquad
            W_i = W_i(h^{-1} \tilde h) \\
        \alpha_X(x, h, \tilde h) &= \sigma\big([\overline{\alpha_C \tilde f}, \widehat{\alpha_C \tilde f}] *
            \mathcal{L}_h \psi^X\big)

    Bars denote the mean and hats the maximum, over space in α_C and over channels in α_X. There are |H| · in times as
    many responses as output values. The output is an ordinary convolution minus a weighted sum of responses,
    :func:`kernelfield.ops.attentive.attentive_residual`. On a GPU, for two spatial dimensions and dtypes up to float32,
    its kernels write no response to memory. Otherwise the layer computes responses for a few samples and output
    channels at a time, and again in the backward pass, so memory stays bounded. The gradient of a maximum goes to one
    maximal entry on a GPU, and in equal parts to all of them elsewhere.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        group: a finite group.
        kernel_size: points of the kernel along each axis.
        boundary: "zero", "periodic" or "valid".
        bias: whether to add a learned number to each output channel.
        attention: "full" for channel attention followed by spatial attention, "channel" or "spatial" for one of them,
            "input" for attention on the input alone (:class:`~kernelfield.layers.group.InputAttention`), or "gate" for
            one map for all channels of the input (:class:`~kernelfield.layers.GateAttention`).
        hidden: width between W₁ and W₂; half of the input channels by default.
        attention_size: points of ψ^X along each axis, odd.
        dilation: distance between the points of ψ^X; for "input" only.
        chunk: number of output channels, of all samples, whose responses are in memory at once, on a GPU too. By
            default as many samples and channels as fit into 64 MiB or twice the input, whichever is more.

    >>> from kernelfield.groups import Cyclic
    >>> layer = AttentiveGroupConv(3, 4, group=Cyclic(4), kernel_size=3)
    >>> layer(torch.randn(2, 3, 4, 9, 9)).values.shape
    torch.Size([2, 4, 4, 9, 9])
    """

    @checked(x=SIGNAL)
    def forward(self, x: Tensor | GroupSignal) -> GroupSignal:  # type: ignore[override]
        r"""Convolve a signal of values (batch, in_channels, group, \*space) at all elements of the group."""
        signal = check_complete(as_signal(x, self.group, self.in_channels))
        if isinstance(self.branch, (InputAttention, GateAttention)):
            return super().forward(self.branch(signal))
        return self._attended(signal.values)

    @torch.no_grad()
    def maps(self, x: Tensor | GroupSignal) -> Tensor:
        r"""Return α⁺ of each output element, averaged over channels, inputs and outputs: (batch, group, \*space)."""
        return self._maps(check_complete(as_signal(x, self.group, self.in_channels)).values)
