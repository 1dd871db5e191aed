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

__all__ = ["measure_tensor_cores"]

#: a small and a large signal by number of axes
SIGNALS = {1: ((1, 16, 1024), (64, 64, 1024)), 2: ((1, 16, 32), (64, 64, 32)), 3: ((1, 16, 16), (16, 64, 16))}
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
    for shape in shapes:
        x = torch.empty(shape.batch, shape.channels, *shape.lengths, dtype=dtype, device=device)
        kernel = torch.empty(shape.kernel, dtype=dtype, device=device)
        if obstacle(x, kernel, False, ("zero",) * dim) is not None:
            return False
    name, kind, shipped = tensor_core_costs(dtype), f"{dim}d-depthwise", shipped_costs(device.type)
    for mode in MODES:
        for table in _tables(shipped, mode):
            samples = []
            for shape in shapes:
                calls = shape.calls(("triton",), device, dtype, mode == "training")
                samples.append((shape, {name: least_seconds(calls, device, graphs=table != mode)["triton"]}))
            _keep(costs, shipped, table, name, kind, scale_costs(name, samples, shipped[table][name][kind]))
    return True


def _tables(shipped: dict[str, Any], mode: str) -> list[str]:
    """Return the names of the tables of a mode that have costs of tensor cores."""
    return [table for table in (mode, GRAPH + mode) if table in shipped]


def _scale_like_fft(costs: dict[str, Any], device: torch.device, dtype: torch.dtype, dim: int) -> None:
    shipped, kind, name = shipped_costs(device.type), f"{dim}d-depthwise", tensor_core_costs(dtype)
    for table in (table for mode in MODES for table in _tables(shipped, mode)):
        known, old = shipped[table][name][kind], shipped[table]["fft"][kind]["rates"]
        new = costs.get(table, {}).get("fft", {}).get(kind, {}).get("rates", old)
        factors = [b / a if a and b else 1.0 for a, b in zip(old[:2], new[:2], strict=True)]
        rates = [float(f"{rate * factor:.3g}") for rate, factor in zip(known["rates"], factors, strict=True)]
        _keep(costs, shipped, table, name, kind, {**known, "rates": rates})


def _keep(
    costs: dict[str, Any], shipped: dict[str, Any], table: str, name: str, kind: str, entry: dict[str, Any]
) -> None:
    """Keep the costs of tensor cores; those of three products take as many times one product as on the known GPU."""
    methods = costs.setdefault(table, {})
    methods.setdefault(name, {})[kind] = entry
    if name == tensor_core_costs(SINGLE):
        three = f"{name}, three products"
        (first, rate), (_, one), (_, all_three) = (
            entry["rates"],
            *(shipped[table][key][kind]["rates"] for key in (name, three)),
        )
        methods.setdefault(three, {})[kind] = {"rates": [first, float(f"{rate * all_three / one:.3g}")]}


@contextlib.contextmanager
def _one_product() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
