"""A call that works, of which one argument at a time is replaced."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from kernelfield.layers import GroupSignal

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Call", "backward", "forward_of", "tensors"]


@dataclass(frozen=True)
class Call:
    """A call that works.

    Args:
        name: of the function or class, as in the documentation.
        function: what is called.
        arguments: makes its arguments, by name; new ones for every call.
        use: what a user does with the result. It returns tensors, which must be finite.
        unchecked: arguments that take anything.
        slow: whether it takes seconds, so that it is tried with ``--slow`` alone.
        ends_with: errors that a call whose arguments are accepted may end with: an assertion, or files that are not
            there.
    """

    name: str
    function: Callable[..., Any]
    arguments: Callable[[], dict[str, Any]]
    use: Callable[[Any], Any] = lambda result: result
    unchecked: frozenset[str] = field(default_factory=frozenset)
    ends_with: tuple[type[Exception], ...] = ()
    slow: bool = False

    def __call__(self, **changes: Any) -> Any:
        return self.function(**{**self.arguments(), **changes})

    def annotations(self) -> dict[str, str]:
        """Return the arguments and their annotations; those that the function passes on are among them."""
        parameters = inspect.signature(self.function).parameters.values()
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        return {p.name: _text(p.annotation) for p in named if p.name not in self.unchecked and p.name[0] != "_"}


def forward_of(
    name: str, make: Callable[[], nn.Module], arguments: Callable[[], dict[str, Any]], **kwargs: Any
) -> Call:
    """Return the call of a module's ``forward``, which differentiates too."""
    module = make()
    # The signature is that of forward, whose hooks and checks the call runs too.
    function = _Applied(module)
    function.__signature__ = inspect.signature(module.forward)  # type: ignore[attr-defined]
    return Call(f"{name}.forward", function, arguments, **kwargs)


class _Applied:
    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, **arguments: Any) -> list[Tensor]:
        self.module.zero_grad()
        return backward(self.module, **arguments)


def backward(module: nn.Module, *inputs: Any, **options: Any) -> list[Tensor]:
    """Apply a module, differentiate, and return outputs and gradients."""
    outputs = tensors(module(*inputs, **options))
    total = sum((y.float().square().mean() for y in outputs if y.is_floating_point() and y.numel()), torch.zeros(()))
    if isinstance(total, Tensor) and total.requires_grad:
        total.backward()
    return [*outputs, *(p.grad for p in module.parameters() if p.grad is not None)]


def tensors(result: Any) -> list[Tensor]:
    """Return the tensors in a result."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, GroupSignal):
        return [result.values]
    if isinstance(result, dict):
        return tensors(list(result.values()))
    return [t for part in result for t in tensors(part)] if isinstance(result, (list, tuple)) else []


def _text(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    if isinstance(annotation, str):
        return annotation
    return getattr(annotation, "__forward_arg__", None) or getattr(annotation, "__name__", str(annotation))
