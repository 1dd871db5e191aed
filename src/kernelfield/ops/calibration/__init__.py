"""Measure the costs of convolutions on a device and store them for later processes."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..conv.cost import predicted
from ..conv.measured import GRAPH, MODES, costs_of, forget, read_record, record_path, shipped_costs, write_record
from .fit import FEWEST, Sample, expected, fit_costs, scale_costs
from .points import measure_points
from .shapes import KINDS, Shape, shapes_of
from .tensor_cores import measure_tensor_cores
from .timing import least_seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Calibration", "calibrate"]

METHODS = ("direct", "fft")
#: median logarithmic error of a kind above which its measurements count as noise
MOST_ERROR = 0.6
#: approximate number of calls that measure a method
CALLS = 8


@dataclass
class Calibration:
    """Measured costs of a device, and a report of the measurement.

    Args:
        costs: measured constants, as :func:`kernelfield.ops.conv.measured.read_record` returns them.
        lines: one line for each part that was measured.
        path: file that holds the costs; None if the cache folder is turned off.
    """

    costs: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    path: Path | None = None


def calibrate(
    device: torch.device,
    seconds: float = 60.0,
    *,
    kinds: tuple[str, ...] = KINDS,
    on_line: Callable[[str], None] | None = None,
) -> Calibration:
    """Measure a device for about ``seconds`` and write its costs after each part.

    An interrupted call keeps the parts that it has measured, and those of an earlier call.

    A short measurement scales the shipped constants; a longer one fits new ones. They are kept only if the methods that
    they choose for the measured shapes are at least as fast as those chosen before. On a GPU about half of the time is
    spent on tensor cores and half precision. This process uses the new costs from then on.

    Args:
        device: a CPU, with the current number of threads, or a GPU.
        seconds: time to spend. A measurement that has begun is always finished.
        kinds: kinds of convolution, such as "1d-depthwise".
        on_line: function that gets a line about each part after it was measured.

    Raises:
        RuntimeError: during the capture of a CUDA graph, under torch.compile, or with deterministic algorithms, whose
            times differ from those of ordinary calls.
    """
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():  # for events and launches
        return _calibrate(device, seconds, kinds, on_line)


def _calibrate(
    device: torch.device, seconds: float, kinds: tuple[str, ...], on_line: Callable[[str], None] | None
) -> Calibration:
    _check_state(device)
    path = record_path(device)
    result = Calibration((read_record(path, device) if path is not None else None) or {})
    _warm_up(device)
    begin = time.perf_counter()
    parts: list[tuple[str, Callable[[float], str]]] = [
        (f"{str(dtype)[6:]} {kind}", _kind_part(result, kind, device, dtype))
        for dtype in (torch.float32, *([torch.bfloat16] if device.type == "cuda" else []))
        for kind in kinds
    ]
    parts.append(("points", lambda _: measure_points(result.costs, device)))
    if device.type == "cuda":
        parts.insert(len(kinds), ("tensor cores", lambda share: measure_tensor_cores(result.costs, device, 3 * share)))
    for done, (name, measure) in enumerate(parts):
        left = seconds - (time.perf_counter() - begin)
        if left <= 0 and done:
            break
        line = f"{name}: {measure(max(left, 0.0) / (len(parts) - done))}"
        result.lines.append(line)
        result.path = write_record(device, result.costs)
        if on_line is not None:
            on_line(line)
    forget()
    return result


def _warm_up(device: torch.device) -> None:
    """Compute one gradient, because torch imports modules and starts threads at the first."""
    with torch.enable_grad():
        x = torch.ones(1, device=device, requires_grad=True)
        torch.autograd.grad(x.exp().sum(), x)


def _check_state(device: torch.device) -> None:
    """Raise a RuntimeError if measuring is impossible now."""
    if torch.compiler.is_compiling():
        raise RuntimeError("costs cannot be measured inside a compiled function")
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("costs cannot be measured while a CUDA graph is captured")
    if torch.are_deterministic_algorithms_enabled():
        raise RuntimeError("costs cannot be measured under torch.use_deterministic_algorithms")


def _kind_part(result: Calibration, kind: str, device: torch.device, dtype: torch.dtype) -> Callable[[float], str]:
    """Return a function that measures one kind of convolution for some seconds and returns a line about it."""

    def measure(share: float) -> str:
        before = costs_of(device.type, device.index)
        target = result.costs if dtype == torch.float32 else result.costs.setdefault("bfloat16", {})
        samples = _measure(kind, device, dtype, share)
        report = []
        for mode in MODES:
            tables = {name: [(shape, found[name]) for shape, found in samples] for name in _tables(mode, device)}
            shipped = shipped_costs(device.type)
            fits = {
                name: {
                    m: _fit(m, times, shipped.get(name, {}).get(m, {}).get(kind) or shipped[mode][m][kind])
                    for m in METHODS
                }
                for name, times in tables.items()
            }
            worst = max(fit["error"] for found in fits.values() for fit in found.values())
            if worst > MOST_ERROR:
                report.append(f"{mode} not kept: half of the shapes are off by {worst:.0%} or more")
                continue
            known = {
                name: {m: before[name][m][kind] for m in METHODS if kind in before[name].get(m, {})}
                for name in tables
                if name in before
            }
            old, new = (_mean_ratio(tables, mode, constants) for constants in (known, fits))
            if new > old:  # a few shapes do not determine all constants
                report.append(f"{mode} {old:.2f}, not changed")
                continue
            for name, found in fits.items():
                for method, constants in found.items():
                    target.setdefault(name, {}).setdefault(method, {})[kind] = constants
            report.append(f"{mode} {old:.2f} → {new:.2f}")
        return f"{len(samples)} shapes, time of the choice / best: {', '.join(report)}"

    return measure


def _tables(mode: str, device: torch.device) -> tuple[str, ...]:
    """Return the names of the tables of a mode: for launched calls and, on a GPU, for CUDA graphs."""
    return (mode, GRAPH + mode) if device.type == "cuda" else (mode,)


def _measure(
    kind: str, device: torch.device, dtype: torch.dtype, share: float
) -> list[tuple[Shape, dict[str, dict[str, float]]]]:
    """Time both methods for all tables, for as many shapes as fit into ``share`` seconds, but at least four.

    Shapes that the device cannot compute are left out; an error of all of them is raised.
    """
    samples: list[tuple[Shape, dict[str, dict[str, float]]]] = []
    refused: Exception | None = None
    begin = time.perf_counter()
    shapes, known = shapes_of(kind, device.type), shipped_costs(device.type)

    def estimate(shape: Shape) -> float:
        return CALLS * sum(expected(m, shape, known[mode][m][kind]) for m in METHODS for mode in MODES)

    short = [shape for shape in shapes if estimate(shape) < share / 4]
    for shape in short if len(short) >= 4 else sorted(shapes, key=estimate)[:4]:
        if len(samples) >= 4 and time.perf_counter() - begin > share:
            break
        try:
            times = {}
            for mode in MODES:
                calls = shape.calls(METHODS, device, dtype, mode == "training")
                for name in _tables(mode, device):
                    times[name] = least_seconds(calls, device, graphs=name != mode)
        except (RuntimeError, MemoryError) as error:  # too large for this device, or refused by a library
            refused = error
            continue
        samples.append((shape, times))
    if not samples and refused is not None:
        raise refused
    return samples


def _fit(method: str, samples: list[Sample], known: dict[str, Any]) -> dict[str, Any]:
    return fit_costs(method, samples) if len(samples) >= FEWEST else scale_costs(method, samples, known)


def _mean_ratio(tables: dict[str, list[Sample]], mode: str, constants: dict[str, dict[str, dict[str, Any]]]) -> float:
    """Return the mean time of the methods that ``constants`` select, relative to the fastest, over all tables."""
    launched, graph = constants[mode], constants.get(GRAPH + mode, {})
    ratios = []
    for name, samples in tables.items():
        for shape, times in samples:
            chosen = min(
                METHODS, key=lambda m: predicted(m, shape.work, launched[m], graph.get(m), launches=name == mode)
            )
            ratios.append(times[chosen] / min(times[method] for method in METHODS))
    return sum(ratios) / len(ratios)
