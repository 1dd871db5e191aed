"""Kinds of arguments that are objects: tensors, instances, callables, dtypes, devices, dictionaries, intervals."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ._checks import is_symbolic
from ._kinds import FINITE, NOT_NEGATIVE, Kind, ListOf, OfType, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CALLABLE",
    "DEVICE",
    "DICT",
    "DTYPE",
    "FIELD",
    "INTERVAL",
    "MAKER",
    "SHARES",
    "Instance",
    "IterableOf",
    "MappingOf",
    "TensorOf",
    "have_common_axes",
    "match_axes",
]


_NO_ARGUMENTS: Mapping[str, Any] = {}


class Instance(Kind):
    """An instance of a class that is given by its full name.

    >>> Instance("kernelfield.groups.Group").check("group", 4)
    Traceback (most recent call last):
    TypeError: group must be a kernelfield.groups.Group, got 4 of type int
    """

    def __init__(self, *names: str) -> None:
        self.names = names
        self._classes: tuple[type, ...] | None = None

    def has_type(self, value: Any) -> bool:
        if self._classes is None:  # imported at the first call: the modules of these classes import this one
            self._classes = tuple(map(_find, self.names))
        return isinstance(value, self._classes)

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:
        if self._classes is None and not all(n.rpartition(".")[0] in sys.modules for n in self.names):
            return f"{bind(self.has_type)}({name})"  # imports the class only if a call passes a value
        self._classes = tuple(map(_find, self.names))
        return f"isinstance({name}, {bind(self._classes)})"

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:  # noqa: ARG002
        return " or ".join(f"a {name}" for name in self.names)


class _Callable(Kind):
    def has_type(self, value: Any) -> bool:
        return callable(value) and not isinstance(value, type)

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:
        return f"{bind(callable)}({name}) and not isinstance({name}, type)"

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:  # noqa: ARG002
        return "a callable"


class _Maker(_Callable):
    """A callable that returns a module; a class must be a subclass of torch.nn.Module."""

    def has_type(self, value: Any) -> bool:
        return issubclass(value, nn.Module) if isinstance(value, type) else callable(value)

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:
        maker = f"{bind(issubclass)}({name}, {bind(nn.Module)})"
        return f"{maker} if isinstance({name}, type) else {bind(callable)}({name})"

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:  # noqa: ARG002
        return "a callable that makes a torch.nn.Module"


class _Field(Kind):
    def has_type(self, value: Any) -> bool:
        if isinstance(value, type):
            return issubclass(value, _find("kernelfield.fields.Field"))
        return callable(value)

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:
        field = bind(_find("kernelfield.fields.Field"))
        return f"{bind(issubclass)}({name}, {field}) if isinstance({name}, type) else {bind(callable)}({name})"

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:  # noqa: ARG002
        return "a kernelfield.fields.Field or a callable that makes one from (dim, channels)"


def _is_device(value: str | torch.device) -> bool:
    try:
        torch.device(value)
    except RuntimeError:
        return False
    return True


class TensorOf(Kind):
    r"""A tensor of some dtype and shape.

    Args:
        dtype: "float", "int", "bool" or "any".
        shape: names of the axes: "batch, channels, \*space". A star stands for one axis or more, "…" for any number,
            "batch|1" for an axis that may also have length 1, and ".in_channels" for an axis whose length is that
            attribute of ``self``. Axes with the same name must have the same length in all arguments of a call;
            :func:`match_axes` compares them.
        empty: whether axes may have length 0. The first axis always may: it is the batch.

    >>> TensorOf("float", "batch, channels, points").check("x", torch.ones(3))
    Traceback (most recent call last):
    ValueError: x must be a float tensor of shape (batch, channels, points), got a float32 tensor of shape (3,)
    """

    def __init__(self, dtype: str = "any", shape: str = "…", *, empty: bool = True) -> None:
        self.dtype, self.shape, self.empty = dtype, shape, empty
        self.words = shape.replace("|", " or ").replace(".", "")
        axes = shape.split(", ")
        #: names of the axes before the starred one, its own name or "", and the names of those after it
        self.before, self.several, self.after = axes, "", []
        for place, axis in enumerate(axes):
            if axis[0] in "*…":
                self.before, self.several, self.after = axes[:place], axis, axes[place + 1 :]
        self._rank = len(self.before) + len(self.after)

    def has_type(self, value: Any) -> bool:
        if not isinstance(value, Tensor):
            return False
        if self.dtype == "float":
            return value.is_floating_point()
        if self.dtype == "bool":
            return value.dtype == torch.bool
        whole = not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool
        return self.dtype == "any" or whole

    def in_range(self, value: Any, given: Mapping[str, Any]) -> bool:  # noqa: ARG002
        more = value.dim() - self._rank
        fits = more == 0 if not self.several else more >= (self.several[0] == "*")
        return fits and (self.empty or 0 not in value.shape[1:])

    def accepts(self, value: Any, given: Mapping[str, Any]) -> bool:
        return super().accepts(value, given) and not value.is_meta  # check() decides about meta tensors

    def check(self, name: str, value: Any, given: Mapping[str, Any] = _NO_ARGUMENTS) -> None:
        super().check(name, value, given)
        # torch rejects every other mix of devices itself, but accepts meta tensors until the backward pass.
        module = given.get("self")
        if value.is_meta and isinstance(module, nn.Module) and "_parameters" in module.__dict__:  # not in a constructor
            device = next((p.device for p in module.parameters()), value.device)
            if device.type != "meta":
                raise ValueError(f"{name} must be on the device of the module, {device}, got {value.device}")

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:  # noqa: ARG002
        kind = "" if self.dtype == "any" else f"{self.dtype} "
        shape = "" if self.shape == "…" else f" of shape ({self.words})"
        return f"{'an' if self.dtype == 'int' else 'a'} {kind}tensor{shape}{'' if self.empty else ', not empty'}"

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:
        # Subclasses, such as traced tensors, take the slow path.
        tests = [f"type({name}) in {bind((Tensor, nn.Parameter))}"]
        if self.dtype == "float":
            tests.append(f"{name}.dtype.is_floating_point")
        elif self.dtype == "bool":
            tests.append(f"{name}.dtype is {bind(torch.bool)}")
        elif self.dtype == "int":
            tests.append(f"{name}.dtype in {bind((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))}")
        if self.several != "…" or self._rank:
            tests.append(f"{name}.dim() {'>=' if self.several else '=='} {self._rank + (self.several[:1] == '*')}")
        if not self.empty:
            tests.append(f"0 not in {name}.shape[1:]")
        return " and ".join([*tests, f"not {name}.is_meta"])

    def length_expressions(self, name: str) -> list[tuple[str, str]]:
        """Return the name of each axis and the source of an expression for its length, where ``name`` is the shape."""
        first, last = len(self.before), len(self.after)
        named = [(axis, f"{name}[{i}]") for i, axis in enumerate(self.before)]
        named += [(axis, f"{name}[{i - last}]") for i, axis in enumerate(self.after)]
        several = f"{name}[{first}:{f'{-last}' if last else ''}]"
        return [*named, (self.several, several)] if self.several[:1] == "*" else named

    def lengths(self, value: Tensor) -> list[tuple[str, Any]]:
        """Return the name and length of each axis of ``value``; a starred name has a tuple of lengths."""
        shape, last = tuple(value.shape), value.dim() - len(self.after)
        named = [*zip(self.before, shape, strict=False), *zip(self.after, shape[last:], strict=True)]
        return [*named, (self.several, shape[len(self.before) : last])] if self.several[:1] == "*" else named


def have_common_axes(kinds: Iterable[Kind]) -> bool:
    """Return whether the name of an axis occurs twice, or is an attribute of ``self``."""
    tensors = [part for kind in kinds for part in parts_of(kind) if isinstance(part, TensorOf)]
    axes = [axis.partition("|")[0] for kind in tensors for axis in kind.shape.split(", ") if axis != "…"]
    return len(set(axes)) < len(axes) or any(axis[0] == "." for axis in axes)


def match_axes(kinds: Mapping[str, Kind], values: Mapping[str, Any]) -> None:
    """Raise a ValueError if axes with the same name have different lengths.

    >>> kinds = {"x": TensorOf("float", "batch, points"), "mask": TensorOf("bool", "batch|1, points")}
    >>> match_axes(kinds, {"x": torch.ones(2, 5), "mask": torch.ones(1, 5) > 0})
    >>> match_axes(kinds, {"x": torch.ones(2, 5), "mask": torch.ones(2, 4) > 0})
    Traceback (most recent call last):
    ValueError: mask must have shape (batch or 1, points) with points=5 as in x, got (2, 4)
    """
    known: dict[str, tuple[Any, str]] = {}
    for name, value in values.items():
        for part in parts_of(kinds.get(name)) if isinstance(value, Tensor) else ():
            if not isinstance(part, TensorOf) or not part.has_type(value):
                continue
            for full, length in part.lengths(value):
                axis, _, one = full.partition("|")
                if is_symbolic(length) or (one and length == 1):
                    continue
                known_as = (getattr(values["self"], axis[1:]), "the module") if axis[0] == "." else (length, name)
                wanted, other = known.setdefault(axis, known_as)
                if length != wanted:
                    raise ValueError(
                        f"{name} must have shape ({part.words}) with {axis.lstrip('.')}={wanted} as in {other}, "
                        f"got {tuple(value.shape)}"
                    )


def _find(name: str) -> type:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


class IterableOf(Kind):
    """A list, tuple, range or other iterable of ``kind``; only the entries of these three types are checked.

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

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:
        count = f" of at least {self.least} entries" if self.least else ""
        return f"an iterable{count}, each entry {self.kind.text(given)}"


class MappingOf(Kind):
    """A dictionary with names as keys and, optionally, values of one kind."""

    def __init__(self, kind: Kind | None = None) -> None:
        self.kind = kind

    def has_type(self, value: Any) -> bool:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            return False
        return self.kind is None or all(map(self.kind.has_type, value.values()))

    def in_range(self, value: Any, given: Mapping[str, Any]) -> bool:
        return self.kind is None or all(self.kind.in_range(v, given) for v in value.values())

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:
        if self.kind is not None:
            return super().fast_test(name, bind)
        names = f"{bind(all)}(isinstance(_key_, str) for _key_ in {name})"
        return f"isinstance({name}, {bind(Mapping)}) and {names}"

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:
        return "a dictionary with names as keys" + (f", each value {self.kind.text(given)}" if self.kind else "")


class _Interval(ListOf):
    def in_range(self, value: Any, given: Mapping[str, Any]) -> bool:
        return super().in_range(value, given) and value[0] < value[1]

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:
        return f"{super().fast_test(name, bind)} and {name}[0] < {name}[1]"

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:  # noqa: ARG002
        return "an interval (low, high) of finite numbers with low < high"


class _Shares(ListOf):
    def in_range(self, value: Any, given: Mapping[str, Any]) -> bool:
        return super().in_range(value, given) and value[0] > 0 and abs(sum(value) - 1) <= 1e-6

    def fast_test(self, name: str, bind: Callable[[Any], str]) -> str:
        return Kind.fast_test(self, name, bind)

    def text(self, given: Mapping[str, Any] = _NO_ARGUMENTS) -> str:  # noqa: ARG002
        return "3 fractions (training above 0, validation, test) that sum to 1"


DICT = MappingOf()
#: fractions of training, validation and test data
SHARES = _Shares(NOT_NEGATIVE, count=3)
CALLABLE = _Callable()
#: a callable that makes a module: a class, a functools.partial of one, or a function
MAKER = _Maker()
#: a field, or a callable that makes one: a class, a functools.partial of one, or a function
FIELD = _Field()
DTYPE = OfType("a floating-point torch.dtype", torch.dtype, lambda dtype: dtype.is_floating_point)
DEVICE = OfType("a torch.device or the name of one", (str, torch.device), _is_device)
INTERVAL = _Interval(FINITE, count=2)
