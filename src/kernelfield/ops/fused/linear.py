"""Linear maps of the channels as batched matrix products, on signals as they lie in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["map_channels", "sum_of_products"]

#: whether this torch writes products of half-precision matrices in float32
_WIDENS = "dtype" in torch.ops.aten.bmm.overloads()


def map_channels(x: Tensor, weight: Tensor) -> Tensor:
    r"""Return :math:`y_o(t) = \sum_i W_{oi}\, x_i(t)` as one matrix product for each signal of the batch.

    The signals are neither copied nor transposed, forward or backward; a convolution of one point, in a library that
    likes channels last, does both.

    Args:
        x: (batch, in, length) signals.
        weight: (out, in) matrix; used in the dtype of ``x``, with a gradient in its own.

    Returns:
        (batch, out, length) signals.

    >>> x, w = torch.randn(2, 3, 8), torch.randn(5, 3)
    >>> torch.allclose(map_channels(x, w), torch.einsum("oi,bil->bol", w, x), atol=1e-6)
    True
    """
    return _Map.apply(x, weight)


class _Map(torch.autograd.Function):
    # Not left to autograd, which would make a gradient of the weight for each signal in the dtype of the signals.

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
    r"""Return :math:`\sum_n a_n b_n^T` of (n, i, k) and (n, j, k), in single precision at least.

    Half-precision products are written in float32: their rows then are whole multiples of 16 bytes more often, without
    which a product takes several times as long, and nothing is rounded before the sum.
    """
    if _WIDENS and a.is_cuda and a.dtype in (torch.bfloat16, torch.float16) and not torch.is_grad_enabled():
        return torch.bmm(a, b.mT, out_dtype=torch.float32).sum(dim=0)
    return torch.bmm(a, b.mT).sum(dim=0, dtype=torch.promote_types(a.dtype, torch.float32))
