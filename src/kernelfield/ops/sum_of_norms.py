r"""The sum of the norms of many tensors, with few launches on a GPU.

.. math:: s = \sum_i \lVert t_i \rVert_2, \qquad \bar t_i = \bar s \, t_i / \lVert t_i \rVert_2

Autograd computes each gradient with five operations, for every tensor separately; here it is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .autograd import EagerFunction, grads_by_formula

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["sum_of_norms", "sum_of_norms_reference"]


def sum_of_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of the norms of tensors of any shapes. The gradient of a tensor of zeros is zero.

    Args:
        tensors: one or more tensors.

    >>> sum_of_norms([torch.tensor([3.0, 4.0]), torch.ones(4, 1)])
    tensor(7.)
    """
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()  # noqa: SLF001
    plain = all(type(t) in (Tensor, torch.nn.Parameter) for t in tensors)  # not split over processes
    if transformed or not plain or len({(t.dtype, t.device) for t in tensors}) > 1:
        return sum_of_norms_reference(*tensors)
    return _SumOfNorms.apply(*tensors)


def sum_of_norms_reference(*tensors: Tensor) -> Tensor:
    """Return the sum of the norms by torch's own operations."""
    return torch.stack([t.norm() for t in tensors]).sum()


class _SumOfNorms(EagerFunction):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        norms = torch.stack(list(torch._foreach_norm(tensors)))  # noqa: SLF001
        ctx.save_for_backward(norms, *tensors)
        return norms.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        norms, *tensors = ctx.saved_tensors
        if torch.is_grad_enabled():  # for a second derivative
            return grads_by_formula(sum_of_norms_reference, tensors, grad)
        factors = (grad / norms).masked_fill(norms == 0, 0.0)
        return tuple(torch._foreach_mul(tensors, list(factors.unbind())))  # noqa: SLF001
