"""Wrappers of checked functions, compiled once per function.

A wrapper has the parameters of its function, so Python itself binds the arguments of a call. One boolean expression,
joined from the :meth:`~kernelfield._kinds.Kind.fast_test` of every kind, is true only if all arguments are accepted. If
it is false, the slow path checks each argument and raises an error for the first one that is not accepted.
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

#: built-in names that the source of a wrapper uses
_BUILTINS = {"float", "int", "isinstance", "str", "type"}


def compile_wrapper(
    function: Callable[..., Any],
    kinds: Mapping[str, Kind],
    check: Callable[[dict[str, Any]], None],
    explain: Callable[[Exception, dict[str, Any]], Exception | None],
) -> Callable[..., Any]:
    """Return a function that checks its arguments and then calls ``function``.

    Args:
        function: the function to call.
        kinds: kinds of arguments by name.
        check: takes the arguments by name and raises an error if one of them is not accepted.
        explain: takes an error of torch and the arguments; returns an error that names the argument behind it, or None.

    >>> from kernelfield._kinds import Int
    >>> def double(n): return 2 * n
    >>> compile_wrapper(double, {"n": Int(1)}, print, lambda error, given: None)(4)
    8
    """
    code = function.__code__
    names = _Names()
    wrapped, checker, explainer = map(names.bind, (function, check, explain))
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
    if options:
        tests += [_option_test(name, kind, options, names) for name, kind in kinds.items() if name not in own]
    given = "{" + ", ".join([*(f"{n!r}: {n}" for n in own), *([f"**{options}"] if options else [])]) + "}"
    call = function.__name__ if function.__name__.isidentifier() else "call"
    lines = [
        f"def make({', '.join(names.values)}):",
        f"    def {call}({', '.join(parameters)}):",
        f"        if not ({' and '.join(tests) or True}):",
        f"            {checker}({given})",
        "        try:",
        f"            return {wrapped}({passed})",
        "        except (RuntimeError, MemoryError, TypeError) as _error_:",
        f"            _explained_ = {explainer}(_error_, {given})",
        "            if _explained_ is None:",
        "                raise",
        "            raise _explained_ from _error_",
        f"    return {call}",
    ]
    text = "\n".join(lines) + "\n"
    title = f"<checks of {function.__module__}.{function.__qualname__}>"
    linecache.cache[title] = (len(text), None, text.splitlines(keepends=True), title)
    namespace: dict[str, Any] = {}
    exec(compile(text, title, "exec"), namespace)
    wrapper = namespace["make"](**names.values)
    wrapper.__qualname__ = function.__qualname__  # shown in Python's errors about missing arguments
    return wrapper


class _Names:
    """Constants that the source of a wrapper refers to, by generated name."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def bind(self, value: Any) -> str:
        name = f"_{len(self.values)}_"
        self.values[name] = value
        return name


def _test(name: str, kind: Kind, default: str | None, names: _Names) -> str:
    """Return an expression that is true only for the default and for accepted values."""
    test = kind.fast_test(name, names.bind)
    return f"({test})" if default is None else f"({name} is {default} or {test})"


def _option_test(name: str, kind: Kind, options: str, names: _Names) -> str:
    """Return an expression that is true only if an entry of ``**options`` is missing or accepted."""
    missing = f"{name!r} not in {options}"
    if any(isinstance(part, TensorOf) for part in parts_of(kind)):  # the slow path compares the lengths of its axes
        return f"({missing})"
    return f"({missing} or {kind.fast_test(f'{options}[{name!r}]', names.bind)})"


def _axes(kinds: Mapping[str, Kind], own: tuple[str, ...], tensor: str) -> list[str]:
    """Return expressions that compare the lengths of axes with the same name."""
    found_axes: dict[str, list[tuple[str, str, bool, bool]]] = {}
    for name, kind in kinds.items():
        parts = parts_of(kind)
        for part in parts:
            if isinstance(part, TensorOf):
                for axis, length in part.length_expressions(_shape(name)):
                    plain, _, single = axis.partition("|")
                    found_axes.setdefault(plain, []).append((name, length, bool(single), len(parts) > 1))
    tests: list[str] = []
    shapes: dict[str, bool] = {}
    for axis, found in found_axes.items():
        if axis[0] == "." and "self" in own:
            found.insert(0, ("self", f"self{axis}", False, False))
        for (name, length, one, some), (other, other_length, other_one, other_some) in combinations(found, 2):
            shapes |= {name: some, other: other_some}
            alternatives = [f"{_shape(n)} is None" for n, optional in ((name, some), (other, other_some)) if optional]
            alternatives += [f"{length} == {other_length}"]
            alternatives += [f"{text} == 1" for text, allowed in ((length, one), (other_length, other_one)) if allowed]
            tests.append(f"({' or '.join(alternatives)})")
    shapes.pop("self", None)
    # Each access to Tensor.shape makes a new tuple, so the expression stores it in a variable.
    bindings = [
        f"(({_shape(n)} := {n}.shape{f' if isinstance({n}, {tensor}) else None' if optional else ''}) is not False)"
        for n, optional in shapes.items()
    ]
    return [*bindings, *tests]


def _shape(name: str) -> str:
    return f"_{name}_shape_"
