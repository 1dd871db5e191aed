"""Split nested arguments and results into tensors and a hashable description of the rest."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

__all__ = ["UnsupportedValue", "constants", "flatten", "map_tensors", "rebuild", "signature"]

#: types of plain values, which become constants of a captured function
_PLAIN = (bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device, torch.layout)


class UnsupportedValue(TypeError):  # noqa: N818
    """A value that is neither a tensor nor a container of tensors nor a plain value."""


def flatten(value: Any) -> tuple[list[Tensor], Hashable]:
    """Return the tensors in ``value`` and a description from which :func:`rebuild` makes the same structure.

    Tuples, lists, dictionaries and dataclasses are containers. Numbers, strings and modules are part of the
    description.

    >>> tensors, form = flatten({"x": torch.zeros(2), "scale": 3})
    >>> len(tensors), rebuild(form, [torch.ones(2)])
    (1, {'x': tensor([1., 1.]), 'scale': 3})
    """
    tensors: list[Tensor] = []
    return tensors, _describe(value, tensors)


def rebuild(form: Any, tensors: Sequence[Tensor]) -> Any:
    """Return the structure that ``form`` describes, with these tensors in it."""
    return _build(form, iter(tensors))


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply ``function`` to every tensor in ``value``; other objects stay as they are."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        items = [map_tensors(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [map_tensors(function, item) for item in value]
    if type(value) is dict:
        return {key: map_tensors(function, item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return _record(type(value), names, [map_tensors(function, getattr(value, name)) for name in names])
    return value


def signature(tensors: Sequence[Tensor]) -> tuple[Hashable, ...]:
    """Return the properties of inputs that a CUDA graph fixes: shapes, dtypes and whether they are channels-last."""
    return tuple((t.shape, t.dtype, t.dim() == 4 and _is_channels_last(t)) for t in tensors)


def constants(form: Any) -> Iterator[Any]:
    """Yield the plain values in the description of a structure."""
    kind, *rest = form
    if kind == "value":
        yield rest[1]
    elif kind != "tensor":
        for item in rest[-1]:
            yield from constants(item)


def _is_channels_last(tensor: Tensor) -> bool:
    return not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)


def _describe(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors.append(value)
        return ("tensor",)
    if value is None or isinstance(value, (*_PLAIN, nn.Module)):
        return "value", type(value), value
    if isinstance(value, (tuple, list)):
        return "sequence", type(value), tuple(_describe(item, tensors) for item in value)
    if isinstance(value, slice):  # slices have no hash before Python 3.12
        return "slice", tuple(_describe(end, tensors) for end in (value.start, value.stop, value.step))
    if type(value) is dict:
        return "mapping", tuple(value), tuple(_describe(item, tensors) for item in value.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value))
        return "record", type(value), names, tuple(_describe(getattr(value, name), tensors) for name in names)
    raise UnsupportedValue(f"{type(value).__module__}.{type(value).__qualname__}")


def _build(form: Any, tensors: Iterator[Tensor]) -> Any:
    kind, *rest = form
    if kind == "tensor":
        return next(tensors)
    if kind == "value":
        return rest[1]
    items = [_build(item, tensors) for item in rest[-1]]
    if kind == "slice":
        return slice(*items)
    if kind == "mapping":
        return dict(zip(rest[0], items, strict=True))
    if kind == "record":
        return _record(rest[0], rest[1], items)
    return rest[0](*items) if hasattr(rest[0], "_fields") else rest[0](items)  # a named tuple takes separate arguments


def _record(kind: type, names: Sequence[str], values: Sequence[Any]) -> Any:
    made: Any = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made
