"""Residual blocks on signals with a group axis."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from .factory import make_group_conv
from .pointwise import GroupBatchNorm, GroupDropout, GroupLayerNorm, SpatialPool
from .signal import GroupSignal

if TYPE_CHECKING:
    from ...groups import Group
    from .gconv import GroupConv

__all__ = ["GroupResidualBlock", "PartialResidualBlock"]


class GroupResidualBlock(nn.Module):
    r"""The pre-activation block of a group ResNet (chapter 8): twice norm, ReLU, convolution, and a shortcut.

    Where the resolution is halved, convolutions are followed by pooling instead of being strided: a stride of 2 on an
    even grid keeps every second sample from one side, which a turn of the input would count from the other.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        group: a finite group.
        pool: halve the resolution after the first convolution and on the shortcut.
        bias: whether convolutions have one.
        attention: of the convolutions; see :func:`~kernelfield.layers.group.make_group_conv`. Channel attention
            is 2 wide inside.

    >>> import torch
    >>> from kernelfield.groups import Dihedral
    >>> GroupResidualBlock(3, 6, group=Dihedral(4), pool=True)(torch.randn(2, 3, 8, 6, 6)).shape
    torch.Size([2, 6, 8, 3, 3])
    """

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
        self.norm1, self.norm2 = GroupBatchNorm(in_channels), GroupBatchNorm(out_channels)
        self.conv1, self.conv2 = conv(in_channels, out_channels), conv(out_channels, out_channels)
        self.pool = SpatialPool(2, dim=group.dim) if pool else nn.Identity()
        changes = pool or in_channels != out_channels
        self.shortcut = conv(in_channels, out_channels, kernel_size=1) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(self.conv1(F.relu(self.norm1(x))).values)
        y = self.conv2(F.relu(self.norm2(y))).values
        return y + (x if self.shortcut is None else self.pool(self.shortcut(x).values))


class PartialResidualBlock(nn.Module):
    r"""The block of chapter 11's network: two convolutions, each normalised over group and space, and a shortcut.

    The shortcut is a convolution over the group alone, from the elements of the input to those of the second
    convolution's output. Without it, or where the elements stay the same and so do the channels, it is the identity.

    Args:
        conv1: first convolution, called with values and elements.
        conv2: second convolution.
        shortcut: convolution with kernel_size 1 and ``resample=False``, or None for the identity.
        channels: channels of the output.
        pool: halve the resolution at the end.
        dropout: probability to drop a channel between the convolutions.
    """

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

    def forward(self, x: Tensor, elements: Tensor, gates: Tensor | None = None) -> GroupSignal:
        y, between, between_gates = self.conv1(x, elements, gates)
        y = self.dropout(F.relu(self.norm(y)))
        y, chosen, chosen_gates = self.conv2(y, between, between_gates)
        y = F.relu(self.norm(y))
        y = y + (x if self.shortcut is None else self.shortcut(x, elements, gates, out_elements=chosen).values)
        return GroupSignal(F.relu(self.pool(self.norm_out(y))), chosen, chosen_gates)
