"""Ranges of numeric settings."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

__all__ = ["Range", "check_ranges"]


@dataclass(frozen=True)
class Range:
    """Finite numbers between two ends.

    Args:
        low: lower end.
        high: upper end.
        without_low: whether ``low`` itself is excluded.
        without_high: whether ``high`` itself is excluded.
        count: length of a list; any length above zero if zero.

    >>> str(Range(0, 1, without_high=True)), Range(0, 1, without_high=True).holds(1.0)
    ('of at least 0 and below 1', False)
    >>> str(Range(0, without_low=True)), str(Range(0, 1))
    ('above 0', 'between 0 and 1')
    """

    low: float
    high: float = math.inf
    without_low: bool = False
    without_high: bool = False
    count: int = 0

    def holds(self, value: Any) -> bool:
        """Return whether ``value`` lies in the range; a list must have ``count`` numbers that all do."""
        if isinstance(value, (list, tuple)):
            fits = len(value) == self.count if self.count else len(value) > 0
            return fits and all(self.holds(v) for v in value)
        if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
            return False
        number = float(value)
        ends = {self.low} if self.without_low else set()
        ends |= {self.high} if self.without_high else set()
        return self.low <= number <= self.high and number not in ends

    def __str__(self) -> str:
        if self.low == -math.inf and self.high == math.inf:
            return "of any size"
        low = f"above {self.low}" if self.without_low else f"of at least {self.low}"
        if self.high == math.inf:
            return low
        if not self.without_low and not self.without_high:
            return f"between {self.low} and {self.high}"
        return f"{low} and {'below' if self.without_high else 'at most'} {self.high}"


def check_ranges(section: Any, ranges: dict[str, Range], title: str = "") -> None:
    """Raise if a number of a section lies outside its range.

    Args:
        section: a dataclass; a setting that is None by default may be None.
        ranges: by the settings' names.
        title: what to call the section; its class's name in lower case if empty.
    """
    for entry in dataclasses.fields(section):
        value, allowed = getattr(section, entry.name), ranges.get(entry.name)
        optional = entry.default is None
        if allowed is None or (optional and value is None) or allowed.holds(value):
            continue
        noun = _noun(entry.type, allowed)
        name = f"{title or type(section).__name__.lower()}.{entry.name}"
        raise ValueError(f"{name} must be {noun} {allowed}{' or null' if optional else ''}, got {value!r}")


def _noun(kind: Any, allowed: Range) -> str:
    """Return the noun for values of a field whose annotation, a text, is ``kind``."""
    what = "int" if "int" in str(kind) else "number"
    if "list" in str(kind):
        return f"a list of {allowed.count or 'one or more'} {what}s"
    return "an int" if what == "int" else "a finite number"
