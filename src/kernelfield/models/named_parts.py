"""Fields, masks, groups and networks by name, as recipes and commands give them."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
from functools import partial
from typing import Any

from torch import nn

from .. import fields, groups, masks

__all__ = ["import_network", "resolve_parts"]

#: arguments of networks that may be given by name: where the names are found, and the class they must have
_PARTS: dict[str, tuple[Any, type]] = {
    "field": (fields, fields.Field),
    "shortcut_field": (fields, fields.Field),
    "mask": (masks, masks.Mask),
    "group": (groups, groups.Group),
}


def resolve_parts(arguments: dict[str, Any]) -> dict[str, Any]:
    """Replace names of fields, masks and groups among a network's arguments by the objects.

    A name may be followed by arguments: plain values, or other names for a product of groups. Masks get ``dim`` from
    the network's arguments.

    >>> resolve_parts({"field": "SIREN", "group": "Cyclic(4)", "channels": 8})
    {'field': <class 'kernelfield.fields.mlp.SIREN'>, 'group': Cyclic(4), 'channels': 8}
    >>> resolve_parts({"field": "SIREN(omega_0=30)"})["field"].keywords
    {'omega_0': 30}
    >>> resolve_parts({"field": "SIRENE"})
    Traceback (most recent call last):
    ValueError: field must be a Field of kernelfield.fields, got 'SIRENE'; the closest is 'SIREN'
    """
    return {
        name: _part(name, value, arguments) if name in _PARTS and isinstance(value, str) else value
        for name, value in arguments.items()
    }


def _part(name: str, text: str, arguments: dict[str, Any]) -> Any:
    try:
        parsed = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        parsed = None
    if not isinstance(parsed, (ast.Name, ast.Call)):
        raise ValueError(f"{name} must be a name such as {_example(name)}, got {text!r}")  # noqa: TRY004
    try:
        kind, values, keywords = _read(name, parsed)
        if name.endswith("field"):
            return partial(kind, *values, **keywords) if values or keywords else kind
        if name == "mask" and "dim" in inspect.signature(kind).parameters and not values:
            keywords.setdefault("dim", arguments.get("dim", 1))
        return kind(*values, **keywords)
    except TypeError as error:
        raise ValueError(f"{name} must be a name with its arguments, such as {_example(name)}: {error}") from None


def _example(name: str) -> str:
    examples = {"mask": "GaussianMask(sigma=0.1)", "group": "Cyclic(4)"}
    return examples.get(name, "SIREN or SIREN(omega_0=30)")


def _read(name: str, node: ast.expr) -> tuple[Any, list[Any], dict[str, Any]]:
    """Return the class that an expression names, and the arguments it gives."""
    if isinstance(node, ast.Name):
        return _class(name, node.id), [], {}
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise TypeError(f"got {ast.unparse(node)!r}")
    values = [_value(name, value) for value in node.args]
    return _class(name, node.func.id), values, {k.arg or "**": _value(name, k.value) for k in node.keywords}


def _value(name: str, node: ast.expr) -> Any:
    """Return a plain value, or the part that a nested call makes."""
    if isinstance(node, ast.Call):
        kind, values, keywords = _read(name, node)
        return kind(*values, **keywords)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise TypeError(f"arguments must be plain values, got {ast.unparse(node)!r}") from None


def _class(name: str, written: str) -> Any:
    module, base = _PARTS[name]
    known = {n: c for n in module.__all__ if isinstance(c := getattr(module, n), type) and issubclass(c, base)}
    known.pop(base.__name__)
    # Groups such as SE2() are functions.
    known |= {n: c for n in ("E2", "SE2", "scale_translation") if (c := getattr(module, n, None)) is not None}
    if written not in known:
        close = difflib.get_close_matches(written, known, n=1)
        hint = f"the closest is {close[0]!r}" if close else f"there are {', '.join(known)}"
        raise ValueError(f"{name} must be a {base.__name__} of {module.__name__}, got {written!r}; {hint}")
    return known[written]


def import_network(name: str) -> type[nn.Module]:
    """Import a network's class by ``package.module:Class`` and register it under that name.

    A name in a recipe or in the folder of a run never imports anything by itself: importing runs code. The commands
    call this for the recipe that you pass to ``train``, and for ``--import``; in Python, call it before you load a run
    that was trained with such a network.

    >>> import_network("torch.nn:Identity")
    <class 'torch.nn.modules.linear.Identity'>
    >>> import_network("json:dumps")
    Traceback (most recent call last):
    ValueError: name must be package.module:Class of a torch.nn.Module, got 'json:dumps', which is a function
    """
    from .registry import list_models, register  # noqa: PLC0415

    module_name, colon, class_name = name.partition(":")
    if not colon or not module_name or not class_name.isidentifier():
        raise ValueError(f"name must be package.module:Class, got {name!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"name must be package.module:Class, got {name!r}: {error}") from error
    kind = getattr(module, class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        what = "not there" if kind is None else f"a {type(kind).__name__}"
        raise ValueError(f"name must be package.module:Class of a torch.nn.Module, got {name!r}, which is {what}")  # noqa: TRY004
    if name not in list_models():
        register(name, kind, f"imported from {module_name}")
    return kind
