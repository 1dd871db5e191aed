"""Second derivatives of functions whose own backward pass is not differentiable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = ["grads_by_formula"]


def grads_by_formula(
    formula: Callable[..., Tensor], inputs: Sequence[Tensor | None], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of ``formula`` at ``inputs``, as a graph that can be differentiated again.

    Args:
        formula: computes the same as the fast function by operations that have derivatives of every order.
        inputs: its arguments; None for an argument that is absent.
        grad: the gradient of its result.

    Returns:
        A gradient for each input; None if it needs none.

    >>> x = torch.tensor([2.0], requires_grad=True)
    >>> (g,) = grads_by_formula(lambda x: x**3, [x], torch.ones(1))
    >>> torch.autograd.grad(g, x)
    (tensor([12.]),)
    """
    with torch.enable_grad():
        # Use aliases: otherwise the gradient of an input would include its path through another input computed from it.
        own = [None if t is None else t.view_as(t) for t in inputs]
        wanted = [t for t in own if t is not None and t.requires_grad]
        found = iter(torch.autograd.grad(formula(*own), wanted, grad, create_graph=True, allow_unused=True))
    return tuple(next(found) if t is not None and t.requires_grad else None for t in own)
