"""Tables that are made once and used at every step, where CUDA graphs may point to them."""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["capturing", "kept"]

T = TypeVar("T")


def capturing() -> bool:
    """Return whether what runs now is recorded in a CUDA graph, to be replayed later."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


class Kept(Generic[T]):
    """What :func:`kept` returns."""

    def __init__(self, function: Callable[..., T], most: int) -> None:
        functools.update_wrapper(self, function)
        self.function, self.most = function, most
        self.known: OrderedDict[Any, T] = OrderedDict()
        self.pinned: dict[int, T] = {}

    def __call__(self, *key: Any) -> T:
        """Return the value for these arguments, from memory if it is there."""
        recorded = capturing()
        value = self.known.get(key)
        if value is None:
            value = self.function(*key)
            if recorded:
                return value  # which is not there before the graph is replayed
            self.known[key] = value
            _synchronize()
            if len(self.known) > self.most:
                self.known.popitem(last=False)
        else:
            self.known.move_to_end(key)
        if recorded:
            self.pinned[id(value)] = value
        return value

    def cache_clear(self) -> None:
        """Forget all values but those that graphs point to, which are found no more."""
        self.known.clear()


def _synchronize() -> None:
    """Wait for the device: other streams may read a new table at once, and none may still read one that is dropped."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def kept(most: int) -> Callable[[Callable[..., T]], Kept[T]]:
    """Remember the last ``most`` values of a function of positional, hashable arguments.

    As ``functools.lru_cache`` does, but safe to use while a CUDA graph is captured: a graph remembers the addresses of
    the tensors it reads and does not keep them, so that a table which is forgotten would be read after it was freed.
    What is used during a capture is kept for as long as the process runs; what would have to be made during one is made
    by the graph itself, at every replay, and not remembered.

    >>> @kept(2)
    ... def table(n):
    ...     return torch.arange(n)
    >>> table(3) is table(3)
    True
    """
    return lambda function: Kept(function, most)
