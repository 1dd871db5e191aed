"""Measure the constants of the cost model behind ``method="auto"``."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from _measure import least_seconds, machine
from _tables import describe, number, ratio, table

from kernelfield.ops.calibration.fit import Sample, expected, fit_costs
from kernelfield.ops.calibration.shapes import KINDS, Shape, shapes_of
from kernelfield.ops.conv.measured import SHIPPED as CONSTANTS

__all__ = ["calibrate"]

METHODS = ("direct", "fft")
MODES = ("forward", "training")
#: measurements of a kind with a larger median error count as noise
MOST_ERROR = 0.6


def calibrate(device: torch.device, seed: int, kinds: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
    """Measure, fit, write the constants of this kind of device, and return the measurements and a table.

    Args:
        device: the device.
        seed: recorded with the results.
        kinds: kinds of convolution, such as "1d-dense"; all if empty. Other constants are kept.
    """
    kinds = kinds or KINDS
    samples = [(kind, *measure(shape, device)) for kind in kinds for shape in shapes_of(kind, device.type)]
    entry: dict[str, Any] = {"machine": machine(device, seed)}
    lines = []
    for mode in MODES:
        entry[mode] = {method: {} for method in METHODS}
        for kind in kinds:
            chosen = [(shape, times[mode]) for own, shape, times in samples if own == kind]
            fits = {method: fit_costs(method, chosen) for method in METHODS}
            for method, constants in fits.items():
                entry[mode][method][kind] = constants
            lines.append([mode, kind, str(len(chosen)), *judge(fits, chosen)])
    header = ["mode", "kind", "shapes", "error direct", "error fft", "auto/best mean", "auto/best worst"]
    text = f"{describe(entry['machine'])}\n\n{table(header, lines)}\n\n{write(_entry_name(device), entry)}"
    raw = [{"case": asdict(shape), "kind": kind, **times} for kind, shape, times in samples]
    return {"machine": entry["machine"], "rows": raw}, text


def _entry_name(device: torch.device) -> str:
    return "cpu, 1 thread" if device.type == "cpu" and torch.get_num_threads() == 1 else device.type


def measure(shape: Shape, device: torch.device) -> tuple[Shape, dict[str, dict[str, float]]]:
    """Time both methods in both modes."""
    print(shape, file=sys.stderr)
    times = {}
    for mode in MODES:
        calls = shape.calls(METHODS, device, torch.float32, mode == "training")
        times[mode] = least_seconds(calls, device, budget=0.03)
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
    fits = [fit for mode in MODES for kinds in entry[mode].values() for fit in kinds.values()]
    worst = max(fit["error"] for fit in fits)
    if worst > MOST_ERROR:
        return f"Not written: half of some kind's shapes are off by {worst:.0%} and more. Is the machine busy?"
    constants = json.loads(CONSTANTS.read_text())
    old = constants["devices"].get(device, {})
    # Keep the measurements of other scripts.
    for mode in MODES:
        before = old.get(mode, {})
        entry[mode] = before | {method: before.get(method, {}) | entry[mode][method] for method in METHODS}
    constants["devices"][device] = entry
    text = json.dumps(constants, indent=1)
    # One line per kind, not one per number.
    text = re.sub(r"\{[^{}]*\}|\[[^\[\]]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    CONSTANTS.write_text(text + "\n")
    return f"Written to {CONSTANTS}."
