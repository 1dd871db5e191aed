"""An equivariant U-Net for dense predictions, exact on the grid."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._arguments import checked, with_arguments_of
from .._kinds import RATE, Choice, Int
from ..groups import Cyclic, Dihedral, Trivial
from ..layers import Dropout
from ..layers.group import GroupBatchNorm, GroupPool, SpatialPool, SpatialUpsample
from ..layers.group.factory import make_group_conv, make_lifting_conv
from .classifier import GroupNetwork
from .gcnn import conv_options
from .registry import register

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..layers.group.signal import GroupSignal

__all__ = ["GroupUNet"]


class _Stage(nn.Module):
    """Two convolutions, each with norm and ReLU, and dropout after the second."""

    def __init__(self, first: nn.Module, second: nn.Module, channels: int, dropout: float) -> None:
        super().__init__()
        self.convs = nn.ModuleList((first, second))
        self.norms = nn.ModuleList(GroupBatchNorm(channels) for _ in range(2))
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor | GroupSignal) -> GroupSignal:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x)).map(F.relu)
        return x.map(self.dropout)  # type: ignore[union-attr]


class GroupUNet(GroupNetwork):
    r"""A U-Net of group convolutions, whose dense predictions transform with the input.

    It has stages of two group convolutions at ``depth + 1`` resolutions. Max-pooling leads to the coarser ones. On the
    way back, linear interpolation is followed by concatenation with the signal of the same resolution. The network
    ends in the maximum or mean over the group and a pointwise map. For the network f and an element g of the group,

    .. math:: f(g \cdot x) = g \cdot f(x),

    up to rounding if g maps the grid to itself, for even and odd lengths. The outputs are scalars at each position,
    such as class scores, pressure or height, not the components of a vector.

    Args:
        in_channels: channels of the input.
        out_channels: values per position.
        group: a finite group.
        channels: width of the first stage; each further stage is twice as wide.
        depth: number of times that the resolution is halved.
        dropout: probability to drop a value.
        readout: "max" or "mean" over the group.
        bias: whether the convolutions have a bias.
        attention: as in :class:`GCNN`.

    >>> net = GroupUNet(1, 2, group=Cyclic(4), channels=4, depth=2)
    >>> net(torch.randn(2, 1, 12, 13)).shape
    torch.Size([2, 2, 12, 13])
    """

    #: whether the network predicts at each position, regardless of its ``readout``
    always_dense: ClassVar[bool] = True
    last: nn.Module

    @checked(depth=Int(1), dropout=RATE, readout=Choice("max", "mean"))
    @with_arguments_of(conv_options)
    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 1,
        *,
        channels: int = 8,
        depth: int = 2,
        dropout: float = 0.0,
        readout: str = "mean",
        **options: Any,
    ) -> None:
        super().__init__()
        options = conv_options(**options)
        dim = options["group"].dim
        conv: Callable[..., nn.Module] = functools.partial(make_group_conv, kernel_size=3, **options)
        widths = [channels << level for level in range(depth + 1)]
        lift = make_lifting_conv(in_channels, channels, kernel_size=3, **options)
        firsts = [lift, *(conv(before, after) for before, after in itertools.pairwise(widths))]
        self.down = nn.ModuleList(
            _Stage(first, conv(width, width), width, dropout) for first, width in zip(firsts, widths, strict=True)
        )
        self.up = nn.ModuleList(
            _Stage(conv(width + 2 * width, width), conv(width, width), width, dropout)
            for width in reversed(widths[:-1])
        )
        self.pool, self.upsample = SpatialPool(2, dim=dim), SpatialUpsample(dim=dim)
        self.readout = GroupPool(readout, "group")
        self._set_last(nn.Linear, channels, out_channels)
        self.depth = depth

    def forward_head(self, features: Tensor | GroupSignal, *, pre_logits: bool = False) -> Tensor:
        """Return the values at every position from a signal on the group, or its features pooled over the group."""
        pooled = self.readout(features)
        return pooled if pre_logits else self.last(pooled.movedim(1, -1)).movedim(-1, 1)

    def forward_features(self, x: Tensor) -> GroupSignal:
        """Return the features of the last stage, a signal on the group at the resolution of the input."""
        shortest = min(x.shape[2:])
        if type(shortest) is int and shortest < 1 << self.depth:
            raise ValueError(
                f"x must have at least {1 << self.depth} samples per axis for depth={self.depth}, got {shortest}"
            )
        signal, skipped = self.down[0](x), []
        for stage in self.down[1:]:
            skipped.append(signal)
            signal = stage(self.pool(signal))
        for stage in self.up:
            finer = skipped.pop()
            signal = self.upsample(signal, finer.shape[3:])
            signal = stage(finer.replace(torch.cat([finer.values, signal.values], dim=1)))
        return signal


for _name, _group, _channels in (("z2", Trivial(), 16), ("p4", Cyclic(4), 8), ("p4m", Dihedral(4), 6)):
    register(f"unet_{_name}", GroupUNet, f"dense prediction: {_name} U-Net", group=_group, channels=_channels)
