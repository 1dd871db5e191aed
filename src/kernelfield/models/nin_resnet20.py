"""NIN and ResNet-20 of chapter 7 for CIFAR-10, rotation-equivariant as in DREN, and their plain counterparts.

DREN for rotated MNIST is a configuration of :class:`~kernelfield.models.GCNN`, in :mod:`.gcnn`.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F

from .._arguments import checked, with_arguments_of
from .._kinds import RATE, Int, ListOf
from ..groups import Cyclic, Trivial
from ..layers import Dropout
from ..layers.group import GroupBatchNorm, GroupKernel, GroupSignal, SpatialPool
from ..layers.group.factory import make_group_conv, make_lifting_conv, make_projection_conv
from .classifier import GroupClassifier
from .gcnn import conv_options, residual_stages
from .registry import register

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["GroupNIN", "GroupResNetV1"]

#: kernel sizes of the convolutions of a Network in Network, three in each stage
_SIZES = (5, 1, 1, 5, 1, 1, 3, 1, 1)


class GroupNIN(GroupClassifier):
    """Network in Network on a group (chapter 7, section 4): r-NIN, or NIN with the trivial group.

    Each of three stages has a convolution and two pointwise ones, each followed by ReLU. Between the stages are pooling
    by 2, max-pooling after the first stage and mean-pooling after the second, and dropout. The last convolution sums
    over the group, and its mean over space gives the logits. There are no norms. Pooling windows are 2² pixels. The
    original has overlapping windows of 3², which on an even grid would cover other pixels of a rotated image.

    Args:
        in_channels: channels of the input.
        out_channels: number of classes.
        group: a finite group.
        channels: widths of the first eight convolutions.
        dropout: probability to drop a value between stages.
        bias: whether the convolutions have a bias.
        attention: None, "co", "co_filter" or "free"; see :class:`GCNN`.

    >>> import torch
    >>> net = GroupNIN(3, 10, group=Cyclic(4), channels=(4, 4, 2, 4, 4, 4, 4, 4))
    >>> net(torch.randn(2, 3, 16, 16)).shape
    torch.Size([2, 10])
    """

    @checked(channels=ListOf(Int(1), count=8), dropout=RATE)
    @with_arguments_of(conv_options)
    def __init__(
        self,
        in_channels: int = 3,
        out_channels: int = 10,
        *,
        channels: Sequence[int] = (96, 80, 48, 96, 96, 96, 96, 96),
        dropout: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__()
        options = conv_options(**options)
        self.lift = make_lifting_conv(in_channels, channels[0], kernel_size=_SIZES[0], **options)
        self.convs = nn.ModuleList(
            make_group_conv(channels[i - 1], channels[i], kernel_size=_SIZES[i], **options) for i in range(1, 8)
        )
        make_last = functools.partial(make_projection_conv, kernel_size=1, **options)
        self._set_classifier(make_last, channels[7], out_channels, "mean")
        dim = options["group"].dim
        self.pools = nn.ModuleList([SpatialPool(2, "max", dim=dim), SpatialPool(2, "mean", dim=dim)])
        self.dropout = Dropout(dropout)
        # There are no norms, so a gain of √2 preserves the variance through the rectifiers.
        for module in (self.lift, *self.convs):
            _kernel(module).field.scale_(math.sqrt(2))

    def forward_features(self, x: Tensor) -> GroupSignal:
        """Return the features of all layers but the last, a signal on the group."""
        signal: GroupSignal = self.lift(x).map(F.relu)
        for i, conv in enumerate(self.convs, start=1):
            if _SIZES[i] > 1:
                signal = self.pools[i // 3 - 1](signal).map(self.dropout)
            signal = conv(signal).map(F.relu)
        return signal


class GroupResNetV1(GroupClassifier):
    """A post-activation ResNet on a group (chapter 7, section 4): r-ResNet-20, or ResNet-20 with the trivial group.

    The branch of a block is convolution, norm, ReLU, convolution and norm. A ReLU follows the sum of branch and
    shortcut. If a block halves the resolution, its shortcut is a 5² convolution and a norm, as in DREN. Max-pooling
    replaces strides, as in chapter 8, because a stride of 2 on an even grid is not equivariant. The last convolution is
    pointwise and sums over the group.

    Args:
        in_channels: channels of the input.
        out_channels: number of classes.
        group: a finite group.
        channels: width of each stage; all but the first halve the resolution.
        blocks: blocks in each stage; 3 in three stages make 20 layers.
        bias: whether the convolutions have a bias.
        attention: None, "co", "co_filter" or "free"; see :class:`GCNN`.

    >>> import torch
    >>> net = GroupResNetV1(3, 10, group=Cyclic(4), channels=(2, 3), blocks=1)
    >>> net(torch.randn(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """

    @checked(channels=ListOf(Int(1)), blocks=Int(1, 10_000))
    @with_arguments_of(conv_options)
    def __init__(
        self,
        in_channels: int = 3,
        out_channels: int = 10,
        *,
        channels: Sequence[int] = (8, 16, 32),
        blocks: int = 3,
        **options: Any,
    ) -> None:
        super().__init__()
        options = conv_options(**options)
        self.lift = make_lifting_conv(in_channels, channels[0], **options)
        self.norm = GroupBatchNorm(channels[0])
        self.blocks = residual_stages(_Block, channels, blocks, **options)
        make_last = functools.partial(make_projection_conv, kernel_size=1, **options)
        self._set_classifier(make_last, channels[-1], out_channels, "mean")

    def forward_features(self, x: Tensor) -> GroupSignal:
        """Return the features of the last block, a signal on the group."""
        return self.blocks(self.norm(self.lift(x)).map(F.relu))


class _Block(nn.Module):
    """A post-activation residual block; see :class:`GroupResNetV1`."""

    def __init__(self, in_channels: int, out_channels: int, *, pool: bool, **options: Any) -> None:
        super().__init__()
        conv: Callable[..., nn.Module] = functools.partial(make_group_conv, **options)
        self.conv1, self.conv2 = conv(in_channels, out_channels), conv(out_channels, out_channels)
        self.norm1, self.norm2 = GroupBatchNorm(out_channels), GroupBatchNorm(out_channels)
        changes = pool or in_channels != out_channels
        self.shortcut = conv(in_channels, out_channels, kernel_size=5) if changes else None
        self.norm = GroupBatchNorm(out_channels) if changes else None
        self.pool = SpatialPool(2, dim=options["group"].dim) if pool else nn.Identity()

    def forward(self, x: GroupSignal) -> GroupSignal:
        y = self.norm1(self.pool(self.conv1(x))).map(F.relu)
        y = self.norm2(self.conv2(y))
        if self.shortcut is not None and self.norm is not None:
            x = self.norm(self.pool(self.shortcut(x)))
        return (y + x).map(F.relu)


def _kernel(module: nn.Module) -> GroupKernel:
    """Return the kernel of a convolution with or without attention."""
    conv = getattr(module, "conv", module)
    assert isinstance(conv.kernel, GroupKernel)
    return conv.kernel


_PLAIN: dict[str, Any] = {"group": Trivial(), "bias": True}
_ROTATIONS: dict[str, Any] = {"group": Cyclic(4), "bias": True}
register("nin", GroupNIN, "chapter 7: NIN", channels=(192, 160, 96, 192, 192, 192, 192, 192), **_PLAIN)
register("r_nin_x4", GroupNIN, "chapter 7: r-NIN×4", channels=(96, 80, 48, 96, 96, 96, 96, 96), **_ROTATIONS)
register("resnet20", GroupResNetV1, "chapter 7: ResNet-20", channels=(16, 32, 64), **_PLAIN)
register("r_resnet20_x4", GroupResNetV1, "chapter 7: r-ResNet-20×4", channels=(8, 16, 32), **_ROTATIONS)
