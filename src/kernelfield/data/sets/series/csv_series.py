"""Time series of your own: a CSV file of one series per line, or of one measurement per line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...._arguments import checked
from ...._kinds import BOOL, POSITIVE, SHARE, TEXT, Choice
from ...io.files import MISSING, NONFINITE, number
from ...io.pairs import split_files
from ...transforms.series import Series, build, samples_like
from .long_table import LONG, aligned, ask_last, ask_listed, cell_label, read_cells, read_labels, read_long

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ...base import Batch, Data
    from .long_table import QueryTimes

__all__ = ["csv_samples", "csv_series", "read_labelled", "read_steps", "read_wide"]

TASKS = ("auto", "classification", "regression", "forecast")
#: endings of tables
ENDINGS = (".csv", ".tsv", ".parquet")


@checked(
    label=TEXT,
    task=Choice(*TASKS),
    forecast=SHARE | None,
    unit=POSITIVE | None,
    observed=BOOL | None,
    nonfinite=Choice(*NONFINITE),
)
def csv_series(
    root: str | os.PathLike[str] | None,
    *,
    label: str = "label",
    task: str = "auto",
    labels: str | os.PathLike[str] | None = None,
    targets: str | os.PathLike[str] | None = None,
    forecast: float | None = None,
    unit: float | None = None,
    observed: bool | None = None,
    standardize: bool = False,
    nonfinite: str = "refuse",
    shares: tuple[float, float, float] = (0.7, 0.15, 0.15),
    seed: int = 0,
) -> Data:
    """Return the time series of a CSV or parquet file, to predict their labels, or their values at other times.

    There are two kinds of files, which differ in their first line::

        label,0,1,2            id,time,channel,value,label
        up,0.1,0.5,0.9         7,0.0,x,0.1,up
        down,0.8,,0.2          7,0.5,x,0.5,up

    Wide: each line is a series of one channel. Empty cells are missing values; at the end of a line they shorten it.
    Long: each line is a measurement; ``channel`` may be left out for one channel. Times on a grid put the series on it,
    with gaps; others become coords; dates count in seconds. Several lines of a series agree in their label, which may
    also be in a second file. Channels observed at different times are taken as they are: nothing is interpolated.

    Values at other times are predicted with ``targets``, a second file of ``id,time,channel,value``, or ``forecast``,
    which asks for the last share of each series.

    Source: the user's own. Licence: theirs. Split: at random under a seed, stratified by class; or, where ``root``
    is a folder or ``train.csv`` itself, the files ``train.csv``, ``test.csv`` and perhaps ``validation.csv``, or the
    same of ``.parquet``. Normalisation: zero mean and unit variance of each channel over the observed values of the
    training series.

    Args:
        root: the file, or the folder of files.
        label: name of the column of labels.
        task: "classification", "regression", "forecast", or "auto": forecast with ``targets`` or ``forecast``;
            regression if all labels are numbers and some are not whole.
        labels: file of columns ``id`` and the label's, for long tables; beside the first file if the path is relative.
        targets: file of measurements to predict at their times, for long tables; beside the first file if relative.
        forecast: share of the times of each series, at its end, to predict from those before.
        unit: time of one training step; the median gap between neighbouring times if not given.
        observed: whether to add, for each channel, one that is 1 where it was observed; by default if channels are
            observed at different times.
        standardize: whether to normalise targets to zero mean and unit variance over the training series; metrics and
            predictions stay in their own unit.
        nonfinite: "refuse" raises for a value that is infinite or too large for float32, with its line and column;
            "missing" counts it as missing.
        shares: shares of training, validation and test data, for one file.
        seed: seed of the split.

    Returns:
        Inputs (n, channels, length), perhaps with mask (n, length) and coords (n, length, 1); classes (n,) or values
        (n, 1); of a forecast at (n, queries, 1) and targets (n, channels, queries), task "dense-regression".
    """
    paths = _paths(root)
    asks = targets is not None or forecast is not None
    if task != "auto" and (task == "forecast") != asks:
        raise ValueError(f"task must be 'forecast' with targets or forecast, and only with one of them, got {task!r}")
    if targets is not None and forecast is not None:
        raise ValueError("forecast must be None beside targets, got both")
    marks = None if labels is None else read_labels(_beside(paths[0], labels), label)
    parts = [_read_part(path, label, nonfinite, marks, asks=asks) for path in paths]
    channels = sorted({c for part in parts for c in part[1]})
    series = [[aligned(s, found, channels) for s in part] for part, found in parts]
    if asks:
        task = "dense-regression"
        series = [_asked(part, paths[0], targets, forecast, nonfinite)[0] for part in series]
    elif task == "auto":
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


def _read_part(
    path: Path, label: str, nonfinite: str, marks: dict[str, str] | None, *, asks: bool
) -> tuple[list[Series], list[str]]:
    """Return the series of one file and its channels, with the labels of a column or of another file, or with none."""
    names, rows = read_cells(path)
    long = set(names) >= LONG
    if not long and (asks or marks is not None):
        shown = ", ".join(names[:6]) or "nothing"
        raise ValueError(f"{path}, line 1: expected columns id, time, channel and value, found {shown}")
    if long and (asks or marks is not None):
        return read_long(path, names, rows, None, nonfinite, marks)
    if label not in names:
        shown = ", ".join(names[:6]) or "nothing"
        raise ValueError(f"{path}, line 1: expected names of columns, {label!r} among them, found {shown}")
    return (read_long if long else read_wide)(path, names, rows, label, nonfinite)


def _asked(
    series: list[Series], path: Path, targets: Any, forecast: float | None, nonfinite: str
) -> tuple[list[Series], list[str]]:
    """Return series with what is asked of them, and the names of the channels asked for; none if they are all."""
    if forecast is not None:
        return ask_last(series, forecast), []
    return ask_listed(series, _beside(path, targets), nonfinite)


def _beside(path: Path, other: str | os.PathLike[str]) -> Path:
    """Return a path, relative to the folder of ``path``."""
    found = path.parent / Path(other).expanduser()
    if not found.is_file():
        raise FileNotFoundError(f"file must exist, got {found}")
    return found


def csv_samples(
    path: Path,
    data: Data,
    label: str = "label",
    nonfinite: str = "refuse",
    at: QueryTimes | None = None,
    asked: list[tuple[str, np.ndarray]] | None = None,
) -> Batch | None:
    """Return the series of a CSV file as samples of a data set, to predict their labels, which may be left out.

    Args:
        path: a file of either kind that :func:`csv_series` reads; one of a series per line may have no names.
        data: whose series they are like.
        label: name of the column of labels, which is ignored.
        nonfinite: as of :func:`csv_series`.
        at: times at which predictions are asked for, of a long table.
        asked: list that is given the id and the times of each series.

    Returns:
        The samples; None if the file is of neither kind, for one column of labels or several of values of one channel
        tell one series per line from one step per line.
    """
    names, rows = read_cells(path)
    labelled = label in names
    if labelled:
        place = names.index(label)
        names, *rows = [[cell for j, cell in enumerate(row) if j != place] for row in (names, *rows)]
    if set(names) >= LONG:
        series, channels = read_long(path, names, rows, None, nonfinite)
        _check_channels(path, channels, data)
        if at is not None:
            series = [replace(s, at=at.of(s)) for s in series]
        if asked is not None:
            asked += [(s.key, np.zeros(0) if s.at is None else s.at) for s in series]
        return samples_like(data, [aligned(s, channels, data.channels) for s in series])
    if at is not None:
        raise ValueError(f"file must have columns id, time and value for predictions at times, got {path.name}")
    if not labelled and (data.test.inputs.shape[1] != 1 or len(names) < 2):
        return None
    if not labelled and not _are_words(names) and not _count(names):
        rows = [names, *rows]
        names = [str(i) for i in range(max(map(len, rows)))]
    return samples_like(data, read_wide(path, names, rows, None, nonfinite)[0])


def read_labelled(path: Path, data: Data, source: dict[str, Any]) -> list[Series]:
    """Return the series of a CSV file with labels or targets, with the channels of a data set.

    Args:
        path: the file.
        data: the data set.
        source: options of :func:`csv_series`.
    """
    label, nonfinite = str(source.get("label", "label")), str(source.get("nonfinite", "refuse"))
    targets, forecast, labels = (source.get(name) for name in ("targets", "forecast", "labels"))
    asks = targets is not None or forecast is not None
    marks = None if labels is None else read_labels(_beside(path, labels), label)
    series, channels = _read_part(path, label, nonfinite, marks, asks=asks)
    _check_channels(path, channels, data)
    series = [aligned(s, channels, data.channels) for s in series]
    return _asked(series, path, targets, forecast, nonfinite)[0] if asks else series


def _check_channels(path: Path, channels: Sequence[str], data: Data) -> None:
    unknown = [channel for channel in channels if channel not in data.channels]
    if unknown:
        known = ", ".join(data.channels) or "none by name"
        raise ValueError(f"{path} must hold channels of {data.name}, {known}, found {unknown[0]!r}")


def read_steps(path: Path, nonfinite: str = "refuse") -> np.ndarray:
    """Return the one series of a file of one step per line: (channels, steps), NaN where missing.

    A first line of names is skipped.
    """
    names, rows = read_cells(path)
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


def _paths(root: str | os.PathLike[str] | None) -> list[Path]:
    if root is not None and Path(root).is_file():
        return split_files(Path(root))
    if root is not None and Path(root).is_dir():
        for ending in ENDINGS:
            found = [Path(root) / f"{part}{ending}" for part in ("train", "validation", "test")]
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
        mark = "" if label is None else cell_label(row[place], path, i)
        series.append(Series(values[:, : seen[-1] + 1], mark, where=f"{path}, line {i}"))
    if not series:
        raise ValueError(f"{path} must hold a series on each line after the first, found none")
    return series, ["value"]


def _task(labels: Sequence[str]) -> str:
    try:
        values = [float(label) for label in labels]
    except ValueError:
        return "classification"
    return "classification" if all(v.is_integer() for v in values) else "regression"
