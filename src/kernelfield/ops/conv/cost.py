"""The cost model of ``method="auto"``, with a few measured constants per device from :mod:`.measured`.

On a GPU the host launches kernels while the device computes earlier ones, so a step takes the longer of both times. Two
tables tell them apart: one of ordinary calls, whose fixed part is the time of the launches, and one of CUDA graphs,
which the host launches at once (:func:`kernelfield.ops.backend.launches_count`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import mul
from typing import TYPE_CHECKING, Any

import torch

from ..._checks import is_symbolic
from ..backend import launches_count
from .fft import transform_sizes
from .measured import GRAPH, costs_of
from .shape import centres
from .triton import obstacle, precision

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Work", "cheapest", "computing_dtype", "predicted", "seconds", "tensor_core_costs", "terms"]

# Float32 values per vector register. Libraries round the number of output channels up to a multiple of it.
_LANES = 16
# Channels per tile of a matrix product on a GPU. Input and output channels are rounded up to full tiles.
_TILE = 32


@dataclass(frozen=True)
class Work:
    """Operation counts of a convolution, for all methods.

    Args:
        dim: number of spatial axes.
        depthwise: whether there are several groups of one input channel each.
        side: number of points along the kernel's longest side.
        outputs: number of output values.
        multiplies: number of real multiplications of the direct sum.
        filled: ``multiplies`` with the number of output channels rounded up to full vector registers.
        tiled: ``multiplies`` with input and output channels rounded up to full tiles; 0 for one input channel per
            group.
        butterflies: Σ n log₂ n over all transforms.
        products: number of complex multiplications of spectra.
        tiles: number of values of the spectra on tensor cores, where all axes but the first are padded.
    """

    dim: int
    depthwise: bool
    side: int
    outputs: int
    multiplies: int
    filled: int
    tiled: int
    butterflies: float
    products: int
    tiles: int

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
        multiplies = outputs * fan_in * math.prod(points)
        return cls(
            dim=len(lengths),
            depthwise=fan_in == 1 and channels > 1,
            side=max(points),
            outputs=outputs,
            multiplies=multiplies,
            filled=multiplies // out * _rounded_up(out, _LANES),
            tiled=0
            if fan_in == 1
            else multiplies // (out * fan_in) * _rounded_up(out, _TILE) * _rounded_up(fan_in, _TILE),
            butterflies=(batch * (channels + out) + out * fan_in) * total * math.log2(total + 1),
            products=batch * out * fan_in * (total // 2 + 1),
            tiles=outputs << sum(not wraps for wraps in periodic[1:]),
        )


def cheapest(x: Tensor, kernel: Tensor, causal: bool, boundary: tuple[str, ...]) -> str:
    """Return the name of the method expected to be the fastest for this convolution."""
    training = torch.is_grad_enabled() and (x.requires_grad or kernel.requires_grad)
    methods, dtype = ["direct", "fft"], computing_dtype(x)
    # On a CPU, Triton runs in its interpreter, which is for tests only.
    if x.device.type == "cuda" and obstacle(x, kernel, causal, boundary, announce=True, dtype=dtype) is None:
        methods.append(tensor_core_costs(dtype))
    return _cheapest(x.shape, kernel.shape, causal, boundary, x.device, training, methods, dtype)


def tensor_core_costs(dtype: torch.dtype) -> str:
    """Return the name of the cost entry for tensor-core products in this dtype."""
    if dtype == torch.bfloat16:
        return "triton"
    # torch.compile cannot read the setting, which rarely changes the choice.
    three = not torch.compiler.is_compiling() and precision(dtype) == "tf32x3"
    return "triton, single, three products" if three else "triton, single"


def computing_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype that a convolution of ``x`` computes in: that of autocast, but float64 for float64.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     computing_dtype(torch.zeros(1)), computing_dtype(torch.zeros(1, dtype=torch.float64))
    (torch.bfloat16, torch.float64)
    """
    casts = x.dtype != torch.float64 and torch.is_autocast_enabled(x.device.type)
    return torch.get_autocast_dtype(x.device.type) if casts else x.dtype


def _cheapest(
    shape: tuple[int, ...],
    kernel_shape: tuple[int, ...],
    causal: bool,
    boundary: tuple[str, ...],
    device: torch.device,
    training: bool,
    methods: list[str],
    dtype: torch.dtype,
) -> str:
    points = tuple(kernel_shape[2:])
    if is_symbolic(*points, *shape):
        if is_symbolic(*points):
            return "fft"  # kernels of symbolic length are as long as the input
        # The times of all methods grow alike with an unknown length or batch size, so its value hardly matters.
        shape = tuple(max(64, n) if is_symbolic(s) else s for s, n in zip(shape, (1, 1, *points), strict=True))
    periodic = [name == "periodic" for name in boundary]
    work = Work.of(shape, tuple(kernel_shape), centres(points, causal), periodic)
    times = [seconds(method, work, device, training, dtype) for method in methods]
    return methods[times.index(min(times))].partition(",")[0]


def seconds(
    method: str, work: Work, device: str | torch.device, training: bool, dtype: torch.dtype = torch.float32
) -> float:
    """Return the expected time of ``method``, forward or, for ``training``, forward and backward.

    In a CUDA graph it is the time on the device; otherwise at least the time of the launches.

    Args:
        method: "direct", "fft" or a name of tensor-core products.
        work: operation counts of the convolution.
        device: a device, or the type of one.
        training: whether the gradients are computed too.
        dtype: dtype of the signal. Half precision has its own costs only if they were measured.
    """
    kind = f"{work.dim}d-{'depthwise' if work.depthwise or method.startswith('triton') else 'dense'}"
    mode = "training" if training else "forward"
    costs = costs_of(device) if isinstance(device, str) else costs_of(device.type, device.index)
    if dtype in (torch.bfloat16, torch.float16) and "bfloat16" in costs:
        costs = costs["bfloat16"]
    constants, graphs = costs[mode][method][kind], costs.get(GRAPH + mode)
    if graphs is None:
        return predicted(method, work, constants)
    return predicted(method, work, constants, graphs.get(method, {}).get(kind), launches_count())


def predicted(
    method: str, work: Work, launched: dict[str, Any], graph: dict[str, Any] | None = None, launches: bool = True
) -> float:
    """Return the time that the constants of a method predict.

    Args:
        method: name of the method.
        work: operation counts of the convolution.
        launched: constants of ordinary calls.
        graph: constants of calls in a CUDA graph; without them, those of ordinary calls less their fixed part.
        launches: whether the time of launches counts.
    """
    constants = launched if graph is None else graph
    counts = terms(method, work, constants.get("short", 0))
    time, fixed = sum(map(mul, constants["rates"], counts)), launched["rates"][0]
    if graph is None:
        return time if launches else time - fixed
    return max(time, fixed) if launches else time


def terms(method: str, work: Work, short: int) -> tuple[float, ...]:
    """Return the terms of the linear model for the time of ``method``.

    Libraries have faster code for kernels of up to ``short`` points per side. The third term of the direct sum is the
    extra time of longer kernels.
    """
    if method == "fft":
        return 1, work.butterflies, work.products
    if method.startswith("triton"):
        return 1, work.tiles
    return 1, work.filled, work.multiplies if work.side > short else 0, work.outputs, work.tiled


def _rounded_up(count: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is at least ``count``."""
    return -(-count // multiple) * multiple
