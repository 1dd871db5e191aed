"""Scores of the estimators on every set in aeon's wheel, beside MiniRocket, an InceptionTime-like network and 1-NN DTW.

    pip install -e '.[train,aeon]'
    python benchmarks/estimators.py --save benchmarks/results/estimators-cpu.json

Ten classification sets (accuracy in percent) and two regression sets (root-mean-square error), with the split of the
archive. Each method gets only the training file, and no method is tuned per set. MiniRocket and the InceptionTime-like
network get series of unequal length stretched to the longest. Seeds that the file holds already are not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _inception import fit_inception
from _measure import machine
from _tables import describe, save, table

from kernelfield import sklearn as ours
from kernelfield.data.sets.series.ts_archive import read_ts

if TYPE_CHECKING:
    from collections.abc import Callable

REGRESSION = ("CardanoSentiment", "Covid3Month")
SETS = (
    "ACSF1", "ArrowHead", "BasicMotions", "CardanoSentiment", "Covid3Month", "Covid3Month_disc", "GunPoint",
    "ItalyPowerDemand", "JapaneseVowels", "OSULeaf", "PickupGestureWiimoteZ", "UnitTest",
)  # fmt: skip
#: steps of the InceptionTime-like network, as many as the CCNN has; fewer of the longest series, which take minutes
STEPS, FEWER_STEPS = 400, {"ACSF1": 150}
#: sets on which networks get one seed: a step takes half a second of one core and more
LONG = ("ACSF1", "OSULeaf")
#: the method that is ranked, and the methods it is compared with
OURS, OTHERS = "CCNN", ("MiniRocket", "Inception", "1-NN DTW")
#: one network, averaged with random kernels in equal shares
ONE = "CCNN, networks=1"


def data_folder() -> Path:
    """Return the folder of the sets inside the installed aeon."""
    import aeon.datasets  # noqa: PLC0415

    return Path(aeon.datasets.__file__).parent / "data"


def read(name: str) -> tuple[Any, np.ndarray, Any, np.ndarray]:
    """Return training series and targets, and test series and targets."""
    found: list[Any] = []
    for part in ("TRAIN", "TEST"):
        series, *_ = read_ts(data_folder() / name / f"{name}_{part}.ts")
        values = [s.values.astype(np.float32) for s in series]
        equal = len({v.shape for v in values}) == 1
        target = np.array([s.label for s in series])
        found += [np.stack(values) if equal else values, target.astype(float) if name in REGRESSION else target]
    return tuple(found)


def stretched(series: Any, length: int) -> np.ndarray:
    """Return (n, channels, length) series, interpolated linearly."""
    at = np.linspace(0, 1, length)
    rows = [[np.interp(at, np.linspace(0, 1, s.shape[1]), channel) for channel in s] for s in series]
    return np.array(rows, dtype=np.float32)


def equal_lengths(x: Any, test: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return training and test series of the length of the longest training series."""
    length = max(s.shape[1] for s in x)
    return stretched(x, length), stretched(test, length)


def mini_rocket(name: str, x: Any, y: np.ndarray, test: Any, seed: int) -> np.ndarray:
    if name in REGRESSION:
        from aeon.regression.convolution_based import MiniRocketRegressor as Kind  # noqa: PLC0415
    else:
        from aeon.classification.convolution_based import MiniRocketClassifier as Kind  # noqa: PLC0415
    x, test = equal_lengths(x, test)
    return Kind(random_state=seed).fit(x, y).predict(test)


def nearest_neighbour(name: str, x: Any, y: np.ndarray, test: Any, seed: int) -> np.ndarray:  # noqa: ARG001
    if name in REGRESSION:
        from aeon.regression.distance_based import KNeighborsTimeSeriesRegressor as Kind  # noqa: PLC0415
    else:
        from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier as Kind  # noqa: PLC0415
    return Kind(n_neighbors=1, distance="dtw").fit(x, y).predict(test)


def inception(name: str, x: Any, y: np.ndarray, test: Any, seed: int) -> np.ndarray:
    x, test = equal_lengths(x, test)
    steps = FEWER_STEPS.get(name, STEPS)
    if name in REGRESSION:
        return fit_inception(x, y, None, steps=steps, seed=seed)(test)
    classes, index = np.unique(y, return_inverse=True)
    return classes[fit_inception(x, index, len(classes), steps=steps, seed=seed)(test).argmax(axis=1)]


def random_kernels(name: str, x: Any, y: np.ndarray, test: Any, seed: int) -> np.ndarray:
    kind = ours.RandomKernelRegressor if name in REGRESSION else ours.RandomKernelClassifier
    return kind(random_state=seed).fit(x, y).predict(test)


def ccnn(name: str, x: Any, y: np.ndarray, test: Any, seed: int) -> np.ndarray:
    kind = ours.CCNNRegressor if name in REGRESSION else ours.CCNNClassifier
    return kind(random_state=seed, device="cpu").fit(x, y).predict(test)


def one_ccnn(name: str, x: Any, y: np.ndarray, test: Any, seed: int) -> np.ndarray:
    kind = ours.CCNNRegressor if name in REGRESSION else ours.CCNNClassifier
    return kind(random_state=seed, device="cpu", networks=1).fit(x, y).predict(test)


METHODS: dict[str, Callable[[str, Any, np.ndarray, Any, int], np.ndarray]] = {
    OURS: ccnn,
    ONE: one_ccnn,
    "RandomKernel": random_kernels,
    "MiniRocket": mini_rocket,
    "Inception": inception,
    "1-NN DTW": nearest_neighbour,
}


def seeds_of(name: str, method: str, most: int) -> int:
    """Return how many seeds a method gets on a set."""
    if method in ("1-NN DTW", ONE) or (name in LONG and method in (OURS, "Inception")):
        return 1
    return most


def measure(name: str, method: str, seed: int) -> tuple[float, float]:
    """Return the accuracy in percent or the error of one fit, and the CPU time of it and its predictions."""
    x, y, test, truth = read(name)
    begin = time.process_time()
    found = METHODS[method](name, x, y, test, seed)
    seconds = time.process_time() - begin
    if name in REGRESSION:
        return float(np.sqrt(np.square(found - truth).mean())), seconds
    return 100 * float((found == truth).mean()), seconds


def ranks(report: dict[str, Any], methods: tuple[str, ...]) -> dict[str, float]:
    """Return the mean rank of each method over the sets that all have; equal scores share their ranks."""
    collected: dict[str, list[float]] = {method: [] for method in methods}
    for name, results in report["sets"].items():
        if any(method not in results for method in methods):
            continue
        better = -1 if name in REGRESSION else 1
        scores = {m: better * round(statistics.mean(results[m]["score"]), 4) for m in methods}
        for method, score in scores.items():
            above, same = (sum(f(other, score) for other in scores.values()) for f in (_greater, _equal))
            collected[method].append(above + (same + 1) / 2)
    return {method: statistics.mean(values) for method, values in collected.items() if values}


def _greater(a: float, b: float) -> bool:
    return a > b


def _equal(a: float, b: float) -> bool:
    return a == b


def rows(report: dict[str, Any]) -> list[list[str]]:
    """Return a row per set: the mean score of each method, with the range of its seeds."""
    found = []
    for name, methods in report["sets"].items():
        digits, cells = 4 if name in REGRESSION else 1, []
        for method in METHODS:
            values = methods.get(method, {}).get("score")
            wide = values and max(values) - min(values) >= 10**-digits
            spread = f" ({min(values):.{digits}f}–{max(values):.{digits}f})" if wide else ""
            cells.append(f"{statistics.mean(values):.{digits}f}{spread}" if values else "–")
        found.append([name, *cells])
    for title, first in (
        ("mean rank of four", OURS),
        ("with one network", ONE),
        ("with random kernels", "RandomKernel"),
    ):
        chosen = (first, *OTHERS)
        places = ranks(report, chosen)
        found.append([title, *(f"{places[m]:.2f}" if m in places else "–" for m in METHODS)])
    times = []
    for method in METHODS:
        spent = [s for sets in report["sets"].values() for s in sets.get(method, {}).get("seconds", [])]
        times.append(f"{statistics.median(spent):.1f} s ({max(spent):.0f} s)" if spent else "–")
    return [*found, ["median (longest) CPU time", *times]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument(
        "--seeds", type=int, default=3, help="at most; one for DTW, for one network, and for networks on long series"
    )
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    import torch  # noqa: PLC0415

    report: dict[str, Any] = {"machine": machine(torch.device("cpu"), 0), "sets": {}}
    if given.save is not None and given.save.exists():
        report["sets"] = json.loads(given.save.read_text())["sets"]
    for method in given.methods:
        for name in given.sets.split(","):
            found = report["sets"].setdefault(name, {}).setdefault(method, {"score": [], "seconds": []})
            for seed in range(len(found["score"]), seeds_of(name, method, given.seeds)):
                score, seconds = measure(name, method, seed)
                found["score"].append(round(score, 4))
                found["seconds"].append(round(seconds, 2))
                print(f"{name} {method} seed {seed}: {score:.4f} in {seconds:.1f} s", flush=True)
                save(report, given.save)
    report["sets"] = {name: report["sets"][name] for name in SETS if name in report["sets"]}
    report["ranks"] = ranks(report, (OURS, *OTHERS))
    save(report, given.save)
    print(describe(report["machine"]))
    print(table(["set", *METHODS], rows(report)))


if __name__ == "__main__":
    main()
