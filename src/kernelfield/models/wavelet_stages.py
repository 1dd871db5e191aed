"""Stages and heads of the networks of chapter 10, on time alone or on time and dilations."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..layers.group import GroupBatchNorm, GroupConv, GroupPool, GroupSignal, LiftingConv, SpatialPool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..fields import Field
    from ..groups import Scale

__all__ = ["ConvLayer", "Head", "ResidualBlock", "Stage"]


class Stage(NamedTuple):
    """A description of one convolution, or residual block of two, with its norm, ReLU and pooling.

    Args:
        channels: output channels.
        kernel_size: points of the kernel at dilation 1.
        interactions: number of dilations that the kernel spans; outputs that lack some of their inputs are dropped.
        stride: stride of a plain convolution; on dilations, the factor of max-pooling directly after the convolution.
        pool: size of the max-pooling at the end.
        residual: whether it is a block of two convolutions.
        dropout: dropout rate at the end.
        bias: whether a plain convolution has a bias; convolutions on dilations have none.

    >>> Stage(16, stride=4).kernel_size
    3
    """

    channels: int
    kernel_size: int = 3
    interactions: int = 1
    stride: int = 1
    pool: int = 1
    residual: bool = False
    dropout: float = 0.0
    bias: bool = False


class ConvLayer(nn.Module):
    """A convolution followed by norm, ReLU and pooling."""

    def __init__(
        self, width: int, stage: Stage, group: Scale | None, field: Callable[..., Field], eps: float, *, lift: bool
    ) -> None:
        super().__init__()
        self.conv, self.group = make_conv(width, stage, group, field, lift)
        self.shrink = SpatialPool(stage.stride, dim=1, ragged=True) if group is not None and stage.stride > 1 else None
        self.norm = GroupBatchNorm(stage.channels, eps)
        self.pool = SpatialPool(stage.pool, dim=1, ragged=True) if stage.pool > 1 else None
        self.dropout = nn.Dropout(stage.dropout) if stage.dropout else None

    def forward(self, x: Tensor | GroupSignal) -> Tensor | GroupSignal:
        x = self.conv(x)
        x = x if self.shrink is None else self.shrink(x)
        x = F.relu(self.norm(x))
        x = x if self.pool is None else self.pool(x)
        return x if self.dropout is None else self.dropout(x)


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut without parameters, whose sum passes norm, ReLU and pooling."""

    def __init__(
        self, width: int, stage: Stage, group: Scale | None, field: Callable[..., Field], eps: float, *, lift: bool
    ) -> None:
        super().__init__()
        if lift or stage.channels % width:
            raise ValueError(
                f"stages must begin with a convolution, and residual blocks must multiply the channels, got {width} "
                f"channels before a block of {stage.channels}"
            )
        self.copies = stage.channels // width
        self.conv1, self.group = make_conv(width, stage, group, field, lift=False)
        second = stage._replace(interactions=1, stride=1)
        self.conv2, _ = make_conv(stage.channels, second, self.group, field, lift=False)
        self.norm1, self.norm2, self.norm3 = (GroupBatchNorm(stage.channels, eps) for _ in range(3))
        self.pool = SpatialPool(stage.pool, dim=1, ragged=True) if stage.pool > 1 else None

    def forward(self, x: Tensor | GroupSignal) -> Tensor | GroupSignal:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        values = x.values[:, :, : y.shape[2]] if isinstance(x, GroupSignal) else x  # the coarsest dilations are dropped
        y = F.relu(self.norm3(y + torch.cat([values] * self.copies, dim=1)))
        return y if self.pool is None else self.pool(y)


class Head(nn.Module):
    """A module that maps features to predictions; see :class:`WaveletNet`."""

    #: number of time steps that a dense head reads
    TIMES = 6

    def __init__(
        self,
        width: int,
        out: int,
        group: Scale | None,
        field: Callable[..., Field],
        kind: str,
        interactions: int,
        hidden: Sequence[int],
        dropout: float,
    ) -> None:
        super().__init__()
        self.kind, self.channels, self.out_channels = kind, width, out
        self.largest = GroupPool("max", "group")
        self.dropout = nn.Dropout(dropout)
        if kind == "conv":
            last = Stage(out, kernel_size=1, interactions=interactions)
            self._conv_arguments = last, group, field
            self.conv, self.group = make_conv(width, last, group, field, lift=False)
            self.hidden_size = width
            return
        widths = [width * self.TIMES if kind == "dense" else width, *hidden, out]
        self.hidden_size = widths[-2]
        self.linear = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def reset(self, out: int) -> None:
        """Replace the last map by a new one for ``out`` predictions, or by the identity for 0."""
        self.out_channels = out
        if self.kind != "conv":
            self.linear[-1] = nn.Linear(self.hidden_size, out) if out else nn.Identity()
        elif out:
            last, group, field = self._conv_arguments
            self.conv, self.group = make_conv(self.channels, last._replace(channels=out), group, field, lift=False)
        else:
            self.conv = nn.Identity()

    def forward(self, x: Tensor | GroupSignal, pre_logits: bool = False) -> Tensor:
        if self.kind == "conv" and (pre_logits or not self.out_channels):
            return self.largest(x).mean(dim=-1) if isinstance(x, GroupSignal) else x.mean(dim=-1)
        if self.kind == "conv":
            # The convolution is linear, so apply it after the mean over time, to one position instead of all.
            if isinstance(x, GroupSignal):
                return self.largest(self.conv(x.map(torch.mean, dim=-1, keepdim=True))).squeeze(-1)
            return self.conv(x.mean(dim=-1, keepdim=True)).squeeze(-1)
        y: Tensor = self.largest(x) if isinstance(x, GroupSignal) else x
        y = F.adaptive_max_pool1d(y, self.TIMES).flatten(1) if self.kind == "dense" else y.mean(dim=-1)
        if self.kind == "linear":
            y = self.dropout(y)
        for i, linear in enumerate(self.linear):
            if pre_logits and i == len(self.linear) - 1:
                break
            y = linear(y)
            if i < len(self.linear) - 1:
                y = self.dropout(F.relu(y))
        return y


def make_conv(
    width: int, stage: Stage, group: Scale | None, field: Callable[..., Field], lift: bool
) -> tuple[nn.Module, Scale | None]:
    """Return a convolution and the window of dilations of its output, which is None for a plain convolution."""
    if group is None:
        conv = nn.Conv1d(
            width, stage.channels, stage.kernel_size, stage.stride, padding=stage.kernel_size // 2, bias=stage.bias
        )
        bound = math.sqrt(2 / (width * stage.kernel_size))
        nn.init.uniform_(conv.weight, -bound, bound)
        return conv, None
    if lift:
        made = LiftingConv(width, stage.channels, group=group, field=field, kernel_size=stage.kernel_size, bias=False)
        return made, group
    interactions = min(stage.interactions, group.n)
    conv_on_scales = GroupConv(
        width,
        stage.channels,
        group=group,
        field=field,
        kernel_size=stage.kernel_size,
        bias=False,
        interactions=interactions,
        scale_boundary="valid",
    )
    return conv_on_scales, group.shortened(interactions - 1)
