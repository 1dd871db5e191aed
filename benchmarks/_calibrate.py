"""Measure the constants of the cost model behind ``method="auto"``, on a GPU those of CUDA graphs too."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from _measure import machine
from _tables import describe, number, ratio, table

from kernelfield.ops.calibration.fit import Sample, expected, fit_costs
from kernelfield.ops.calibration.shapes import KINDS, Shape, shapes_of
from kernelfield.ops.calibration.timing import least_seconds
from kernelfield.ops.conv.cost import tensor_core_costs
from kernelfield.ops.conv.measured import GRAPH, MODES
from kernelfield.ops.conv.measured import SHIPPED as CONSTANTS
from kernelfield.ops.conv.triton import obstacle

__all__ = ["calibrate"]

METHODS = ("direct", "fft")
#: measurements of a kind with a larger median error count as noise
MOST_ERROR = 0.6


#: (batch, channels, length, points) of depthwise convolutions on tensor cores
TENSOR_CORES = {
    1: ((8, 32, 64, 127), (64, 32, 784, 1567), (100, 140, 784, 113), (64, 140, 1024, 2047), (8, 140, 16384, 4095)),
    2: ((8, 32, 16, 31), (50, 140, 32, 63), (16, 140, 128, 63)),
    3: ((2, 16, 8, 15), (8, 32, 32, 63)),
}


def calibrate(
    device: torch.device, seed: int, kinds: tuple[str, ...] = (), most: int | None = None
) -> tuple[dict[str, Any], str]:
    """Measure, fit, write the constants of this kind of device, and return the measurements and a table.

    Args:
        device: the device.
        seed: recorded with the results.
        kinds: kinds of convolution, such as "1d-dense"; all if empty. Other constants are kept.
        most: number of shapes of each kind; all by default.
    """
    kinds = kinds or KINDS
    samples = [(kind, *measure(shape, device)) for kind in kinds for shape in shapes_of(kind, device.type)[:most]]
    entry: dict[str, Any] = {"machine": machine(device, seed)}
    lines = []
    for mode in tables(device):
        entry[mode] = {method: {} for method in METHODS}
        for kind in kinds:
            chosen = [(shape, times[mode]) for own, shape, times in samples if own == kind]
            fits = {method: fit_costs(method, chosen) for method in METHODS}
            for method, constants in fits.items():
                entry[mode][method][kind] = constants
            lines.append([mode, kind, str(len(chosen)), *judge(fits, chosen)])
    if device.type == "cuda":
        for mode in tables(device):
            for name, costs in tensor_cores(mode, device, kinds).items():
                entry[mode][name] = costs
    header = ["mode", "kind", "shapes", "error direct", "error fft", "auto/best mean", "auto/best worst"]
    text = f"{describe(entry['machine'])}\n\n{table(header, lines)}\n\n{write(_entry_name(device), entry)}"
    raw = [{"case": asdict(shape), "kind": kind, **times} for kind, shape, times in samples]
    return {"machine": entry["machine"], "rows": raw}, text


def tables(device: torch.device) -> tuple[str, ...]:
    """Return the modes to measure."""
    return (*MODES, *(GRAPH + mode for mode in MODES)) if device.type == "cuda" else MODES


def tensor_cores(mode: str, device: torch.device, kinds: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return the costs of tensor cores by precision of the products and kind of convolution."""
    found: dict[str, dict[str, Any]] = {}
    before = torch.get_float32_matmul_precision()
    for dtype, precision in ((torch.bfloat16, "high"), (torch.float32, "high"), (torch.float32, "highest")):
        torch.set_float32_matmul_precision(precision)
        name = tensor_core_costs(dtype)
        for dim, shapes in TENSOR_CORES.items():
            if (kind := f"{dim}d-depthwise") in kinds:
                fitting = [Shape(b, c, (n,) * dim, (k,) * dim, True) for b, c, n, k in shapes]
                samples = [
                    (shape, {name: one(shape, mode, device, dtype)}) for shape in fitting if fits(shape, device, dtype)
                ]
                found.setdefault(name, {})[kind] = fit_costs(name, samples)
    torch.set_float32_matmul_precision(before)
    return found


def fits(shape: Shape, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether there is a layout for this shape in the precision of the moment."""
    x = torch.empty(shape.batch, shape.channels, *shape.lengths, dtype=dtype, device=device)
    kernel = torch.empty(shape.kernel, dtype=dtype, device=device)
    return obstacle(x, kernel, False, ("zero",) * len(shape.lengths)) is None


def one(shape: Shape, mode: str, device: torch.device, dtype: torch.dtype) -> float:
    """Return the seconds of a convolution on tensor cores."""
    print(mode, dtype, shape, file=sys.stderr)
    calls = shape.calls(("triton",), device, dtype, mode.endswith("training"))
    return least_seconds(calls, device, graphs=mode.startswith(GRAPH))["triton"]


def _entry_name(device: torch.device) -> str:
    return "cpu, 1 thread" if device.type == "cpu" and torch.get_num_threads() == 1 else device.type


def measure(shape: Shape, device: torch.device) -> tuple[Shape, dict[str, dict[str, float]]]:
    """Time both methods in both modes."""
    print(shape, file=sys.stderr)
    times = {}
    for mode in tables(device):
        calls = shape.calls(METHODS, device, torch.float32, mode.endswith("training"))
        times[mode] = least_seconds(calls, device, graphs=mode.startswith(GRAPH))
    return shape, times


def judge(fits: dict[str, dict[str, Any]], samples: list[Sample]) -> list[str]:
    """Return how much time is lost by choosing the method by the fits."""
    losses = []
    for shape, times in samples:
        guesses = {method: expected(method, shape, constants) for method, constants in fits.items()}
        losses.append(times[min(guesses, key=guesses.__getitem__)] / min(times.values()))
    errors = [number(fits[method]["error"]) for method in METHODS]
    return [*errors, ratio(float(np.mean(losses))), ratio(max(losses))]


def write(device: str, entry: dict[str, Any]) -> str:
    """Replace the entry of one kind of device, unless its fits are bad, and return a line that says so."""
    modes = [mode for mode in entry if mode != "machine"]
    fits = [fit for mode in modes for kinds in entry[mode].values() for fit in kinds.values()]
    worst = max(fit["error"] for fit in fits)
    if worst > MOST_ERROR:
        return f"Not written: half of some kind's shapes are off by {worst:.0%} and more. Is the machine busy?"
    constants = json.loads(CONSTANTS.read_text())
    old = constants["devices"].get(device, {})
    # Keep the measurements of other scripts.
    for mode in modes:
        before = old.get(mode, {})
        entry[mode] = before | {method: before.get(method, {}) | new for method, new in entry[mode].items()}
    constants["devices"][device] = entry
    text = json.dumps(constants, indent=1)
    # One line per kind, not one per number.
    text = re.sub(r"\{[^{}]*\}|\[[^\[\]]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    CONSTANTS.write_text(text + "\n")
    return f"Written to {CONSTANTS}."
