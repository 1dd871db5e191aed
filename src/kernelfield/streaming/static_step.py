"""One sample through a stream's network, as a function of tensors at fixed addresses; on a GPU as CUDA graphs.

The kernels of a single sample are so small that a GPU waits for their launches. A graph launches all of them at once,
but always the same ones on the same tensors. So the position of the stream is a tensor (:class:`.Clock`), and there is
one graph for each set of blocks that a sample can complete: about log₂ of the kernel's length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .clock import Clock
from .layers import OnlineLayer
from .online_conv import BLOCK

if TYPE_CHECKING:
    from ..cuda_graphs.backend import Backend

__all__ = ["PATIENCE", "ReplayedStep", "StaticStep"]

#: single samples that are read eagerly first: capturing graphs takes longer than a short text or clip
PATIENCE = 32


class StaticStep:
    """One sample through a network of streaming layers, with the same operations for each sample.

    Args:
        network: network of a :class:`.Stream`.
        device: device of the network.
    """

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self.network, self.clock = network, Clock(device)
        self._layers = [m for m in network.modules() if isinstance(m, OnlineLayer)]
        self._largest = max((layer.conv.sizes[-1] for layer in self._layers), default=0)
        self._position = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Return (batch, out, 1) for the next sample."""
        time = self._layers[0].conv.time if self._layers else self._position
        if time != self._position:  # blocks were pushed, or a state was loaded, in between
            self.clock.set(time)
        self.clock.completed = self.completed(time + 1)
        y = self.run(x)
        for layer in self._layers:
            layer.conv.time += 1
        self._position = time + 1
        return y

    def run(self, x: Tensor) -> Tensor:
        """Run the step at the clock's position; changes only tensors."""
        for layer in self._layers:
            layer.clock = self.clock
        try:
            y = self.network(x)
            self.clock.advance()
        finally:
            self.clock.forget()
            for layer in self._layers:
                layer.clock = None
        return y

    def completed(self, time: int) -> int:
        """Return the size of the largest block that ends at a time, 0 for none."""
        return 0 if time % BLOCK or not self._layers else min(time & -time, self._largest)


class ReplayedStep(StaticStep):
    """A :class:`StaticStep` on a GPU: eager when a set of blocks is completed for the first time, then a CUDA graph.

    Work that cannot be captured runs eagerly, and :attr:`refusal` says why.

    Args:
        network: network of a :class:`.Stream`.
        backend: records and replays work on the device of the network.
    """

    def __init__(self, network: nn.Module, backend: Backend) -> None:
        super().__init__(network, backend.device)
        self.refusal = ""
        self._backend = backend
        self._graphs: dict[int, tuple[Any, Tensor]] = {}
        self._warmed_up: set[int] = set()
        self._input: Tensor | None = None

    @property
    def graphs(self) -> int:
        """Number of graphs captured so far."""
        return len(self._graphs)

    def run(self, x: Tensor) -> Tensor:
        """Replay the step, or capture it."""
        key = self.clock.completed
        if self._input is None:
            with torch.inference_mode(mode=False):
                self._input = torch.empty_like(x)
        self._input.copy_(x)
        if key in self._warmed_up and key not in self._graphs and not self.refusal:
            self._capture(key, self._input)
        if key in self._graphs:
            graph, y = self._graphs[key]
            graph.replay()
        else:
            self._warmed_up.add(key)
            with self._backend.warm_up():
                y = super().run(self._input)
        return y.clone()  # the next replay overwrites it

    def _capture(self, key: int, x: Tensor) -> None:
        run = super().run
        try:
            self._graphs[key] = self._backend.record(lambda: run(x))
        except RuntimeError as error:
            self.refusal = str(error).splitlines()[0]
            self._graphs.clear()
