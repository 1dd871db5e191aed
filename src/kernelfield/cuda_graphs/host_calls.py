"""Calls inside a captured function that run on the host: schedules, weight averages, and skipped steps.

A replay runs no Python. Schedules and averages are therefore called outside the graph, in their order in the function:
before the replay if the function calls them before its optimiser steps, else after it.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["HostCalls", "NotReady", "deferred_calls"]

_lock = threading.RLock()


class NotReady(RuntimeError):  # noqa: N818
    """The function does something for the first time and must run eagerly once more before it is recorded."""


class HostCalls:
    """Calls that were left out of a recording, and gradient scalers that it used.

    Args:
        count: returns how many optimiser steps the function has taken so far.
    """

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._calls: list[tuple[int, Callable[[], Any]]] = []
        self._scalers: dict[int, tuple[Any, Any]] = {}
        #: weight averages whose update was left out
        self.averages: list[AveragedModel] = []
        self.before: list[Callable[[], Any]] = []
        self.after: list[Callable[[], Any]] = []

    def add(self, function: Callable[..., Any], owner: Any, args: Any, kwargs: Any) -> None:
        """Record a call to make outside the graph."""
        self._calls.append((self._count(), lambda: function(owner, *args, **kwargs)))
        if isinstance(owner, AveragedModel):
            self.averages.append(owner)

    def save_scaler(self, scaler: Any) -> None:
        """Save the state of a gradient scaler before its first use in the recording."""
        if id(scaler) not in self._scalers:
            states = scaler._per_optimizer_states  # noqa: SLF001
            self._scalers[id(scaler)] = scaler, {key: dict(value) for key, value in states.items()}

    def restore(self) -> None:
        """Restore the state that gradient scalers had before the recording."""
        for scaler, states in self._scalers.values():
            scaler._per_optimizer_states.clear()  # noqa: SLF001
            scaler._per_optimizer_states.update(states)  # noqa: SLF001

    def close(self) -> None:
        """Divide the calls into those before and those after the graph."""
        total = self._count()
        for steps, call in self._calls:
            if 0 < steps < total:
                raise RuntimeError("a schedule or an average is updated between two optimiser steps")
            (self.before if steps == 0 and total > 0 else self.after).append(call)


@contextlib.contextmanager
def deferred_calls(count: Callable[[], int]) -> Iterator[HostCalls]:
    """Leave out calls of schedules and averages inside the block; gradient scalers skip bad steps on the device.

    Args:
        count: returns how many optimiser steps the function has taken so far.
    """
    calls, thread = HostCalls(count), threading.get_ident()

    def defer(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return original(self, *args, **kwargs)
            return calls.add(original, self, args, kwargs)

        return call

    def save_before(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread:
                calls.save_scaler(self)
            return original(self, *args, **kwargs)

        return call

    def decide_on_device(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, optimizer: torch.optim.Optimizer, state: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return original(self, optimizer, state, *args, **kwargs)
            return _step_unless_bad(optimizer, list(state["found_inf_per_device"].values()), args, kwargs)

        return call

    scaler: Any = torch.amp.GradScaler
    with _lock, contextlib.ExitStack() as stack:
        stack.enter_context(_replaced(LRScheduler, "step", defer))
        stack.enter_context(_replaced(AveragedModel, "update_parameters", defer))
        stack.enter_context(_replaced(scaler, "scale", save_before))
        stack.enter_context(_replaced(scaler, "_maybe_opt_step", decide_on_device))
        yield calls


@contextlib.contextmanager
def _replaced(kind: type, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a method of a class and of its subclasses inside the block."""
    family: list[type] = [kind]
    found: list[tuple[type, Any]] = []
    for each in family:
        below: list[type] = each.__subclasses__()
        family += [sub for sub in below if sub not in family]
        if name in vars(each):
            found.append((each, vars(each)[name]))
    for each, original in found:
        setattr(each, name, wrap(original))
    try:
        yield
    finally:
        for each, original in found:
            setattr(each, name, original)


def _step_unless_bad(optimizer: torch.optim.Optimizer, bad: list[Tensor], args: Any, kwargs: Any) -> Any:
    """Take a step and undo it on the device if a gradient was not finite, as a gradient scaler does on the host."""
    tensors = _tensors_of(optimizer)
    before = [t.detach().clone() for t in tensors]
    result = optimizer.step(*args, **kwargs)
    if len(_tensors_of(optimizer)) != len(tensors):
        raise NotReady("the optimiser has not taken a step yet")
    with torch.no_grad():
        failed = torch.stack([b.to(bad[0].device) for b in bad]).sum() > 0
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(failed, old, tensor))
    return result


def _tensors_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    found = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    for state in optimizer.state.values():
        found += [value for value in state.values() if isinstance(value, Tensor)]
    return found
