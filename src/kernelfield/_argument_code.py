"""Wrappers of checked functions, compiled once per function.

A wrapper has the parameters of its function, so Python itself binds the arguments of a call. One boolean expression,
joined from what the kinds say in :meth:`~kernelfield._kinds.Kind.quick`, tells whether all of them are surely accepted.
If it is false, the slow path looks at each argument and finds the words for an error.
"""

from __future__ import annotations

import linecache
from itertools import combinations
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ._kinds import parts_of
from ._object_kinds import TensorOf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ._kinds import Kind

__all__ = ["compile_wrapper"]

#: names that the text of a wrapper has from Python
_BUILTINS = {"float", "int", "isinstance", "str", "type"}


def compile_wrapper(
    function: Callable[..., Any],
    kinds: Mapping[str, Kind],
    check: Callable[[dict[str, Any]], None],
    explain: Callable[[Exception, dict[str, Any]], Exception | None],
) -> Callable[..., Any]:
    """Return a function that checks its arguments and then calls ``function``.

    Args:
        function: what to call.
        kinds: kinds of arguments by name.
        check: raises an error for arguments, by name, of which one is not accepted.
        explain: returns an error that names the argument behind an error of torch, or None.

    >>> from kernelfield._kinds import Int
    >>> def double(n): return 2 * n
    >>> compile_wrapper(double, {"n": Int(1)}, print, lambda error, given: None)(4)
    8
    """
    code = function.__code__
    names = _Names()
    run, look, words = map(names.bind, (function, check, explain))
    first = code.co_varnames[: code.co_argcount]
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = iter(code.co_varnames[code.co_argcount + code.co_kwonlyargcount :])
    more = next(rest) if code.co_flags & 0x04 else ""
    options = next(rest) if code.co_flags & 0x08 else ""

    last = function.__defaults__ or ()
    defaults = {**dict(zip(first[len(first) - len(last) :], last, strict=True)), **(function.__kwdefaults__ or {})}
    bound = {name: names.bind(value) for name, value in defaults.items()}
    parameters = [f"{name}={bound[name]}" if name in bound else name for name in first]
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    parameters += [f"*{more}"] if more else ["*"] if named else []
    parameters += [f"{name}={bound[name]}" if name in bound else name for name in named]
    parameters += [f"**{options}"] if options else []

    passed = ", ".join(
        [*first, *([f"*{more}"] if more else []), *(f"{n}={n}" for n in named), *([f"**{options}"] if options else [])]
    )
    own = (*first, *named)
    if _BUILTINS & set(own):
        raise TypeError(f"{function.__qualname__} must not have arguments named {', '.join(sorted(_BUILTINS))}")
    tests = [_test(name, kinds[name], bound.get(name), names) for name in own if name in kinds]
    tests += _axes({name: kinds[name] for name in own if name in kinds}, own, names.bind(Tensor))
    if options and set(kinds) - set(own):
        tests.append(f"not {options}")
    given = "{" + ", ".join([*(f"{n!r}: {n}" for n in own), *([f"**{options}"] if options else [])]) + "}"
    call = function.__name__ if function.__name__.isidentifier() else "call"
    lines = [
        f"def make({', '.join(names.values)}):",
        f"    def {call}({', '.join(parameters)}):",
        f"        if not ({' and '.join(tests) or True}):",
        f"            {look}({given})",
        "        try:",
        f"            return {run}({passed})",
        "        except (RuntimeError, MemoryError) as _error_:",
        f"            _explained_ = {words}(_error_, {given})",
        "            if _explained_ is None:",
        "                raise",
        "            raise _explained_ from _error_",
        f"    return {call}",
    ]
    text = "\n".join(lines) + "\n"
    title = f"<checks of {function.__module__}.{function.__qualname__}>"
    linecache.cache[title] = (len(text), None, text.splitlines(keepends=True), title)
    space: dict[str, Any] = {}
    exec(compile(text, title, "exec"), space)
    wrapper = space["make"](**names.values)
    wrapper.__qualname__ = function.__qualname__  # in Python's errors about missing arguments
    return wrapper


class _Names:
    """Constants of a wrapper, by the names that its text has for them."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def bind(self, value: Any) -> str:
        name = f"_{len(self.values)}_"
        self.values[name] = value
        return name


def _test(name: str, kind: Kind, default: str | None, names: _Names) -> str:
    """Return an expression that is true only for values that are accepted; a default is."""
    test = kind.quick(name, names.bind)
    return f"({test})" if default is None else f"({name} is {default} or {test})"


def _axes(kinds: Mapping[str, Kind], own: tuple[str, ...], tensor: str) -> list[str]:
    """Return expressions that compare the lengths of axes that have one name in several tensors."""
    places: dict[str, list[tuple[str, str, bool, bool]]] = {}
    for name, kind in kinds.items():
        parts = parts_of(kind)
        for part in parts:
            if isinstance(part, TensorOf):
                for axis, length in part.places(_shape(name)):
                    plain, _, single = axis.partition("|")
                    places.setdefault(plain, []).append((name, length, bool(single), len(parts) > 1))
    tests: list[str] = []
    shapes: dict[str, bool] = {}
    for axis, found in places.items():
        if axis[0] == "." and "self" in own:
            found.insert(0, ("self", f"self{axis}", False, False))
        for (name, length, one, some), (other, other_length, other_one, other_some) in combinations(found, 2):
            shapes |= {name: some, other: other_some}
            ways = [f"{_shape(n)} is None" for n, optional in ((name, some), (other, other_some)) if optional]
            ways += [f"{length} == {other_length}"]
            ways += [f"{text} == 1" for text, allowed in ((length, one), (other_length, other_one)) if allowed]
            tests.append(f"({' or '.join(ways)})")
    shapes.pop("self", None)
    # A shape is a new tuple at every look at it.
    looks = [
        f"(({_shape(n)} := {n}.shape{f' if isinstance({n}, {tensor}) else None' if optional else ''}) is not False)"
        for n, optional in shapes.items()
    ]
    return [*looks, *tests]


def _shape(name: str) -> str:
    return f"_{name}_shape_"
