"""Assertions about models that are compiled, exported, or saved and loaded."""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._kinds import ANY, NOT_NEGATIVE, TEXT, ListOf
from .._object_kinds import IterableOf
from ._compare import assert_close, evaluation, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["assert_compiles", "assert_exports", "assert_state_dict_round_trip", "count_parameters"]


@checked(backend=TEXT, rtol=NOT_NEGATIVE, atol=NOT_NEGATIVE)
def assert_compiles(
    model: Callable[..., Any],
    *args: Any,
    backend: str = "aot_eager",
    dynamic: bool | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    **kwargs: Any,
) -> None:
    """Assert that ``torch.compile(model, fullgraph=True)`` gives the outputs and the gradients of ``model``.

    Gradients are compared for all parameters of a module and for all arguments that require one. The module
    keeps its mode; both calls use the same seed, and buffers are restored.

    Args:
        model: a module or a function of tensors.
        *args: its arguments.
        backend: backend of torch.compile; the default traces forward and backward but generates no code.
        dynamic: option of torch.compile.
        rtol: difference allowed, relative to the largest entry.
        atol: difference allowed on top of that.
        **kwargs: more of its arguments.

    >>> assert_compiles(torch.nn.Linear(3, 2), torch.randn(5, 3))
    >>> assert_compiles(lambda x: x if x.sum() > 0 else -x, torch.randn(5))
    Traceback (most recent call last):
    AssertionError: does not compile as one graph: ...
    """
    torch.compiler.reset()  # graphs of earlier calls count towards the limit on recompilations
    try:
        compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
    except RuntimeError as error:
        raise ValueError(f"backend must be one of torch.compile's, got {backend!r}: {error}") from error
    expected = _outputs_and_gradients(model, model, args, kwargs)
    try:
        got = _outputs_and_gradients(compiled, model, args, kwargs)
    except Exception as error:
        raise AssertionError(f"does not compile as one graph: {error}") from error
    finally:
        torch.compiler.reset()
    for name, wanted in expected.items():
        assert_close(f"compiled {name}", got[name], wanted, rtol, atol)


@checked(
    args=ListOf(ANY, least=0),
    check_args=IterableOf(ListOf(ANY, least=0)),
    dynamic_shapes=ANY,
    rtol=NOT_NEGATIVE,
    atol=NOT_NEGATIVE,
)
def assert_exports(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    dynamic_shapes: Any,
    check_args: Iterable[tuple[Any, ...]],
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """Assert that ``model`` exports with dynamic sizes and that the program is correct at other sizes.

    Args:
        model: a module or a function of tensors.
        args: its arguments, as an example.
        dynamic_shapes: which of their axes are dynamic, one entry per argument, as in ``torch.export``.
        check_args: other arguments, of other sizes, at which program and model are compared.
        rtol: difference allowed, relative to the largest entry.
        atol: difference allowed on top of that.

    >>> length = torch.export.Dim("length")
    >>> assert_exports(torch.sin, (torch.randn(1, 5),), ({1: length},), [(torch.randn(1, 8),)])
    >>> assert_exports(lambda x: x - x[:, 4:], (torch.randn(1, 5),), ({1: length},), [(torch.randn(1, 8),)])
    Traceback (most recent call last):
    AssertionError: does not export with dynamic_shapes=...
    """
    module, shapes = (model, dynamic_shapes) if isinstance(model, nn.Module) else (_Wrapped(model), (dynamic_shapes,))
    try:
        program = torch.export.export(module, args, dynamic_shapes=shapes, strict=False).module()
    except Exception as error:  # many kinds, few of them public
        raise AssertionError(f"does not export with dynamic_shapes={dynamic_shapes}: {error}") from error
    with torch.no_grad():
        for others in (args, *check_args):
            sizes = [tuple(a.shape) if isinstance(a, Tensor) else a for a in others]
            try:
                got = dict(tensors_of(program(*others)))
            except Exception as error:
                raise AssertionError(f"the exported program fails on arguments of sizes {sizes}: {error}") from error
            for name, wanted in tensors_of(model(*others)):
                assert_close(f"exported {name} at sizes {sizes}", got[name], wanted, rtol, atol)


@checked()
def assert_state_dict_round_trip(build: Callable[[], nn.Module], *args: Any, **kwargs: Any) -> None:
    """Assert that a state dict, saved and loaded into a fresh module, gives bitwise equal outputs.

    The first module's parameters are changed first, so that a parameter that is not restored shows.

    Args:
        build: makes the module; called twice.
        *args: arguments of the module.
        **kwargs: more of them.

    >>> assert_state_dict_round_trip(lambda: torch.nn.Linear(3, 2), torch.randn(5, 3))
    """
    first = build()
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.mul_(1 + 0.1 * torch.rand_like(parameter)).add_(0.01 * torch.rand_like(parameter))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = build()
    try:
        second.load_state_dict(torch.load(file, weights_only=True))
    except RuntimeError as error:
        raise AssertionError(f"a fresh module does not accept the state dict: {error}") from error
    with evaluation(first), evaluation(second):
        got = dict(tensors_of(second(*args, **kwargs)))
        for name, wanted in tensors_of(first(*args, **kwargs)):
            assert_close(f"restored {name}", got[name], wanted, 0.0, 0.0)


@checked()
def count_parameters(model: nn.Module, trainable_only: bool = False) -> int:
    """Return the number of parameters, shared ones counted once.

    Args:
        model: any module.
        trainable_only: leave out parameters that require no gradient.

    >>> count_parameters(torch.nn.Linear(3, 2))
    8
    """
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable_only)


class _Wrapped(nn.Module):
    """A function as a module, since torch.export takes modules only."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _outputs_and_gradients(
    call: Callable[..., Any], model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Tensor]:
    module = model if isinstance(model, nn.Module) else nn.Module()
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    arguments = itertools.chain(enumerate(args), kwargs.items())
    sources: dict[str, Tensor] = {
        f"gradient of parameter {n}": p for n, p in module.named_parameters() if p.requires_grad
    }
    sources |= {f"gradient of argument {n}": a for n, a in arguments if isinstance(a, Tensor) and a.requires_grad}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        outputs = dict(tensors_of(call(*args, **kwargs)))
    total = torch.zeros(())
    for y in outputs.values():
        if y.requires_grad:
            # Weights that differ between entries: a plain sum would not see a gradient in the wrong place.
            weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            total = total + (y * weights.to(y)).sum().real.to("cpu", torch.float64)
    gradients: tuple[Tensor | None, ...] = (None,) * len(sources)
    if total.requires_grad and sources:
        gradients = torch.autograd.grad(total, list(sources.values()), allow_unused=True)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
    return outputs | {
        name: torch.zeros_like(source) if gradient is None else gradient
        for (name, source), gradient in zip(sources.items(), gradients, strict=True)
    }
