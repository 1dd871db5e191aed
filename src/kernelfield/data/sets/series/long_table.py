"""Long tables with one measurement per line (id, time, channel, value), their labels, and their query times."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...io.arrays import as_numbers, read_array
from ...io.cells import compare_names, has_zone, is_date, number, time_of
from ...io.files import read_table
from ...io.parquet import read_parquet
from ...transforms.series import Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "LONG",
    "QueryTimes",
    "aligned",
    "cell_label",
    "check_ids",
    "compare_columns",
    "list_columns",
    "query_last",
    "query_listed",
    "read_cells",
    "read_labels",
    "read_long",
    "read_queries",
    "read_targets",
]  # fmt: skip

#: columns that identify a long table
LONG = {"id", "time", "value"}
#: names of a column of units, in lower case
UNITS = ("unit", "units", "uom", "valueuom")
#: kinds of times
NUMBER, ZONED, UNZONED = "a number", "a date with a time zone", "a date without a time zone"


def list_columns(names: Sequence[str]) -> str:
    """Return column names as text, for errors: the first three and the last two of more than six.

    >>> list_columns(["t0", "t1", "t2", "t3", "t4", "t5", "class"])
    't0, t1, t2, …, t5, class'
    """
    shown = names if len(names) <= 6 else [*names[:3], "…", *names[-2:]]
    return ", ".join(shown) or "nothing"


def read_cells(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows of a CSV, TSV or parquet file.

    The names that identify a long table are in lower case.
    """
    suffix = path.suffix.lower()
    rows = read_parquet(path) if suffix == ".parquet" else read_table(path, "\t" if suffix == ".tsv" else ",")
    names = [name.strip() for name in rows[0]] if rows else []
    mark = next((mark for mark in ";\t" if len(names) == 1 and mark in names[0]), None)
    if mark is not None and suffix == ".csv":
        raise ValueError(f"{path}, line 1: expected commas between cells and decimal points, found {mark!r}")
    if {name.lower() for name in names} >= LONG:
        names = [name.lower() if name.lower() in (*LONG, "channel") else name for name in names]
    return names, rows[1:]


def read_long(
    path: Path,
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    label: str | None,
    nonfinite: str = "refuse",
    labels: Mapping[str, str] | None = None,
) -> tuple[list[Series], list[str]]:
    """Return the series of a long table and the names of their channels.

    Args:
        path: the file, for errors.
        names: names of its columns.
        rows: its rows.
        label: name of the column of labels; None if there is none.
        nonfinite: see :func:`~.csv_series.csv_series`.
        labels: labels by id, from another file.
    """
    column = {name: i for i, name in enumerate(names)}
    if len(column) != len(names):
        twice = next(name for i, name in enumerate(names) if column[name] != i)
        raise ValueError(f"{path}, line 1: expected each column once, found {twice!r} twice")
    dates: str | None = None
    unit = next((i for name, i in column.items() if name.lower() in UNITS), None)
    units: dict[str, str] = {}
    marks: dict[str, str] = {}
    seen: dict[str, dict[float, dict[str, float]]] = {}
    for i, row in enumerate(rows, start=2):
        if not row:
            continue
        if len(row) != len(names):
            raise ValueError(f"{path}, line {i}: expected {len(names)} fields, found {len(row)}")
        key, mark = _name(row[column["id"]], "an id", path, i), ""
        if label is not None:
            mark = cell_label(row[column[label]], path, i)
        if labels is not None and key not in labels:
            raise ValueError(f"{path}, line {i}: expected an id that the file of labels contains, found {key!r}")
        mark = mark if labels is None else labels[key]
        if marks.setdefault(key, mark) != mark:
            raise ValueError(f"{path}, line {i}: expected label {marks[key]!r} for series {key!r}, found {mark!r}")
        time = time_of(row[column["time"]], path, i)
        kind = _kind_of_time(row[column["time"]])
        if dates not in (None, kind):
            raise ValueError(
                f"{path}, line {i}: expected {dates} for a time, as before, found {row[column['time']].strip()!r}"
            )
        dates = kind
        channel = _name(row[column["channel"]], "a channel", path, i) if "channel" in column else "value"
        if unit is not None and units.setdefault(channel, row[unit].strip()) != row[unit].strip():
            raise ValueError(
                f"{path}, line {i}: expected {names[unit]} {units[channel]!r} for {channel!r}, as before, found "
                f"{row[unit].strip()!r}; convert the values"
            )
        at = seen.setdefault(key, {}).setdefault(time, {})
        if channel in at:
            raise ValueError(
                f"{path}, line {i}: expected one value of {channel!r} at time {row[column['time']].strip()}, found two"
            )
        at[channel] = number(row[column["value"]], path, i, channel, column="value", nonfinite=nonfinite)
    if not seen:
        raise ValueError(f"{path} must hold a measurement on each line after the first, found none")
    channels = sorted({c for times in seen.values() for at in times.values() for c in at})
    compare_names(channels, f"{path} has channels")
    series = []
    for key, times in seen.items():
        order = sorted(times)
        values = np.array([[times[t].get(c, np.nan) for t in order] for c in channels])
        if np.isnan(values).all():
            raise ValueError(f"{path}, series {key}: expected at least one value, found none")
        where, dated = f"{path}, series {key}", dates != NUMBER
        series.append(Series(values, marks[key], np.array(order), where, key, dates=dated, zoned=dates == ZONED))
    return series, channels


def _name(text: str, what: str, path: Path, line: int) -> str:
    """Return the text of an id or a channel; raise a ValueError if it is missing, or all missing ones would be one."""
    if text.strip().lower() in ("", "?", "nan"):
        raise ValueError(f"{path}, line {line}: expected {what}, found {text.strip()!r}, a missing value")
    return text.strip()


def _kind_of_time(text: str) -> str:
    """Return the kind of a time: a number, or a date with or without a time zone, which may be hours apart."""
    if not is_date(text):
        return NUMBER
    return ZONED if has_zone(text) else UNZONED


def compare_columns(names: Sequence[str], label: str, path: Path) -> None:
    """Warn of columns of a long table that are not read."""
    known = (*LONG, "channel", label)
    others = [name for name in names if name not in known and name.lower() not in UNITS]
    if others:
        warnings.warn(f"{path}: columns {', '.join(others[:6])} are not read", stacklevel=3)


def aligned(series: Series, found: Sequence[str], channels: Sequence[str]) -> Series:
    """Return a series with all ``channels``; those that are not in ``found`` are missing."""
    if list(found) == list(channels):
        return series
    values = np.full((len(channels), series.values.shape[1]), np.nan)
    for row, name in zip(series.values, found, strict=True):
        values[channels.index(name)] = row
    return replace(series, values=values)


def read_labels(path: Path, label: str) -> dict[str, str]:
    """Return the labels of series by id, from a file with the columns ``id`` and ``label``."""
    names, rows = read_cells(path)
    if "id" not in names or label not in names:
        raise ValueError(f"{path}, line 1: expected columns id and {label}, found {list_columns(names)}")
    place, mark = names.index("id"), names.index(label)
    found: dict[str, str] = {}
    for i, row in enumerate(rows, start=2):
        if not row:
            continue
        if len(row) != len(names):
            raise ValueError(f"{path}, line {i}: expected {len(names)} fields, found {len(row)}")
        key = row[place].strip()
        if key in found:
            raise ValueError(f"{path}, line {i}: expected one label for series {key!r}, found two")
        found[key] = cell_label(row[mark], path, i)
    return found


def cell_label(text: str, path: Path, line: int) -> str:
    """Return a label without surrounding blanks; raise a ValueError if it is missing: empty, ``?`` or ``nan``."""
    if not text.strip():
        raise ValueError(f"{path}, line {line}: expected a label, found none")
    if text.strip().lower() in ("?", "nan"):
        raise ValueError(f"{path}, line {line}: expected a label, found {text.strip()!r}, a missing value")
    return text.strip()


def read_targets(path: Path, nonfinite: str = "refuse") -> tuple[list[Series], list[str]]:
    """Return the series of a long table of measurements to predict, and their channels."""
    names, rows = read_cells(path)
    if not set(names) >= LONG:
        raise ValueError(f"{path}, line 1: expected columns id, time, value, found {list_columns(names)}")
    return read_long(path, names, rows, None, nonfinite)


def query_listed(series: Sequence[Series], queries: Sequence[Series], path: Path) -> list[Series]:
    """Return series with the times and values of other series, of the same ids, as queries.

    Series without queries have nothing to predict and are dropped; :func:`check_ids` warns of them.

    Args:
        series: the series.
        queries: series of :func:`read_targets`.
        path: file of the queries, for errors.
    """
    by_key = {s.key: s for s in queries}
    known = {s.key for s in series}
    unknown = [s.key for s in queries if s.key not in known]
    if len(unknown) == len(queries):
        raise ValueError(f"targets must name series of the data, got {path} with unknown id {unknown[0]!r}")
    if series and queries[0].dates != series[0].dates:
        kinds = ("dates", "numbers") if series[0].dates else ("numbers", "dates")
        raise ValueError(f"targets must have times that are {kinds[0]}, like the data, got {path} with {kinds[1]}")
    if series and queries[0].zoned != series[0].zoned:
        kinds = ("with", "without") if series[0].zoned else ("without", "with")
        raise ValueError(
            f"targets must have dates {kinds[0]} a time zone, like the data, got {path} with dates {kinds[1]} one"
        )
    return [replace(s, at=by_key[s.key].times, query_values=by_key[s.key].values) for s in series if s.key in by_key]


def check_ids(what: str, path: Path, listed: Iterable[str], known: Iterable[str]) -> None:
    """Warn if some series have no labels or targets, or if some ids are not those of series.

    Args:
        what: "labels" or "targets".
        path: their file.
        listed: ids in that file.
        known: ids of all series.
    """
    listed, known = dict.fromkeys(listed), dict.fromkeys(known)
    without, unknown = ([key for key in a if key not in b] for a, b in ((known, listed), (listed, known)))
    lines = []
    if without:
        lines.append(f"{len(without)} of {len(known)} series have no {what} and are left out, such as {without[0]!r}")
    if unknown:
        lines.append(f"{len(unknown)} of {len(listed)} ids are not in the data, such as {unknown[0]!r}")
    if lines:
        warnings.warn(f"{what} of {path}: {'; '.join(lines)}", stacklevel=3)


def query_last(series: Sequence[Series], share: float) -> list[Series]:
    """Return series whose last times and values have become queries.

    Of n times, the last ``share`` · n, at least one, become queries. A series with too few times is dropped, and a
    warning counts them.
    """
    found, dropped = [], []
    for s in series:
        n = s.values.shape[1]
        kept = min(n - 1, round(n * (1 - share)))
        if kept < 1 or s.times is None:
            dropped.append(s.where)
            continue
        values, times = s.values[:, :kept], s.times[:kept]
        found.append(replace(s, values=values, times=times, at=s.times[kept:], query_values=s.values[:, kept:]))
    if not found:
        raise ValueError(f"forecast must leave times to predict from, got {share} for series of one time")
    if dropped:
        warnings.warn(
            f"forecast {share}: {len(dropped)} of {len(series)} series have too few times and are left out, such as "
            f"{dropped[0]}",
            stacklevel=3,
        )
    return found


class QueryTimes:
    """Times at which to predict, common to all series or separate for each.

    Args:
        common: (queries,) times for all series, or (queries, dim) or (n, queries, dim) coordinates.
        by_series: times for each series by its id, instead of ``common``.
        kind: kind of the times: a number, or a date with or without a time zone; None if unknown.
    """

    def __init__(
        self,
        common: np.ndarray | None = None,
        by_series: Mapping[str, np.ndarray] | None = None,
        kind: str | None = None,
    ) -> None:
        self.common, self.by_series, self.kind = common, by_series, kind
        self._found: set[str] = set()
        for times in (common,) if by_series is None else by_series.values():
            if times is None or times.size == 0 or not np.isfinite(times).all():
                shown = "none" if times is None or times.size == 0 else "NaN or infinity"
                raise ValueError(f"at must hold finite times, at least one, got {shown}")

    def of(self, series: Series) -> np.ndarray:
        """Return the query times of a series."""
        wanted = NUMBER if not series.dates else ZONED if series.zoned else UNZONED
        if self.kind not in (None, wanted):
            raise ValueError(f"at must be {wanted} for each query, like the times of the series, got {self.kind}")
        if self.by_series is None:
            assert self.common is not None
            if self.common.ndim != 1:
                raise ValueError(f"at must be (queries,) times for series, got shape {self.common.shape}")
            return self.common
        if series.key not in self.by_series:
            raise ValueError(f"at must hold times for each series, got none for series {series.key!r}")
        self._found.add(series.key)
        return self.by_series[series.key]

    def announce_unknown(self) -> None:
        """Warn of ids to which no series belonged, so that nothing was predicted at their times."""
        unknown = sorted(set(self.by_series or ()) - self._found)
        if unknown:
            listed = ", ".join(map(repr, unknown[:6])) + (", …" if len(unknown) > 6 else "")
            warnings.warn(
                f"at holds times for {len(unknown)} series that the files do not have: {listed}", stacklevel=4
            )


def read_queries(given: Any) -> QueryTimes:
    """Return the query times of an array, of a list such as "0.5,1,2", or of a file.

    Args:
        given: numbers or dates, separated by commas or in an array; a CSV or parquet file with a column ``time`` and,
            optionally, ``id``; or coordinates in training steps, as an array or an .npy file.

    >>> read_queries("1,2.5").common
    array([1. , 2.5])
    >>> read_queries(["2024-01-31 12:00"]).kind
    'a date without a time zone'
    """
    if not isinstance(given, (str, Path)):
        values = given if hasattr(given, "is_complex") else np.asarray(given)
        if not hasattr(given, "is_complex") and values.dtype.kind in "MOU" and values.ndim == 1:
            given = ",".join(map(str, values))  # dates
        else:
            values = np.asarray(as_numbers(values, "at"), dtype=np.float64)
            return QueryTimes(values, kind=NUMBER)
    path = Path(given)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return QueryTimes(np.asarray(read_array(path), dtype=np.float64), kind=NUMBER)
    if suffix not in (".csv", ".tsv", ".parquet"):
        cells = [cell for cell in str(given).split(",") if cell.strip()]
        times = np.array([time_of(cell, Path("at"), 1) for cell in cells])
        return QueryTimes(times, kind=_kind_of_times(cells, Path("at")))
    names, rows = read_cells(path)
    names = [name.lower() if name.lower() in ("id", "time") else name for name in names]
    if "time" not in names:
        raise ValueError(f"{path}, line 1: expected a column time, found {list_columns(names)}")
    place = names.index("time")
    lines = [(i, row) for i, row in enumerate(rows, start=2) if row]
    short = next((i for i, row in lines if len(row) != len(names)), None)
    if short is not None:
        raise ValueError(f"{path}, line {short}: expected {len(names)} fields, found {len(rows[short - 2])}")
    kind = _kind_of_times([row[place] for _, row in lines], path)
    if "id" not in names:
        return QueryTimes(np.array([time_of(row[place], path, i) for i, row in lines]), kind=kind)
    found: dict[str, list[float]] = {}
    for i, row in lines:
        found.setdefault(row[names.index("id")].strip(), []).append(time_of(row[place], path, i))
    return QueryTimes(by_series={key: np.array(times) for key, times in found.items()}, kind=kind)


def _kind_of_times(cells: Sequence[str], path: Path) -> str | None:
    """Return the kind of times, None without any; raise a ValueError if they are of several kinds."""
    kinds = sorted({_kind_of_time(cell) for cell in cells})
    if len(kinds) > 1:
        raise ValueError(f"{path} must hold times of one kind, found {kinds[0]} and {kinds[1]}")
    return kinds[0] if kinds else None
