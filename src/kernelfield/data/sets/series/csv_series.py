"""Time series of your own: a CSV file of one series per line, or of one measurement per line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...._arguments import checked
from ...._kinds import POSITIVE, TEXT, Choice
from ...io.files import MISSING, NONFINITE, number, read_table, time_of
from ...io.pairs import split_files
from ...transforms.series import Series, build, samples_like

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ...base import Batch, Data

__all__ = ["csv_samples", "csv_series", "read_labelled", "read_long", "read_steps", "read_wide"]

TASKS = ("auto", "classification", "regression")
#: columns by which a file of one measurement per line is known
LONG = {"id", "time", "value"}


@checked(label=TEXT, task=Choice(*TASKS), unit=POSITIVE | None, nonfinite=Choice(*NONFINITE))
def csv_series(
    root: str | os.PathLike[str] | None,
    *,
    label: str = "label",
    task: str = "auto",
    unit: float | None = None,
    observed: bool = False,
    standardize: bool = False,
    nonfinite: str = "refuse",
    shares: tuple[float, float, float] = (0.7, 0.15, 0.15),
    seed: int = 0,
) -> Data:
    """Return the time series of a CSV file, to predict their labels.

    There are two kinds of files, which differ in their first line::

        label,0,1,2            id,time,channel,value,label
        up,0.1,0.5,0.9         7,0.0,x,0.1,up
        down,0.8,,0.2          7,0.5,x,0.5,up

    Wide: each line is a series of one channel. Empty cells are missing values; at the end of a line they shorten it.
    Long: each line is a measurement; ``channel`` may be left out for one channel. Times on a grid put the series on it,
    with gaps; others become coords; dates count in seconds. Several lines of a series agree in their label.

    Source: the user's own. Licence: theirs. Split: at random under a seed, stratified by class; or, where ``root``
    is a folder or ``train.csv`` itself, the files ``train.csv``, ``test.csv`` and perhaps ``validation.csv``.
    Normalisation: zero mean and unit variance of each channel over the observed values of the training series.

    Args:
        root: the file, or the folder of files.
        label: name of the column of labels.
        task: "classification", "regression", or "auto": regression if all labels are numbers and some are not whole.
        unit: time of one training step; the median gap between neighbouring times if not given.
        observed: whether to add, for each channel, one that is 1 where it was observed.
        standardize: whether to normalise targets to zero mean and unit variance over the training series; metrics and
            predictions stay in their own unit.
        nonfinite: "refuse" raises for a value that is infinite or too large for float32, with its line and column;
            "missing" counts it as missing.
        shares: shares of training, validation and test data, for one file.
        seed: seed of the split.

    Returns:
        Inputs (n, channels, length), perhaps with mask (n, length) and coords (n, length, 1); classes (n,) or values
        (n, 1).
    """
    paths = _paths(root)
    parts = []
    for path in paths:
        names, rows = _read(path)
        if label not in names:
            shown = ", ".join(names[:6]) or "nothing"
            raise ValueError(f"{path}, line 1: expected names of columns, {label!r} among them, found {shown}")
        read = read_long if set(names) >= LONG else read_wide
        parts.append(read(path, names, rows, label, nonfinite))
    channels = sorted({c for part in parts for c in part[1]})
    series = [[_aligned(s, found, channels) for s in part] for part, found in parts]
    if task == "auto":
        task = _task([s.label for part in series for s in part])
    name = Path(paths[0]).stem if len(paths) == 1 else Path(paths[0]).parent.name
    return build(
        name,
        series,
        task=task,
        channels=channels,
        unit=unit,
        observed=observed,
        standardize=standardize,
        shares=shares,
        seed=seed,
    )


def csv_samples(path: Path, data: Data, label: str = "label", nonfinite: str = "refuse") -> Batch | None:
    """Return the series of a CSV file as samples of a data set, to predict their labels, which may be left out.

    Args:
        path: a file of either kind that :func:`csv_series` reads; one of a series per line may have no names.
        data: whose series they are like.
        label: name of the column of labels, which is ignored.
        nonfinite: as of :func:`csv_series`.

    Returns:
        The samples; None if the file is of neither kind, for one column of labels or several of values of one channel
        tell one series per line from one step per line.
    """
    names, rows = _read(path)
    labelled = label in names
    if labelled:
        place = names.index(label)
        names, *rows = [[cell for j, cell in enumerate(row) if j != place] for row in (names, *rows)]
    if set(names) >= LONG:
        series, channels = read_long(path, names, rows, None, nonfinite)
        _check_channels(path, channels, data)
        return samples_like(data, [_aligned(s, channels, data.channels) for s in series])
    if not labelled and (data.test.inputs.shape[1] != 1 or len(names) < 2):
        return None
    if not labelled and not _are_words(names) and not _count(names):
        rows = [names, *rows]
        names = [str(i) for i in range(max(map(len, rows)))]
    return samples_like(data, read_wide(path, names, rows, None, nonfinite)[0])


def read_labelled(path: Path, data: Data, label: str, nonfinite: str) -> list[Series]:
    """Return the series of a CSV file with labels, with the channels of a data set."""
    names, rows = _read(path)
    if label not in names:
        raise ValueError(
            f"{path}, line 1: expected names of columns, {label!r} among them, found {', '.join(names[:6])}"
        )
    series, channels = (read_long if set(names) >= LONG else read_wide)(path, names, rows, label, nonfinite)
    _check_channels(path, channels, data)
    return [_aligned(s, channels, data.channels) for s in series]


def _check_channels(path: Path, channels: Sequence[str], data: Data) -> None:
    unknown = [channel for channel in channels if channel not in data.channels]
    if unknown:
        known = ", ".join(data.channels) or "none by name"
        raise ValueError(f"{path} must hold channels of {data.name}, {known}, found {unknown[0]!r}")


def read_steps(path: Path, nonfinite: str = "refuse") -> np.ndarray:
    """Return the one series of a file of one step per line: (channels, steps), NaN where missing.

    A first line of names is skipped.
    """
    names, rows = _read(path)
    cells = list(enumerate(rows, start=2))
    if not _are_words(names):
        cells = [(1, names), *cells]
    steps = [
        [number(c, path, i, "a value", column=j, nonfinite=nonfinite) for j, c in enumerate(row, 1)]
        for i, row in cells
        if row
    ]
    widths = sorted({len(step) for step in steps})
    if len(widths) != 1:
        raise ValueError(f"{path} must hold lines with the same number of values, found {widths or 'none'}")
    return np.array(steps).T


def _are_words(cells: Sequence[str]) -> bool:
    return any(cell.lower() not in MISSING and not _is_number(cell) for cell in cells)


def _count(cells: Sequence[str]) -> bool:
    """Whether the first line of a file of one series per line counts from 0 or 1: names, not values."""
    return any(list(cells) == [str(i) for i in range(first, first + len(cells))] for first in (0, 1))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the first line of a CSV file, and the others."""
    rows = read_table(path, "\t" if path.suffix.lower() == ".tsv" else ",")
    return ([n.strip() for n in rows[0]], rows[1:]) if rows else ([], [])


def _paths(root: str | os.PathLike[str] | None) -> list[Path]:
    if root is not None and Path(root).is_file():
        return split_files(Path(root))
    if root is not None and Path(root).is_dir():
        found = [Path(root) / f"{part}.csv" for part in ("train", "validation", "test")]
        if found[0].is_file() and found[2].is_file():
            return [path for path in found if path.is_file()]
        there = sorted(path.name for path in Path(root).iterdir())
        raise ValueError(f"{root} must hold train.csv and test.csv, found {', '.join(there[:8]) or 'nothing'}")
    raise ValueError(f"root must be a CSV file or a folder of train.csv and test.csv, got {root}")


def read_wide(
    path: Path, names: Sequence[str], rows: Sequence[Sequence[str]], label: str | None, nonfinite: str = "refuse"
) -> tuple[list[Series], list[str]]:
    """Return the series of a file of one series per line, and the name of their channel; labels may be empty."""
    place = -1 if label is None else names.index(label)
    series = []
    for i, row in enumerate(rows, start=2):
        if not row:
            continue
        if not place < len(row) <= len(names):
            raise ValueError(
                f"{path}, line {i}: expected up to {len(names)} fields, a label among them, found {len(row)}"
            )
        cells = [(name, cell) for j, (name, cell) in enumerate(zip(names, row, strict=False)) if j != place]
        values = np.array([[number(c, path, i, "a value", column=n, nonfinite=nonfinite) for n, c in cells]])
        seen = np.flatnonzero(~np.isnan(values[0]))
        if not len(seen):
            raise ValueError(f"{path}, line {i}: expected at least one value, found none")
        mark = "" if label is None else _label(row[place], path, i)
        series.append(Series(values[:, : seen[-1] + 1], mark, where=f"{path}, line {i}"))
    if not series:
        raise ValueError(f"{path} must hold a series on each line after the first, found none")
    return series, ["value"]


def read_long(
    path: Path, names: Sequence[str], rows: Sequence[Sequence[str]], label: str | None, nonfinite: str = "refuse"
) -> tuple[list[Series], list[str]]:
    """Return the series of a file of one measurement per line, and the names of their channels; labels may be empty."""
    column = {name: i for i, name in enumerate(names)}
    labels: dict[str, str] = {}
    seen: dict[str, dict[float, dict[str, float]]] = {}
    for i, row in enumerate(rows, start=2):
        if not row:
            continue
        if len(row) != len(names):
            raise ValueError(f"{path}, line {i}: expected {len(names)} fields, found {len(row)}")
        key, mark = row[column["id"]].strip(), "" if label is None else _label(row[column[label]], path, i)
        if labels.setdefault(key, mark) != mark:
            raise ValueError(f"{path}, line {i}: expected label {labels[key]!r} for series {key!r}, found {mark!r}")
        time = time_of(row[column["time"]], path, i)
        channel = row[column["channel"]].strip() if "channel" in column else "value"
        at = seen.setdefault(key, {}).setdefault(time, {})
        if channel in at:
            raise ValueError(f"{path}, line {i}: expected one value of {channel!r} at time {time:g}, found a second")
        at[channel] = number(row[column["value"]], path, i, channel, column="value", nonfinite=nonfinite)
    if not seen:
        raise ValueError(f"{path} must hold a measurement on each line after the first, found none")
    channels = sorted({c for times in seen.values() for at in times.values() for c in at})
    series = []
    for key, times in seen.items():
        order = sorted(times)
        values = np.array([[times[t].get(c, np.nan) for t in order] for c in channels])
        series.append(Series(values, labels[key], np.array(order), f"{path}, series {key}"))
    return series, channels


def _aligned(series: Series, found: Sequence[str], channels: Sequence[str]) -> Series:
    """Return a series with all channels that any file has."""
    if list(found) == list(channels):
        return series
    values = np.full((len(channels), series.values.shape[1]), np.nan)
    for row, name in zip(series.values, found, strict=True):
        values[channels.index(name)] = row
    return Series(values, series.label, series.times, series.where)


def _label(text: str, path: Path, line: int) -> str:
    if not text.strip():
        raise ValueError(f"{path}, line {line}: expected a label, found none")
    return text.strip()


def _task(labels: Sequence[str]) -> str:
    try:
        values = [float(label) for label in labels]
    except ValueError:
        return "classification"
    return "classification" if all(v.is_integer() for v in values) else "regression"
