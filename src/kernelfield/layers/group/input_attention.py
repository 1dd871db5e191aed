"""Attention on the input of a group convolution (chapter 8, section 3.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..._arguments import checked
from ..._hooks import weight_of
from ..._kinds import Int
from ..._module_state import keep_geometry
from ...fields import Table
from ...ops.attentive import input_attention, input_attention_maps
from .correlate import match_precision
from .gconv import folded
from .kernel import GroupKernel
from .neighborhood import check_complete
from .signal import SIGNAL, GroupSignal, as_signal

if TYPE_CHECKING:
    from ...groups import Group

__all__ = ["GateAttention", "InputAttention", "hidden_width"]


class _SignalAttention(nn.Module):
    """Base class of attention to a signal before it is convolved."""

    def __init__(self, channels: int, group: Group, lifting: bool) -> None:
        super().__init__()
        if not group.finite:
            raise ValueError(f"group must be finite for attention on it, got {group}")
        self.group, self.channels, self.lifting = group, channels, lifting

    @checked(x=SIGNAL)
    def forward(self, x: Tensor | GroupSignal) -> Tensor | GroupSignal:
        r"""Attend to a signal at all elements of the group or, if ``lifting``, to (batch, channels, \*space) values."""
        if not self.lifting:
            return check_complete(as_signal(x, self.group, self.channels)).map(self._attend)
        if not isinstance(x, Tensor) or x.dim() != self.group.dim + 2 or x.shape[1] != self.channels:
            raise ValueError(
                f"x must be a tensor of shape (batch, {self.channels}, *space) for a lifting layer, "
                f"got {tuple(x.shape)}"
            )
        return self._attend(x)

    def _attend(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class InputAttention(_SignalAttention):
    r"""Channel and spatial attention to a signal on space or on a group, on the residual branch (chapter 8, Eq. 20).

    .. math::
        \alpha_C(h) &= \sigma\big(W_2 *_H [W_1 *_H \bar f]^+ + W_2 *_H [W_1 *_H \hat f]^+\big), \\
        \alpha_X(x, h) &= \sigma\big([\overline{\alpha_C f}, \widehat{\alpha_C f}] * \psi\big), \qquad
        f \mapsto (1 - \alpha_X \alpha_C)\, f

    Bars denote the mean and hats the maximum, over space in α_C and over channels in α_X. The layer is a sequence of
    group convolutions and pointwise functions. For the trivial group, α_C alone is squeeze-and-excitation (with a
    maximum beside the mean), and both together are CBAM, each as a branch that is subtracted instead of multiplied.

    Args:
        channels: channels of the signal.
        group: a finite group.
        lifting: whether the signal lives on space; ψ is then lifted, and α_X is the maximum over the group.
        hidden: channels between W₁ and W₂; half of the channels by default. Must be None if ``lifting``, where W₁ and
            W₂ keep all channels.
        kernel_size: points of ψ along each axis, odd.
        dilation: distance between the points of ψ.

    >>> from kernelfield.groups import Cyclic
    >>> InputAttention(4, group=Cyclic(4))(torch.randn(2, 4, 4, 8, 8)).shape
    torch.Size([2, 4, 4, 8, 8])
    """

    @checked(kernel_size=Int(1, odd=True))
    def __init__(
        self,
        channels: int,
        *,
        group: Group,
        lifting: bool = False,
        hidden: int | None = None,
        kernel_size: int = 7,
        dilation: int = 1,
    ) -> None:
        super().__init__(channels, group, lifting)
        hidden = hidden_width(channels, hidden, lifting)
        self.dilation = dilation
        keep_geometry(self, "dilation")
        if lifting:
            self.squeeze: nn.Module = nn.Linear(channels, hidden, bias=False)
            self.excite: nn.Module = nn.Linear(hidden, channels, bias=False)
        else:
            # These sums run over the group too.
            n = group.order or 1
            self.squeeze = GroupKernel(
                group, Table, hidden, channels, kernel_size=1, on_space=False, fan_in=channels * n
            )
            self.excite = GroupKernel(group, Table, channels, hidden, kernel_size=1, on_space=False, fan_in=hidden * n)
        terms = 2 * kernel_size**group.dim * (1 if lifting else group.order or 1)
        self.kernel = GroupKernel(group, Table, 1, 2, kernel_size=kernel_size, on_group=not lifting, fan_in=terms)

    def maps(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return the residual maps α_C, (batch, channels, [group,] 1, …), and α_X, (batch, 1, [group,] \*space)."""
        channel, space = input_attention_maps(*self._arguments(x), lifting=self.lifting, dilation=self.dilation)
        return (channel.squeeze(2), space.squeeze(2)) if self.lifting else (channel, space)

    def _attend(self, x: Tensor) -> Tensor:
        y = input_attention(*self._arguments(x), lifting=self.lifting, dilation=self.dilation)
        return y.squeeze(2) if self.lifting else y

    def _arguments(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the signal, with a group axis of one if it has none, the matrices W₁ and W₂, and ψ."""
        with torch.autocast(x.device.type, enabled=False):
            psi = folded(self.kernel())
            if self.lifting:
                maps: Any = x.unsqueeze(2), weight_of(self.squeeze), weight_of(self.excite), psi
            else:
                maps = x, _matrix(self.squeeze()), _matrix(self.excite()), psi
        return tuple(match_precision(t, x) for t in maps)


class GateAttention(_SignalAttention):
    r"""One gate for all channels of a signal, on the residual branch: the row α_RH of chapter 8's first table.

    .. math:: f \mapsto (1 - \alpha)\, f, \qquad
        \alpha(x, h) = \sigma\Big(\sum_c \sum_{\tilde h} w_c(h^{-1} \tilde h)\, f_c(x, \tilde h)\Big)

    The gate α is the sigmoid of a pointwise group convolution to one channel. The authors' comparison uses it in place
    of chapter 7's attention, whose own operator is :class:`~kernelfield.layers.CyclicSelfAttention`.

    Args:
        channels: channels of the signal.
        group: a finite group.
        lifting: whether the signal lives on space; there is then no sum over the group.

    >>> from kernelfield.groups import Cyclic
    >>> GateAttention(4, group=Cyclic(4))(torch.randn(2, 4, 4, 8, 8)).shape
    torch.Size([2, 4, 4, 8, 8])
    """

    @checked()
    def __init__(self, channels: int, *, group: Group, lifting: bool = False) -> None:
        super().__init__(channels, group, lifting)
        terms = channels * (group.order or 1)
        self.kernel: nn.Module = (
            nn.Linear(channels, 1, bias=False)
            if lifting
            else GroupKernel(group, Table, 1, channels, kernel_size=1, on_space=False, fan_in=terms)
        )

    def maps(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return two factors like :meth:`InputAttention.maps`: 1, and α of shape (batch, 1, [group,] \*space)."""
        weight = weight_of(self.kernel) if isinstance(self.kernel, nn.Linear) else _matrix(self.kernel())
        flat = x.flatten(1, 1 if self.lifting else 2)
        scores = torch.einsum("oi,bi...->bo...", weight.to(x.dtype), flat)
        gate = scores.sigmoid()
        return x.new_ones(()), gate if self.lifting else gate.unsqueeze(1)

    def _attend(self, x: Tensor) -> Tensor:
        return x * (1 - self.maps(x)[1])


def hidden_width(channels: int, hidden: int | None, lifting: bool) -> int:
    """Return the width between the two maps of channel attention: all channels if lifting, else half by default."""
    if lifting and hidden is not None:
        raise ValueError(f"hidden must be None for a lifting layer, got {hidden}")
    if lifting:
        return channels
    return max(1, channels // 2) if hidden is None else hidden


def _matrix(kernel: Tensor) -> Tensor:
    return folded(kernel).flatten(1)
