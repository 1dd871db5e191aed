"""Data sets of series with any length, with gaps or at irregular times."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..._checks import check_positive
from ..._kinds import LARGEST, SMALLEST
from ..base import Batch, Data, Split, TargetScale, one_step
from ..io.arrays import check_precision, check_times
from ..io.cells import FLOAT32_MAX, as_float
from ..io.files import check_size
from .batch import Chain, Normalize, ScaleTarget
from .fill_values import compare_fill_values
from .group_split import divide_parts
from .series_checks import check_standardize, compare_extent, compare_queries, compare_series_channels
from .split import check_trained, class_index, moments, pad

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Series", "build", "query_targets", "samples_like", "target_of", "task_of"]

#: a grid with more steps than this per measured time is mostly empty and costs more than points
_GRID = 8
#: least number of gaps between times that tell their sampling rate
_ENOUGH = 8


@dataclass(frozen=True)
class Series:
    """One series.

    Args:
        values: (channels, length), NaN where missing.
        label: its class or value, as text.
        times: (length,) times, ascending; None for evenly spaced ones.
        where: its file and line, for errors.
        key: its id in the file.
        at: (queries,) query times; None if it has a label instead.
        query_values: (targets, queries) values at these times, NaN where there is nothing to predict; None if unknown.
        dates: whether its times are dates.
        zoned: whether these dates have a time zone; others are in UTC.
        group: name of the group that stays in one part of the data, such as a patient; empty if there are none.
    """

    values: np.ndarray
    label: str
    times: np.ndarray | None = None
    where: str = ""
    key: str = ""
    at: np.ndarray | None = None
    query_values: np.ndarray | None = None
    dates: bool = False
    zoned: bool = False
    group: str = ""


def build(
    name: str,
    parts: Sequence[Sequence[Series]],
    *,
    task: str = "classification",
    classes: Sequence[str] | None = None,
    channels: Sequence[str] = (),
    columns: Sequence[str] = (),
    targets: Sequence[str] = (),
    shares: tuple[float, float, float] = (0.7, 0.15, 0.15),
    validation_share: float = 0.15,
    unit: float | None = None,
    observed: bool | None = False,
    standardize: bool = False,
    normalize: str = "channel",
    seed: int = 0,
) -> Data:
    """Return a data set of padded, masked and normalised series.

    The mask is False at padded steps and where all channels are missing. A value that is missing in some channels only
    becomes 0, the mean of its channel; ``observed`` adds an indicator for each channel, a channel that is 1 where the
    other was observed. Series whose times are multiples of ``unit`` lie on a grid; the times of others become coords,
    in units.

    Args:
        name: name of the data set.
        parts: one list of series to split; two lists, of training and test series; or three, with validation series
            between.
        task: "classification", "regression", or "dense-regression" for series with query times.
        classes: names of the classes, in order; by default the labels, sorted.
        channels: names of the channels, if known.
        columns: names of the steps, if the series are lines of a table.
        targets: names of the channels to predict at query times, if known.
        shares: shares of training, validation and test data, if there is one list.
        validation_share: share of the training series to hold out for validation, if there are two lists.
        unit: time of one training step; by default the median gap between neighbouring times.
        observed: whether to add these indicators; None adds them if channels are observed at different times.
        standardize: whether to normalise regression targets to zero mean and unit variance over the training series;
            metrics and predictions keep the original unit.
        normalize: whether values are normalised by "channel" or by "step"; see :func:`moments`.
        seed: seed of the split.
    """
    series = [s for part in parts for s in part]
    widths = {s.values.shape[0] for s in series}
    if len(widths) != 1:
        raise ValueError(f"series of {name} must all have the same number of channels, found {sorted(widths)}")
    check_standardize(standardize, task, name)
    coords = dates = None
    if series[0].times is None:
        unit = None
    else:
        dates = series[0].dates
        _check_dates(series, dates)
        series, coords, unit = _place(series, unit, points=True if task == "dense-regression" else None)
        if not SMALLEST <= unit <= LARGEST:
            raise ValueError(
                f"times of {name} must be {SMALLEST:.0e} to {LARGEST:.0e} apart, found a median gap of {unit:.3g}"
            )
    check_precision(np.concatenate([s.values for s in series], axis=1)[None], f"series of {name}")
    values, mask = _padded(series)
    compare_fill_values(values, channels, name, 4)
    if observed is None:
        missing = values.isnan()
        observed = bool((missing.any(dim=1) & ~missing.all(dim=1)).any())
    at: Tensor | None = None
    names: tuple[str, ...] = ()
    if task == "classification":
        target, names = class_index([s.label for s in series], classes)
        if len(names) == 1:
            raise ValueError(f"series of {name} must have labels of at least two classes, found only {names[0]!r}")
    elif task == "dense-regression":
        at, target = _query_times(series, unit or 1.0), query_targets(series)
    else:
        values64 = np.array([[target_of(s)] for s in series])
        check_precision(values64, f"labels of {name}")
        target = torch.from_numpy(values64).float()
    groups = [s.group for s in series] if series[0].group else None
    counts = [len(part) for part in parts]
    index = divide_parts(target, counts, shares, seed, held=validation_share, groups=groups)
    if task == "classification" and len(parts) > 1:
        check_trained(target, index, names, name)
    prepare: Normalize | Chain = Normalize(*moments(values[index[0]], normalize), observed=observed)
    if standardize:
        prepare = Chain((prepare, ScaleTarget(TargetScale.of(target[index[0]]))))
    every = Split(values, target, coords=coords, mask=None if bool(mask.all()) else mask, prepare=prepare, at=at)
    # Points reach from 0 to the last coordinate, both included; query times may lie before and after.
    size = values.shape[-1]
    if coords is not None:
        low, high = (0.0, float(coords.max())) if at is None else (float(at.min()), float(at.max()))
        size = int(np.ceil(max(float(coords.max()), high) - min(0.0, low))) + 1
    return Data.from_splits(
        name,
        [every.take(i) for i in index],
        task,
        in_channels=values.shape[1] * (2 if observed else 1),
        out_channels=len(names) if task == "classification" else target.shape[1],
        size=(size,),
        classes=names,
        channels=tuple(channels),
        unit=unit,
        dates=dates,
        columns=tuple(columns),
        targets=tuple(targets),
        always=_always(values[index[0]], channels),
        reach=() if at is None else (float(at[index[0]].min()), float(at[index[0]].max())),
    )


def _check_dates(series: Sequence[Series], dates: bool) -> None:
    """Raise a ValueError unless the times of all series are dates, or all are numbers: the unit of dates is known."""
    wrong = next((s for s in series if s.dates != dates), None)
    if wrong is not None:
        kinds = ("dates", "numbers") if dates else ("numbers", "dates")
        raise ValueError(f"{wrong.where}: expected times that are {kinds[0]}, like those of training, found {kinds[1]}")


def target_of(series: Series) -> float:
    """Return the label of a series as a finite number, for a regression."""
    value = as_float(series.label)
    if value is None or not abs(value) <= FLOAT32_MAX:
        raise ValueError(f"{series.where}: expected a finite number for a label, found {series.label[:40]!r}")
    return value


def samples_like(data: Data, series: Sequence[Series]) -> Batch:
    """Return series as a raw batch of a data set, on its grid or with coords in its unit.

    Args:
        data: data set of :func:`build`.
        series: series with the number of channels of ``data``.
    """
    width, coords = data.test.inputs.shape[1], None
    found = {s.values.shape[0] for s in series}
    if found != {width}:
        raise ValueError(f"series must have {width} channels, like those of {data.name}, found {sorted(found)}")
    timed = series[0].times is not None
    if timed and data.unit is None:
        raise ValueError(f"series must have no times, like those of {data.name}, found series with times")
    at, step = None, data.test.step
    if timed and data.unit is not None:
        if data.dates is not None:
            _check_dates(series, data.dates)
        unit, factor = data.unit, _other_gap(series, data)
        compare_extent(series, unit, data)
        series, coords, _ = _place(series, unit * factor, points=data.test.coords is not None)
        step = step if factor == 1 else factor * one_step(step)
        at = None if series[0].at is None else _query_times(series, unit)
    values, mask = _padded(series)
    compare_series_channels(values, data, series)
    if at is not None:
        compare_queries(at, data.reach, unit)
    seen = None if data.test.mask is None and bool(mask.all()) else mask
    return Batch(values, coords=coords, mask=seen, at=at, step=step)


def _other_gap(series: Sequence[Series], data: Data) -> float:
    """Return the sampling step of series on a grid in units of the training step, 1 unless all have another one.

    At another sampling rate the network reads them with that step. On the grid of the training, every second value of
    series at half the rate would be missing, and those at twice the rate have no place. Few samples do not tell gaps
    from another rate.
    """
    times = [_since(s.times, s) for s in series if s.times is not None]
    gaps = np.concatenate([np.diff(t) for t in times])
    if data.test.coords is not None or data.unit is None or len(gaps) < _ENOUGH or not (gaps > 0).all():
        return 1.0
    gap = float(np.median(gaps))
    factor = gap / data.unit
    whole = max(factor, 1 / factor)
    even = all(np.abs(t / gap - np.round(t / gap)).max() < 1e-3 for t in times)
    if whole < 1.5 or abs(whole - round(whole)) > 1e-3 * whole or not even:
        return 1.0
    factor = float(round(whole)) if factor > 1 else 1 / round(whole)
    warnings.warn(
        f"times of {series[0].where} and others lie {gap:.6g} apart, and in training {data.unit:.6g}; they are read "
        f"with sampling step {factor:g}",
        stacklevel=4,
    )
    return factor


def _always(values: Tensor, channels: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the channels that have a value in each sample (n, channels, length)."""
    seen = (~values.isnan()).any(dim=2).all(dim=0).tolist()
    return tuple(name for name, known in zip(channels, seen, strict=False) if known)


def _query_times(series: Sequence[Series], unit: float) -> Tensor:
    """Return query times (n, queries, 1) in units since the first time of each series; the last one is repeated."""
    longest = max(0 if s.at is None else len(s.at) for s in series)
    found = np.zeros((len(series), longest, 1))
    for row, s in zip(found, series, strict=True):
        if s.at is None or not len(s.at):
            continue
        steps = _since(s.at, s) / unit
        row[:, 0] = steps[-1]
        row[: len(s.at), 0] = steps
    return torch.from_numpy(found).float()


def _since(times: np.ndarray, series: Series) -> np.ndarray:
    """Return times since the first one of a series. Dates are exact to a microsecond, but float64 seconds are not."""
    since = times if series.times is None else times - series.times[0]
    return np.round(since, 6) if series.dates else since


def query_targets(series: Sequence[Series]) -> Tensor:
    """Return the targets (n, targets, queries) at the query times, NaN where there is nothing to predict."""
    given = [s.query_values for s in series]
    longest = max(0 if a is None else a.shape[1] for a in given)
    widths = {a.shape[0] for a in given if a is not None}
    if len(widths) != 1 or not longest:
        raise ValueError(
            f"series must have query times, and targets in the same number of channels, found {sorted(widths)}"
        )
    found = np.full((len(given), widths.pop(), longest), np.nan, dtype=np.float32)
    for row, a in zip(found, given, strict=True):
        if a is not None:
            row[:, : a.shape[1]] = a
    return torch.from_numpy(found)


def _padded(series: Sequence[Series]) -> tuple[Tensor, Tensor]:
    """Pad the values of series to the longest one; see :func:`~.split.pad`."""
    longest = max(series, key=lambda s: s.values.shape[1])
    check_size(longest.where, 4 * len(series) * longest.values.size)
    return pad([s.values for s in series])


def _place(
    series: Sequence[Series], unit: float | None, points: bool | None = None
) -> tuple[list[Series], Tensor | None, float]:
    """Return series on a grid with gaps, or unchanged with (n, points, 1) coords; and the unit of time.

    By default the times decide whether the series become ``points`` or lie on a grid.
    """
    times = [_since(s.times, s) for s in series if s.times is not None]
    gaps = np.concatenate([np.diff(t) for t in times])
    if not (gaps > 0).all():
        raise ValueError(f"times of a series must ascend, found a step of {gaps[~(gaps > 0)][0]}")
    if unit is not None:
        check_positive("unit", unit)
    else:
        unit = float(np.median(gaps)) if len(gaps) else 1.0
    for s in series:
        if s.times is not None and not s.dates:
            check_times(s.times, unit, s.where)
    steps = [t / unit for t in times]
    longest = max(len(t) for t in steps)
    last = max(float(t[-1]) for t in steps)
    even = all(np.abs(t - np.round(t)).max() < 1e-3 for t in steps)
    if points is False and not even:
        raise ValueError(f"times of a series must be multiples of {unit:g} after its first one, found other times")
    if points is None:
        points = not even or last >= _GRID * longest
    if not points:
        where = max(zip(steps, series, strict=True), key=lambda pair: float(pair[0][-1]))[1].where
        check_size(where, 8 * len(series) * series[0].values.shape[0] * (int(last) + 1))
        placed = []
        for s, t in zip(series, steps, strict=True):
            values = np.full((s.values.shape[0], round(float(t[-1])) + 1), np.nan)
            values[:, np.round(t).astype(int)] = s.values
            placed.append(replace(s, values=values))
        return placed, None, unit
    coords = torch.zeros(len(steps), longest, 1)
    for i, t in enumerate(steps):
        coords[i, : len(t), 0] = torch.from_numpy(t)
        coords[i, len(t) :, 0] = float(t[-1])
    return list(series), coords, unit


def task_of(labels: Iterable[str]) -> str:
    """Return the task that labels suggest: "regression" for numbers of which some are fractions.

    >>> task_of(["1", "2"]), task_of(["fast", "slow"]), task_of(["1", "2.5"])
    ('classification', 'classification', 'regression')
    """
    values = [as_float(label) for label in labels]
    numbers = [value for value in values if value is not None]
    whole = len(numbers) < len(values) or all(value.is_integer() for value in numbers)
    return "classification" if whole else "regression"
