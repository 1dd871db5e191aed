"""Arguments of functions: their checks, declared once beside the signature, and their names and descriptions.

:func:`checked` reads the type of each argument from its annotation. Keyword arguments of the decorator declare ranges
and choices, which an annotation cannot express:

.. code-block:: python

    @checked(layers=Int(2), activation=Choice("relu", "gelu"), dropout=RATE)
    def __init__(self, dim: int, *, layers: int = 3, activation: str = "relu", dropout: float = 0.0, bias: bool = True):
        ...

An ``int`` is at least 1, a ``float`` is finite, a ``str`` must have its choices declared, and ``dim`` is 1 to 8.
Compiled and exported code skips the checks: its arguments were checked when the module was built or first ran.

:func:`with_arguments_of` shows, in the signature of a function, the options that it passes on to others;
:func:`accepted_arguments`, :func:`takes_argument` and :func:`argument_texts` read a signature and its docstring.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from ._argument_code import compile_wrapper
from ._checks import closest
from ._kinds import ANY, BOOL, DIM, FINITE, PATH, SEED, Int, Kind, ListOf, PerAxis, shown
from ._object_kinds import (
    CALLABLE,
    DEVICE,
    DICT,
    DTYPE,
    FIELD,
    INTERVAL,
    MAKER,
    SHARES,
    Instance,
    TensorOf,
    have_common_axes,
    match_axes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Function = TypeVar("Function", bound=Callable[..., Any])
    Class = TypeVar("Class")

__all__ = [
    "accepted_arguments",
    "argument_texts",
    "checked",
    "checked_fields",
    "declared_kinds",
    "takes_argument",
    "with_arguments_of",
]

_MISSING = object()
_KIND_OF_ANNOTATION: dict[str, Kind] = {
    "Any": ANY,
    "bool": BOOL,
    "int": Int(1),
    "float": FINITE,
    "Tensor": TensorOf(),
    "int | Sequence[int]": PerAxis(Int(1)),
    "float | Sequence[float]": PerAxis(FINITE),
    "Sequence[int]": ListOf(Int(1)),
    "Sequence[float]": ListOf(FINITE),
    "Sequence[bool]": ListOf(BOOL),
    "tuple[float, float]": INTERVAL,
    "torch.dtype": DTYPE,
    "torch.device | str": DEVICE,
    "torch.Generator": Instance("torch.Generator"),
    "Path": PATH,
    "str | Path": PATH,
    "str | os.PathLike[str]": PATH,
    "dict[str, Any]": DICT,
    "Mapping[str, Any]": DICT,
    "tuple[float, float, float]": SHARES,
    "Callable[[], nn.Module]": MAKER,
    "nn.Module": Instance("torch.nn.Module"),
    "Callable[..., Field]": FIELD,
    "Callable[..., Field] | Field": FIELD,
    "Callable[..., nn.Module]": MAKER,
    "Callable[[int, int], nn.Module]": MAKER,
    "Group": Instance("kernelfield.groups.Group"),
    "Distribution": Instance("kernelfield.groups.Distribution"),
    "Mask": Instance("kernelfield.masks.Mask"),
    "Callable[..., Mask] | Mask": Instance("kernelfield.masks.Mask") | MAKER,
    "Edges": Instance("kernelfield.ops.Edges"),
    "ActiveSlice": Instance("kernelfield.layers.ActiveSlice"),
    "Sequence[ActiveSlice]": ListOf(Instance("kernelfield.layers.ActiveSlice"), least=0),
    "LiftingConv": Instance("kernelfield.layers.LiftingConv"),
    "GroupConv": Instance("kernelfield.layers.GroupConv"),
    "LiftingConv | GroupConv | ProjectionConv": Instance(
        "kernelfield.layers.LiftingConv", "kernelfield.layers.GroupConv", "kernelfield.layers.ProjectionConv"
    ),
    "ContinuousConv": Instance("kernelfield.layers.ContinuousConv"),
    "CCNN": Instance("kernelfield.models.CCNN"),
    "Gridify": Instance("kernelfield.layers.Gridify"),
    "Split": Instance("kernelfield.data.Split"),
    "Data": Instance("kernelfield.data.Data"),
    "DataShape": Instance("kernelfield.data.DataShape"),
    "Recipe": Instance("kernelfield.experiments.Recipe"),
    "SignalGroup": Instance("kernelfield.testing.SignalGroup"),
    "RecurrentConv": Instance("kernelfield.streaming.RecurrentConv"),
}


def checked(**kinds: Kind) -> Callable[[Function], Function]:
    """Check the arguments of a function whenever it is called.

    The function keeps its signature, name and docstring. Errors of torch that an argument causes become errors that
    name the argument: a tensor whose device or dtype differs from that of the module or the other arguments, or sizes
    that do not fit into memory.

    Args:
        kinds: kinds of arguments by name, where the annotation does not say enough. Names that are not in the signature
            belong to the ``**options`` that the function passes on.

    >>> from kernelfield._kinds import Choice
    >>> @checked(colour=Choice("red", "blue"))
    ... def draw(width: int, *, colour: str = "red") -> str:
    ...     return colour * width
    >>> draw(1, colour="green")
    Traceback (most recent call last):
    ValueError: colour must be one of 'red', 'blue', got 'green'
    >>> draw("1")
    Traceback (most recent call last):
    TypeError: width must be an int of at least 1, got '1' of type str
    """

    def decorate(function: Function) -> Function:
        parameters = inspect.signature(function, follow_wrapped=False).parameters
        own = _own_parameters(function)
        declared = {**{name: _kind(function, name) for name in own if name not in kinds}, **kinds}
        declared = {name: kind for name, kind in declared.items() if kind is not ANY}
        defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
        has_common_axes = have_common_axes(declared.values())

        def check(passed: dict[str, Any]) -> None:
            given = {**defaults, **passed}
            for name, value in passed.items():
                kind = declared.get(name)
                if kind is not None and value is not defaults.get(name, _MISSING) and not kind.accepts(value, given):
                    kind.check(name, value, given)
            if has_common_axes:
                match_axes(declared, passed)

        def explain(error: Exception, passed: dict[str, Any]) -> Exception | None:
            chosen = {name: v for name, v in passed.items() if v is not defaults.get(name, _MISSING)}
            explained = _explain_names if isinstance(error, TypeError) else _explain
            return explained(error, function, chosen)

        compiled: list[Callable[..., Any]] = []

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            if not compiled:  # at the first call, not at import: most functions are never called
                compiled.append(compile_wrapper(function, declared, check, explain))
            return compiled[0](*args, **kwargs)

        # torch.compile stops after eight versions of one code object, so each function needs its own.
        call.__code__ = call.__code__.replace(co_name=function.__name__)  # type: ignore[attr-defined]
        call.__kinds__ = declared  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def checked_fields(**kinds: Kind) -> Callable[[type[Class]], type[Class]]:
    """Check the fields of a dataclass whenever an instance is made.

    >>> from dataclasses import dataclass
    >>> from kernelfield._kinds import Choice
    >>> @checked_fields(name=Choice("red", "blue"))
    ... @dataclass
    ... class Colour:
    ...     name: str
    >>> Colour("green")
    Traceback (most recent call last):
    ValueError: name must be one of 'red', 'blue', got 'green'
    """

    def decorate(cls: type[Class]) -> type[Class]:
        cls.__init__ = checked(**kinds)(cls.__init__)  # type: ignore[method-assign]
        return cls

    return decorate


def declared_kinds(function: Callable[..., Any]) -> Mapping[str, Kind]:
    """Return the kinds of the arguments of a checked function or class; an empty mapping without checks.

    >>> from kernelfield.fields import SIREN
    >>> declared_kinds(SIREN)["omega_0"].text()
    'a finite number above 0'
    """
    return getattr(function.__init__ if isinstance(function, type) else function, "__kinds__", {})  # type: ignore[misc]


def with_arguments_of(*others: Callable[..., Any], without: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Show the arguments of ``others`` in the signature of a function, in place of its ``**options``.

    The function passes its ``**options`` on to ``others``. ``inspect.signature`` then lists all arguments that it
    takes, so callers that choose or check arguments by name need no second list. Calls do not change.

    Args:
        others: the functions that take the options; where two have the same argument, the first one takes precedence.
        without: names of arguments that the function sets itself.

    >>> def draw(width, height, *, colour="red"): ...
    >>> @with_arguments_of(draw, without=("width", "height"))
    ... def draw_square(side, **options):
    ...     draw(side, side, **options)
    >>> inspect.signature(draw_square)
    <Signature (side, *, colour='red')>
    """

    def decorate(function: Function) -> Function:
        own = inspect.signature(function)
        *kept, options = own.parameters.values()
        if options.kind is not options.VAR_KEYWORD:
            raise TypeError(f"{function.__qualname__} must end with **options, got {own}")
        named = {p.name for p in kept} | set(without)
        passed = {p.name: p for other in reversed(others) for p in inspect.signature(other).parameters.values()}
        added = [
            p if p.kind is p.VAR_KEYWORD else p.replace(kind=p.KEYWORD_ONLY)
            for p in sorted(passed.values(), key=lambda p: p.kind is p.VAR_KEYWORD)
            if p.name not in named
        ]
        function.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
        return function

    return decorate


def accepted_arguments(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the names of a function's arguments; None for a function with ``**options``, which takes any name.

    >>> sorted(accepted_arguments(lambda x, step=1: x)), accepted_arguments(lambda x, **options: x)
    (['step', 'x'], None)
    """
    parameters = inspect.signature(function).parameters
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) else frozenset(parameters)


def takes_argument(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function takes an argument of this name, by itself or among its ``**options``.

    >>> takes_argument(lambda x, step=1: x, "mask"), takes_argument(lambda x, **options: x, "mask")
    (False, True)
    """
    accepted = accepted_arguments(function)
    return accepted is None or name in accepted


def argument_texts(function: Callable[..., Any]) -> dict[str, str]:
    """Return the description of each argument in the section "Args:" of a docstring, as plain text.

    >>> argument_texts(with_arguments_of)["without"]
    'names of arguments that the function sets itself.'
    """
    doc = inspect.getdoc(function) or ""
    found = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", doc, flags=re.DOTALL | re.MULTILINE)
    texts = (
        {}
        if found is None
        else dict(re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", found[1], re.DOTALL | re.MULTILINE))
    )
    plain = {name: re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", text) for name, text in texts.items()}
    return {name: " ".join(text.replace("``", "").split()) for name, text in plain.items()}


def _own_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return tuple(name for name in names if name not in ("self", "cls"))


def _kind(function: Callable[..., Any], name: str) -> Kind:
    """Return the kind that belongs to the annotation of an argument."""
    annotation = str(function.__annotations__.get(name, ""))
    if name[0] == "_":
        return ANY
    if name == "dim":
        return DIM
    if name == "seed" and annotation == "int":
        return SEED
    optional = annotation.endswith(" | None")
    annotation = annotation.removesuffix(" | None")
    found = _KIND_OF_ANNOTATION.get(annotation, CALLABLE if annotation.startswith("Callable[") else None)
    if found is None:
        raise TypeError(
            f"{function.__qualname__} must declare the kind of {name}: its annotation {annotation!r} has none"
        )
    return found | None if optional and found is not ANY else found


def _explain(error: Exception, function: Callable[..., Any], passed: Mapping[str, Any]) -> Exception | None:
    """Return an error that names the argument behind torch's ``error``, or None if no argument explains it.

    Devices and dtypes are compared only after a failure, so a forward pass that works does not pay for it.
    """
    if _is_out_of_memory(error):
        return MemoryError(f"{function.__qualname__} does not fit into memory with {_sizes(passed)}")
    signal = type(passed.get("x")).__name__ == "GroupSignal"
    values = {**passed, "x": passed["x"].values} if signal else passed
    given = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    # A module whose constructor failed early has no parameters yet.
    modules = (v for v in passed.values() if isinstance(v, nn.Module) and "_parameters" in vars(v))
    module = next(modules, None)
    like, owner = _reference_tensor(module, given)
    if like is None:
        return None
    for name, value in given.items():
        if value.device != like.device:
            return ValueError(f"{name} must be on the device of {owner}, {like.device}, got {value.device}")
    for name, value in given.items():
        if value.dtype not in (like.dtype, torch.bool):
            return TypeError(f"{name} must have the dtype of {owner}, {like.dtype}, got {value.dtype}")
    if like.is_meta:
        return ValueError(f"{owner} must be on a device that holds data, got meta")
    return None


def _explain_names(error: Exception, function: Callable[..., Any], passed: Mapping[str, Any]) -> TypeError | None:
    """Return an error about an unknown or a missing argument that names the class which the user called.

    A constructor passes its ``**options`` on, so the class that misses or refuses an argument is often another one.
    """
    text = str(error)
    owner, _, method = function.__qualname__.rpartition(".")
    if method != "__init__":
        return None
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    if unknown := re.search(r"(?:takes no|unexpected keyword) argument '(\w+)'", text):
        suggested = re.findall(r"'(\w+)'", text[unknown.end() :])
        if unknown[1] in passed and unknown[1] not in known and (hint := closest(unknown[1], [*known, *suggested])):
            return TypeError(f"{owner} takes no argument {unknown[1]!r}{hint}")
    if missing := re.search(r"\(\) missing \d+ required [\w-]+ arguments?: (.*)", text):
        names = re.findall(r"'(\w+)'", missing[1])
        if set(names) <= set(known) - set(passed):
            return TypeError(f"{' and '.join(names)} must be given for {owner}")
    return None


def _reference_tensor(module: nn.Module | None, given: Mapping[str, Tensor]) -> tuple[Tensor | None, str]:
    """Return a tensor whose dtype and device the arguments must share, a parameter or the first one, and its name."""
    if module is not None:
        tensors = [t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]
        # A module of half precision keeps its kernels in float32; signals must have the half dtype.
        half = [t for t in tensors if t.dtype in (torch.bfloat16, torch.float16)]
        return next(iter(half or tensors), None), "the module's parameters"
    return next(iter(given.values()), None), next(iter(given), "")


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error)
    signs = ("allocate memory", "not enough memory", "does not fit into memory", "calculation overflowed", "overflow")
    return isinstance(error, MemoryError) or any(sign in text for sign in signs)


def _sizes(passed: Mapping[str, Any]) -> str:
    """Return the arguments that are ints or lists as "name=value", the largest first."""
    sizes = {name: value for name, value in passed.items() if isinstance(value, (int, tuple, list))}
    largest = sorted(sizes, key=lambda name: -max(_numbers(sizes[name]), default=0))
    return ", ".join(f"{name}={shown(sizes[name])}" for name in largest)


def _numbers(value: Any) -> list[int]:
    return [v for v in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(v, int)]
