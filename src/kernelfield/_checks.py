"""Argument checks. Every message names the argument, what it takes and what it got."""

from __future__ import annotations

import difflib
import inspect
import math
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    Value = TypeVar("Value", int, float)


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``.

    >>> check_choice("method", "dct", ("auto", "fft"))
    Traceback (most recent call last):
    ValueError: method must be one of 'auto', 'fft', got 'dct'
    """
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def check_int(name: str, value: Any, least: int = 1) -> int:
    """Return ``value`` if it is an int of at least ``least``.

    >>> check_int("channels", 0)
    Traceback (most recent call last):
    ValueError: channels must be an int of at least 1, got 0
    """
    # Nearly every argument is an int, so the fast test comes first.
    if type(value) is not int and not _is_int(value):
        raise TypeError(f"{name} must be an int, got {value!r} of type {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be an int of at least {least}, got {value}")
    return value


def check_positive(name: str, value: Any) -> float:
    """Return ``value`` as a float if it is a finite number above zero.

    >>> check_positive("omega_0", float("nan"))
    Traceback (most recent call last):
    ValueError: omega_0 must be a finite number above 0, got nan
    """
    if type(value) is not float and not _is_number(value):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    if is_symbolic(value):
        return value  # a comparison would turn it into a constant
    if not 0 < value < math.inf:  # false for NaN too
        raise ValueError(f"{name} must be a finite number above 0, got {value}")
    return float(value)


def is_symbolic(*numbers: Any) -> bool:
    """Return whether any of these numbers is known only at run time, such as a dynamic length of a compiled program.

    >>> is_symbolic(3, 0.5)
    False
    """
    if torch.compiler.is_dynamo_compiling():  # it shows symbolic numbers to Python code as plain ones
        from torch.fx.experimental.symbolic_shapes import has_static_value  # noqa: PLC0415

        return any(isinstance(n, int | float) and not has_static_value(n) for n in numbers)
    return any(type(n).__name__ in ("SymInt", "SymFloat") for n in numbers)


def check_options(owner: object, options: Mapping[str, Any], accepted: Iterable[str]) -> None:
    """Raise a TypeError if ``options`` holds an argument that the class of ``owner`` does not take.

    >>> class Layer:
    ...     def __init__(self, channels, **options):
    ...         check_options(self, options, ("size", "bias"))
    >>> Layer(4, sise=3)
    Traceback (most recent call last):
    TypeError: Layer takes no argument 'sise'; the closest is 'size'
    >>> Layer(4, stride=2)
    Traceback (most recent call last):
    TypeError: Layer takes no argument 'stride'; it takes channels, size, bias
    """
    accepted = tuple(accepted)
    for name in options:
        if name not in accepted:
            kind = type(owner)
            named = inspect.signature(kind).parameters.values()
            own = (p.name for p in named if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
            known = tuple(dict.fromkeys((*own, *accepted)))
            hint = closest(name, known) or f"; it takes {', '.join(known)}"
            raise TypeError(f"{kind.__name__} takes no argument {name!r}{hint}")


def closest(name: str, known: Iterable[str]) -> str:
    """Return a hint for an error message: the known names most like ``name``; "" if none is.

    Case and punctuation do not count. A name that is nearly the same comes first, then names that contain ``name``.

    >>> closest("P4-CNN", ["p4cnn", "z2cnn"]), closest("sise", ["size", "bias"])
    ("; the closest is 'p4cnn'", "; the closest is 'size'")
    >>> closest("ccnn", ["z2cnn", "ccnn_4_140", "ccnn_6_380"])
    "; the closest are 'ccnn_4_140' and 'ccnn_6_380'"
    >>> closest("xyz", ["size"])
    ''
    """
    wanted = _letters(name)
    letters = {other: _letters(other) for other in known}
    ratios = {other: difflib.SequenceMatcher(None, wanted, text).ratio() for other, text in letters.items()}
    best = max(ratios, key=lambda other: ratios[other], default="")
    inside = [other for other, text in letters.items() if wanted in text] if len(wanted) >= 3 else []
    inside.sort(key=lambda other: not letters[other].startswith(wanted))
    if best and ratios[best] >= 0.9:
        found = [best]
    elif inside:
        found = inside[:3]
    else:
        found = [best] if best and ratios[best] >= 0.65 else []
    if not found:
        return ""
    *most, last = map(repr, found)
    return f"; the closest are {', '.join(most)} and {last}" if most else f"; the closest is {last}"


def _letters(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return "".join(filter(str.isalnum, name.lower()))


def per_axis(value: Value | Sequence[Value], dim: int) -> tuple[Value, ...]:
    """Return one value per axis from an argument that :class:`~kernelfield._kinds.PerAxis` has checked.

    >>> per_axis(3, 2), per_axis([3, 4], 2)
    ((3, 3), (3, 4))
    """
    return tuple(value) if isinstance(value, (list, tuple)) else (value,) * dim  # type: ignore[return-value]


def ints_per_axis(name: str, value: Any, dim: int, least: int = 1) -> tuple[int, ...]:
    """Return ``dim`` ints from an int or a sequence of ``dim`` ints.

    >>> ints_per_axis("size", 32, dim=2)
    (32, 32)
    >>> ints_per_axis("size", (32, 32, 32), dim=2)
    Traceback (most recent call last):
    ValueError: size must be an int or 2 ints for dim=2, got (32, 32, 32)
    """
    return _per_axis(name, value, dim, "int", _is_int, lambda n: check_int(name, n, least))


def floats_per_axis(name: str, value: Any, dim: int) -> tuple[float, ...]:
    """Return ``dim`` positive finite floats from a number or a sequence of ``dim`` numbers.

    >>> floats_per_axis("step", 0.5, dim=2)
    (0.5, 0.5)
    >>> floats_per_axis("step", (1, 2, -1), dim=3)
    Traceback (most recent call last):
    ValueError: step must be a finite number above 0, got -1
    """
    return _per_axis(name, value, dim, "number", _is_number, lambda v: check_positive(name, v))


def check_coords(coords: Any, dim: int) -> Tensor:
    """Return ``coords`` if it is a floating-point tensor of shape (…, dim)."""
    shape = getattr(coords, "shape", None)
    if shape is None or not hasattr(coords, "is_floating_point"):
        raise TypeError(f"coords must be a torch.Tensor, got {type(coords).__name__}")
    if len(shape) == 0 or shape[-1] != dim:
        raise ValueError(f"coords must have shape (…, {dim}) for dim={dim}, got {tuple(shape)}")
    if not coords.is_floating_point():
        raise TypeError(f"coords must be a floating-point tensor, got {coords.dtype}")
    return coords


def _per_axis(
    name: str, value: Any, dim: int, noun: str, is_one: Callable[[Any], bool], check: Callable[[Any], Any]
) -> tuple[Any, ...]:
    if is_one(value):
        return (check(value),) * dim
    article = "an" if noun == "int" else "a"
    plural = f"{dim} {noun}s" if dim > 1 else f"1 {noun}"
    if isinstance(value, str) or not hasattr(value, "__len__") or not all(map(is_one, value)):
        raise TypeError(f"{name} must be {article} {noun} or {plural} for dim={dim}, got {value!r}")
    if len(value) != dim:
        raise ValueError(f"{name} must be {article} {noun} or {plural} for dim={dim}, got {value!r}")
    return tuple(check(v) for v in value)


def _is_int(value: Any) -> bool:
    # SymInt, the length of a dynamic axis under torch.export, is no subclass of int.
    return (isinstance(value, int) and not isinstance(value, bool)) or type(value).__name__ == "SymInt"


def _is_number(value: Any) -> bool:
    # SymFloat, a step that depends on the length of a dynamic axis, is no subclass of float.
    return (isinstance(value, (int, float)) and not isinstance(value, bool)) or is_symbolic(value)
