"""Fit the constants of the cost model to measured times."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..conv.cost import predicted, terms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .shapes import Shape

__all__ = ["FEWEST", "Sample", "expected", "fit_costs", "scale_costs"]

#: a shape and the measured seconds of each method
Sample: TypeAlias = "tuple[Shape, dict[str, float]]"
#: logarithmic error beyond which a shape loses weight in a fit
TOLERANCE = 0.5
#: number of shapes below which known constants are scaled instead of fitted
FEWEST = 24


def expected(method: str, shape: Shape, constants: dict[str, Any]) -> float:
    """Return the seconds that ``constants`` predict."""
    return predicted(method, shape.work, constants)


def scale_costs(method: str, samples: Sequence[Sample], known: dict[str, Any]) -> dict[str, Any]:
    """Return known constants times two factors: one for the fixed time of a call, one for all other rates.

    Use it for few shapes, on a device whose libraries behave like those of the known device.
    """
    times = np.array([times[method] for _, times in samples])
    fixed = known["rates"][0]
    counts = np.array([[fixed, expected(method, shape, known) - fixed] for shape, _ in samples])
    first, rest = _fit_rates(counts, times, np.ones(len(times)))
    # A factor that no shape determines is set to the other one.
    first, rest = first or rest, rest or first
    rates = [float(f"{rate * (rest if i else first):.3g}") for i, rate in enumerate(known["rates"])]
    errors = np.log(counts @ np.array([first, rest]) / times)
    return {**known, "rates": rates, "error": round(float(np.median(abs(errors))), 3)}


def fit_costs(method: str, samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the constants of one method for one kind, with their median error."""
    times = np.array([times[method] for _, times in samples])
    # The time of a method matters little if the other one is much faster.
    weights = np.array([min(times.values()) / max(times.values()) for _, times in samples])
    # The longest sides never count as short, so the model predicts longer times for still longer sides.
    shorts = sorted({max(case.points) for case, _ in samples})[:-2] if method == "direct" else [0]
    best: dict[str, Any] = {}
    least = math.inf
    for short in shorts:
        counts = np.array([terms(method, case.work, short) for case, _ in samples], dtype=float)
        rates = _fit_rates(counts, times, weights)
        errors = np.log(counts @ rates / times)
        if (loss := float(weights @ np.log1p((errors / TOLERANCE) ** 2))) < least:
            least = loss
            best = {
                "rates": [float(f"{rate:.3g}") for rate in rates],
                "error": round(float(np.median(abs(errors))), 3),
            }
            best |= {"short": short} if method == "direct" else {}
    return best


def _fit_rates(counts: np.ndarray, times: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return rates of at least zero that minimise Σ w ln(1 + (e / tolerance)²), e = ln(counts · rates / times).

    A shape twice as slow as expected counts as much as one twice as fast, regardless of its size. Outliers, measured
    while the machine was busy with something else, count hardly more than other shapes.
    """
    expected, trust = times, weights
    for _ in range(30):
        # For small errors e² = (expected - times)² / (expected · times), which is linear least squares.
        rows = np.sqrt(trust / (expected * times))
        rates = _nonnegative(counts * rows[:, None], times * rows)
        expected = counts @ rates
        trust = weights / (1 + (np.log(expected / times) / TOLERANCE) ** 2)
    return rates


def _nonnegative(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Solve nonnegative least squares by trying every subset of the few unknowns."""
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
