"""The sum of softmaxes of group attention, whose scores share their content term."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ..backend import use_triton
from .contract import contract

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["softmax_sum"]


def softmax_sum(
    content: Tensor, place: Tensor, element: Tensor, valid: Tensor | None = None, *, fused: bool | None = None
) -> Tensor:
    r"""Return :math:`a_{hmj} = \sum_g \sigma_{mj}\big(c_{gmj} + s_{ghj} + e_{ghm}\big)`, softmax over (m, j).

    On a GPU a Triton kernel computes each score where it is needed. Elsewhere the exponential of a score is the product
    of three exponentials, none of which has all four indices. The normaliser is then a matrix product, and the sum over
    g is :func:`~kernelfield.ops.attention.contract.contract`. Each exponential is relative to its own maximum. If the
    best score lies more than 85 (700 in float64) below the sum of the three maxima, all weights underflow to zero.

    Args:
        content: (n, p, g, m, j) scores.
        place: (n, p, g, h, j) scores.
        element: (n, p, g, h, m) scores.
        valid: (p or 1, j) bool, False for a j that gets no weight.
        fused: whether to use the Triton kernel; by default if it is available.

    Returns:
        (n, p, h, m, j) weights, whose sum over (m, j) is the number of g.

    >>> c, s, e = torch.randn(2, 3, 4, 4, 9), torch.randn(2, 3, 4, 5, 9), torch.randn(2, 3, 4, 5, 4)
    >>> softmax_sum(c, s, e).sum(dim=(-2, -1)).allclose(torch.tensor(4.0))
    True
    """
    if use_triton(content, (torch.float32,)) if fused is None else fused:
        from .triton.softmax import fused_softmax_sum  # noqa: PLC0415

        return fused_softmax_sum(content, place, element, valid)
    if valid is not None:
        content = content.masked_fill(~valid[:, None, None], -math.inf)
    content = (content - content.detach().amax(dim=(-2, -1), keepdim=True)).exp()
    place = (place - place.detach().amax(dim=-1, keepdim=True)).exp()
    element = element - element.detach().amax(dim=-1, keepdim=True)
    total = (element.exp() * (place @ content.mT)).sum(dim=-1, keepdim=True)  # (n, p, g, h, 1)
    # Subtract the logarithm instead of dividing: the gradient of a quotient squares the total, which may underflow.
    least = 10 * torch.finfo(total.dtype).tiny
    return contract(content, place, (element - total.clamp(min=least).log()).exp())
