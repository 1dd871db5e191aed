"""Kinds of arguments: the type and range of values that an argument takes.

A kind tests the type and the range of a value and describes the accepted values in words. :meth:`Kind.check` raises a
TypeError or a ValueError that names the argument, the accepted values and the value it got. The operator ``|`` joins
kinds: ``POSITIVE | Choice("start") | None``.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ._checks import is_symbolic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "ANY",
    "BOOL",
    "DIM",
    "FINITE",
    "NOT_NEGATIVE",
    "PATH",
    "POSITIVE",
    "PROBABILITY",
    "RATE",
    "SEED",
    "SHARE",
    "STRING",
    "TEXT",
    "Choice",
    "Int",
    "Kind",
    "ListOf",
    "Number",
    "PerAxis",
    "parts_of",
    "shown",
]

#: the largest number of channels, layers or points; a larger one is a mistake that would exhaust the memory
MOST = 2**28
#: the largest and the smallest positive real number; their squares neither overflow nor vanish in single precision
LARGEST, SMALLEST = 1e12, 1e-12
_NO_ARGUMENTS: Mapping[str, Any] = {}


class Kind:
    """The values that an argument takes. A subclass defines :meth:`has_type`, :meth:`in_range` and :meth:`text`."""

    def has_type(self, value: Any) -> bool:
        """Return whether ``value`` has the right type."""
        raise NotImplementedError

    def in_range(self, value: Any, given: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Return whether a ``value`` of the right type is accepted; ``given`` holds the call's other arguments."""
        return True

    def accepts(self, value: Any, given: Mapping[str, Any]) -> bool:
        """Return whether ``value`` is accepted, without the error of :meth:`check`."""
        return self.has_type(value) and self.in_range(value, given)

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:
        """Return the source of a Python expression that is true only if the variable ``name`` is accepted.

        It may be false for some accepted values. ``bind`` returns the name of a constant in that source.
        """
        return f"{bind(self.accepts)}({name}, {bind(_NO_ARGUMENTS)})"

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:
        """Return a description of the accepted values, as the end of "x must be …"."""
        raise NotImplementedError

    def check(self, name: str, value: Any, given: Mapping[str, Any] = _NO_ARGUMENTS) -> None:
        """Raise an error that names the argument if it does not take ``value``.

        >>> Int(1).check("channels", 0)
        Traceback (most recent call last):
        ValueError: channels must be an int of at least 1, got 0
        """
        if not self.has_type(value):
            of_type = "" if isinstance(value, Tensor) else f" of type {type(value).__name__}"
            raise TypeError(f"{name} must be {self.text(given)}, got {shown(value)}{of_type}")
        if not self.in_range(value, given):
            raise ValueError(f"{name} must be {self.text(given)}, got {shown(value)}{_limits(value)}")

    def __or__(self, other: Kind | None) -> Kind:
        return _Union(self, _NoneKind() if other is None else other)


def shown(value: Any) -> str:
    """Return ``value`` in a few words.

    >>> import torch
    >>> shown(torch.ones(2, 3)), shown("a" * 100)
    ('a float32 tensor of shape (2, 3)', "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…")
    """
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{'an' if dtype[0] == 'i' else 'a'} {dtype} tensor of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:57]}…"


def _limits(value: Any) -> str:
    """Return the limits of all arguments as text if a number in ``value`` lies beyond them, else ""."""
    numbers = [v for v in (value if isinstance(value, (list, tuple)) else [value]) if type(v) in (int, float)]
    beyond = any(v > MOST if type(v) is int else LARGEST < abs(v) < math.inf or 0 < abs(v) < SMALLEST for v in numbers)
    return f" (limits: {MOST} for counts, {SMALLEST:g} to {LARGEST:g} for numbers)" if beyond else ""


class _Union(Kind):
    def __init__(self, *kinds: Kind) -> None:
        self.kinds: tuple[Kind, ...] = ()
        for kind in kinds:
            self.kinds += kind.kinds if isinstance(kind, _Union) else (kind,)

    def has_type(self, value: Any) -> bool:
        return any(kind.has_type(value) for kind in self.kinds)

    def in_range(self, value: Any, given: Mapping[str, Any]) -> bool:
        return any(kind.has_type(value) and kind.in_range(value, given) for kind in self.kinds)

    def accepts(self, value: Any, given: Mapping[str, Any]) -> bool:
        return any(kind.accepts(value, given) for kind in self.kinds)

    def check(self, name: str, value: Any, given: Mapping[str, Any] = _NO_ARGUMENTS) -> None:
        for kind in self.kinds:
            if kind.has_type(value) and kind.in_range(value, given):
                return kind.check(name, value, given)
        return super().check(name, value, given)

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:
        return " or ".join(f"({kind.fast_test(name, bind)})" for kind in sorted(self.kinds, key=_cost))

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:
        *first, last = (kind.text(given) for kind in self.kinds)
        return f"{', '.join(first)} or {last}"


def _cost(kind: Kind) -> int:
    """Return a rank by the run time of :meth:`Kind.fast_test`: None first, then numbers and names, then the rest."""
    return next(
        (rank for rank, kinds in enumerate(((_NoneKind,), (_Bool, Int, Number, Choice))) if isinstance(kind, kinds)), 2
    )


def parts_of(kind: Kind | None) -> tuple[Kind | None, ...]:
    """Return the kinds that were joined by ``|``."""
    return kind.kinds if isinstance(kind, _Union) else (kind,)


class _NoneKind(Kind):
    def has_type(self, value: Any) -> bool:
        return value is None

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:  # noqa: ARG002
        return f"{name} is None"

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:  # noqa: ARG002
        return "None"


class _Any(Kind):
    def has_type(self, value: Any) -> bool:  # noqa: ARG002
        return True

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:  # noqa: ARG002
        return "True"

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:  # noqa: ARG002
        return "anything"


class _Bool(Kind):
    def has_type(self, value: Any) -> bool:
        return isinstance(value, bool)

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:  # noqa: ARG002
        return f"{name} is True or {name} is False"

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:  # noqa: ARG002
        return "True or False"


class Int(Kind):
    """An int of at least ``least`` and at most ``most``, perhaps an odd one.

    >>> Int(0).check("order", 1.0)
    Traceback (most recent call last):
    TypeError: order must be an int of at least 0, got 1.0 of type float
    """

    def __init__(self, least: int = 1, most: int = MOST, *, odd: bool = False) -> None:
        self.least, self.most, self.odd = least, most, odd

    def has_type(self, value: Any) -> bool:
        # SymInt, the length of a dynamic axis under torch.export, is no subclass of int.
        return type(value) is int or (isinstance(value, int) and not isinstance(value, bool)) or is_symbolic(value)

    def in_range(self, value: Any, given: Mapping[str, Any]) -> bool:  # noqa: ARG002
        return is_symbolic(value) or (self.least <= value <= self.most and not (self.odd and value % 2 == 0))

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:  # noqa: ARG002
        return f"type({name}) is int and {self.least} <= {name} <= {self.most}{f' and {name} % 2' if self.odd else ''}"

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:  # noqa: ARG002
        noun = "an odd int" if self.odd else "an int"
        if self.most != MOST:
            return f"{noun} from {self.least} to {self.most}"
        return f"{noun} of at least {self.least}"


class Number(Kind):
    """A finite number between two ends, with or without the ends themselves.

    >>> Number(0, 1, without_high=True).check("dropout", 1)
    Traceback (most recent call last):
    ValueError: dropout must be a number of at least 0 and below 1, got 1
    """

    def __init__(
        self, low: float = -math.inf, high: float = math.inf, *, without_low: bool = False, without_high: bool = False
    ) -> None:
        self.low, self.high, self.without_low, self.without_high = low, high, without_low, without_high
        # A range without zero also excludes the numbers that single precision would round to zero.
        self._least = SMALLEST if low == 0 and without_low else max(low, -LARGEST)
        self._most = min(high, LARGEST)

    def has_type(self, value: Any) -> bool:
        plain = type(value) is float or (isinstance(value, (int, float)) and not isinstance(value, bool))
        return plain or is_symbolic(value)

    def in_range(self, value: Any, given: Mapping[str, Any]) -> bool:  # noqa: ARG002
        if is_symbolic(value):
            return True
        if not self._least <= value <= self._most:  # false for NaN too
            return False
        return not ((self.without_low and value == self.low) or (self.without_high and value == self.high))

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:
        low, high = ("<" if open_end else "<=" for open_end in (self.without_low, self.without_high))
        ends = f"{bind(self._least)} {low} {name} {high} {bind(self._most)}"
        return f"(type({name}) is float or type({name}) is int) and {ends}"

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:  # noqa: ARG002
        ends = []
        if self.low > -math.inf:
            ends.append(f"{'above' if self.without_low else 'of at least'} {self.low:g}")
        if self.high < math.inf:
            ends.append(f"{'below' if self.without_high else 'at most'} {self.high:g}")
        return f"a {'finite ' if len(ends) < 2 else ''}number {' and '.join(ends)}".rstrip()


class Choice(Kind):
    """One of several names.

    >>> Choice("auto", "fft").check("method", "dct")
    Traceback (most recent call last):
    ValueError: method must be one of 'auto', 'fft', got 'dct'
    """

    def __init__(self, *names: str) -> None:
        self.names = names

    def has_type(self, value: Any) -> bool:
        return isinstance(value, str)

    def in_range(self, value: Any, given: Mapping[str, Any]) -> bool:  # noqa: ARG002
        return value in self.names

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:
        return f"type({name}) is str and {name} in {bind(frozenset(self.names))}"

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:  # noqa: ARG002
        names = ", ".join(map(repr, self.names))
        return names if len(self.names) == 1 else f"one of {names}"


class OfType(Kind):
    """A value of given types that passes a test.

    >>> OfType("an even int", int, lambda value: value % 2 == 0).check("count", 3)
    Traceback (most recent call last):
    ValueError: count must be an even int, got 3
    """

    def __init__(
        self, words: str, types: type | tuple[type, ...], accepted: Callable[[Any], bool] | None = None
    ) -> None:
        self.words, self.types, self.accepted = words, types, accepted

    def has_type(self, value: Any) -> bool:
        return isinstance(value, self.types)

    def in_range(self, value: Any, given: Mapping[str, Any]) -> bool:  # noqa: ARG002
        return self.accepted is None or self.accepted(value)

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:
        is_one = f"isinstance({name}, {bind(self.types)})"
        return is_one if self.accepted is None else f"{is_one} and {bind(self.accepted)}({name})"

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:  # noqa: ARG002
        return self.words


class ListOf(Kind):
    """A list or tuple of ``kind``, of ``count`` entries or of at least ``least``.

    >>> ListOf(Int(1)).check("channels", [])
    Traceback (most recent call last):
    ValueError: channels must be a list of at least 1 entries, each an int of at least 1, got []
    """

    def __init__(self, kind: Kind, *, least: int = 1, count: int | None = None) -> None:
        self.kind, self.least, self.count = kind, least, count

    def has_type(self, value: Any) -> bool:
        return isinstance(value, (list, tuple)) and all(map(self.kind.has_type, value))

    def in_range(self, value: Any, given: Mapping[str, Any]) -> bool:
        enough = len(value) >= self.least if self.count is None else len(value) == self.count
        return enough and all(self.kind.in_range(v, given) for v in value)

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:
        enough = f">= {self.least}" if self.count is None else f"== {self.count}"
        each = f"{bind(all)}({self.kind.fast_test('_entry_', bind)} for _entry_ in {name})"
        return f"isinstance({name}, {bind((list, tuple))}) and {bind(len)}({name}) {enough} and {each}"

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:
        count = f"of {self.count} entries" if self.count is not None else f"of at least {self.least} entries"
        return f"a list {count if self.count or self.least else ''}, each {self.kind.text(given)}".replace(" ,", ",")


class PerAxis(Kind):
    """One value for all axes, or a list of one per axis.

    ``dim`` is the name of the argument that gives the number of axes, as an int or as a list of one entry per axis.

    >>> PerAxis(Int(1)).check("size", (32, 32, 32), {"dim": 2})
    Traceback (most recent call last):
    ValueError: size must be an int of at least 1 or 2 of them for dim=2, got (32, 32, 32)
    """

    def __init__(self, kind: Kind, dim: str = "dim") -> None:
        self.kind, self.dim, self.several = kind, dim, ListOf(kind)

    def has_type(self, value: Any) -> bool:
        return self.kind.has_type(value) or self.several.has_type(value)

    def in_range(self, value: Any, given: Mapping[str, Any]) -> bool:
        if self.kind.has_type(value):
            return self.kind.in_range(value, given)
        count = self._count(given)
        return self.several.in_range(value, given) and (count is None or count == len(value))

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:
        return self.kind.fast_test(name, bind)

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:
        count = self._count(given)
        several = "one per axis" if count is None else f"{count} of them for {self.dim}={shown(given[self.dim])}"
        return f"{self.kind.text(given)} or {several}"

    def _count(self, given: Mapping[str, Any]) -> int | None:
        """Return the number of axes; None if it is unknown or invalid. An invalid ``dim`` raises its own error."""
        dim = given.get(self.dim)
        if isinstance(dim, (list, tuple)):
            return len(dim)
        return dim if type(dim) is int else None


#: takes anything
ANY = _Any()
BOOL = _Bool()
TEXT = OfType("a string that is not empty", str, bool)
#: text that may be empty
STRING = OfType("a string", str)
PATH = OfType("a path", (str, os.PathLike), lambda path: os.fspath(path) != "" and "\0" not in os.fspath(path))
#: number of dimensions of space or of a group
DIM = Int(1, 8)
#: seed of random numbers
SEED = Int(0, 2**63 - 1)
FINITE = Number()
POSITIVE = Number(0, without_low=True)
NOT_NEGATIVE = Number(0)
#: dropout rate
RATE = Number(0, 1, without_high=True)
PROBABILITY = Number(0, 1)
#: a fraction above 0 and below 1
SHARE = Number(0, 1, without_low=True, without_high=True)
