r"""Autograd functions for operators, with little overhead per call and derivatives of every order.

Convolution is bilinear, and so are its two gradients:

.. math::
    y = C(x, k), \qquad \bar x = C_x(\bar y, k), \qquad \bar k = C_k(\bar y, x).

The gradients of :math:`(C_x, C_k)` are again these three. Two operators that call each other therefore give derivatives
of every order and save only the input and the kernel.

Under torch.compile and torch.export both are custom operators. The compiler does not trace into them, so they receive
real tensors and choose a method by their lengths. In eager mode they are autograd functions, because the dispatch of a
custom operator takes as long as a small convolution.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["EagerFunction", "bilinear", "contiguous_from_start", "grads_by_formula"]


class EagerFunction(Function):
    """An autograd function with a faster ``apply``, for calls outside of :mod:`torch.func` transforms and compilers.

    ``Function.apply`` checks every argument for tensors of a transform that has ended. Operators never receive such
    tensors and are called many times in a training step, so they skip the check.

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


def grads_by_formula(
    formula: Callable[..., Tensor], inputs: Sequence[Tensor | None], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of ``formula`` at ``inputs``, as a graph that can be differentiated again.

    Args:
        formula: a function with the same result as the fast one, made of operations with derivatives of every order.
        inputs: arguments of the formula; None for an argument that is not given.
        grad: gradient of the result.

    Returns:
        A gradient for each input, or None if the input does not require one.

    >>> x = torch.tensor([2.0], requires_grad=True)
    >>> (g,) = grads_by_formula(lambda x: x**3, [x], torch.ones(1))
    >>> torch.autograd.grad(g, x)
    (tensor([12.]),)
    """
    with torch.enable_grad():
        # With aliases, the gradient of an input does not include its path through other inputs computed from it.
        own = [None if t is None else t.view_as(t) for t in inputs]
        wanted = [t for t in own if t is not None and t.requires_grad]
        found = iter(torch.autograd.grad(formula(*own), wanted, grad, create_graph=True, allow_unused=True))
    return tuple(next(found) if t is not None and t.requires_grad else None for t in own)


def contiguous_from_start(y: Tensor) -> Tensor:
    """Return a contiguous tensor at the start of its memory, whose alignment compiled code relies on."""
    return y.clone() if y.storage_offset() and y.is_contiguous() else y.contiguous()


def bilinear(  # noqa: C901
    name: str, conv: Callable[..., Tensor], grads: Callable[..., tuple[Tensor, Tensor]]
) -> Callable[..., Tensor]:
    """Return ``conv`` as a differentiable function of (x, kernel, causal, periodic, groups).

    Args:
        name: name of the custom operators, ``kernelfield::name`` and ``kernelfield::name_grads``.
        conv: (x, kernel, causal, periodic, groups) -> y.
        grads: (grad, x, kernel, needs, causal, periodic, groups) -> both gradients. ``needs`` is a pair of
            bools, for x and for the kernel; a gradient that is not needed is empty.
    """

    def apply(x: Tensor, kernel: Tensor, *options: Any) -> Tensor:
        if torch.compiler.is_compiling():
            return conv_op(x, kernel, *options)
        if torch.is_grad_enabled() and (x.requires_grad or kernel.requires_grad):
            return _Conv.apply(x, kernel, *options)
        return conv(x, kernel, *options)

    def apply_grads(
        grad: Tensor, x: Tensor, kernel: Tensor, need_x: bool, need_kernel: bool, *options: Any
    ) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_compiling():
            return grads_op(grad, x, kernel, need_x, need_kernel, *options)
        if torch.is_grad_enabled():
            return _ConvGrads.apply(grad, x, kernel, need_x, need_kernel, *options)
        return grads(grad, x, kernel, (need_x, need_kernel), *options)

    @torch.library.custom_op(f"kernelfield::{name}", mutates_args=())
    def conv_op(x: Tensor, kernel: Tensor, causal: bool, periodic: list[bool], groups: int) -> Tensor:
        return contiguous_from_start(conv(x, kernel, causal, periodic, groups))

    @torch.library.custom_op(f"kernelfield::{name}_grads", mutates_args=())
    def grads_op(
        grad: Tensor,
        x: Tensor,
        kernel: Tensor,
        need_x: bool,
        need_kernel: bool,
        causal: bool,
        periodic: list[bool],
        groups: int,
    ) -> tuple[Tensor, Tensor]:
        grad_x, grad_kernel = grads(grad, x, kernel, (need_x, need_kernel), causal, periodic, groups)
        return contiguous_from_start(grad_x), contiguous_from_start(grad_kernel)

    @conv_op.register_fake
    def _(x: Tensor, kernel: Tensor, *options: Any) -> Tensor:  # noqa: ARG001
        return x.new_empty((x.shape[0], kernel.shape[0], *x.shape[2:]))

    @grads_op.register_fake
    def _(
        grad: Tensor,  # noqa: ARG001
        x: Tensor,
        kernel: Tensor,
        need_x: bool,
        need_kernel: bool,
        *options: Any,  # noqa: ARG001
    ) -> tuple[Tensor, Tensor]:
        return x.new_empty(x.shape if need_x else 0), kernel.new_empty(kernel.shape if need_kernel else 0)

    def save_conv(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
        x, kernel, *ctx.options = inputs
        ctx.save_for_backward(x, kernel)

    def conv_backward(ctx: Any, grad: Tensor, gradients: Any = apply_grads) -> tuple[Tensor | None, ...]:
        x, kernel = ctx.saved_tensors
        need_x, need_kernel = ctx.needs_input_grad[:2]
        grad_x, grad_kernel = gradients(grad, x, kernel, need_x, need_kernel, *ctx.options)
        return grad_x if need_x else None, grad_kernel if need_kernel else None, None, None, None

    def save_grads(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
        grad, x, kernel, ctx.need_x, ctx.need_kernel, *ctx.options = inputs
        ctx.save_for_backward(grad, x, kernel)

    def grads_backward(
        ctx: Any, to_x: Tensor, to_kernel: Tensor, convolve: Any = apply, gradients: Any = apply_grads
    ) -> tuple[Tensor | None, ...]:
        grad, x, kernel = ctx.saved_tensors
        terms = []
        if ctx.need_x:
            terms.append(convolve(to_x, kernel, *ctx.options))
        if ctx.need_kernel:
            terms.append(convolve(x, to_kernel, *ctx.options))
        to_grad = terms[0] + terms[1] if len(terms) == 2 else terms[0]
        # Only C_k reads x and only C_x reads the kernel, so this is the same pair with the cotangents swapped in.
        v = to_x if ctx.need_x else x
        w = to_kernel if ctx.need_kernel else kernel
        second_x, second_kernel = gradients(grad, v, w, ctx.need_kernel, ctx.need_x, *ctx.options)
        return to_grad, second_x if ctx.need_kernel else None, second_kernel if ctx.need_x else None, *(None,) * 5

    # Gradients of a custom operator are custom operators too, also in traces in which is_compiling() is False.
    conv_op.register_autograd(partial(conv_backward, gradients=grads_op), setup_context=save_conv)
    second = partial(grads_backward, convolve=conv_op, gradients=grads_op)
    grads_op.register_autograd(second, setup_context=save_grads)

    class _Conv(EagerFunction):
        # Without ``setup_context``, with which torch would read the signature of ``forward`` at every call.

        @staticmethod
        def forward(ctx: Any, x: Tensor, kernel: Tensor, *options: Any) -> Tensor:
            ctx.options = options
            ctx.save_for_backward(x, kernel)
            return conv(x, kernel, *options)

        backward = staticmethod(conv_backward)

    class _ConvGrads(EagerFunction):
        @staticmethod
        def forward(
            ctx: Any, grad: Tensor, x: Tensor, kernel: Tensor, need_x: bool, need_kernel: bool, *options: Any
        ) -> tuple[Tensor, Tensor]:
            save_grads(ctx, (grad, x, kernel, need_x, need_kernel, *options), None)
            return grads(grad, x, kernel, (need_x, need_kernel), *options)

        backward = staticmethod(grads_backward)

    return apply
