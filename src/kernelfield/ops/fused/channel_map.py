"""Linear maps of channels as batched matrix products, without copying or transposing the signal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["map_channels", "map_with_bias", "sum_of_products"]

#: largest number of inputs for which a constant extra input adds the bias faster than another pass over the outputs
_FEW = 16
#: whether this torch can write products of half-precision matrices in float32
_WIDENS = "dtype" in torch.ops.aten.bmm.overloads()


def map_channels(x: Tensor, weight: Tensor) -> Tensor:
    r"""Return :math:`y_o(t) = \sum_i W_{oi}\, x_i(t)` as one matrix product for each signal of the batch.

    Signals are neither copied nor transposed, forward or backward. A convolution with one kernel point would do both in
    a library that prefers channels-last.

    Args:
        x: (batch, in, length) signals.
        weight: (out, in) matrix, which is cast to the dtype of ``x``; its gradient has its own dtype.

    Returns:
        (batch, out, length) signals.

    >>> x, w = torch.randn(2, 3, 8), torch.randn(5, 3)
    >>> torch.allclose(map_channels(x, w), torch.einsum("oi,bil->bol", w, x), atol=1e-6)
    True
    """
    return _Map.apply(x, weight)


def map_with_bias(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    r"""Return :math:`W x + b` for a (batch, in, \*space) signal, in few passes over memory on a GPU.

    >>> x, w, b = torch.randn(2, 3, 4, 4), torch.randn(5, 3), torch.randn(5)
    >>> torch.allclose(map_with_bias(x, w, b), torch.einsum("oi,bihw->bohw", w, x) + b.view(5, 1, 1), atol=1e-5)
    True
    """
    if x.shape[2:].numel() == 1:
        return F.linear(x.flatten(1), weight, bias).view(len(x), -1, *x.shape[2:])
    flat = x.flatten(2)
    if bias is not None and x.shape[1] <= _FEW:
        flat = torch.cat([flat, torch.ones_like(flat[:, :1])], dim=1)
        weight, bias = torch.cat([weight, bias.unsqueeze(1)], dim=1), None
    y = map_channels(flat, weight).unflatten(2, x.shape[2:])
    return y if bias is None else y + bias.to(y.dtype).view(-1, *(1,) * (y.dim() - 2))


class _Map(torch.autograd.Function):
    # Autograd would compute a gradient of the weight for each signal, in the dtype of the signals.

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(weight.to(x.dtype).expand(len(x), -1, -1), x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            to_x = torch.bmm(weight.to(x.dtype).mT.expand(len(x), -1, -1), grad)
        if ctx.needs_input_grad[1]:
            to_weight = sum_of_products(grad, x).to(weight.dtype)
        return to_x, to_weight


def sum_of_products(a: Tensor, b: Tensor) -> Tensor:
    r"""Return :math:`\sum_n a_n b_n^T` of (n, i, k) and (n, j, k), in at least single precision.

    Half-precision products are written in float32. No value is rounded before the sum, and rows are more often
    multiples of 16 bytes, without which products take several times as long.
    """
    if _WIDENS and a.is_cuda and a.dtype in (torch.bfloat16, torch.float16) and not torch.is_grad_enabled():
        return torch.bmm(a, b.mT, out_dtype=torch.float32).sum(dim=0)
    dtype = torch.float64 if a.dtype == torch.float64 else torch.float32
    return torch.bmm(a, b.mT).sum(dim=0, dtype=dtype)
