"""Measure the constants of the cost model behind ``method="auto"``."""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from _convolutions import Case, Problem
from _measure import least_seconds, machine
from _tables import describe, number, ratio, table

from kernelfield.ops.conv.cost import CONSTANTS, terms

if TYPE_CHECKING:
    import torch

__all__ = ["calibrate"]

METHODS = ("direct", "fft")
MODES = ("forward", "training")
#: points of a kernel's side: 1 to tell outputs from multiplies, close together where libraries change their code, and
#: as long as a signal of chapter 2, whose gradients cuDNN takes tens of milliseconds for
SIDES = {1: (1, 3, 7, 13, 15, 31, 63, 127, 511, 1021), 2: (1, 3, 5, 9, 13, 15, 31), 3: (1, 3, 5, 7, 9, 13, 15)}
#: (batch, channels, length) of signals; channels that fill vector registers and some that do not
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
#: a GPU that is not filled measures nothing but its launches
LARGER_BATCH = {"cpu": 1, "cuda": 16}
MOST_MULTIPLIES = {"cpu": 2e8, "cuda": 2e11}
#: a shape that is off by more than this factor, as a logarithm, loses its weight in a fit
TOLERANCE = 0.5
#: above this median error of a kind, measurements are taken for noise
MOST_ERROR = 0.6


def calibrate(device: torch.device, seed: int, kinds: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
    """Measure, fit, write the constants of this kind of device, and return the measurements and a table.

    Args:
        device: the device.
        seed: noted with the results.
        kinds: kinds of convolution, keys of ``SIGNALS``; all if empty. The constants of others stay.
    """
    kinds = kinds or tuple(SIGNALS)
    samples = [measure(case, device) for kind in kinds for case in grid(kind, device.type)]
    entry: dict[str, Any] = {"machine": machine(device, seed)}
    lines = []
    for mode in MODES:
        entry[mode] = {method: {} for method in METHODS}
        for kind in kinds:
            chosen = [(case, times[mode]) for case, times in samples if case.kind == kind]
            fits = {method: fit(method, chosen) for method in METHODS}
            for method, constants in fits.items():
                entry[mode][method][kind] = constants
            lines.append([mode, kind, str(len(chosen)), *judge(fits, chosen)])
    header = ["mode", "kind", "shapes", "error direct", "error fft", "auto/best mean", "auto/best worst"]
    text = f"{describe(entry['machine'])}\n\n{table(header, lines)}\n\n{write(device.type, entry)}"
    raw = [{"case": case.__dict__, "kind": case.kind, **times} for case, times in samples]
    return {"machine": entry["machine"], "rows": raw}, text


def grid(kind: str, device: str) -> list[Case]:
    """Return the shapes of one kind: kernels from one point to where the FFT has long won."""
    dim, depthwise = int(kind[0]), kind.endswith("depthwise")
    cases = [
        Case(batch * LARGER_BATCH[device], channels, (length,) * dim, (side,) * dim, depthwise=depthwise)
        for batch, channels, length in SIGNALS[kind]
        for side in SIDES[dim]
        if side < 2 * length
    ]
    return [case for case in cases if case.work.multiplies <= MOST_MULTIPLIES[device]]


def measure(case: Case, device: torch.device) -> tuple[Case, dict[str, dict[str, float]]]:
    """Time both methods in both modes."""
    print(case, file=sys.stderr)
    problem = Problem(case, device)
    times = {}
    for mode in MODES:
        calls = {method: problem.call(method, mode == "training") for method in METHODS}
        times[mode] = least_seconds(calls, device, budget=0.03)
    return case, times


def fit(method: str, samples: list[tuple[Case, dict[str, float]]]) -> dict[str, Any]:
    """Return the constants of one method for one kind, and how far they miss the median shape."""
    times = np.array([times[method] for _, times in samples])
    # Where the other method is ten times as fast it does not matter how long this one takes.
    weights = np.array([min(times.values()) / max(times.values()) for _, times in samples])
    # The longest sides are never called short, so that longer ones still are expected to take longer.
    shorts = sorted({max(case.points) for case, _ in samples})[:-2] if method == "direct" else [0]
    best: dict[str, Any] = {}
    least = math.inf
    for short in shorts:
        counts = np.array([terms(method, case.work, short) for case, _ in samples], dtype=float)
        rates = fit_rates(counts, times, weights)
        errors = np.log(counts @ rates / times)
        if (loss := float(weights @ np.log1p((errors / TOLERANCE) ** 2))) < least:
            least = loss
            best = {
                "rates": [float(f"{rate:.3g}") for rate in rates],
                "error": round(float(np.median(abs(errors))), 3),
            }
            best |= {"short": short} if method == "direct" else {}
    return best


def fit_rates(counts: np.ndarray, times: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return rates of at least zero that minimise Σ w ln(1 + (e / tolerance)²), e = ln(counts · rates / times).

    A shape twice as slow as expected counts as much as one twice as fast, whatever its size, and one that is
    far off, because the machine was busy with something else, counts hardly more.
    """
    expected, trust = times, weights
    for _ in range(30):
        # For small errors e² = (expected - times)² / (expected · times), which is linear least squares.
        rows = np.sqrt(trust / (expected * times))
        rates = nonnegative(counts * rows[:, None], times * rows)
        expected = counts @ rates
        trust = weights / (1 + (np.log(expected / times) / TOLERANCE) ** 2)
    return rates


def nonnegative(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Solve least squares with no negative unknown: of the few unknowns every subset is tried."""
    columns = matrix.shape[1]
    best, least = np.zeros(columns), math.inf
    norms = np.linalg.norm(matrix, axis=0)
    for count in range(1, columns + 1):
        for subset in itertools.combinations(np.flatnonzero(norms), count):
            some = list(subset)
            solution = np.linalg.lstsq(matrix[:, some] / norms[some], target, rcond=None)[0] / norms[some]
            loss = float(np.sum((matrix[:, some] @ solution - target) ** 2))
            if (solution >= 0).all() and loss < least:
                best, least = np.zeros(columns), loss
                best[some] = solution
    return best


def judge(fits: dict[str, dict[str, Any]], samples: list[tuple[Case, dict[str, float]]]) -> list[str]:
    """Return how well the fits tell the faster method: what is lost by believing them."""
    losses = []
    for case, times in samples:
        expected = {
            method: float(np.dot(constants["rates"], terms(method, case.work, constants.get("short", 0))))
            for method, constants in fits.items()
        }
        losses.append(times[min(expected, key=expected.__getitem__)] / min(times.values()))
    errors = [number(fits[method]["error"]) for method in METHODS]
    return [*errors, ratio(float(np.mean(losses))), ratio(max(losses))]


def write(device: str, entry: dict[str, Any]) -> str:
    """Replace the entry of one kind of device, unless it fits badly, and say so."""
    fits = [fit for mode in MODES for kinds in entry[mode].values() for fit in kinds.values()]
    worst = max(fit["error"] for fit in fits)
    if worst > MOST_ERROR:
        return f"Not written: half of some kind's shapes are off by {worst:.0%} and more. Is the machine busy?"
    constants = json.loads(CONSTANTS.read_text())
    old = constants["devices"].get(device, {})
    # What is measured by other scripts stays.
    for mode in MODES:
        before = old.get(mode, {})
        entry[mode] = before | {method: before.get(method, {}) | entry[mode][method] for method in METHODS}
    constants["devices"][device] = entry
    text = json.dumps(constants, indent=1)
    # One line for the constants of a kind, not one a number.
    text = re.sub(r"\{[^{}]*\}|\[[^\[\]]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    CONSTANTS.write_text(text + "\n")
    return f"Written to {CONSTANTS}."
