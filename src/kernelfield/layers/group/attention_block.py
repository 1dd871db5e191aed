"""The residual block of networks of group self-attention (chapter 9, figure 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F

from ..._checks import check_int
from ..pointwise import Pointwise, make_norm
from .self_attention import GroupSelfAttention

if TYPE_CHECKING:
    from ...groups import Group

__all__ = ["SelfAttentionBlock"]


class SelfAttentionBlock(nn.Module):
    r"""Attention and a pointwise network, each around a shortcut (chapter 9, section 6).

    .. math::
        x_1 &= x + \mathrm{drop}\,\mathrm{swish}\,\mathrm{norm}\, A\, \mathrm{swish}\,\mathrm{norm}\, x \\
        x_2 &= x_1 + \mathrm{norm}\, W_2\, \mathrm{swish}\,\mathrm{norm}\, W_1 x_1

    with norms over channels, group and space together. The chapter computes attention everywhere and then crops; here
    queries that would be cropped are not asked, and the norm after attention sees what is kept.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output; heads and the pointwise network are half as wide.
        group: a finite group.
        crop: positions to take off each end of each axis.
        dropout: probability to drop a weight of attention.
        value_dropout: probability to drop a value after attention.
        norm_after: whether norm and swish follow the block.
        attention: further arguments of :class:`GroupSelfAttention`.

    >>> import torch
    >>> from kernelfield.groups import Cyclic
    >>> block = SelfAttentionBlock(4, 8, group=Cyclic(4), crop=1, heads=2)
    >>> block(torch.randn(2, 4, 4, 8, 8)).shape
    torch.Size([2, 8, 4, 6, 6])
    """

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
        self.crop = check_int("crop", crop, least=0)
        half = max(1, out_channels // 2)
        self.norm_in, self.norm_attended = make_norm("layer", in_channels), make_norm("layer", out_channels)
        self.attention = GroupSelfAttention(in_channels, out_channels, group=group, dropout=dropout, **attention)
        self.dropout = nn.Dropout(value_dropout)
        self.shortcut = Pointwise(in_channels, out_channels) if in_channels != out_channels else nn.Identity()
        self.narrow, self.widen = Pointwise(out_channels, half), Pointwise(half, out_channels)
        self.norm_narrow, self.norm_out = make_norm("layer", half), make_norm("layer", out_channels)
        self.norm_after = make_norm("layer", out_channels) if norm_after else None

    def forward(self, x: Tensor) -> Tensor:
        r"""Return (batch, out_channels, group, \*space) of (batch, in_channels, group, \*space)."""
        y = self.attention(F.silu(self.norm_in(x)), crop=self.crop).values
        y = self.dropout(F.silu(self.norm_attended(y)))
        y = y + self.shortcut(_cropped(x, self.crop))
        z = self.widen(F.silu(self.norm_narrow(self.narrow(y))))
        y = y + self.norm_out(z)
        return y if self.norm_after is None else F.silu(self.norm_after(y))


def _cropped(x: Tensor, crop: int) -> Tensor:
    for axis in range(3, x.dim()):
        x = x.narrow(axis, crop, x.shape[axis] - 2 * crop)
    return x
