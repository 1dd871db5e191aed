"""Groups of series in a table: the patient, machine or speaker that a series comes from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .long_table import LONG, read_cells

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ...transforms.series import Series

__all__ = ["check_group", "read_groups", "take_column", "with_groups"]


def check_group(group: str | None, label: str) -> None:
    """Raise a ValueError if the column of groups is one with another meaning."""
    if group in (*LONG, "channel", label):
        raise ValueError(f"group must be a column of its own, such as 'patient', got {group!r}")


def take_column(
    names: list[str], rows: list[list[str]], column: str | None
) -> tuple[list[str], list[list[str]], list[str] | None]:
    """Return names and rows without a column, and its cells; None instead of cells if there is no such column.

    >>> take_column(["a", "who"], [["1", "anna"], ["2"]], "who")
    (['a'], [['1'], ['2']], ['anna', ''])
    """
    if column is None or column not in names:
        return names, rows, None
    place = names.index(column)
    cells = [row[place].strip() if place < len(row) else "" for row in rows]
    return (
        [name for i, name in enumerate(names) if i != place],
        [[cell for i, cell in enumerate(row) if i != place] for row in rows],
        cells,
    )


def read_groups(path: Path, column: str) -> dict[str, str]:
    """Return the groups of series by id, from a file with a column ``id``; empty if it has no such column."""
    names, rows, cells = take_column(*read_cells(path), column)
    if cells is None or "id" not in names:
        return {}
    place = names.index("id")
    return {row[place].strip(): cell for row, cell in zip(rows, cells, strict=True) if place < len(row)}


def with_groups(
    series: Sequence[Series],
    path: Path,
    column: str,
    table: tuple[Sequence[str], Sequence[Sequence[str]], Sequence[str] | None],
    by_id: Mapping[str, str],
) -> list[Series]:
    """Return series with the names of their groups.

    Args:
        series: the series of a file.
        path: the file, for errors.
        column: name of the column of groups.
        table: result of :func:`take_column`.
        by_id: groups by the id of a series, from another file.
    """
    names, rows, cells = table
    if cells is None and not by_id:
        raise ValueError(
            f"{path}, line 1: expected column names that include {column!r}, the group, found {', '.join(names[:6])}"
        )
    lines = [(i, row) for i, row in enumerate(rows) if row]
    if cells is None:
        found = [by_id.get(s.key, "") for s in series]
    elif not set(names) >= LONG:
        found = [cells[i] for i, _ in lines]
    else:
        place = list(names).index("id")
        known: dict[str, str] = {}
        for i, row in lines:
            key = row[place].strip()
            if known.setdefault(key, cells[i]) != cells[i]:
                raise ValueError(
                    f"{path}, line {i + 2}: expected {column} {known[key]!r} for series {key!r}, as before, found "
                    f"{cells[i]!r}"
                )
        found = [known[s.key] for s in series]
    for s, name in zip(series, found, strict=True):
        if name.lower() in ("", "?", "nan"):
            raise ValueError(f"{s.where}: expected a {column}, the group of the series, found none")
    return [replace(s, group=name) for s, name in zip(series, found, strict=True)]
