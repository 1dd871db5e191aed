"""Functions that Triton kernels compute, as operators of torch that compilers call without tracing into them.

In eager mode such a function is an autograd function, because the dispatch of an operator takes as long as some of the
kernels. Under torch.compile and torch.export it is a pair of custom operators, one for each pass. The compiler sees
their shapes only, so all kernels of a pass stay together, and CUDA graphs of compiled code contain them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .autograd import contiguous_from_start
from .backend import SINGLE_OR_HALF, traced_fast_paths, without_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["kernel_operator", "use_kernel_operator"]


def use_kernel_operator(x: Tensor) -> bool:
    """Return whether traced code calls a custom operator, for a signal ``x`` on a GPU or in Triton's interpreter.

    >>> use_kernel_operator(torch.zeros(3))  # not traced
    False
    """
    if not torch.compiler.is_compiling() or x.dtype not in SINGLE_OR_HALF or not traced_fast_paths():
        return False
    if torch._C._are_functorch_transforms_active():  # noqa: SLF001  # which do not take custom operators
        return False
    return x.is_cuda or (x.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1")


def kernel_operator(
    name: str,
    arguments: str,
    saved: int,
    inputs: int,
    forward: Callable[..., Sequence[Tensor]],
    backward: Callable[..., Sequence[Tensor | None]],
    shapes: Callable[..., Sequence[Tensor]],
) -> Callable[..., Tensor]:
    """Return a differentiable function for traced code, made of two custom operators.

    Args:
        name: name of the operators, ``kernelfield::name`` and ``kernelfield::name_grads``.
        arguments: their types and names, such as ``"Tensor x, Tensor? weights, bool pairs"``; tensors first.
        saved: number of tensors that the forward pass saves besides its arguments.
        inputs: number of arguments, the first ones, that have a gradient.
        forward: arguments -> result and saved tensors.
        backward: gradient, arguments, saved tensors -> gradient of each of these ``inputs``, None for an absent one.
        shapes: arguments -> empty tensors with the shapes and dtypes of the result and of the saved tensors.
    """
    tensors = sum(part.strip().startswith("Tensor") for part in arguments.split(","))
    kept = "".join(f", Tensor saved{i}" for i in range(saved))
    results = ", ".join(["Tensor"] * (1 + saved))
    gradients = ", ".join(["Tensor"] * inputs)

    def run(*given: Any) -> Any:
        _check(name, given[0])
        return _one_or_all([contiguous_from_start(t) for t in forward(*given)])

    def run_grads(grad: Tensor, *given: Any) -> Any:
        _check(name, grad)
        count = len(given) - saved
        found = backward(grad.contiguous(), *given[:count], *given[count:])
        return _one_or_all([grad.new_empty(0) if t is None else contiguous_from_start(t) for t in found])

    results_op = torch.library.custom_op(
        f"kernelfield::{name}", run, mutates_args=(), schema=f"({arguments}) -> ({results})"
    )
    grads_op = torch.library.custom_op(
        f"kernelfield::{name}_grads",
        run_grads,
        mutates_args=(),
        schema=f"(Tensor grad, {arguments}{kept}) -> ({gradients})",
    )
    results_op.register_fake(lambda *given: _one_or_all(shapes(*given)))

    @grads_op.register_fake
    def _(grad: Tensor, *given: Any) -> Any:
        return _one_or_all([grad.new_empty(0) if t is None else t.new_empty(t.shape) for t in given[:inputs]])

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:tensors], *(output[1:] if saved else ()))
        ctx.options = inputs[tensors:]

    def grads(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        given = ctx.saved_tensors
        found = grads_op(grad, *given[:tensors], *ctx.options, *given[tensors:])
        found = (found,) if inputs == 1 else found
        absent = [None] * (tensors - inputs + len(ctx.options))
        own = [g if t is not None else None for g, t in zip(found, given[:inputs], strict=True)]
        return (*own, *absent)

    results_op.register_autograd(grads, setup_context=save)
    return (lambda *given: results_op(*given)[0]) if saved else results_op


def _one_or_all(tensors: Sequence[Tensor]) -> Any:
    """Return what an operator returns for these results: a tensor, or a tuple of several."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _check(name: str, x: Tensor) -> None:
    """Raise a RuntimeError where Triton kernels do not run: on the machine to which an exported program was moved."""
    reason = without_kernels(x.device)
    if reason is not None:
        raise RuntimeError(f"kernelfield::{name} was traced for a machine with Triton kernels and {reason}")
