"""Residual blocks on a group (chapters 8, 9 and 11)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F

from ..._arguments import checked
from ..._kinds import PROBABILITY, RATE, Choice, Int
from ..pointwise import Pointwise, make_norm
from .dropout import GroupDropout
from .factory import KINDS, make_group_conv
from .norm import GroupBatchNorm, GroupLayerNorm
from .pool import SpatialPool
from .self_attention import GroupSelfAttention
from .signal import SIGNAL, GroupSignal, as_signal

if TYPE_CHECKING:
    from ...groups import Group
    from .gconv import GroupConv

__all__ = ["GroupResidualBlock", "PartialResidualBlock", "SelfAttentionBlock"]


class GroupResidualBlock(nn.Module):
    r"""The pre-activation block of a group ResNet (chapter 8): norm, ReLU and convolution, twice, and a shortcut.

    To halve the resolution, convolutions are followed by pooling instead of being strided. A stride of 2 on an even
    grid keeps every second sample counted from one side. In a rotated input it would count from the other side.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        group: a finite group.
        pool: whether to halve the resolution after the first convolution and on the shortcut.
        bias: whether the convolutions have a bias.
        attention: attention of the convolutions; see :func:`~kernelfield.layers.group.make_group_conv`. Channel
            attention has 2 hidden channels.

    >>> import torch
    >>> from kernelfield.groups import Dihedral
    >>> GroupResidualBlock(3, 6, group=Dihedral(4), pool=True)(torch.randn(2, 3, 8, 6, 6)).shape
    torch.Size([2, 6, 8, 3, 3])
    """

    @checked(attention=Choice(*KINDS) | None)
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        group: Group,
        pool: bool = False,
        bias: bool = False,
        attention: str | None = None,
    ) -> None:
        super().__init__()
        conv = functools.partial(make_group_conv, group=group, bias=bias, attention=attention, hidden=2)
        self.group, self.in_channels = group, in_channels
        self.norm1, self.norm2 = GroupBatchNorm(in_channels), GroupBatchNorm(out_channels)
        self.conv1, self.conv2 = conv(in_channels, out_channels), conv(out_channels, out_channels)
        self.pool = SpatialPool(2, dim=group.dim) if pool else nn.Identity()
        changes = pool or in_channels != out_channels
        self.shortcut = conv(in_channels, out_channels, kernel_size=1) if changes else None

    @checked(x=SIGNAL)
    def forward(self, x: Tensor | GroupSignal) -> GroupSignal:
        x = as_signal(x, self.group, self.in_channels)
        y = self.pool(self.conv1(self.norm1(x).map(F.relu)))
        y = self.conv2(self.norm2(y).map(F.relu))
        return y + (x if self.shortcut is None else self.pool(self.shortcut(x)))


class PartialResidualBlock(nn.Module):
    r"""The block of chapter 11's network: two convolutions, each normalised over group and space, and a shortcut.

    The shortcut is a convolution over the group alone, from the elements of the input to those of the second
    convolution's output. It may also be the identity if elements and channels are the same.

    Args:
        conv1: first convolution.
        conv2: second convolution.
        shortcut: convolution with kernel_size 1 and ``resample=False``, or None for the identity.
        channels: channels of the output.
        pool: whether to halve the resolution at the end.
        dropout: probability to drop a channel between the convolutions.

    >>> import torch
    >>> from kernelfield.groups import Cyclic
    >>> from kernelfield.layers import GroupConv
    >>> convs = [GroupConv(2, 4, group=Cyclic(4)), GroupConv(4, 4, group=Cyclic(4))]
    >>> shortcut = GroupConv(2, 4, group=Cyclic(4), kernel_size=1, resample=False)
    >>> PartialResidualBlock(*convs, shortcut, 4, pool=True)(torch.randn(2, 2, 4, 6, 6)).shape
    torch.Size([2, 4, 4, 3, 3])
    """

    @checked(dropout=PROBABILITY)
    def __init__(
        self,
        conv1: GroupConv,
        conv2: GroupConv,
        shortcut: GroupConv | None,
        channels: int,
        *,
        pool: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.conv1, self.conv2, self.shortcut = conv1, conv2, shortcut
        self.norm = GroupLayerNorm()
        self.dropout = GroupDropout(dropout)
        self.norm_out = GroupBatchNorm(channels)
        self.pool = SpatialPool(2, dim=conv1.group.dim) if pool else nn.Identity()

    @checked(x=SIGNAL)
    def forward(self, x: Tensor | GroupSignal) -> GroupSignal:
        x = as_signal(x, self.conv1.group, self.conv1.in_channels, per_sample=True)
        y = self.dropout(self.norm(self.conv1(x)).map(F.relu))
        y = self.norm(self.conv2(y)).map(F.relu)
        if self.shortcut is not None:
            x = self.shortcut(x, out_elements=None if x.complete and y.complete else y.elements)
        return self.pool(self.norm_out(y + x)).map(F.relu)


class SelfAttentionBlock(nn.Module):
    r"""Attention and a pointwise network, each with a shortcut (chapter 9, section 6).

    .. math::
        x_1 &= x + \mathrm{drop}\,\mathrm{swish}\,\mathrm{norm}\, A\, \mathrm{swish}\,\mathrm{norm}\, x \\
        x_2 &= x_1 + \mathrm{norm}\, W_2\, \mathrm{swish}\,\mathrm{norm}\, W_1 x_1

    with norms over channels, group and space together. The chapter computes attention everywhere and then crops. Here
    cropped positions are not computed, so the norm after attention does not include them.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output; heads and the pointwise network are half as wide.
        group: a finite group.
        crop: number of positions to remove at each end of each axis.
        dropout: probability to drop an attention weight.
        value_dropout: probability to drop a value after attention.
        norm_after: whether the block ends with a norm and swish.
        attention: further arguments of :class:`GroupSelfAttention`.

    >>> import torch
    >>> from kernelfield.groups import Cyclic
    >>> block = SelfAttentionBlock(4, 8, group=Cyclic(4), crop=1, heads=2)
    >>> block(torch.randn(2, 4, 4, 8, 8)).shape
    torch.Size([2, 8, 4, 6, 6])
    """

    @checked(crop=Int(0), dropout=RATE, value_dropout=RATE)
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        group: Group,
        crop: int = 0,
        dropout: float = 0.0,
        value_dropout: float = 0.0,
        norm_after: bool = False,
        **attention: Any,
    ) -> None:
        super().__init__()
        self.crop = crop
        self.group, self.in_channels = group, in_channels
        half = max(1, out_channels // 2)
        self.norm_in, self.norm_attended = make_norm("layer", in_channels), make_norm("layer", out_channels)
        self.attention = GroupSelfAttention(in_channels, out_channels, group=group, dropout=dropout, **attention)
        self.dropout = nn.Dropout(value_dropout)
        self.shortcut = Pointwise(in_channels, out_channels) if in_channels != out_channels else nn.Identity()
        self.narrow, self.widen = Pointwise(out_channels, half), Pointwise(half, out_channels)
        self.norm_narrow, self.norm_out = make_norm("layer", half), make_norm("layer", out_channels)
        self.norm_after = make_norm("layer", out_channels) if norm_after else None

    @checked(x=SIGNAL)
    def forward(self, x: Tensor | GroupSignal) -> GroupSignal:
        r"""Apply the block to a signal of values (batch, in_channels, group, \*space)."""
        signal = as_signal(x, self.group, self.in_channels)
        x = signal.values
        attended = self.attention(signal.map(lambda values: F.silu(self.norm_in(values))), crop=self.crop)
        y = attended.values
        y = self.dropout(F.silu(self.norm_attended(y)))
        y = y + self.shortcut(_cropped(x, self.crop))
        z = self.widen(F.silu(self.norm_narrow(self.narrow(y))))
        y = y + self.norm_out(z)
        return attended.replace(y if self.norm_after is None else F.silu(self.norm_after(y)))


def _cropped(x: Tensor, crop: int) -> Tensor:
    for axis in range(3, x.dim()):
        x = x.narrow(axis, crop, x.shape[axis] - 2 * crop)
    return x
