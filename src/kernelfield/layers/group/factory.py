"""The convolution of a network by the kind of attention it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..._checks import check_choice
from .attentive import AttentiveGroupConv, AttentiveLiftingConv
from .coattention import CyclicSelfAttention
from .gconv import GroupConv, LiftingConv
from .signal import GroupSignal

if TYPE_CHECKING:
    from ...groups import Group

__all__ = ["CoAttentive", "make_group_conv", "make_lifting_conv"]

#: "free" is co-attention without the constraint that makes it equivariant (chapter 7's comparison)
KINDS = ("co", "free", "full", "channel", "spatial", "input")


class CoAttentive(nn.Module):
    """A convolution to a group, and co-attention of its responses (chapter 7, section 4).

    Args:
        conv: a lifting or group convolution to all elements of a finite group.
        form: of :class:`~kernelfield.layers.group.CyclicSelfAttention`.

    >>> import torch
    >>> from kernelfield.groups import Cyclic
    >>> conv = CoAttentive(LiftingConv(1, 4, group=Cyclic(4)))
    >>> conv(torch.randn(2, 1, 8, 8)).values.shape
    torch.Size([2, 4, 4, 8, 8])
    """

    def __init__(self, conv: LiftingConv | GroupConv, form: str = "group") -> None:
        super().__init__()
        self.conv = conv
        self.attention = CyclicSelfAttention(conv.out_channels, group=conv.group, form=form, fan_in=conv.kernel.fan_in)

    def forward(self, x: Tensor, *elements: Tensor) -> GroupSignal:
        y, chosen, gates = self.conv(x, *elements)
        return GroupSignal(self.attention(y), chosen, gates)


def make_lifting_conv(
    in_channels: int,
    out_channels: int,
    *,
    group: Group,
    attention: str | None = None,
    attention_size: int = 7,
    dilation: int = 1,
    **options: Any,
) -> nn.Module:
    """Return a lifting convolution with ``attention``: None, "co", "free", "full", "channel", "spatial" or "input"."""
    if attention is None or check_choice("attention", attention, KINDS) in ("co", "free"):
        conv = LiftingConv(in_channels, out_channels, group=group, **options)
        return _coattentive(conv, attention)
    options |= {"attention": attention, "attention_size": attention_size, "dilation": dilation}
    return AttentiveLiftingConv(in_channels, out_channels, group=group, **options)


def make_group_conv(
    in_channels: int,
    out_channels: int,
    *,
    group: Group,
    attention: str | None = None,
    hidden: int | None = None,
    attention_size: int = 7,
    dilation: int = 1,
    **options: Any,
) -> nn.Module:
    """Return a group convolution with ``attention``, as :func:`make_lifting_conv`."""
    if attention is None or check_choice("attention", attention, KINDS) in ("co", "free"):
        conv = GroupConv(in_channels, out_channels, group=group, **options)
        return _coattentive(conv, attention)
    options |= {"attention": attention, "attention_size": attention_size, "dilation": dilation, "hidden": hidden}
    return AttentiveGroupConv(in_channels, out_channels, group=group, **options)


def _coattentive(conv: LiftingConv | GroupConv, attention: str | None) -> nn.Module:
    return conv if attention is None else CoAttentive(conv, "group" if attention == "co" else "free")
