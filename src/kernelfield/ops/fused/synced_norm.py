"""Batch normalisation with the statistics of all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["has_several_processes", "sum_over_processes", "synced_batch_norm"]


def has_several_processes() -> bool:
    """Return whether this process trains together with others."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class _SumOverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: Sequence[Any]) -> Tensor:
        ctx.groups = groups
        total = x.clone()
        for group in groups:
            dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _SumOverProcesses.apply(grad, ctx.groups), None


def sum_over_processes(x: Tensor, groups: Sequence[Any] = (None,)) -> Tensor:
    """Return the sum of a tensor over processes; its gradient is the sum of their gradients.

    Args:
        x: the part of this process.
        groups: process groups whose successive sums to take, such as the axes of a mesh; None is all processes.
    """
    return _SumOverProcesses.apply(x, tuple(groups)) if groups else x


def synced_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: tuple[Tensor, Tensor] | None,
    momentum: float,
    eps: float,
    groups: Sequence[Any] = (None,),
    present: Tensor | None = None,
) -> Tensor:
    r"""Return the batch norm of ``x`` in training, with the mean and variance over the batches of all processes.

    .. math:: y_c = w_c \frac{x_c - \mu_c}{\sqrt{\sigma_c^2 + \epsilon}} + b_c

    On a GPU this is torch's own operator, which does not exist for the CPU.

    Args:
        x: (batch, channels, \*space) signal of this process.
        weight: (channels,) scales; None for ones.
        bias: (channels,) shifts; None for zeros.
        running: running mean and variance, updated in place, or None.
        momentum: weight of this batch in the running statistics.
        eps: added to the variance.
        groups: process groups to sum over; see :func:`sum_over_processes`.
        present: 1 for values that the statistics include and 0 for others, the same for all channels; None for all.
    """
    if x.is_cuda and tuple(groups) == (None,) and present is None:
        from torch.nn.modules._functions import SyncBatchNorm  # noqa: PLC0415

        world = dist.get_world_size()
        mean, variance = (None, None) if running is None else running
        return SyncBatchNorm.apply(x, weight, bias, mean, variance, eps, momentum, dist.group.WORLD, world)
    values = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    axes = [0, *range(2, x.dim())]
    shape = (-1, *(1,) * (x.dim() - 2))
    if present is None:
        counted, number = values, values.new_full((1,), x.numel() // x.shape[1])
    else:
        present = present.to(values.dtype)
        counted, number = values * present, present.expand(x.shape[0], 1, *x.shape[2:]).sum()[None]
    sums = sum_over_processes(torch.cat([counted.sum(dim=axes), number]), groups)
    count = sums[-1].detach()
    mean = sums[:-1] / count
    centred = values - mean.view(shape)
    squares = centred.square() if present is None else centred.square() * present
    variance = sum_over_processes(squares.sum(dim=axes), groups) / count
    if running is not None:
        with torch.no_grad():
            running[0].lerp_(mean.to(running[0].dtype), momentum)
            running[1].lerp_((variance * count / (count - 1).clamp(min=1)).to(running[1].dtype), momentum)
    scale = torch.rsqrt(variance + eps)
    y = centred * (scale if weight is None else scale * weight).view(shape)
    return (y if bias is None else y + bias.view(shape)).to(x.dtype)
