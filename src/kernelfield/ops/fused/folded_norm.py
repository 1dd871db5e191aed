r"""Batch normalisation of planes with a group axis folded into their channels, in channels-last memory format.

Torch normalises such planes fast, but with separate statistics for each folded channel. Here all elements of the group
share their statistics. The mean and variance of channel c follow from those of its folded channels:

.. math:: \mu_c = \overline{\mu_{cg}}, \qquad v_c = \overline{v_{cg}} + \overline{(\mu_{cg} - \mu_c)^2}

with means over g. The backward pass combines its sums over the group in the same way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..autograd import grads_by_formula

__all__ = ["folded_batch_norm", "is_folded"]


def is_folded(x: Tensor) -> bool:
    """Return whether (batch, channels, group, height, width) values have channels and group last in memory.

    >>> x = torch.randn(2, 6, 5, 5).contiguous(memory_format=torch.channels_last)
    >>> is_folded(x.unflatten(1, (3, 2))), is_folded(torch.randn(2, 3, 2, 5, 5))
    (True, False)
    """
    if x.dim() != 5 or x.is_contiguous() or x.numel() == 0:
        return False
    _, channels, group, height, width = x.shape
    row = channels * group
    return x.stride() == (row * height * width, group, 1, row * width, row)


def folded_batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    *,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    r"""Return ``F.batch_norm`` of :func:`is_folded` values, in the same layout; the arguments are the same.

    >>> x = torch.randn(2, 6, 5, 5).contiguous(memory_format=torch.channels_last).unflatten(1, (3, 2))
    >>> ones, zeros = torch.ones(3), torch.zeros(3)
    >>> y = folded_batch_norm(x, ones, zeros, None, None, training=True, momentum=0.1, eps=1e-5)
    >>> torch.allclose(y, F.batch_norm(x, None, None, ones, zeros, True), atol=1e-5)
    True
    """
    group = x.shape[2]
    if not training and mean is not None and variance is not None:
        # Tensors that require a gradient are stacked separately from those that do not.
        (mean, variance), (weight, bias) = _spread(group, mean, variance), _spread(group, weight, bias)
        return F.batch_norm(x.flatten(1, 2), mean, variance, weight, bias, False, 0.0, eps).unflatten(1, x.shape[1:3])
    y, seen_mean, seen_variance = _FoldedNorm.apply(x, weight, bias, eps)
    if mean is not None and variance is not None:
        with torch.no_grad():
            count = x.numel() // x.shape[1]
            mean.lerp_(seen_mean.to(mean.dtype), momentum)
            variance.lerp_(seen_variance.to(variance.dtype) * (count / max(1, count - 1)), momentum)
    return y


class _FoldedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
        shape, flat = x.shape[1:3], x.flatten(1, 2)
        averages = None
        if not x.is_cuda and x.dtype in (torch.bfloat16, torch.float16):
            # Statistics take the dtype of the running averages; without any they would be in half precision.
            averages = flat.new_zeros(flat.shape[1], dtype=torch.float32)
        each = torch.stack(torch.batch_norm_update_stats(flat, averages, averages, 0.0)).view(2, *shape)
        mean, variance = each.mean(dim=2)
        variance = variance + each[0].var(dim=1, unbiased=False)
        wide = _spread(shape[1], mean, variance, weight.to(mean.dtype), bias.to(mean.dtype))
        y = F.batch_norm(flat, wide[0], wide[1], wide[2], wide[3], False, 0.0, eps).unflatten(1, shape)
        ctx.eps = eps
        ctx.save_for_backward(x, weight, bias, mean, (variance + eps).rsqrt())
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # for a second derivative

            def formula(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
                return F.batch_norm(x, None, None, weight, bias, True, 0.0, ctx.eps)

            return *grads_by_formula(formula, (x, weight, bias), grad), None
        channels, group = x.shape[1:3]
        flat = x.flatten(1, 2)
        grad = grad.flatten(1, 2).contiguous(memory_format=torch.channels_last)
        wide = _spread(group, weight.to(mean.dtype), mean, inverse)
        _, *sums = torch.ops.aten.native_batch_norm_backward(
            grad, flat, wide[0], None, None, wide[1], wide[2], True, ctx.eps, [False, True, True]
        )
        by_weight, by_bias = torch.stack(sums).view(2, channels, group).sum(dim=2)
        count = x.numel() // channels
        if x.is_cuda:
            total = torch.full((1,), count, dtype=torch.int32, device=x.device)
            by_mean = _spread(group, by_bias, by_weight / inverse)  # Σ dy and Σ dy (x - μ)
            by_x = torch.batch_norm_backward_elemt(grad, flat, wide[1], wide[2], wide[0], by_mean[0], by_mean[1], total)
        else:
            # dx = a dy + b x + c, three numbers for each channel.
            a = weight.to(mean.dtype) * inverse
            b = -a * inverse * by_weight / count
            c = -a * by_bias / count - b * mean
            rows = [t.view(-1, 1, 1).to(x.dtype) for t in _spread(group, a, b, c)]
            by_x = torch.addcmul(rows[2], grad, rows[0]).addcmul_(flat, rows[1])
        return by_x.unflatten(1, (channels, group)), by_weight.to(weight.dtype), by_bias.to(bias.dtype), None


def _spread(group: int, *numbers: Tensor) -> tuple[Tensor, ...]:
    """Repeat several (channels,) tensors for every group element: (channels · group,) each."""
    # For a single channel, flatten returns a view of stride 0, which torch's batch norm treats as contiguous.
    return torch.stack(numbers).unsqueeze(2).expand(-1, -1, group).flatten(1).contiguous().unbind(0)
