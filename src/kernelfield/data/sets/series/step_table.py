"""Tables of a single series, with one step per line and one column per channel."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from ...io.cells import MISSING, number
from .long_table import read_cells
from .step_columns import NO_VALUE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["are_words", "channel_order", "compare_unnamed", "is_counting", "read_steps"]


def read_steps(path: Path, nonfinite: str = "refuse", channels: Sequence[str] = ()) -> np.ndarray:
    """Return the single series of a file with one step per line: (channels, steps), NaN where missing.

    Args:
        path: the file.
        nonfinite: see :func:`~.csv_series.csv_series`.
        channels: names of the channels, if known; a first line of names gives their order in the file.
    """
    names, rows = read_cells(path)
    if not names:
        raise ValueError(f"{path} must hold a line for each step, found an empty file")
    cells = list(enumerate(rows, start=2))
    order = None
    if are_words(names):
        order = channel_order(names, channels, path)
    else:
        compare_unnamed(channels, path)
        if not _has_counted_names(path, names, rows):
            cells = [(1, names), *cells]
    steps = [
        [number(c, path, i, "a value", column=j, nonfinite=nonfinite) for j, c in enumerate(row, 1)]
        for i, row in cells
        if row
    ]
    widths = sorted({len(step) for step in steps})
    if len(widths) != 1:
        raise ValueError(f"{path} must hold lines with the same number of values, found {widths or 'none'}")
    values = np.array(steps).T
    return values if order is None or len(order) != len(values) else values[order]


def channel_order(names: Sequence[str], channels: Sequence[str], where: str | Path) -> list[int] | None:
    """Return the columns of a table with a column per channel, in the order of the channels.

    Args:
        names: names of the columns.
        channels: names of the channels; without names, or with a single one, the columns are taken as they come, and
            a time or an id among them is an error.
        where: the file, for errors.

    >>> channel_order(["pulse", "pressure"], ["pressure", "pulse"], "a.csv")
    [1, 0]
    """
    if len(channels) < 2:
        no_value = next((name for name in names if NO_VALUE.search(name)), None)
        if no_value is not None and no_value not in channels:
            raise ValueError(f"{where} must have a column per channel, found {no_value!r}, which seems to be none")
        return None
    if sorted(names) != sorted(channels):
        raise ValueError(f"{where} must have the columns {', '.join(channels)}, in any order, found {', '.join(names)}")
    return [list(names).index(channel) for channel in channels]


def compare_unnamed(channels: Sequence[str], where: str | Path) -> None:
    """Warn that columns without names are taken in the order of several channels."""
    if len(channels) > 1:
        warnings.warn(f"{where} has no names of columns, which count as {', '.join(channels)}", stacklevel=3)


def are_words(cells: Sequence[str]) -> bool:
    """Return whether a first line holds column names: some cell is neither a number nor a missing value."""
    return any(cell.lower() not in MISSING and not _is_number(cell) for cell in cells)


def is_counting(cells: Sequence[str]) -> bool:
    """Return whether the first line of a wide file counts from 0 or 1, so that it holds names and not values."""
    return any(list(cells) == [str(i) for i in range(first, first + len(cells))] for first in (0, 1))


def _has_counted_names(path: Path, names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the column names are the numbers that pandas gives to columns without a name.

    A parquet file always has column names. In a CSV file, such names are integers above values with decimals.
    """
    if path.suffix.lower() == ".parquet":
        return True
    cells = [cell for row in rows for cell in row if _is_number(cell)]
    if len(names) == 1:  # if "0" were a value, it would have decimals like the others
        return list(names) == ["0"] and bool(cells) and all("." in cell or "e" in cell.lower() for cell in cells)
    return is_counting(names) and any(not float(cell).is_integer() for cell in cells)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
