"""Training steps captured as CUDA graphs and replayed.

A step of a small network launches a few thousand small kernels, which takes the host longer than the device needs to
run them. A graph is a single launch. Its addresses and shapes are fixed: the batch is copied into static tensors,
learning rates are tensors on the device, and there is one graph for each set of shapes. Shapes change when a mask grows
or shrinks so much that its kernel is sampled on another grid (:class:`DelayedSizes`), and when a learned subset of a
group changes its number of elements.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._cuda_graph import capture, capture_stream
from .._step_hooks import pause_step_hooks
from ..data.base import Batch
from ..groups import Distribution
from ..layers.continuous.learned_size import DelayedSizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["CapturedStep"]

# Eager steps at new shapes before a capture: cuFFT and cuBLAS make plans, autotuned kernels choose a variant.
_WARM_STEPS = 2
_MOST_GRAPHS = 8


class CapturedStep:
    """Run ``work(batch)`` by replaying a CUDA graph of it.

    Work that waits for the device or depends on its results cannot be captured. It runs eagerly from then on, and
    :attr:`refusal` says why.

    Args:
        work: a full step on the device: forward, backward, optimiser. It must change tensors in place.
        network: the network, whose masks and group subsets decide about shapes.
    """

    def __init__(self, work: Callable[[Batch], None], network: nn.Module) -> None:
        self.work, self.network = work, network
        self.refusal = ""
        self._subsets = [m for m in network.modules() if isinstance(m, Distribution)]
        self._sizes = DelayedSizes(network)
        self._measured = self._sizes.measure()
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, Batch]] = {}
        self._met: dict[Any, int] = {}
        self._looked = False
        self._captured = 0
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = capture_stream()

    @property
    def graphs(self) -> int:
        """Number of graphs captured so far."""
        return self._captured

    @property
    def summary(self) -> str:
        """A line for the log: how many graphs there are, or why there are none."""
        return f"steps not captured: {self.refusal}" if self.refusal else f"steps as {self.graphs} CUDA graphs"

    def __call__(self, batch: Batch) -> None:
        """Take a step."""
        sizes = tuple(m.size() for m in self._subsets)
        if None in sizes:
            self.refusal = "the number of elements of a group is drawn at every step"
        if self.refusal:
            self.work(batch)
            return
        if self._looked:
            self._sizes.catch_up()  # an evaluation has updated the sizes
            self._looked = False
        self._sizes.update()
        key = (_signature(batch), self._sizes.shapes, sizes)
        self._met[key] = self._met.get(key, 0) + 1
        if key not in self._graphs and self._met[key] > _WARM_STEPS and not self._capture(key, batch):
            self.work(batch)
            return
        if key in self._graphs:
            graph, static = self._graphs[key]
            _copy(static, batch)
            graph.replay()
        else:
            # On the stream of the capture, where libraries keep their workspaces.
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream), pause_step_hooks():
                self._work(batch)
            # Tables that this step made for all trainings must be ready before another stream reads them.
            torch.cuda.synchronize()
        self._sizes.copy_to_host(self._measured)

    def catch_up(self) -> None:
        """Mark all weights as changed, for code outside of graphs: a replay does not increment their versions."""
        torch.autograd.graph.increment_version([*self.network.parameters(), *self.network.buffers()])
        self._looked = True

    def _work(self, batch: Batch) -> None:
        self.work(batch)
        measured = self._sizes.measure()
        if measured is not None and self._measured is not None:
            self._measured.copy_(measured)

    def _capture(self, key: Any, batch: Batch) -> bool:
        torch.cuda.synchronize()  # the graph that is dropped here must not be running
        if len(self._graphs) >= _MOST_GRAPHS:
            self._graphs.pop(next(iter(self._graphs)))
        static = _clone(batch)
        try:
            with pause_step_hooks():
                graph, _ = capture(lambda: self._work(static), pool=self._pool, stream=self._stream)
        except RuntimeError as error:
            self.refusal = str(error).splitlines()[0]
            self._graphs.clear()
            self.network.zero_grad(set_to_none=True)
            self._sizes.catch_up()
            return False
        self._graphs[key] = (graph, static)
        self._captured += 1
        return True


def _tensors(batch: Batch) -> dict[str, Tensor]:
    values = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _signature(batch: Batch) -> tuple[Any, ...]:
    return (batch.step, *((name, t.shape, t.dtype) for name, t in _tensors(batch).items()))


def _clone(batch: Batch) -> Batch:
    copies: dict[str, Any] = {name: t.clone() for name, t in _tensors(batch).items()}
    return Batch(**copies, step=batch.step)


def _copy(target: Batch, source: Batch) -> None:
    for name, tensor in _tensors(source).items():
        getattr(target, name).copy_(tensor)
