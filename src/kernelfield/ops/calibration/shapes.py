"""The convolutions to measure, with kernels from one point to lengths at which the FFT is much faster."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..conv import conv
from ..conv.cost import Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["KINDS", "SIGNALS", "Shape", "shapes_of"]

#: points per side of a kernel. One point separates the cost of outputs from that of multiplications. Sizes are close
#: together where libraries switch code. The longest belong to a signal of chapter 2, whose gradients take cuDNN tens of
#: milliseconds
SIDES = {
    1: (1, 3, 5, 7, 9, 11, 13, 15, 31, 63, 127, 511, 1021),
    2: (1, 3, 5, 7, 9, 11, 13, 15, 31),
    3: (1, 3, 5, 7, 9, 13, 15),
}
#: (batch, channels, length) of signals by kind of convolution; some numbers of channels fill vector registers
SIGNALS = {
    "1d-depthwise": (
        *((1, 4, 4096), (1, 64, 256), (8, 16, 256), (4, 32, 1024)),
        *((16, 8, 1024), (2, 20, 4096), (2, 3, 8192), (16, 48, 64)),
    ),
    "1d-dense": (
        *((1, 4, 4096), (1, 64, 256), (8, 16, 256), (4, 32, 1024)),
        *((16, 8, 1024), (2, 20, 2048), (8, 1, 4096), (16, 48, 64)),
        *((2, 10, 1020), (4, 30, 784), (4, 1, 784)),
    ),
    "2d-depthwise": (
        *((1, 8, 64), (8, 4, 16), (4, 32, 32), (1, 64, 28)),
        *((16, 16, 16), (2, 3, 64), (1, 20, 128), (8, 48, 12)),
    ),
    "2d-dense": (
        *((1, 8, 64), (8, 4, 16), (4, 16, 32), (1, 64, 16)),
        *((2, 20, 16), (4, 1, 64), (16, 8, 16), (8, 32, 8)),
    ),
    "3d-depthwise": (
        *((1, 4, 16), (4, 16, 8), (1, 16, 16), (4, 3, 12)),
        *((8, 8, 12), (2, 20, 8), (1, 3, 32), (1, 32, 12)),
    ),
    "3d-dense": (
        *((1, 4, 16), (4, 16, 8), (1, 8, 16), (4, 3, 12)),
        *((1, 12, 12), (8, 1, 16), (8, 8, 12), (1, 3, 24)),
    ),
}
#: factor on the batch; with small batches a GPU would only spend time on launches
LARGER_BATCH = {"cpu": 1, "cuda": 16}
MOST_MULTIPLIES = {"cpu": 2e8, "cuda": 3e10}
KINDS = tuple(SIGNALS)


@dataclass(frozen=True)
class Shape:
    """A centred convolution to measure."""

    batch: int
    channels: int
    lengths: tuple[int, ...]
    points: tuple[int, ...]
    depthwise: bool

    @property
    def groups(self) -> int:
        return self.channels if self.depthwise else 1

    @property
    def kernel(self) -> tuple[int, ...]:
        return (self.channels, self.channels // self.groups, *self.points)

    @property
    def work(self) -> Work:
        """Operation counts for the cost model."""
        middles = tuple((k - 1) // 2 for k in self.points)
        signal = (self.batch, self.channels, *self.lengths)
        return Work.of(signal, self.kernel, middles, [False] * len(self.lengths))

    def calls(
        self, methods: tuple[str, ...], device: torch.device, dtype: torch.dtype, training: bool
    ) -> dict[str, Callable[[], object]]:
        """Return, for each method, a function that computes the output and, for ``training``, both gradients."""
        generator = torch.Generator().manual_seed(0)  # leaves the random state of the process unchanged

        def draw(*size: int) -> Tensor:
            return torch.randn(size, generator=generator).to(device, dtype).requires_grad_(training)

        x, kernel = draw(self.batch, self.channels, *self.lengths), draw(*self.kernel)
        kernel = (kernel.detach() / math.sqrt(math.prod(self.kernel[1:]))).requires_grad_(training)
        grad = x.detach()

        def call(method: str) -> Callable[[], object]:
            def forward() -> object:
                with torch.no_grad():
                    return conv(x, kernel, groups=self.groups, method=method)

            def step() -> object:
                with torch.enable_grad():
                    return torch.autograd.grad(conv(x, kernel, groups=self.groups, method=method), (x, kernel), grad)

            return step if training else forward

        return {method: call(method) for method in methods}


def shapes_of(kind: str, device: str) -> list[Shape]:
    """Return the shapes of one kind, shuffled so that every prefix is a representative sample.

    >>> len(shapes_of("1d-depthwise", "cpu")) > 30
    True
    """
    dim, depthwise = int(kind[0]), kind.endswith("depthwise")
    larger, most = LARGER_BATCH.get(device, LARGER_BATCH["cuda"]), MOST_MULTIPLIES.get(device, MOST_MULTIPLIES["cuda"])
    shapes = [
        Shape(batch * larger, channels, (length,) * dim, (side,) * dim, depthwise)
        for batch, channels, length in SIGNALS[kind]
        for side in SIDES[dim]
        if side < 2 * length
    ]
    shapes = [shape for shape in shapes if shape.work.multiplies <= most]
    random.Random(0).shuffle(shapes)
    return shapes
