"""Functions that build group convolutions from the name of their attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._checks import check_choice
from .attentive import AttentiveGroupConv, AttentiveLiftingConv
from .coattention import CoAttentive
from .gconv import GroupConv, LiftingConv
from .projection import ProjectionConv

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ...groups import Group

__all__ = ["make_group_conv", "make_lifting_conv", "make_projection_conv"]

#: arguments ``form`` and ``per`` of :class:`CoAttentive` (chapter 7) by name. "free" matrices are not equivariant; they
#: serve for comparison
CO_ATTENTION = {"co": ("group", "channel"), "co_filter": ("group", "filter"), "free": ("free", "channel")}
KINDS = (*CO_ATTENTION, "full", "channel", "spatial", "input", "gate")


#: options of attentive convolutions; other convolutions ignore them
_ATTENTION_OPTIONS = ("attention_size", "dilation", "hidden")


def make_lifting_conv(
    in_channels: int, out_channels: int, *, group: Group, attention: str | None = None, **options: Any
) -> nn.Module:
    """Return a lifting convolution with attention.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        group: the group.
        attention: None, "co", "co_filter", "free", "full", "channel", "spatial", "input" or "gate".
        options: further arguments of :class:`LiftingConv`, and ``attention_size`` and ``dilation`` of
            :class:`AttentiveLiftingConv`, which other kinds of attention ignore.
    """
    return _make(LiftingConv, AttentiveLiftingConv, attention, in_channels, out_channels, group=group, **options)


def make_group_conv(
    in_channels: int, out_channels: int, *, group: Group, attention: str | None = None, **options: Any
) -> nn.Module:
    """Return a group convolution with attention; arguments as in :func:`make_lifting_conv`, and ``hidden``."""
    return _make(GroupConv, AttentiveGroupConv, attention, in_channels, out_channels, group=group, **options)


def make_projection_conv(
    in_channels: int, out_channels: int, *, group: Group, attention: str | None = None, **options: Any
) -> nn.Module:
    """Return a convolution from a group to space; ``attention`` is None, "co", "co_filter" or "free"."""
    if attention is not None and attention not in CO_ATTENTION:
        raise ValueError(
            f"attention must be None or one of {', '.join(CO_ATTENTION)} for a layer that sums over the group, "
            f"got {attention!r}"
        )
    return _make(ProjectionConv, ProjectionConv, attention, in_channels, out_channels, group=group, **options)


def _make(
    plain: Callable[..., LiftingConv | GroupConv | ProjectionConv],
    attentive: Callable[..., nn.Module],
    attention: str | None,
    *channels: int,
    **options: Any,
) -> nn.Module:
    if attention is not None and check_choice("attention", attention, KINDS) not in CO_ATTENTION:
        return attentive(*channels, attention=attention, **options)
    conv = plain(*channels, **{name: value for name, value in options.items() if name not in _ATTENTION_OPTIONS})
    return conv if attention is None else CoAttentive(conv, *CO_ATTENTION[attention])
