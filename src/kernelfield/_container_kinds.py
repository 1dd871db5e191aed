"""Kinds of arguments that hold others: dictionaries, anything that can be iterated over, shares of a split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from ._kinds import NOT_NEGATIVE, Kind, ListOf

__all__ = ["DICT", "SHARES", "IterableOf", "MappingOf"]

_NOTHING: Mapping[str, Any] = {}


class IterableOf(Kind):
    """A list, tuple, range or another iterable of ``kind``; entries of a generator are not looked at.

    >>> from kernelfield._kinds import Int
    >>> IterableOf(Int(0)).check("times", [1, 2.5])
    Traceback (most recent call last):
    TypeError: times must be an iterable, each entry an int of at least 0, got [1, 2.5] of type list
    """

    def __init__(self, kind: Kind, *, least: int = 0) -> None:
        self.kind, self.least = kind, least

    def has_type(self, value: Any) -> bool:
        if isinstance(value, (str, bytes, Tensor, np.ndarray, Mapping, type)) or not isinstance(value, Iterable):
            return False
        return not isinstance(value, (list, tuple, range)) or all(map(self.kind.has_type, value))

    def in_range(self, value: Any, given: Mapping[str, Any]) -> bool:
        if not isinstance(value, (list, tuple, range)):
            return True
        return len(value) >= self.least and all(self.kind.in_range(v, given) for v in value)

    def text(self, given: Mapping[str, Any] = _NOTHING) -> str:
        count = f" of at least {self.least} entries" if self.least else ""
        return f"an iterable{count}, each entry {self.kind.text(given)}"


class MappingOf(Kind):
    """A dictionary with names as keys, and perhaps a kind of values."""

    def __init__(self, kind: Kind | None = None) -> None:
        self.kind = kind

    def has_type(self, value: Any) -> bool:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            return False
        return self.kind is None or all(map(self.kind.has_type, value.values()))

    def in_range(self, value: Any, given: Mapping[str, Any]) -> bool:
        return self.kind is None or all(self.kind.in_range(v, given) for v in value.values())

    def text(self, given: Mapping[str, Any] = _NOTHING) -> str:
        return "a dictionary with names as keys" + (f", each value {self.kind.text(given)}" if self.kind else "")


class _Shares(ListOf):
    def in_range(self, value: Any, given: Mapping[str, Any]) -> bool:
        return super().in_range(value, given) and value[0] > 0 and abs(sum(value) - 1) <= 1e-6

    def text(self, given: Mapping[str, Any] = _NOTHING) -> str:  # noqa: ARG002
        return "3 shares (training above 0, validation, test) of sum 1"


DICT = MappingOf()
#: shares of training, validation and test data
SHARES = _Shares(NOT_NEGATIVE, count=3)
