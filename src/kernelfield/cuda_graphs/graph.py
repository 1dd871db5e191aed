"""A recorded call of a function, and its replay."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..ops.backend import recorded_launches
from .tree import rebuild

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from torch import Tensor

    from .host_calls import HostCalls
    from .watch import Watch

__all__ = ["Graph", "is_nested", "nesting"]


@dataclass
class Graph:
    """A recording and the tensors at its fixed addresses."""

    replayable: Any
    inputs: list[Tensor]
    results: list[Tensor]
    form: Hashable
    calls: HostCalls
    #: the gradient of each parameter before and after the function
    before: list[Tensor | None]
    after: list[Tensor | None]
    #: parameters and buffers that the function changes
    changed: list[Tensor]

    def replay(self, watch: Watch, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Any:
        """Return the result for other arguments.

        Args:
            watch: the modules and optimisers of the function.
            tensors: the tensors of the arguments.
            gradients: the gradients of the parameters before the call.
        """
        for call in self.calls.before:
            call()
        for optimizer in watch.optimizers.values():
            optimizer.fill()
        with torch.no_grad():
            for target, tensor in zip(self.inputs, tensors, strict=True):
                target.copy_(tensor, non_blocking=True)
            # The graph may add to a gradient at its address, or read it before it replaces it.
            pairs = zip(self.before, gradients, strict=True)
            moved = [(old, new) for old, new in pairs if old is not new and old is not None and new is not None]
            if moved:
                torch._foreach_copy_([old for old, _ in moved], [new for _, new in moved])
        self.replayable.replay()
        for parameter, now, after in zip(watch.parameters, gradients, self.after, strict=True):
            if now is not after:
                parameter.grad = after
        # A replay does not increment the versions of weights, but caches depend on them.
        torch.autograd.graph.increment_version(self.changed)
        results = [t.clone() for t in self.results]
        for call in self.calls.after:
            call()
        return rebuild(self.form, results)


class _Active(threading.local):
    """Whether this thread runs a function that may be captured."""

    def __init__(self) -> None:
        self.value = False


_active = _Active()


def is_nested() -> bool:
    """Return whether this code runs inside a captured function, of whose graph it becomes a part."""
    return _active.value


@contextlib.contextmanager
def nesting() -> Iterator[None]:
    """Run the block as part of a captured function."""
    _active.value = True
    try:
        with recorded_launches():
            yield
    finally:
        _active.value = False
