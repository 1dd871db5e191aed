"""Accuracy of the estimators on small series sets, beside a plain ridge regression and MiniRocket.

    python benchmarks/estimators.py --data aeon/datasets/data --save benchmarks/results/estimators-cpu.json

The sets are those in aeon's wheel (``pip download aeon --no-deps``, then unpack ``aeon/datasets/data``), in the format
of the UEA and UCR archives, with their own split. Series of unequal length are stretched to the longest for the ridge
regression and for MiniRocket. Each method gets the training file alone.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _measure import machine
from _tables import describe, save, table

from kernelfield.data.sets.series.ts_archive import read_ts
from kernelfield.sklearn import CCNNClassifier, RandomKernelClassifier

if TYPE_CHECKING:
    from collections.abc import Callable

SETS = (
    "ACSF1", "ArrowHead", "BasicMotions", "Covid3Month_disc", "GunPoint", "ItalyPowerDemand", "JapaneseVowels",
    "OSULeaf", "PickupGestureWiimoteZ", "UnitTest",
)  # fmt: skip
ALPHAS = np.logspace(-3, 3, 10)


class MiniRocket:
    """MiniRocket (Dempster et al., 2021): 84 kernels of length 9 at several dilations, shares above thresholds.

    Args:
        features: number of features, about.
        seed: of thresholds and of channel subsets.
    """

    def __init__(self, features: int = 10_000, seed: int = 0) -> None:
        self.features, self.source = features, np.random.default_rng(seed)
        self.positions = list(combinations(range(9), 3))

    def fit(self, x: np.ndarray) -> MiniRocket:
        """Choose dilations, channels and thresholds; ``x`` (n, channels, length)."""
        n, channels, length = x.shape
        per_kernel = max(1, self.features // len(self.positions))
        most = max(0.0, math.log2((length - 1) / 8))
        levels = np.logspace(0, most, min(per_kernel, 32), base=2).astype(int)
        dilations, counts = np.unique(levels, return_counts=True)
        self.plan, index = [], 0
        for dilation, count in zip(dilations, counts, strict=True):
            thresholds = max(1, round(per_kernel * count / counts.sum()))
            for kernel in range(len(self.positions)):
                wanted = int(2 ** self.source.uniform(0, math.log2(min(channels, 9) + 1)))
                subset = self.source.choice(channels, max(1, wanted), replace=False)
                shifted = self._shifted(x[[self.source.integers(n)]], dilation)
                ranks = (np.arange(index + 1, index + 1 + thresholds) * (math.sqrt(5) + 1) / 2) % 1
                bias = np.quantile(self._response(shifted, kernel, subset), ranks)
                index += thresholds
                self.plan.append((dilation, kernel, subset, bias))
        return self

    def transform(self, x: np.ndarray) -> np.ndarray:
        """Return (n, features) shares of positions above the thresholds."""
        found, last, shifted = [], None, x
        for dilation, kernel, subset, bias in self.plan:
            if dilation != last:
                last, shifted = dilation, self._shifted(x, dilation)
            response = self._response(shifted, kernel, subset)
            if kernel % 2 and x.shape[2] > 8 * dilation:  # every other kernel without padding
                response = response[:, 4 * dilation : -4 * dilation]
            found.append((response[:, None] > bias[None, :, None]).mean(axis=2))
        return np.concatenate(found, axis=1)

    @staticmethod
    def _shifted(x: np.ndarray, dilation: int) -> np.ndarray:
        padded = np.pad(x, ((0, 0), (0, 0), (4 * dilation, 4 * dilation)))
        return np.stack([padded[:, :, j * dilation : j * dilation + x.shape[2]] for j in range(9)])

    def _response(self, shifted: np.ndarray, kernel: int, subset: np.ndarray) -> np.ndarray:
        """Weights are -1, and 2 at three of the nine positions."""
        part = shifted[:, :, subset]
        return (3 * part[list(self.positions[kernel])].sum(axis=0) - part.sum(axis=0)).sum(axis=1)


def read(root: Path, name: str) -> tuple[Any, np.ndarray, Any, np.ndarray]:
    """Return training series and classes, and test series and classes."""
    found: list[Any] = []
    for part in ("TRAIN", "TEST"):
        series, *_ = read_ts(root / name / f"{name}_{part}.ts")
        values = [s.values.astype(np.float32) for s in series]
        equal = len({v.shape for v in values}) == 1
        found += [np.stack(values) if equal else values, np.array([s.label for s in series])]
    return tuple(found)


def stretched(series: Any, length: int) -> np.ndarray:
    """Return (n, channels, length) series, interpolated linearly."""
    at = np.linspace(0, 1, length)
    rows = [[np.interp(at, np.linspace(0, 1, s.shape[1]), channel) for channel in s] for s in series]
    return np.array(rows, dtype=np.float32)


def ridge(x: np.ndarray, y: np.ndarray) -> Any:
    """Return a ridge classifier of standardised features."""
    from sklearn.linear_model import RidgeClassifierCV  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    return make_pipeline(StandardScaler(), RidgeClassifierCV(ALPHAS)).fit(x, y)


def plain_ridge(x: Any, y: np.ndarray, test: Any, seed: int) -> np.ndarray:  # noqa: ARG001
    length = max(s.shape[1] for s in x)
    flat, other = (stretched(part, length).reshape(len(part), -1) for part in (x, test))
    return ridge(flat, y).predict(other)


def mini_rocket(x: Any, y: np.ndarray, test: Any, seed: int) -> np.ndarray:
    length = max(s.shape[1] for s in x)
    same, other = stretched(x, length), stretched(test, length)
    rocket = MiniRocket(seed=seed).fit(same)
    return ridge(rocket.transform(same), y).predict(rocket.transform(other))


def random_kernels(x: Any, y: np.ndarray, test: Any, seed: int) -> np.ndarray:
    return RandomKernelClassifier(random_state=seed).fit(x, y).predict(test)


def ccnn(x: Any, y: np.ndarray, test: Any, seed: int) -> np.ndarray:
    return CCNNClassifier(random_state=seed, device="cpu").fit(x, y).predict(test)


METHODS: dict[str, Callable[[Any, np.ndarray, Any, int], np.ndarray]] = {
    "ridge": plain_ridge,
    "MiniRocket": mini_rocket,
    "RandomKernelClassifier": random_kernels,
    "CCNNClassifier": ccnn,
}


def measure(root: Path, name: str, method: str, seeds: int) -> dict[str, Any]:
    """Return accuracies in percent, one per seed, and the mean time of a fit and its predictions."""
    x, y, test, truth = read(root, name)
    begin = time.process_time()
    right = [(METHODS[method](x, y, test, seed) == truth).mean() for seed in range(seeds)]
    accuracies = [round(100 * float(share), 2) for share in right]
    return {"accuracy": accuracies, "seconds": round((time.process_time() - begin) / seeds, 2)}


def rows(report: dict[str, Any]) -> list[list[str]]:
    """Return a row per set: the mean accuracy of each method, with the range of its seeds."""
    found = []
    for name, methods in report["sets"].items():
        cells = []
        for method in METHODS:
            values = methods.get(method, {}).get("accuracy")
            spread = f" ({min(values):.1f}–{max(values):.1f})" if values and len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.1f}{spread}" if values else "–")
        found.append([name, *cells])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with a folder for each set")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=5, help="seeds; the network is trained for at most three")
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    import torch  # noqa: PLC0415

    report: dict[str, Any] = {"machine": machine(torch.device("cpu"), 0), "sets": {}}
    if given.save is not None and given.save.exists():  # other sets or methods than before are added
        report["sets"] = json.loads(given.save.read_text())["sets"]
    for name in given.sets.split(","):
        report["sets"].setdefault(name, {})
        for method in given.methods.split(","):
            seeds = {"ridge": 1, "CCNNClassifier": min(3, given.seeds)}.get(method, given.seeds)
            found = report["sets"][name][method] = measure(given.data, name, method, seeds)
            print(f"{name} {method} {found}", flush=True)
            save(report, given.save)
    print(describe(report["machine"]))
    print(table(["set", *METHODS], rows(report)))


if __name__ == "__main__":
    main()
