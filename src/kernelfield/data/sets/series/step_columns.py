"""Columns of a table with one series per line: which of them are steps, and in which order."""

from __future__ import annotations

import itertools
import re
import warnings
from collections import Counter
from typing import TYPE_CHECKING

from ...io.cells import MISSING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["NO_VALUE", "step_columns"]

#: ends of names of columns that are no values of a series: ids, times and dates
NO_VALUE = re.compile(r"(^|[^a-zA-Z])p?(id|ID|Id)s?$|[a-z]I[dD]$|([tT]ime|TIME|[sS]tamp|[dD]ate|DATE)$")


def step_columns(
    path: Path, names: Sequence[str], rows: Sequence[Sequence[str]], label: int = -1, known: Sequence[str] = ()
) -> list[int]:
    """Return the places of the columns that are steps of a series, in order of time.

    Columns in another order than in training are found by their names. A column that is no step would shift all others
    by one and may tell the label, so an index without a name, or an id among numbered steps, is an error.

    Args:
        path: the file, for errors.
        names: names of the columns.
        rows: rows of the table.
        label: place of the column of labels; -1 if there is none.
        known: names of the steps in training, in order of time, if known.

    >>> from pathlib import Path
    >>> step_columns(Path("a.csv"), ["b", "label", "a"], [], label=1, known=["a", "b"])
    [2, 0]
    >>> step_columns(Path("a.csv"), ["id", "t1", "t2", "t3"], [])
    Traceback (most recent call last):
    ValueError: a.csv, line 1: expected columns of steps only, such as t1 to t3, found 'id'; remove this column
    """
    places = [i for i in range(len(names)) if i != label]
    places = [i for i in places if names[i] or any(_cell(row, i).lower() not in MISSING for row in rows)]
    given = [names[i] for i in places]
    unnamed = [i for i in places if not names[i] or names[i].startswith("Unnamed:")]
    if unnamed and not all(name.startswith("Unnamed:") for name in given):
        raise ValueError(
            f"{path}, line 1: expected a name for each column, found none for column {unnamed[0] + 1}; leave out an "
            "index, which is no step of a series"
        )
    # Sets and dictionaries: a series may have many thousands of columns.
    counts = Counter([*([names[label]] if label >= 0 else []), *given])
    twice = next((name for name in given if counts[name] > 1), None)
    if twice is not None:
        raise ValueError(f"{path}, line 1: expected each column once, found {twice!r} twice")
    if known and set(given) == set(known):
        place = dict(zip(given, places, strict=True))
        return [place[name] for name in known]
    _check_numbered(path, given)
    if not known:
        _compare_equal(path, given)
        return places
    if _direction(given) and _direction(given) == _direction(known):
        _compare_gaps(path, given, known)
        return places
    expected = set(known)
    other = next((name for name in given if name not in expected), None)
    found = f"no {next(name for name in known if name not in counts)!r}" if other is None else f"{other!r}"
    raise ValueError(f"{path}, line 1: expected the columns of training, {_span(known)}, found {found}")


def _cell(row: Sequence[str], place: int) -> str:
    return row[place].strip() if place < len(row) else ""


def _numbered(name: str) -> tuple[str, float] | None:
    """Return the text and the number of a name such as t12; None if it does not end in a number."""
    found = re.fullmatch(r"(.*?)([0-9]+(?:\.[0-9]+)?)", name)
    return None if found is None else (found[1], float(found[2]))


def _direction(names: Sequence[str]) -> int:
    """Return 1 or -1 if names count up or down after a common text, such as t0, t1, t2; 0 otherwise."""
    found = [_numbered(name) for name in names]
    if not found or None in found or len({pair[0] for pair in found if pair is not None}) != 1:
        return 0
    numbers = [pair[1] for pair in found if pair is not None]
    if numbers == sorted(numbers):
        return 1
    return -1 if numbers == sorted(numbers, reverse=True) else 0


def _gaps(names: Sequence[str]) -> list[float]:
    """Return the gaps between the numbers at the end of names, to three digits: names may be rounded times."""
    numbers = [(_numbered(name) or ("", 0.0))[1] for name in names]
    return [float(f"{b - a:.3g}") for a, b in itertools.pairwise(numbers)]


def _compare_equal(path: Path, names: Sequence[str]) -> None:
    """Warn if the gaps between numbered steps differ, as they do if the numbers are irregular times."""
    gaps = sorted(set(_gaps(names))) if _direction(names) else []
    if len(gaps) > 1:
        warnings.warn(
            f"{path}: steps are numbered with gaps of {gaps[0]:g} to {gaps[-1]:g}, but count as equally far apart; "
            "give irregular times as a table of id, time and value",
            stacklevel=4,
        )


def _compare_gaps(path: Path, names: Sequence[str], known: Sequence[str]) -> None:
    """Compare the gaps between numbered steps with those of training, if these are all equal.

    A column that is left out would shift all later ones, and is an error. Other gaps need another sampling step, and
    give a warning.
    """
    gaps, usual = (set(_gaps(each)) for each in (names, known))
    if len(usual) != 1 or not gaps or gaps == usual:
        return
    if len(gaps) > 1:
        place = next(i for i, gap in enumerate(_gaps(names)) if gap not in usual)
        raise ValueError(
            f"{path}, line 1: expected steps with equal gaps, as in training, found {names[place]} before "
            f"{names[place + 1]}; leave cells of missing steps empty"
        )
    (here,), (there,) = gaps, usual
    warnings.warn(
        f"{path}: steps are numbered with gaps of {here:g}, and in training of {there:g}; their sampling step is "
        f"{here / there:g}",
        stacklevel=4,
    )


def _check_numbered(path: Path, names: Sequence[str]) -> None:
    """Raise a ValueError if numbered steps are out of order, or if few other columns are among them."""
    groups: dict[str | None, list[str]] = {}
    for name in names:
        found = _numbered(name)
        groups.setdefault(None if found is None else found[0], []).append(name)
    most = max((members for text, members in groups.items() if text is not None), key=len, default=[])
    among = set(most)
    others = [name for name in names if name not in among]
    if not others and not _direction(most):
        shown = ", ".join(most[:4])
        raise ValueError(f"{path}, line 1: expected numbered steps in order, found {shown}; sort them by their numbers")
    if 0 < len(others) <= 3 and len(most) >= 3 * len(others):
        raise ValueError(
            f"{path}, line 1: expected columns of steps only, such as {_span(most)}, found {others[0]!r}; "
            "remove this column"
        )
    no_step = next((name for name in others if NO_VALUE.search(name)), None)
    if no_step is not None:
        raise ValueError(
            f"{path}, line 1: expected columns of steps, found {no_step!r}, which does not look like one; leave it "
            "out, or give a table of id, time, channel and value"
        )
    counts = {tuple((_numbered(name) or ("", 0))[1] for name in members) for members in groups.values()}
    if None not in groups and len(groups) > 1 and len(counts) == 1 and len(most) > 1:
        raise ValueError(
            f"{path}, line 1: expected steps of one channel, found columns of {len(groups)}, such as {names[0]} and "
            f"{others[0]}; give several channels as a table of id, time, channel and value"
        )


def _span(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 3 else f"{names[0]} to {names[-1]}"
