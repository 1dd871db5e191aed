"""Autograd functions with less overhead per call."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function

__all__ = ["EagerFunction"]


class EagerFunction(Function):
    """An autograd function that is called outside of :mod:`torch.func` transforms and compilers.

    ``Function.apply`` looks at every argument for a tensor of a transform that has ended. Operators that never meet
    one do without, since a step calls them many times.

    >>> class Double(EagerFunction):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return 2 * x
    ...
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         return 2 * grad
    >>> x = torch.ones(1, requires_grad=True)
    >>> torch.autograd.grad(Double.apply(x), x)
    (tensor([2.]),)
    """

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Apply the function; like ``Function.apply`` without keyword arguments."""
        if torch._C._are_functorch_transforms_active():  # noqa: SLF001
            return super().apply(*args)
        return super(Function, cls).apply(*args)  # type: ignore[misc]
