"""The position of a stream as a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Clock"]


class Clock:
    """The number of samples so far as a tensor on the device, and indices derived from it.

    Work that takes its position from a clock launches the same kernels on the same tensors for each sample, and can be
    replayed as a CUDA graph. Only the number of blocks that a sample completes must be known to the host.

    Args:
        device: device of the stream.

    >>> clock = Clock(torch.device("cpu"))
    >>> clock.set(6)
    >>> clock.places(ring=4, start=1, size=2).tolist()
    [3, 0]
    """

    def __init__(self, device: torch.device) -> None:
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        #: size of the largest block that the current sample completes, 0 for none
        self.completed = 0
        self._ranges: dict[tuple[int, int], Tensor] = {}
        self._places: dict[tuple[int, int, int], Tensor] = {}

    def set(self, position: int) -> None:
        """Go to a position."""
        self.position.fill_(position)
        self.forget()

    def advance(self) -> None:
        """Move on by one sample."""
        self.position.add_(1)
        self.forget()

    def forget(self) -> None:
        """Drop the cached indices of this position."""
        self._places.clear()

    def places(self, ring: int, start: int = 0, size: int = 1) -> Tensor:
        """Return the indices of ``size`` samples in a ring buffer, the first of them ``start`` samples from now."""
        key = (ring, start, size)
        if key not in self._places:
            now = self.position if (start, size) == (0, 1) else self.position + self._range(start, size)
            self._places[key] = now.remainder(ring)
        return self._places[key]

    def lags(self, block: int) -> Tensor:
        """Return each block sample's row in a table of the lags block - 1 to 0, followed by zeros for later samples."""
        key = (block, 0, 0)
        if key not in self._places:
            self._places[key] = self._range(block - 1, block) - self.places(block)
        return self._places[key]

    def _range(self, start: int, size: int) -> Tensor:
        key = (start, size)
        if key not in self._ranges:
            self._ranges[key] = torch.arange(start, start + size, device=self.position.device)
        return self._ranges[key]
