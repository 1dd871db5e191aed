"""A cache of tables for functions that CUDA graphs may capture."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GraphCache", "capturing", "graph_cache"]

T = TypeVar("T")


def capturing() -> bool:
    """Return whether a CUDA graph is being captured on the current stream."""
    # Nothing is captured before CUDA is initialised, which is faster to check than whether there is a GPU.
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class GraphCache(Generic[T]):
    """A function with a cache of its last values; made by :func:`graph_cache`.

    Args:
        function: a function of positional, hashable arguments.
        size: number of values to remember.
    """

    def __init__(self, function: Callable[..., T], size: int) -> None:
        functools.update_wrapper(self, function)
        self.function, self.size = function, size
        self.entries: OrderedDict[Any, T] = OrderedDict()
        self.pinned: dict[int, T] = {}
        self._lock = threading.Lock()

    def __call__(self, *key: Any) -> T:
        """Return the value for these arguments, from the cache if it is there."""
        # Under a compiler, or a mode such as FakeTensorMode, tensors may have no values.
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():  # noqa: SLF001
            return self.function(*key)
        recorded = torch.cuda.is_initialized() and capturing()  # checked here too: a call less for every convolution
        with self._lock:
            value = self.entries.get(key)
            if value is not None:
                self.entries.move_to_end(key)
        if value is None:
            # A graph's tensors have no values before it is replayed, and those of torch.func end with its transform.
            if recorded or torch._C._are_functorch_transforms_active():  # noqa: SLF001
                return self.function(*key)
            value = self._make(key)
            with self._lock:
                value = self.entries.setdefault(key, value)  # another thread may have added it first
                _synchronize()
                if len(self.entries) > self.size:
                    self.entries.popitem(last=False)
        if recorded:
            self.pinned[id(value)] = value
        return value

    def _make(self, key: tuple[Any, ...]) -> T:
        """Compute a value, on a GPU in a thread of its own.

        Compiled code with CUDA graphs (``mode="reduce-overhead"``) lets all tensors of its thread share memory between
        calls, and refuses to run if one of them stays alive. Memory of another thread is ordinary memory.
        """
        if not torch.cuda.is_initialized():
            return self.function(*key)
        device = torch.cuda.current_device()

        def make() -> T:
            with torch.cuda.device(device):
                return self.function(*key)

        with ThreadPoolExecutor(1, "graph-cache") as thread:
            return thread.submit(copy_context().run, make).result()

    def cache_clear(self) -> None:
        """Drop all values. Pinned values, which graphs read, stay alive but are no longer returned."""
        self.entries.clear()


def _synchronize() -> None:
    """Wait for the device, since another stream may read the new table at once, or still read the dropped one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def graph_cache(size: int) -> Callable[[Callable[..., T]], GraphCache[T]]:
    """Cache the last ``size`` values of a function of positional, hashable arguments.

    It works like ``functools.lru_cache`` but is safe while a CUDA graph is captured. A graph contains the addresses of
    the tensors it reads and does not keep them alive, so it would read a table that was dropped from the cache and
    freed. Values that are used during a capture are therefore kept as long as the process runs. Values that are
    computed during a capture become part of the graph and are not cached.

    Args:
        size: number of values to cache.

    >>> @graph_cache(2)
    ... def table(n):
    ...     return torch.arange(n)
    >>> table(3) is table(3)
    True
    """
    return lambda function: GraphCache(function, size)
