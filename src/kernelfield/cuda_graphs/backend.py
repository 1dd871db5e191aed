"""Recording and replaying work on a CUDA device."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Backend", "CudaBackend", "python_random_state"]


def python_random_state() -> tuple[Any, ...]:
    """Return the random states of Python and NumPy; two values can be compared."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), kind, np.asarray(keys).tobytes(), *rest


class Backend(Protocol):
    """Records work on one device and replays it. Tests replace it by one that records operations on the CPU."""

    #: where graphs run
    device: torch.device

    def rehearsal(self) -> contextlib.AbstractContextManager[None]:
        """Run the block eagerly as it will be recorded."""

    def record(self) -> contextlib.AbstractContextManager[Any]:
        """Record the block and do not run it; the value is an object with ``replay()``."""

    def recover(self) -> None:
        """Make the device usable after a recording that failed."""

    def host_random_state(self) -> Any:
        """Return the random states that a replay cannot advance; two values can be compared."""

    def drop(self) -> None:
        """Wait until no graph is running, so that one may be dropped."""


class CudaBackend:
    """Graphs of the current CUDA device. They share one memory pool and one stream of capture.

    Libraries keep a workspace for each stream, and a graph keeps its address: rehearsals run on the stream of capture,
    and two trainings must not share it. A training with a stream of its own is captured there.
    """

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._pool = torch.cuda.graph_pool_handle()
        own = torch.cuda.current_stream()
        self._stream = torch.cuda.Stream() if own == torch.cuda.default_stream() else own
        self._numbers: Any = None

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        # Tables made in this step may be read on another stream, by another training.
        torch.cuda.synchronize()

    @contextlib.contextmanager
    def record(self) -> Iterator[Any]:
        torch.cuda.synchronize()
        self._numbers = torch.cuda.default_generators[self.device.index].clone_state()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            yield graph

    def recover(self) -> None:
        torch.cuda.synchronize()
        # A recording that fails leaves the random state in its capturing mode, in which nothing eager can draw.
        torch.cuda.default_generators[self.device.index].graphsafe_set_state(self._numbers)

    def host_random_state(self) -> Any:
        return torch.get_rng_state().numpy().tobytes(), *python_random_state()

    def drop(self) -> None:
        torch.cuda.synchronize()
