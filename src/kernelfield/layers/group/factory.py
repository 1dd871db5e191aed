"""Convolutions by the name of their attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._checks import check_choice
from .attentive import AttentiveGroupConv, AttentiveLiftingConv
from .coattention import CoAttentive
from .gconv import GroupConv, LiftingConv

if TYPE_CHECKING:
    from torch import nn

    from ...groups import Group

__all__ = ["make_group_conv", "make_lifting_conv"]

#: "free" is co-attention without the constraint that makes it equivariant (chapter 7's comparison)
KINDS = ("co", "free", "full", "channel", "spatial", "input")


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
