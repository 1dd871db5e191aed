"""PhysioNet 2012 as tensors: ICU stays, measured at irregular times."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["HOURS", "Stays", "load"]

STATIC = ("Age", "Gender", "Height", "ICUType")
HOURS = 48


class Stays(NamedTuple):
    """Stays: (n, 37, points) values and whether each was observed, (n, points) hours, (n, 7) static values, deaths.

    Padding after the last point of a stay has no observation and the hour 48.
    """

    values: Tensor
    observed: Tensor
    hours: Tensor
    static: Tensor
    death: Tensor

    def take(self, index: Tensor) -> Stays:
        """Return some of the stays; the result has the shape of the index first."""
        return Stays(*(t[index] for t in self))

    def to(self, device: torch.device) -> Stays:
        """Return the stays on a device."""
        return Stays(*(t.to(device) for t in self))


def read(path: Path) -> tuple[np.ndarray, ...]:
    """Return (n, 37, points) values with NaN, (n, points) hours, (n, 4) static values and (n,) deaths."""
    held = np.load(path)
    names = [str(name) for name in held["params"]]
    measured = [i for i, name in enumerate(names) if name not in (*STATIC, "RecordID")]
    stay = np.searchsorted(held["ids"], held["record"])
    minute, param, value = held["minute"].astype(np.int64), held["param"], held["value"].astype(np.float64)
    n = len(held["ids"])
    static = np.full((n, len(STATIC)), np.nan)
    for j, name in enumerate(STATIC):
        known = (param == names.index(name)) & (value >= 0)
        static[stay[known], j] = value[known]
    kept = np.isin(param, measured) & (value >= 0)
    stay, minute, param, value = (a[kept] for a in (stay, minute, param, value))
    # One point for each minute of a stay at which anything was measured.
    key, point = np.unique(stay * 10_000 + minute, return_inverse=True)
    first = np.searchsorted(key // 10_000, np.arange(n + 1))
    place = point - first[stay]
    values = np.full((n, len(measured), int(np.diff(first).max())), np.nan)
    values[stay, np.searchsorted(measured, param), place] = value
    hours = np.full((n, values.shape[2]), float(HOURS))
    hours[stay, place] = minute / 60
    return values, hours, static, held["death"].astype(np.float32)


def normal_scores(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the quantiles of values among sorted ``known`` ones as quantiles of a normal distribution.

    Whatever the unit and the tail of a measurement, its scores have zero mean and unit variance. Equal values share the
    middle of their ranks.
    """
    rank = (np.searchsorted(known, values, "left") + np.searchsorted(known, values, "right")) / (2 * len(known))
    scores = torch.special.ndtri(torch.from_numpy(rank.clip(0.001, 0.999))).numpy()
    return np.where(np.isnan(values), np.nan, scores)


def divide(index: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 80 and 20 % of the indices, as scikit-learn's ``train_test_split`` does under this seed."""
    order = np.random.RandomState(seed).permutation(len(index))
    rest = len(index) - int(0.8 * len(index))
    return index[order[rest:]], index[order[:rest]]


def load(path: Path) -> tuple[Stays, Tensor, Tensor]:
    """Return all stays, the indices of the training and validation stays in five equal parts, and of the test stays.

    The first part holds the usual validation stays. Values are normalised by the training stays.
    """
    values, hours, static, death = read(path)
    develop, test = divide(np.arange(len(death)), 42)
    train, held = divide(develop, 11)
    seen = ~np.isnan(values)
    for j in range(values.shape[1]):
        values[:, j] = normal_scores(values[:, j], np.sort(values[train, j][seen[train, j]]))
    about = static[:, :3]
    about = (about - np.nanmean(about[train], axis=0)) / np.nanstd(about[train], axis=0)
    kind = (static[:, 3:] == np.arange(1, 5)).astype(float)
    tensors = (np.nan_to_num(values), seen, hours, np.nan_to_num(np.hstack([about, kind])), death)
    every = Stays(*(torch.from_numpy(np.asarray(t, dtype=bool if t.dtype == bool else np.float32)) for t in tensors))
    parts = np.concatenate([held, train])[: len(develop) // 5 * 5].reshape(5, -1)
    return every, torch.from_numpy(parts), torch.from_numpy(test)
