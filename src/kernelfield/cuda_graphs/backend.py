"""Record and replay work on a CUDA device."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from .recording import capture, capture_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Backend", "CudaBackend", "python_random_state"]


def python_random_state() -> tuple[Any, ...]:
    """Return the random states of Python and NumPy, in a form that can be compared."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), kind, np.asarray(keys).tobytes(), *rest


class Backend(Protocol):
    """Interface that records work on one device and replays it. Tests use a backend that records on the CPU."""

    #: device that runs graphs
    device: torch.device

    def warm_up(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that runs its block eagerly, on the stream on which it will be recorded."""

    def record(self, work: Callable[[], Any]) -> tuple[Any, Any]:
        """Record ``work()`` without running it; return an object with ``replay()``, and the call's result."""

    def host_random_state(self) -> Any:
        """Return the random states on the host, which a replay cannot advance, in a form that can be compared."""

    def follow(self) -> None:
        """Make the current stream wait for earlier replays on other streams, which use the same memory."""

    def drop(self) -> None:
        """Wait until no graph is running, after which graphs may be dropped."""


class CudaBackend:
    """Graphs of the current CUDA device. They share one memory pool and one capture stream."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = capture_stream()
        #: the stream of the last replay
        self._last = self._stream

    @contextlib.contextmanager
    def warm_up(self) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        # Code on another stream, such as a second training, may read tables that this step has made.
        torch.cuda.synchronize()

    def record(self, work: Callable[[], Any]) -> tuple[Any, Any]:
        return capture(work, pool=self._pool, stream=self._stream)

    def host_random_state(self) -> Any:
        return torch.get_rng_state().numpy().tobytes(), *python_random_state()

    def follow(self) -> None:
        current = torch.cuda.current_stream()
        if current != self._last:
            current.wait_stream(self._last)
            self._last = current

    def drop(self) -> None:
        torch.cuda.synchronize()
