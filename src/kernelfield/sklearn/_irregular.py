"""Conversion of series at irregular times to tensors."""

from __future__ import annotations

import warnings
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ..data.io.arrays import check_precision, check_times

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

__all__ = [
    "Points",
    "are_dates",
    "check_gaps",
    "check_same_zones",
    "irregular",
    "is_irregular",
    "median_gap",
    "points_like",
    "query_times",
    "warn_of_lists",
    "with_times",
]

#: ratio of the gaps of new series and those of training above which their unit of time is in doubt
OTHER_UNIT = 50


class Points(NamedTuple):
    """Series at irregular times.

    Attributes:
        values: (n, channels, points), NaN where a channel was not observed and after the end of a series.
        times: (n, points) times in float64; the last one is repeated after the end of a series.
        mask: (n, points) True for points, False after the end of a series.
    """

    values: Tensor
    times: Tensor
    mask: Tensor


def is_irregular(X: Any) -> bool:
    """Return whether X is a list of series with times: pairs (times, values), or dicts of such pairs by channel.

    >>> is_irregular([([0.0, 1.5], [3.0, 4.0])]), is_irregular([[0.0, 1.5], [3.0, 4.0]])
    (True, False)
    """
    X = with_times(X)
    if not isinstance(X, (list, tuple)) or not X:
        return False
    return isinstance(X[0], dict) or (isinstance(X[0], tuple) and len(X[0]) == 2 and np.ndim(X[0][0]) == 1)


def with_times(X: Any) -> Any:
    """Return a list of pandas series whose index holds times as pairs, of data frames as dicts by column.

    An index of dates, durations or floats holds times. Anything else is returned as it is: an index of integers only
    counts the samples.
    """
    first = X[0] if isinstance(X, (list, tuple)) and X else None
    if not (hasattr(first, "index") and hasattr(first, "to_numpy")):
        return X
    if not any(_holds_times(series.index) for series in X if hasattr(series, "index")):
        return X
    return [
        {column: _known(frame.index, frame[column]) for column in frame.columns}
        if hasattr(frame, "columns")
        else (frame.index, frame.to_numpy())
        for frame in X
    ]


def _holds_times(index: Any) -> bool:
    return index.dtype.kind in "mMf" or str(index.dtype).startswith("period")


def _known(index: Any, column: Any) -> tuple[Any, Any]:
    """Return the times and values of a column without its missing values."""
    known = column.notna().to_numpy()
    return index[known], column.to_numpy()[known]


def warn_of_lists(X: Any) -> None:
    """Warn if samples are lists of two rows whose first row rises in every sample: it may be meant as times."""
    if not isinstance(X, list) or not all(isinstance(s, list) and len(s) == 2 and np.ndim(s[0]) == 1 for s in X):
        return
    first = [np.asarray(series[0]) for series in X]
    if all(len(row) > 1 and row.dtype.kind in "iuf" and bool((np.diff(row) > 0).all()) for row in first):
        warnings.warn(
            "X holds series of two channels, the first of which rises in every series; a tuple (times, values) marks "
            "times",
            stacklevel=3,
        )


def median_gap(points: Points) -> float | None:
    """Return the median time between two points; None if no two points have different times."""
    gaps = points.times.diff(dim=1)[points.mask[:, 1:]]
    gaps = gaps[gaps > 0]
    return float(gaps.median()) if len(gaps) else None


def check_gaps(points: Points, unit: float) -> None:
    """Warn if the times of series seem to be in another unit than those of training.

    Args:
        points: the series.
        unit: median time between two points in training.
    """
    gap = median_gap(points)
    if gap is not None and not 1 / OTHER_UNIT < gap / unit < OTHER_UNIT:
        warnings.warn(
            f"the times of X have a median gap of {gap:.3g}, and in training {unit:.3g}; they must have the same unit",
            stacklevel=2,
        )


def are_dates(X: Sequence[Any]) -> bool:
    """Return whether the times of the first series are dates.

    >>> are_dates([(np.array(["2024-01-31"], dtype="M8[D]"), [1.0])]), are_dates([([0.0], [1.0])])
    (True, False)
    """
    first = with_times(X)[0]
    pairs = list(first.values()) if isinstance(first, dict) else [first]
    return bool(pairs) and _clock(pairs[0][0])[1]


def points_like(X: Sequence[Any], name: str, channels: Sequence[Any] | None, *, dates: bool, of: str = "fit") -> Points:
    """Return series with times like :func:`irregular`, which must have the form of earlier ones.

    Args:
        X: the series.
        name: name of the argument in errors.
        channels: names of the channels of the earlier series; None if these were pairs.
        dates: whether the earlier times are dates.
        of: where the earlier series come from, for errors.
    """
    X = with_times(X)
    if isinstance(X[0], dict) != (channels is not None):
        forms = ("pairs (times, values)", "dicts of pairs by channel")
        wanted, got = forms if channels is None else forms[::-1]
        raise ValueError(f"{name} must hold {wanted}, as in {of}, got {got}")
    return irregular(X, name, channels, dates=dates)


def irregular(
    X: Sequence[Any], name: str = "X", channels: Sequence[Any] | None = None, *, dates: bool | None = None
) -> Points:
    """Return series with times as padded tensors; points are sorted by their times.

    Args:
        X: for each series a pair of times (points,) and values (channels, points) or (points,), NaN where a channel was
            not observed; or a dict of such pairs by channel, each channel at its own times. Times at which a series of
            ``X`` has no value at all are left out.
        name: name of the argument in errors.
        channels: names of the channels, for dicts; by default all names, sorted.
        dates: whether times must be dates; by default they must be like those of the first series.
    """
    X = with_times(X)
    dates = are_dates(X) if dates is None else dates
    if isinstance(X[0], dict):
        names = sorted({c for series in X for c in series}, key=str) if channels is None else list(channels)
        unknown = {c for series in X for c in series} - set(names)
        if unknown:
            raise ValueError(f"{name} must have only the channels {names}, got {min(map(str, unknown))!r}")
        pairs = [_merged(series, names, f"{name}[{i}]", dates) for i, series in enumerate(X)]
    else:
        pairs = [_checked(series[0], series[1], f"{name}[{i}]", dates) for i, series in enumerate(X)]
    for i, (_, values) in enumerate(pairs):
        if name == "X" and np.isnan(values).all():
            raise ValueError(f"X[{i}] must hold at least one value, got none")
    if name == "X":  # a time without any value is no sample; as one it would have the mean of each channel
        pairs = [(times[seen], values[:, seen]) for times, values in pairs for seen in [~np.isnan(values).all(axis=0)]]
    widths = {values.shape[0] for _, values in pairs}
    if len(widths) > 1:
        raise ValueError(f"{name} must hold series with the same number of channels, got {sorted(widths)}")
    check_precision(np.concatenate([values for _, values in pairs], axis=1)[None], name)
    gaps = np.concatenate([np.diff(np.unique(times)) for times, _ in pairs])
    for i, (times, _) in enumerate(pairs if len(gaps) else ()):
        check_times(times, float(np.median(gaps)), f"{name}[{i}]")
    longest = max(len(times) for times, _ in pairs)
    found = np.full((len(pairs), widths.pop(), longest), np.nan, dtype=np.float32)
    clock, mask = np.zeros((len(pairs), longest)), np.zeros((len(pairs), longest), dtype=bool)
    for i, (times, values) in enumerate(pairs):
        order = np.argsort(times, kind="stable")
        clock[i] = times[order[-1]]
        clock[i, : len(times)] = times[order]
        found[i, :, : len(times)] = values[:, order]
        mask[i, : len(times)] = True
    return Points(*(torch.from_numpy(a) for a in (found, clock, mask)))


def _clock(times: Any) -> tuple[np.ndarray, bool]:
    """Return times in float64, and whether they are dates; dates become seconds since 1970, durations seconds."""
    array = np.asarray(times)
    if array.dtype.kind == "O" and array.size and all(isinstance(t, date) for t in array.flat):
        _check_zones(array.flat)
        return np.array([_seconds(t) for t in array.flat]).reshape(array.shape), True
    if array.dtype.kind in "Mm":
        # NumPy converts dates to floats in their own unit, days or nanoseconds.
        origin = np.zeros((), f"{array.dtype.kind}8[s]")
        return (array - origin) / np.timedelta64(1, "s"), array.dtype.kind == "M"
    try:
        return array.astype(np.float64), False
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"times of a series must be numbers, datetime64 or Python's dates, got {array.flat[0]!r}"
        ) from error


def _check_zones(times: Iterable[Any]) -> None:
    """Raise a ValueError if only some dates have a time zone: the others would count as UTC."""
    zones = {getattr(t, "tzinfo", None) is not None for t in times}
    if len(zones) > 1:
        raise ValueError("times of a series must all have a time zone, or none of them, got both")


def check_same_zones(X: Sequence[Any], others: Sequence[Any], name: str) -> None:
    """Raise a ValueError if either the dates of a series or those to predict have a time zone: they may be hours apart.

    Args:
        X: the series.
        others: for each of them, a series with the values to predict, or the query times.
        name: name of the second argument in errors.
    """
    for i, (series, other) in enumerate(zip(with_times(X), with_times(others), strict=True)):
        zoned, found = _is_zoned(series), _is_zoned(other)
        if zoned != found:
            kinds = ("with", "without") if zoned else ("without", "with")
            raise ValueError(
                f"{name} must have dates {kinds[0]} a time zone for X[{i}], whose dates have "
                f"{'one' if zoned else 'none'}, got dates {kinds[1]} one"
            )


def _is_zoned(series: Any) -> bool:
    """Return whether the first time of a series, or of an array of times, is a date with a time zone."""
    if isinstance(series, dict):
        series = next((pair for pair in series.values() if len(pair[0])), ((), ()))
    times = np.asarray(series[0] if isinstance(series, tuple) and np.ndim(series[0]) else series)
    return times.dtype.kind == "O" and times.size > 0 and getattr(times.flat[0], "tzinfo", None) is not None


def _seconds(day: date) -> float:
    """Return the seconds of a date since 1970; without a time zone, it is in UTC."""
    moment = day if isinstance(day, datetime) else datetime(day.year, day.month, day.day)
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _check_kind(name: str, found: bool, wanted: bool) -> None:
    """Raise a ValueError if times are dates where numbers are expected, or the reverse."""
    if found != wanted:
        kinds = ("dates", "numbers") if wanted else ("numbers", "dates")
        raise ValueError(f"{name} must have times that are {kinds[0]}, like the other series, got {kinds[1]}")


def _checked(times: Any, values: Any, name: str, dates: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the times and values (channels, points) of one series."""
    try:
        clock, found = _clock(times)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    _check_kind(name, found, dates)
    array = np.asarray(values, dtype=np.float64)
    array = array[None] if array.ndim == 1 else array
    if clock.ndim != 1 or array.ndim != 2 or array.shape[1] != len(clock):
        raise ValueError(
            f"{name} must have times (points,) and values (channels, points), got {clock.shape} and {array.shape}"
        )
    if not len(clock):
        raise ValueError(f"{name} must not be empty, got a series without points")
    if not np.isfinite(clock).all():
        raise ValueError(f"{name} must have finite times, got NaN or infinity")
    if np.isinf(array).any():
        raise ValueError(f"{name} must have finite values, or NaN where one is missing, got infinity")
    return clock, array


def _merged(series: dict[Any, Any], names: Sequence[Any], name: str, dates: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the union of the times of all channels, and values that are NaN where a channel was not observed."""
    each = {c: _checked(pair[0], pair[1], f"{name}[{c!r}]", dates) for c, pair in series.items()}
    if not each:
        raise ValueError(f"{name} must not be empty, got a series without channels")
    if dates:
        _check_zones(np.ravel(np.asarray(pair[0]))[0] for pair in series.values())
    times = np.unique(np.concatenate([clock for clock, _ in each.values()]))
    values = np.full((len(names), len(times)), np.nan)
    for c, (clock, array) in each.items():
        if len(array) != 1 or len(np.unique(clock)) != len(clock):
            raise ValueError(f"{name}[{c!r}] must have one value at each time, got two or more")
        values[list(names).index(c), np.searchsorted(times, clock)] = array[0]
    return times, values


def query_times(at: Any, n: int, dates: bool = False) -> tuple[list[np.ndarray], bool]:
    """Return the query times of each of ``n`` series, and whether they are the same for all.

    Args:
        at: (queries,) times for all series, or a list of the times for each.
        n: number of series.
        dates: whether the times of the series are dates.
    """
    if isinstance(at, str) or not hasattr(at, "__len__"):
        raise TypeError(f"at must be times (queries,), or one such array for each of the {n} series, got {at!r}")
    common = np.ndim(at[0]) == 0 if len(at) else True
    clocks = [_clock(row) for row in ([at] if common else at)]
    for clock, found in clocks:
        if clock.size:
            _check_kind("at", found, dates)
    rows = [clock for clock, _ in clocks] * (n if common else 1)
    if len(rows) != n or any(row.ndim != 1 or not len(row) or not np.isfinite(row).all() for row in rows):
        raise ValueError(
            f"at must be finite times (queries,), or one such array for each of the {n} series, got {at!r}"
        )
    return rows, common
