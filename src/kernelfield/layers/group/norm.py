"""Norms of signals on a group. They treat all elements and positions alike, so they are equivariant."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._arguments import checked
from ..._kinds import NOT_NEGATIVE, POSITIVE
from ...ops.fused.folded_norm import folded_batch_norm, is_folded
from ...ops.fused.synced_norm import has_several_processes, synced_batch_norm
from .signal import SIGNAL, GroupSignal, Signal, ValueLayer

__all__ = ["GroupBatchNorm", "GroupLayerNorm"]


class GroupBatchNorm(nn.BatchNorm1d):
    r"""Batch normalisation over batch, group and space: one mean, variance, scale and shift per channel.

    It takes a :class:`GroupSignal` or a tensor, (batch, channels, group, \*space), and returns the same type.

    Args:
        channels: number of channels.
        eps: added to the variance; 2e-5 as in chapter 8.

    >>> GroupBatchNorm(3)(torch.randn(2, 3, 4, 5, 5)).shape
    torch.Size([2, 3, 4, 5, 5])
    """

    @checked(eps=POSITIVE)
    def __init__(self, channels: int, eps: float = 2e-5) -> None:
        super().__init__(channels, eps=eps)

    #: whether training computes statistics over all processes
    synchronised = False
    #: (batch,) 1 for samples that training statistics include and 0 for others; None if they include all
    present_samples: Tensor | None = None

    @checked(x=SIGNAL)
    def forward(self, x: Signal) -> Signal:
        return x.map(self._normalize, x.present) if isinstance(x, GroupSignal) else self._normalize(x)

    def _normalize(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        if self.present_samples is not None:
            samples = self.present_samples.view(-1, *[1] * (x.dim() - 1))
            present = samples if present is None else samples * present
        synchronised = self.synchronised and has_several_processes()
        if self.training and (synchronised or present is not None):
            self._check_input_dim(x)
            assert self.num_batches_tracked is not None
            assert self.running_mean is not None
            assert self.running_var is not None
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            running = (self.running_mean, self.running_var)
            groups = (None,) if synchronised else ()
            return synced_batch_norm(x, self.weight, self.bias, running, momentum, self.eps, groups, present)
        transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()  # noqa: SLF001
        if transformed or not is_folded(x) or self.momentum is None:
            return super().forward(x)
        self._check_input_dim(x)
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return folded_batch_norm(
            *(x, self.weight, self.bias, self.running_mean, self.running_var),
            training=self.training,
            momentum=self.momentum,
            eps=self.eps,
        )

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 3 or x.shape[1] != self.num_features:
            raise ValueError(f"x must have shape (batch, {self.num_features}, group, *space), got {tuple(x.shape)}")


class GroupLayerNorm(ValueLayer):
    r"""Normalisation of each channel of each sample over group and space, without parameters (chapter 11).

    It takes a :class:`GroupSignal` or a tensor, (batch, channels, group, \*space), and returns the same type. Group and
    space must hold two or more values, like those of ``nn.InstanceNorm2d``.

    Args:
        eps: added to the variance.

    >>> y = GroupLayerNorm()(torch.randn(2, 3, 4, 5, 5))
    >>> bool(y.mean(dim=(2, 3, 4)).abs().max() < 1e-6)
    True
    """

    @checked(eps=NOT_NEGATIVE)
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps

    @checked(x=SIGNAL)
    def forward(self, x: Signal) -> Signal:
        if isinstance(x, GroupSignal) and x.present is not None:
            return x.map(self._normalize_present, x.present)
        return super().forward(x)

    def _normalize_present(self, x: Tensor, present: Tensor) -> Tensor:
        """Normalise over the elements that are present, in float32 like torch's own norm."""
        values = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        axes = tuple(range(2, x.dim()))
        factor = x.shape[2] / present.to(values.dtype).sum()
        centred = values - factor * (values * present).mean(dim=axes, keepdim=True)
        variance = factor * (centred.square() * present).mean(dim=axes, keepdim=True)
        return (centred * torch.rsqrt(variance + self.eps)).to(x.dtype)

    def transform(self, x: Tensor) -> Tensor:
        flat = x.flatten(2)
        if type(flat.shape[2]) is int and flat.shape[2] == 1:  # the result would be zero for every input
            raise ValueError(f"x must have more than one value per channel to normalise over, got {tuple(x.shape)}")
        return F.layer_norm(flat, flat.shape[2:], eps=self.eps).view_as(x)
