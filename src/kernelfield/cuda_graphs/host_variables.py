"""The values on the host that a function uses, which are constants of a graph.

A replay runs no Python. It uses the numbers, strings and containers of the recording, and the tensors at the addresses
of the recording. They are therefore part of a graph's key, and a function that changes them itself is not captured.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
import operator
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

__all__ = ["HostVariables", "ModuleSettings", "constant"]

#: types of values that are compared
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, enum.Enum, torch.dtype, torch.device)
_CONTAINERS = (list, tuple, set, frozenset, dict)
#: number of items of a container, and of nested containers and objects, that are compared
_MOST_ITEMS, _MOST_LEVELS = 256, 8
#: libraries whose objects and functions are not looked into
_LIBRARIES = {"torch", "kernelfield", "lightning", "lightning_fabric", "numpy", "triton", *sys.stdlib_module_names}
_LIBRARIES -= {"__main__"}
#: attributes of every module
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def constant(value: Any, device: str, levels: int = _MOST_LEVELS) -> Hashable:
    """Return a description of a value that changes with everything that a graph takes from it.

    Args:
        value: any object.
        device: type of the device that runs graphs. A tensor there may change its values.
        levels: number of nested containers to look into.
    """
    if isinstance(value, _PLAIN):
        return type(value), value if value == value else "nan"  # noqa: PLR0124
    if isinstance(value, Tensor):
        return _tensor(value, device)
    if isinstance(value, _CONTAINERS) and len(value) <= _MOST_ITEMS and levels > 0:
        items = (*value, *value.values()) if isinstance(value, dict) else value
        return type(value), tuple([constant(item, device, levels - 1) for item in items])
    if isinstance(value, np.ndarray) and value.size <= _MOST_ITEMS:
        return value.shape, value.dtype.str, value.tobytes()
    if isinstance(value, types.MethodType):  # a new object at every access
        return _Same(value.__func__), _Same(value.__self__)
    return _Same(value), len(value) if isinstance(value, _CONTAINERS) else 0


class _Same:
    """A reference to an object, which equals only references to the same object."""

    def __init__(self, value: Any) -> None:
        self._id = id(value)
        try:
            self._get: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._get = lambda: value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._id == other._id and self._get() is other._get() is not None

    def __hash__(self) -> int:
        return self._id


def _tensor(tensor: Tensor, device: str) -> Hashable:
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # it has no storage
        return _Same(tensor)
    found = "tensor", address, tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad
    if tensor.device.type == device:
        return found
    # Its values become constants of a graph.
    version = -1 if tensor.is_inference() else tensor._version  # noqa: SLF001
    return (*found, version, tensor.item() if tensor.dim() == 0 and tensor.is_cpu else None)


class HostVariables:
    """The variables that a function and the functions of its caller's code use: closures, globals and attributes.

    Attributes count if their names occur in the code.

    Args:
        function: the function.
        device: type of the device that runs graphs; tensors elsewhere belong to the host.
    """

    def __init__(self, function: Callable[..., Any], device: str) -> None:
        self._function, self.device = function, device
        #: tensors among the variables of the last read that get gradients and belong to no graph of autograd
        self.leaves: list[Tensor] = []
        self._found: dict[str, Hashable] = {}
        self._seen: set[tuple[int, int]] = set()

    def read(self, hooks: Sequence[Any] = ()) -> dict[str, Hashable]:
        """Return descriptions of all variables by name.

        Args:
            hooks: functions that belong to the function.
        """
        self._found, self._seen, self.leaves = {}, set(), []
        self._follow("", self._function, _MOST_LEVELS)
        for number, hook in enumerate(hooks):
            self._add(f"hook{number}", hook, frozenset(), _MOST_LEVELS)
        found, self._found = self._found, {}
        return found

    def _follow(self, path: str, function: Any, levels: int) -> None:
        """Add the variables of a function."""
        if isinstance(function, functools.partial):
            for i, value in enumerate((function.args, function.keywords)):
                self._found[f"{path}{('args', 'keywords')[i]}"] = constant(value, self.device)
            return self._follow(path, function.func, levels)
        owner = getattr(function, "__self__", None)
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if code is None:  # an object with a method __call__
            call = vars(type(function)).get("__call__")
            if isinstance(call, types.FunctionType) and _is_own(type(function)):
                self._follow(path, types.MethodType(call, function), levels)
            return None
        if (id(code), id(owner)) in self._seen:
            return None
        self._seen.add((id(code), id(owner)))
        names, globals_ = _names(code), function.__globals__
        if owner is not None:
            self._add("self" if not path else path.removesuffix("."), owner, names, levels)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # a cell that is still empty
                self._add(path + name, cell.cell_contents, names, levels)
        self._found[f"{path}defaults"] = constant((function.__defaults__, function.__kwdefaults__), self.device)
        for name in names:
            if name in globals_:
                self._add(path + name, globals_[name], names, levels)
        return None

    def _add(self, path: str, value: Any, names: frozenset[str], levels: int) -> None:
        """Add a variable, and its attributes whose names are in the code."""
        if isinstance(value, types.ModuleType):
            if value.__name__.partition(".")[0] not in _LIBRARIES and levels > 0:
                self._attributes(path, value, names, levels)
            return
        self._found[path] = constant(value, self.device)
        items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        self.leaves += [t for t in items if isinstance(t, Tensor) and t.requires_grad and t.is_leaf]
        if levels <= 0 or isinstance(value, (*_PLAIN, *_CONTAINERS, Tensor)):
            return
        wrapped = getattr(value, "__dict__", {}).get("__wrapped__")
        if wrapped is not None:
            self._follow(f"{path}.", wrapped, levels - 1)
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            if _is_own(value) or wrapped is not None:
                self._follow(f"{path}.", value, levels - 1)
        elif isinstance(value, type):
            if _is_own(value):
                self._attributes(path, value, names, levels)
        elif isinstance(value, nn.Module) or not type(value).__module__.startswith("torch."):
            self._attributes(path, value, names, levels)

    def _attributes(self, path: str, value: Any, names: frozenset[str], levels: int) -> None:
        """Add the attributes of an object whose names are in the code."""
        if (id(value), id(names)) in self._seen:
            return
        self._seen.add((id(value), id(names)))
        own = getattr(value, "__dict__", {})
        for name in names.intersection(own) - _OF_EVERY_MODULE:
            self._add(f"{path}.{name}", own[name], names, levels - 1)
        if isinstance(value, nn.Module):
            for parts in (value._parameters, value._buffers):  # noqa: SLF001
                for name in names.intersection(parts):
                    self._found[f"{path}.{name}"] = constant(parts[name], self.device)
        if isinstance(value, (type, types.ModuleType)) or not _is_own(type(value)):
            return
        for name in names - own.keys():
            member = getattr(type(value), name, None)
            member = member.fget if isinstance(member, property) else member
            if isinstance(member, types.FunctionType):
                self._follow(f"{path}.", types.MethodType(member, value), levels - 1)
            elif isinstance(member, types.MemberDescriptorType):  # of __slots__
                self._add(f"{path}.{name}", getattr(value, name, None), names, levels - 1)
            elif member is not None and isinstance(member, _PLAIN):
                self._found[f"{path}.{name}"] = constant(member, self.device)


def _is_own(value: Any) -> bool:
    """Return whether a function or class is code of the user."""
    return (getattr(value, "__module__", None) or "").partition(".")[0] not in _LIBRARIES


@functools.lru_cache(256)
def _names(code: types.CodeType) -> frozenset[str]:
    """Return the names of globals and attributes in a function's code, and in functions inside of it."""
    names = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names |= _names(inner)
    return frozenset(names)


class ModuleSettings:
    """The attributes of modules that are constants of a graph: numbers, strings, containers of them, and tensors.

    They are read at every call, hundreds of them, so an unchanged attribute is compared by its identity alone.

    Args:
        device: type of the device that runs graphs.
    """

    def __init__(self, device: str) -> None:
        self.modules: list[nn.Module] = []
        self._device = device
        self._parts: list[Iterable[Any]] = []
        #: number of attributes and of hooks of each module
        self._sizes: list[dict[Any, Any]] = []
        self._hooks: list[dict[int, Any]] = []
        #: attributes that cannot change in place, and those that can: their owner's attributes, their names, and labels
        self._fixed: list[tuple[dict[str, Any], str, str]] = []
        self._mutable: list[tuple[dict[str, Any], str, str]] = []
        self._values: list[Any] = []
        #: all settings so far, and the number of each
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._last: tuple[Any, ...] = ()
        self._number = 0

    def add(self, modules: Iterable[nn.Module]) -> None:
        """Add modules."""
        for module in modules:
            self.modules.append(module)
            owned = (module._parameters, module._buffers, module._modules)  # noqa: SLF001
            self._parts += [parts.values() for parts in owned if parts]
            self._hooks += [module._forward_pre_hooks, module._forward_hooks]  # noqa: SLF001
            self._sizes.append(vars(module))
            for name, value in vars(module).items():
                if _is_constant(value) and not _is_exempt(module, name):
                    target = self._fixed if _is_immutable(value) else self._mutable
                    target.append((vars(module), name, f"{type(module).__name__}.{name}"))

    def parts(self) -> list[int]:
        """Return the identities of parameters, buffers and submodules."""
        return list(map(id, itertools.chain.from_iterable(self._parts)))

    def hooks(self) -> list[Any]:
        """Return the hooks of forward passes."""
        return [hook for hooks in self._hooks for hook in hooks.values()] if any(self._hooks) else []

    def read(self) -> int:
        """Return a number that stands for the values of all attributes."""
        values = [own.get(name) for own, name, _ in self._fixed]
        counts = sum(map(len, self._sizes)), sum(map(len, self._hooks))
        mutable = tuple([constant(own.get(name), self._device) for own, name, _ in self._mutable])
        same = len(values) == len(self._values) and all(map(operator.is_, values, self._values))
        if not (same and self._last[:2] == (counts, mutable)):
            self._values = values
            self._last = counts, mutable, tuple([constant(value, self._device) for value in values])
            self._number = self._numbers.setdefault(self._last, len(self._numbers))
        return self._number

    def changed(self, before: int) -> str:
        """Return the name of an attribute that is not what it was when :meth:`read` returned ``before``, or ""."""
        now, old = self.read(), next(key for key, number in self._numbers.items() if number == before)
        if now == before:
            return ""
        for names, was, found in zip((self._mutable, self._fixed), old[1:], self._last[1:], strict=True):
            for (_, _, label), a, b in zip(names, was, found, strict=False):
                if a != b:
                    return label
        return ""


def _is_constant(value: Any) -> bool:
    if isinstance(value, _CONTAINERS):
        return all(_is_constant(item) for item in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, (*_PLAIN, Tensor))


def _is_immutable(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(_is_immutable(item) for item in value))


def _is_exempt(module: nn.Module, name: str) -> bool:
    """Return whether an attribute is state of this library or of torch, which a graph does not depend on."""
    if name in _OF_EVERY_MODULE or (name.startswith("_") and not _is_own(type(module))):
        return True
    # Computed anew before each call, as by torch.nn.utils.spectral_norm.
    return any(f"{name}{end}" in module._parameters for end in ("_orig", "_v"))  # noqa: SLF001
