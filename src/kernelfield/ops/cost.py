"""The cost model behind ``method="auto"``: a few constants per kind of device, measured, not guessed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .fft import transform_sizes
from .shape import centres, is_symbolic

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Work", "cheapest", "seconds"]

#: written by ``benchmarks/conv.py --calibrate``
CONSTANTS = Path(__file__).with_name("costs.json")
_DEVICES: dict[str, Any] = json.loads(CONSTANTS.read_text())["devices"]


@dataclass(frozen=True)
class Work:
    """What a convolution has to do, by either method.

    Args:
        dim: number of spatial axes.
        depthwise: one input channel a group.
        outputs: number of values computed.
        multiplies: real multiplications of the direct sum.
        butterflies: Σ n log₂ n over all transforms.
        products: complex multiplications between spectra.
    """

    dim: int
    depthwise: bool
    outputs: int
    multiplies: int
    butterflies: float
    products: int

    @classmethod
    def of(
        cls,
        shape: tuple[int, ...],
        kernel_shape: tuple[int, ...],
        middles: tuple[int, ...],
        periodic: list[bool],
    ) -> Work:
        """Count the work of convolving a signal of ``shape`` with a kernel of ``kernel_shape``."""
        batch, channels, *lengths = shape
        out, fan_in, *points = kernel_shape
        sizes = transform_sizes(tuple(lengths), tuple(points), middles, periodic)
        total = math.prod(sizes)
        outputs = batch * out * math.prod(lengths)
        return cls(
            dim=len(lengths),
            depthwise=fan_in == 1,
            outputs=outputs,
            multiplies=outputs * fan_in * math.prod(points),
            butterflies=(batch * (channels + out) + out * fan_in) * total * math.log2(total + 1),
            products=batch * out * fan_in * (total // 2 + 1),
        )


def cheapest(x: Tensor, kernel: Tensor, causal: bool, boundary: tuple[str, ...]) -> str:
    """Return the name of the method expected to be the fastest for this convolution."""
    shape, kernel_shape = tuple(x.shape), tuple(kernel.shape)
    if is_symbolic(*kernel_shape):
        return "fft"  # as long as the input, however long that will be
    # Both methods grow alike with a length or batch that is not known yet, so that its value hardly matters.
    shape = tuple(max(64, n) if is_symbolic(s) else s for s, n in zip(shape, (1, 1, *kernel_shape[2:]), strict=True))
    periodic = [name == "periodic" for name in boundary]
    work = Work.of(shape, kernel_shape, centres(kernel, causal), periodic)
    training = torch.is_grad_enabled() and (x.requires_grad or kernel.requires_grad)
    direct, fft = (seconds(method, work, x.device.type, training) for method in ("direct", "fft"))
    return "direct" if direct <= fft else "fft"


def seconds(method: str, work: Work, device: str, training: bool) -> float:
    """Return the time ``method`` is expected to take, forward or, for ``training``, forward and backward."""
    constants = _DEVICES.get(device, _DEVICES["cuda"])["training" if training else "forward"][method]
    kind = f"{work.dim}d-{'depthwise' if work.depthwise else 'dense'}"
    start, *rates = constants[kind]
    features = (work.multiplies, work.outputs) if method == "direct" else (work.butterflies, work.products)
    return start + sum(rate * feature for rate, feature in zip(rates, features, strict=True))


