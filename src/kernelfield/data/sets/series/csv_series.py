"""Custom time series: a CSV file with one series per line, or with one measurement per line."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...._arguments import checked
from ...._kinds import BOOL, POSITIVE, SHARE, TEXT, Choice
from ...io.cells import NONFINITE, as_float, number
from ...io.pairs import split_files
from ...transforms.series import Series, build, samples_like, task_of
from .long_table import (
    LONG,
    aligned,
    cell_label,
    check_ids,
    compare_columns,
    list_columns,
    query_last,
    query_listed,
    read_cells,
    read_labels,
    read_long,
    read_targets,
)
from .series_groups import check_group, read_groups, take_column, with_groups
from .step_columns import step_columns
from .step_table import are_words, is_counting

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ...base import Batch, Data
    from .long_table import QueryTimes

__all__ = ["csv_samples", "csv_series", "read_labelled", "read_wide"]

TASKS = ("auto", "classification", "regression", "forecast")
#: endings of the names of tables
ENDINGS = (".csv", ".tsv", ".parquet")


@checked(
    label=TEXT,
    task=Choice(*TASKS),
    forecast=SHARE | None,
    unit=POSITIVE | None,
    observed=BOOL | None,
    group=TEXT | None,
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
    group: str | None = None,
) -> Data:
    """Return the time series of a CSV or parquet file, with labels to predict or with values at other times.

    The first line tells which of two kinds a file is::

        label,0,1,2            id,time,channel,value,label
        up,0.1,0.5,0.9         7,0.0,x,0.1,up
        down,0.8,,0.2          7,0.5,x,0.5,up

    Wide: each line is a series of one channel. Empty cells are missing values; at the end of a line they shorten the
    series. Long: each line is a measurement; ``channel`` is optional if there is only one. Series whose times lie on a
    grid have gaps there; other times become coords; dates are converted to seconds. All lines of a series have the same
    label, which may also be in a second file. Channels may be observed at different times; nothing is interpolated.

    To predict values at other times, give ``targets``, a second file of ``id,time,channel,value``, or ``forecast``, the
    share of times at the end of each series.

    Source: your own files. Licence: that of your files. Split: at random with a seed, stratified by class; or, if
    ``root`` is a folder or ``train.csv`` itself, the files ``train.csv``, ``test.csv`` and, if it exists,
    ``validation.csv``, or the same with ``.parquet``. Normalisation: zero mean and unit variance of each channel over
    the observed values of the training series.

    Args:
        root: the file, or the folder of files.
        label: name of the column of labels.
        task: "classification", "regression", "forecast", or "auto": forecast with ``targets`` or ``forecast``;
            regression if all labels are numbers and some are not integers.
        labels: file with the columns ``id`` and ``label``, for long tables; a relative path starts at the folder of the
            data.
        targets: file of measurements to predict, for long tables; a relative path starts at the folder of the data.
        forecast: share of the times at the end of each series to predict from those before.
        unit: time of one training step; by default the median gap between neighbouring times.
        observed: whether to add an indicator for each channel, a channel that is 1 where the other was observed; by
            default only if channels are observed at different times.
        standardize: whether to normalise targets to zero mean and unit variance over the training series; metrics and
            predictions keep the original unit.
        nonfinite: "refuse" raises an error for a value that is infinite or too large for float32 and names its line and
            column; "missing" counts it as missing.
        shares: shares of training, validation and test data, for one file.
        seed: seed of the split.
        group: name of a column, of the table or of ``labels``, that names the group of a series, such as a patient or a
            machine. A group stays in one part of the data; otherwise test series may be those of known patients.

    Returns:
        Inputs (n, channels, length), with mask (n, length) and coords (n, length, 1) if needed; classes (n,) or values
        (n, 1). A forecast has ``at`` (n, queries, 1), targets (n, channels, queries) and the task "dense-regression".
    """
    paths = _paths(root)
    check_group(group, label)
    dense = targets is not None or forecast is not None
    if task != "auto" and (task == "forecast") != dense:
        raise ValueError(f"task must be 'forecast' if and only if targets or forecast is given, got {task!r}")
    if targets is not None and forecast is not None:
        raise ValueError("forecast must be None if targets is given, got both")
    labels_by_id = None if labels is None else read_labels(_relative_to(paths[0], labels), label)
    groups = {} if labels is None or group is None else read_groups(_relative_to(paths[0], labels), group)
    series: list[list[Series]] = []
    channels: list[str] = []
    columns: Sequence[str] = ()
    for path in paths:
        table = take_column(*read_cells(path), group)
        part, found, columns = _read_part(path, table[:2], label, nonfinite, labels_by_id, columns, dense=dense)
        part = part if group is None else with_groups(part, path, group, table, groups)
        channels = channels or found
        _check_known(path, found, channels, paths[0].name)
        series.append([aligned(s, found, channels) for s in part])
    keys = [s.key for part in series for s in part]
    if labels_by_id is not None:
        check_ids("labels", _relative_to(paths[0], str(labels)), labels_by_id, keys)
    predicted: Sequence[str] = channels
    if targets is not None:
        asked = _relative_to(paths[0], targets)
        queries, predicted = read_targets(asked, nonfinite)
        series = [query_listed(part, queries, asked) for part in series]
        check_ids("targets", asked, [s.key for s in queries], keys)
    elif forecast is not None:
        series = [query_last(part, forecast) for part in series]
    if dense:
        task = "dense-regression"
    elif task == "auto":
        task = task_of([s.label for part in series for s in part])
    name = Path(paths[0]).stem if len(paths) == 1 else Path(paths[0]).parent.name
    return build(
        name,
        series,
        task=task,
        channels=channels,
        columns=columns,
        targets=predicted if dense else (),
        unit=unit,
        observed=observed,
        standardize=standardize,
        shares=shares,
        seed=seed,
    )


def _read_part(
    path: Path,
    table: tuple[list[str], list[list[str]]],
    label: str,
    nonfinite: str,
    labels_by_id: dict[str, str] | None,
    columns: Sequence[str],
    *,
    dense: bool,
) -> tuple[list[Series], list[str], Sequence[str]]:
    """Return the series of one file, its channels, and the names of its steps if it is wide.

    The table has names and rows. Labels come from a column, another file, or are absent. ``columns`` are the names of
    the steps in training.
    """
    names, rows = table
    long = set(names) >= LONG
    if not long and (dense or labels_by_id is not None):
        raise ValueError(f"{path}, line 1: expected columns id, time, channel and value, found {list_columns(names)}")
    if long:
        compare_columns(names, label, path)
    if long and (dense or labels_by_id is not None):
        return (*read_long(path, names, rows, None, nonfinite, labels_by_id), ())
    if not long and {"id", "time"} <= {name.lower() for name in names}:
        raise ValueError(
            f"{path}, line 1: expected columns id, time, channel and value, one measurement per line, found "
            f"{list_columns(names)}; pandas.melt(table, ['id', 'time', …], var_name='channel') gives such a table"
        )
    if label not in names:
        raise ValueError(
            f"{path}, line 1: expected column names that include {label!r}, found {list_columns(names)}; "
            f"{_label_hint(names)}"
        )
    if long:
        return (*read_long(path, names, rows, label, nonfinite), ())
    series, channels = read_wide(path, names, rows, label, nonfinite, columns)
    return series, channels, columns or [names[i] for i in step_columns(path, names, rows, names.index(label))]


def _label_hint(names: Sequence[str]) -> str:
    """Return what to do about a first line without the label: name its column, or add a line of names.

    >>> _label_hint(["t0", "t1", "class"])
    'to read the labels from another column: --set data.label=class'
    >>> _label_hint(["0.3", "-1.2", "0.1", "slow"])
    'it seems to hold values, so add a first line of names'
    """
    numbers = [value for name in names if (value := as_float(name)) is not None and math.isfinite(value)]
    if any(value % 1 for value in numbers) and numbers != sorted(numbers):
        return "it seems to hold values, so add a first line of names"
    words = [name for name in names if name and not name[-1].isdigit()]
    return f"to read the labels from another column: --set data.label={words[0] if len(words) == 1 else 'NAME'}"


def _relative_to(path: Path, other: str | os.PathLike[str]) -> Path:
    """Return ``other`` relative to the folder of ``path``; raise a FileNotFoundError if there is no such file."""
    found = path.parent / Path(other).expanduser()
    if not found.is_file():
        raise FileNotFoundError(f"labels and targets must be existing files, got {found}")
    return found


def csv_samples(
    path: Path,
    data: Data,
    label: str = "label",
    nonfinite: str = "refuse",
    at: QueryTimes | None = None,
    asked: list[tuple[str, np.ndarray | None]] | None = None,
    group: str | None = None,
) -> Batch | None:
    """Return the series of a CSV file, with or without labels, as samples of a data set to predict.

    Args:
        path: a file of either kind that :func:`csv_series` reads; a wide one may have no column names.
        data: data set with the same channels.
        label: name of the column of labels, which is ignored.
        nonfinite: see :func:`csv_series`.
        at: times at which to predict, for a long table.
        asked: list to which the id and the query times of each series are appended; None if there are no times.
        group: name of the column of groups, which is ignored.

    Returns:
        The samples; None if the file is of neither kind. A wide file must have a column of labels, or several columns
        while the data set has one channel; otherwise its lines may be the steps of one series.
    """
    names, rows, _ = take_column(*read_cells(path), group)
    names, rows, labels = take_column(names, rows, label)
    labelled = labels is not None
    if set(names) >= LONG:
        series, channels = read_long(path, names, rows, None, nonfinite)
        _check_channels(path, channels, data)
        if at is not None:
            series = [replace(s, at=at.of(s)) for s in series]
        if asked is not None:
            asked += [(s.key, s.at) for s in series]
        return samples_like(data, [aligned(s, channels, data.channels) for s in series])
    if "time" in map(str.lower, names) and "time" not in map(str.lower, data.columns):
        raise ValueError(f"{path}, line 1: expected columns id, time and value, found {list_columns(names)}")
    if at is not None:
        raise ValueError(f"file must have columns id, time and value to predict at given times, got {path.name}")
    if not labelled and (data.test.inputs.shape[1] != 1 or len(names) < 2):
        return None
    columns: Sequence[str] = data.columns
    if not labelled and not are_words(names) and not is_counting(names) and list(names) != list(columns):
        rows = [names, *rows]
        names, columns = [str(i) for i in range(max(map(len, rows)))], ()
    return samples_like(data, read_wide(path, names, rows, None, nonfinite, columns)[0])


def read_labelled(path: Path, data: Data, source: dict[str, Any]) -> list[Series]:
    """Return the series of a CSV file with labels or targets, aligned to the channels of a data set.

    Args:
        path: the file.
        data: the data set.
        source: options of :func:`csv_series`.
    """
    label, nonfinite = str(source.get("label", "label")), str(source.get("nonfinite", "refuse"))
    targets, forecast, labels = (source.get(name) for name in ("targets", "forecast", "labels"))
    dense = targets is not None or forecast is not None
    labels_by_id = None if labels is None else read_labels(_relative_to(path, labels), label)
    table = take_column(*read_cells(path), None if source.get("group") is None else str(source["group"]))
    series, channels, _ = _read_part(path, table[:2], label, nonfinite, labels_by_id, data.columns, dense=dense)
    _check_channels(path, channels, data)
    series = [aligned(s, channels, data.channels) for s in series]
    if forecast is not None:
        return query_last(series, forecast)
    if targets is None:
        return series
    asked = _relative_to(path, targets)
    queries, predicted = read_targets(asked, nonfinite)
    known = dict.fromkeys(s.key for s in series)
    series = query_listed(series, queries, asked)
    # The file may list the targets of other data too.
    check_ids("targets", asked, [s.key for s in queries if s.key in known], known)
    if data.targets and list(predicted) != list(data.targets):
        _check_known(asked, predicted, data.targets, data.name)
        rows = [data.targets.index(name) for name in predicted]
        series = [replace(s, query_values=_in_rows(s.query_values, rows, len(data.targets))) for s in series]
    return series


def _in_rows(values: np.ndarray | None, rows: Sequence[int], count: int) -> np.ndarray | None:
    """Return (targets, queries) values in their rows of all ``count`` targets, NaN in the others."""
    if values is None:
        return None
    found = np.full((count, values.shape[1]), np.nan)
    found[list(rows)] = values
    return found


def _check_channels(path: Path, channels: Sequence[str], data: Data) -> None:
    """Raise a ValueError for channels that the data do not have, and for missing ones that the network needs.

    A network without channels that mark observed values would read an absent channel as constant at its mean.
    """
    _check_known(path, channels, data.channels, data.name)
    absent = [channel for channel in data.channels if channel not in channels]
    if absent and data.in_channels == data.test.inputs.shape[1]:
        raise ValueError(
            f"{path} must hold all channels of {data.name}, {', '.join(data.channels)}, which were always observed "
            f"together in training, found no {absent[0]!r}"
        )


def _check_known(path: Path, channels: Sequence[str], known: Sequence[str], name: str) -> None:
    unknown = [channel for channel in channels if channel not in known]
    if unknown:
        listed = ", ".join(known) or "none by name"
        raise ValueError(f"{path} must hold only channels of {name}, {listed}, found {unknown[0]!r}")


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
    path: Path,
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    label: str | None,
    nonfinite: str = "refuse",
    columns: Sequence[str] = (),
) -> tuple[list[Series], list[str]]:
    """Return the series of a wide file and the name of their channel.

    Args:
        path: the file, for errors.
        names: names of its columns.
        rows: its rows.
        label: name of the column of labels; None gives empty labels.
        nonfinite: see :func:`csv_series`.
        columns: names of the steps in training, in order of time, if known.
    """
    place = -1 if label is None else names.index(label)
    order = step_columns(path, names, rows, place, columns)
    series = []
    for i, row in enumerate(rows, start=2):
        if not row:
            continue
        if not place < len(row) <= len(names):
            raise ValueError(f"{path}, line {i}: expected up to {len(names)} fields with a label, found {len(row)}")
        cells = [(names[j], row[j] if j < len(row) else "") for j in order]
        values = np.array([[number(c, path, i, "a value", column=n, nonfinite=nonfinite) for n, c in cells]])
        seen = np.flatnonzero(~np.isnan(values[0]))
        if not len(seen):
            raise ValueError(f"{path}, line {i}: expected at least one value, found none")
        mark = "" if label is None else cell_label(row[place], path, i)
        series.append(Series(values[:, : seen[-1] + 1], mark, where=f"{path}, line {i}"))
    if not series:
        raise ValueError(f"{path} must hold a series on each line after the first, found none")
    return series, ["value"]
