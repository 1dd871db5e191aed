"""Measure the constants of the cost model behind ``method="auto"``, on a GPU those of CUDA graphs too."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from _measure import machine
from _tables import describe, number, ratio, table

from kernelfield.ops.calibration.fit import Sample, expected, fit_costs
from kernelfield.ops.calibration.shapes import KINDS, Shape, shapes_of
from kernelfield.ops.calibration.tensor_cores import has_layout
from kernelfield.ops.calibration.timing import least_seconds
from kernelfield.ops.conv.cost import tensor_core_costs
from kernelfield.ops.conv.measured import GRAPH, MODES
from kernelfield.ops.conv.measured import SHIPPED as CONSTANTS

__all__ = ["calibrate", "measure"]

if TYPE_CHECKING:
    from pathlib import Path

METHODS = ("direct", "fft")
#: measurements of a kind with a larger median error count as noise
MOST_ERROR = 0.6


#: (batch, channels, length, points) of depthwise convolutions on tensor cores
TENSOR_CORES = {
    1: ((8, 32, 64, 127), (100, 140, 784, 113), (8, 140, 16384, 4095)),
    2: ((8, 32, 16, 31), (50, 140, 32, 63)),
    3: ((2, 16, 8, 15), (8, 32, 16, 31)),
}


def measure(
    device: torch.device, seed: int, kinds: tuple[str, ...] = (), most: int | None = None, path: Path | None = None
) -> dict[str, Any]:
    """Return the times of all methods, and save them after each shape.

    Args:
        device: the device.
        seed: recorded with the results.
        kinds: kinds of convolution, such as "1d-dense"; all if empty.
        most: number of shapes of each kind; all by default.
        path: where to save.
    """
    report: dict[str, Any] = {"machine": machine(device, seed), "rows": []}
    for kind in kinds or KINDS:
        for shape in shapes_of(kind, device.type)[:most]:
            add(report, kind, shape, times(shape, device, METHODS, torch.float32), path)
    if device.type == "cuda":
        before = torch.get_float32_matmul_precision()
        for dtype, precision in ((torch.float32, "highest"), (torch.bfloat16, "high"), (torch.float32, "high")):
            torch.set_float32_matmul_precision(precision)
            for dim, shapes in TENSOR_CORES.items():
                for shape in [Shape(b, c, (n,) * dim, (k,) * dim, True) for b, c, n, k in shapes]:
                    if (kind := f"{dim}d-depthwise") in (kinds or KINDS) and has_layout(shape, device, dtype):
                        found = times(shape, device, ("triton",), dtype)
                        named = {mode: {tensor_core_costs(dtype): each["triton"]} for mode, each in found.items()}
                        add(report, kind, shape, named, path)
        torch.set_float32_matmul_precision(before)
    return report


def add(report: dict[str, Any], kind: str, shape: Shape, found: dict[str, Any], path: Path | None) -> None:
    report["rows"].append({"case": asdict(shape), "kind": kind, "times": found})
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n")


def tables(device: torch.device) -> tuple[str, ...]:
    """Return the modes to measure."""
    return (*MODES, *(GRAPH + mode for mode in MODES)) if device.type == "cuda" else MODES


def times(
    shape: Shape, device: torch.device, methods: tuple[str, ...], dtype: torch.dtype
) -> dict[str, dict[str, float]]:
    """Return the seconds of the methods in each mode."""
    print(shape, dtype, file=sys.stderr)
    found = {}
    for mode in tables(device):
        calls = shape.calls(methods, device, dtype, mode.endswith("training"))
        found[mode] = least_seconds(calls, device, graphs=mode.startswith(GRAPH))
    return found


def calibrate(report: dict[str, Any]) -> str:
    """Fit the constants of the cost model to measured times and write them; keep all others. Return a table."""
    samples: dict[tuple[str, str], dict[str, list[Sample]]] = {}
    for row in report["rows"]:
        case = row["case"]
        shape = Shape(case["batch"], case["channels"], tuple(case["lengths"]), tuple(case["points"]), case["depthwise"])
        for mode, found in row["times"].items():
            for method in found:
                samples.setdefault((mode, row["kind"]), {}).setdefault(method, []).append((shape, found))
    entry: dict[str, Any] = {}
    lines = []
    for (mode, kind), methods in samples.items():
        fits = {method: fit_costs(method, chosen) for method, chosen in methods.items()}
        for method, constants in fits.items():
            entry.setdefault(mode, {}).setdefault(method, {})[kind] = constants
        lines += judge(mode, kind, fits, methods)
    header = ["mode", "kind", "method", "shapes", "error", "choice/best mean", "choice/best worst"]
    written = write(_entry_name(report["machine"]), report["machine"], entry)
    return f"{describe(report['machine'])}\n\n{table(header, lines)}\n\n{written}"


def _entry_name(machine: dict[str, Any]) -> str:
    return "cpu, 1 thread" if machine["device"] == "cpu" and machine["threads"] == 1 else str(machine["device"])


def judge(mode: str, kind: str, fits: dict[str, dict[str, Any]], samples: dict[str, list[Sample]]) -> list[list[str]]:
    """Return a line for each method: its error, and the time lost where the fits choose between the methods."""
    losses = []
    for shape, found in next(iter(samples.values())):
        guesses = {method: expected(method, shape, fits[method]) for method in found}
        if len(guesses) > 1:
            losses.append(found[min(guesses, key=guesses.__getitem__)] / min(found.values()))
    lost = [ratio(float(np.mean(losses))), ratio(max(losses))] if losses else ["–", "–"]
    return [
        [mode, kind, method, str(len(samples[method])), number(fit["error"]), *(lost if not i else ("", ""))]
        for i, (method, fit) in enumerate(fits.items())
    ]


def write(device: str, measured_on: dict[str, Any], entry: dict[str, Any]) -> str:
    """Replace the constants of one kind of device, unless the fits are bad, and return a line that says so."""
    worst = max(fit["error"] for methods in entry.values() for kinds in methods.values() for fit in kinds.values())
    if worst > MOST_ERROR:
        return f"Not written: half of some kind's shapes are off by {worst:.0%} and more. Is the machine busy?"
    constants = json.loads(CONSTANTS.read_text())
    known = constants["devices"].setdefault(device, {"machine": measured_on})
    for mode, methods in entry.items():
        if mode == MODES[0]:
            known["machine"] = measured_on
        for method, kinds in methods.items():
            known.setdefault(mode, {}).setdefault(method, {}).update(kinds)
    text = json.dumps(constants, indent=1)
    # One line per kind, not one per number.
    text = re.sub(r"\{[^{}]*\}|\[[^\[\]]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    CONSTANTS.write_text(text + "\n")
    return f"Written to {CONSTANTS}."
