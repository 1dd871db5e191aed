"""Measure tensor-core convolutions, in order of importance and at a few shapes only, since each must be compiled."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import torch

from ..conv.cost import tensor_core_costs
from ..conv.measured import GRAPH, MODES, shipped_costs
from ..conv.triton import obstacle
from .fit import scale_costs
from .shapes import Shape
from .timing import least_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["has_layout", "measure_tensor_cores"]

#: a small and a large signal by number of axes
SIGNALS = {1: ((1, 16, 1024), (64, 64, 1024)), 2: ((1, 16, 32), (64, 64, 32)), 3: ((1, 16, 16), (16, 64, 16))}
#: cost of three tf32 products, which make a float32 product, relative to a single one: 3 to 4.7 on an H200
THREE = 4.0
SINGLE, HALF = torch.float32, torch.bfloat16


def measure_tensor_cores(costs: dict[str, Any], device: torch.device, share: float) -> str:
    """Measure for about ``share`` seconds, scale all other costs like those of the FFT, and return a line to report."""
    begin, measured = time.perf_counter(), []
    with _one_product():
        for dim in SIGNALS:
            for dtype in (HALF, SINGLE):
                _scale_like_fft(costs, device, dtype, dim)
                if time.perf_counter() - begin <= share and _measure(costs, device, dtype, dim):
                    measured.append(f"{dim}d {str(dtype)[6:]}")
    return f"measured {', '.join(measured)}" if measured else "not measured, scaled like the FFT"


def _measure(costs: dict[str, Any], device: torch.device, dtype: torch.dtype, dim: int) -> bool:
    shapes = [Shape(b, c, (n,) * dim, (2 * n - 1,) * dim, True) for b, c, n in SIGNALS[dim]]
    if not all(has_layout(shape, device, dtype) for shape in shapes):
        return False
    name, kind, shipped = tensor_core_costs(dtype), f"{dim}d-depthwise", shipped_costs(device.type)
    for mode in MODES:
        for table in _tables(shipped, mode, name, kind):
            samples = []
            for shape in shapes:
                calls = shape.calls(("triton",), device, dtype, mode == "training")
                samples.append((shape, {name: least_seconds(calls, device, graphs=table != mode)["triton"]}))
            _keep(costs, table, name, kind, scale_costs(name, samples, shipped[table][name][kind]))
    return True


def has_layout(shape: Shape, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether tensor cores take this shape in the precision of the moment."""
    x = torch.empty(shape.batch, shape.channels, *shape.lengths, dtype=dtype, device=device)
    kernel = torch.empty(shape.kernel, dtype=dtype, device=device)
    return obstacle(x, kernel, False, ("zero",) * len(shape.lengths)) is None


def _tables(shipped: dict[str, Any], mode: str, name: str, kind: str) -> list[str]:
    """Return the names of the tables of a mode that have these costs of tensor cores."""
    return [table for table in (mode, GRAPH + mode) if kind in shipped.get(table, {}).get(name, {})]


def _scale_like_fft(costs: dict[str, Any], device: torch.device, dtype: torch.dtype, dim: int) -> None:
    shipped, kind, name = shipped_costs(device.type), f"{dim}d-depthwise", tensor_core_costs(dtype)
    for table in (table for mode in MODES for table in _tables(shipped, mode, name, kind)):
        known, old = shipped[table][name][kind], shipped[table]["fft"][kind]["rates"]
        new = costs.get(table, {}).get("fft", {}).get(kind, {}).get("rates", old)
        factors = [b / a if a and b else 1.0 for a, b in zip(old[:2], new[:2], strict=True)]
        rates = [float(f"{rate * factor:.3g}") for rate, factor in zip(known["rates"], factors, strict=True)]
        _keep(costs, table, name, kind, {**known, "rates": rates})


def _keep(costs: dict[str, Any], table: str, name: str, kind: str, entry: dict[str, Any]) -> None:
    methods = costs.setdefault(table, {})
    methods.setdefault(name, {})[kind] = entry
    if name == tensor_core_costs(SINGLE):
        first, rate = entry["rates"]
        methods.setdefault(f"{name}, three products", {})[kind] = {"rates": [first, float(f"{THREE * rate:.3g}")]}


@contextlib.contextmanager
def _one_product() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
