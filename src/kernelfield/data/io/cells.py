"""Cells of a table: numbers, missing values and dates that are written as text."""

from __future__ import annotations

import math
import re
import unicodedata
import warnings
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ..._checks import check_choice

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = [
    "FLOAT32_MAX",
    "MISSING",
    "NONFINITE",
    "as_float",
    "compare_names",
    "has_zone",
    "is_date",
    "number",
    "time_of",
]

#: texts of a missing value, in lower case
MISSING = ("", "?", "nan", "na", "null", "none")
#: how to treat a number that is infinite or too large for float32: raise an error, or count it as missing
NONFINITE = ("refuse", "missing")
#: largest number that float32 can hold
FLOAT32_MAX = 3.4028234663852886e38
#: digits that may be a date of these two centuries, perhaps with hours, minutes and seconds
_COMPACT_DATE = re.compile(
    r"(19|20)[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])(([01][0-9]|2[0-3])[0-5][0-9]([0-5][0-9])?)?"
)
#: the time zone at the end of a date
_ZONE = re.compile(r"[Tt ][0-9:.,]+(Z|z|[+-][0-9]{2}(:?[0-9]{2})*)$")
#: seconds with more than the six decimals that a date can hold
_BELOW_MICROSECONDS = re.compile(r"[.,][0-9]{6}0*[1-9]")


def number(
    text: str, path: Path, line: int, what: str, *, column: int | str | None = None, nonfinite: str = "refuse"
) -> float:
    """Return ``text`` as a number; NaN for the usual texts of a missing value.

    Args:
        text: text of the cell.
        path: file, for errors.
        line: line of the cell, from 1.
        what: description of the number, for errors.
        column: name of the cell's column, or its number from 1.
        nonfinite: "refuse" raises an error for a number that is infinite or too large for float32; "missing" returns
            NaN.

    >>> from pathlib import Path
    >>> number("1e39", Path("a.csv"), 3, "a value", column="x")
    Traceback (most recent call last):
    ValueError: a.csv, line 3, column x: expected a finite number of at most 3.4e38 for a value, found '1e39'; with
    nonfinite='missing' it counts as missing
    """
    text = text.strip()
    if text.lower() in MISSING:
        return math.nan
    place = f"{path}, line {line}" + ("" if column is None else f", column {column}")
    value = as_float(text)
    if value is None:
        raise ValueError(f"{place}: expected a number for {what}, found {text[:40]!r}")
    if abs(value) <= FLOAT32_MAX:
        return value
    if check_choice("nonfinite", nonfinite, NONFINITE) == "missing" or math.isnan(value):
        return math.nan
    raise ValueError(
        f"{place}: expected a finite number of at most 3.4e38 for {what}, found {text[:40]!r}; with "
        "nonfinite='missing' it counts as missing"
    )


def as_float(text: str) -> float | None:
    """Return ``text`` as a number; None if it is not one. Python's own notation 1_000 is not accepted."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def compare_names(names: Iterable[str], what: str) -> None:
    """Warn of names that differ only in case, blanks, or the encoding of a letter, and so look alike.

    Args:
        names: names of classes or channels.
        what: description of the names, such as "a.csv has channels".
    """
    known: dict[str, str] = {}
    for name in sorted(set(names)):
        plain = "".join(unicodedata.normalize("NFKC", name).casefold().split())
        if known.setdefault(plain, name) != name:
            warnings.warn(f"{what} {_shown(known[plain], name)}, which count as two", stacklevel=3)


def _shown(first: str, second: str) -> str:
    """Return two names as text, with escapes if they are the same letters in two encodings."""
    alike = unicodedata.normalize("NFKC", first) == unicodedata.normalize("NFKC", second)
    return " and ".join(ascii(name) if alike else repr(name) for name in (first, second))


def is_date(text: str) -> bool:
    """Return whether the text of a time is a date, and not a number.

    >>> is_date("2007-01-31"), is_date("20.5")
    (True, False)
    """
    return text.strip().lower() not in MISSING and as_float(text.strip()) is None


def has_zone(text: str) -> bool:
    """Return whether the text of a date names a time zone.

    >>> has_zone("2007-01-31 12:00+01:00"), has_zone("2007-01-31T12:00Z"), has_zone("2007-01-31 12:00")
    (True, True, False)
    """
    return _ZONE.search(text.strip()) is not None


def time_of(text: str, path: Path, line: int) -> float:
    """Return a time: a number, or the seconds of a date such as 2007-01-31 or 2007-01-31 12:00:00.

    A date without a time zone is in UTC. Digits that may be either, such as 20070131, are refused, and so are fractions
    of a microsecond, which a date would lose.
    """
    cell = text.strip()
    if _COMPACT_DATE.fullmatch(cell):
        raise ValueError(
            f"{path}, line {line}: expected a time that is a number or a date, found {cell!r}, which may be either; "
            f"write dates as {cell[:4]}-{cell[4:6]}-{cell[6:8]} and numbers as {cell}.0"
        )
    if is_date(cell):
        try:
            date = datetime.fromisoformat(cell)
            seconds = (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
        except (ValueError, OverflowError) as error:
            raise ValueError(
                f"{path}, line {line}: expected a time, a number or a date such as 2007-01-31 12:00:00+01:00, found "
                f"{cell[:40]!r}"
            ) from error
        if _BELOW_MICROSECONDS.search(cell):
            raise ValueError(
                f"{path}, line {line}: expected a date with at most six decimals of a second, found {cell[:40]!r}; "
                "write finer times as numbers"
            )
        return seconds
    time = number(cell, path, line, "a time")
    if math.isnan(time):
        raise ValueError(f"{path}, line {line}: expected a time, found {cell[:40]!r}")
    return time
