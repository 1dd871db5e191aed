"""Named configurations of networks, and look-up of fields, masks, groups and networks by the names in recipes."""

from __future__ import annotations

import ast
import importlib
import inspect
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from .. import fields, groups, masks
from .._arguments import checked
from .._checks import closest
from .._kinds import TEXT, Int
from .._object_kinds import MAKER

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Configuration", "configuration", "create_model", "import_network", "list_models", "options_of", "register",
    "resolve_parts",
]  # fmt: skip


@dataclass(frozen=True)
class Configuration:
    """The function and arguments that build a named network.

    Args:
        build: a network's class, or a function that builds the network from keyword arguments.
        arguments: the arguments of this configuration; callers of :func:`create_model` add to them or override them.
        summary: the network and its chapter, in one line.
    """

    build: Callable[..., nn.Module]
    arguments: dict[str, Any]
    summary: str


_CONFIGURATIONS: dict[str, Configuration] = {}


@checked(name=TEXT, build=MAKER, summary=TEXT)
def register(name: str, build: Callable[..., nn.Module], summary: str, **arguments: Any) -> None:
    """Register a network under a name for :func:`create_model`.

    Args:
        name: a new name.
        build: the network's class, or a function that builds the network from keyword arguments.
        summary: the network and its chapter, in one line.
        arguments: arguments of ``build``.

    >>> from kernelfield import CCNN
    >>> register("small_ccnn", CCNN, "a CCNN of one block", channels=8, blocks=1)
    >>> len(create_model("small_ccnn", in_channels=1, out_channels=2, size=16).blocks)
    1
    >>> _ = _CONFIGURATIONS.pop("small_ccnn")
    """
    if name in _CONFIGURATIONS:
        raise ValueError(f"name must not be registered yet, got {name!r}")
    _CONFIGURATIONS[name] = Configuration(build, arguments, summary)


def configuration(name: str, *, argument: str = "name") -> Configuration:
    """Return a configuration by name.

    Args:
        name: name of the configuration.
        argument: name of the argument in error messages.

    >>> configuration("ccnn_4_410")
    Traceback (most recent call last):
    ValueError: name must be one of list_models(), got 'ccnn_4_410'; the closest is 'ccnn_4_140'
    """
    if name not in _CONFIGURATIONS:
        if ":" in str(name):
            raise ValueError(
                f"{argument} must be one of list_models(), got {name!r}, which is not imported yet; "
                f"kernelfield.models.import_network({name!r}) or, on the command line, --import {name} imports it"
            )
        raise ValueError(f"{argument} must be one of list_models(), got {name!r}{closest(str(name), _CONFIGURATIONS)}")
    return _CONFIGURATIONS[name]


@checked(name=TEXT, num_classes=Int(1) | None)
def create_model(name: str, *, pretrained: bool = False, num_classes: int | None = None, **overrides: Any) -> nn.Module:
    """Build a network by name, newly initialised or with pretrained weights.

    Fields, masks and groups may be given by name, with or without arguments: ``field="SIREN"``,
    ``mask="GaussianMask(sigma=0.1)"``, ``group="Cyclic(4)"``.

    Args:
        name: one of :func:`list_models`, or MODEL.TAG of ``list_models(pretrained=True)`` for a network with the
            arguments of that weight.
        pretrained: whether to load the weights of that tag, or of the model's default tag. The network is in training
            mode, like any new network. Its ``pretrained_config`` holds recipe, preprocessing, classes and score of the
            weight.
        num_classes: number of classes, another name of ``out_channels``. If a weight has another number, all its
            tensors except the classifier's are loaded.
        overrides: arguments of the network that replace those of its configuration.

    >>> net = create_model("ccnn_4_140", dim=1, size=784, in_channels=1, out_channels=10)
    >>> sum(p.numel() for p in net.parameters())
    198769
    >>> create_model("ccnn_4_140", size=784)
    Traceback (most recent call last):
    TypeError: 'ccnn_4_140' needs in_channels and out_channels too, got size
    >>> create_model("p4cnn", chanels=20)
    Traceback (most recent call last):
    TypeError: 'p4cnn' has no argument 'chanels'; the closest is 'channels'
    >>> create_model("flextcn_2.smnist", pretrained=True).pretrained_config["classes"][:3]
    ['0', '1', '2']
    """
    if num_classes is not None and overrides.get("out_channels", num_classes) != num_classes:
        raise ValueError(f"num_classes must be out_channels={overrides['out_channels']} or None, got {num_classes}")
    if pretrained or ("." in name and ":" not in name):
        from .pretrained import create_from_weight  # noqa: PLC0415

        return create_from_weight(name, pretrained=pretrained, num_classes=num_classes, overrides=overrides)
    if num_classes is not None:
        overrides["out_channels"] = num_classes
    chosen = configuration(name)
    arguments = resolve_parts({**chosen.arguments, **overrides})
    _check_arguments(name, chosen.build, arguments, list(overrides))
    network = chosen.build(**arguments)
    # save_pretrained needs this. Set through vars, because nn.Module declares its attributes to be tensors and modules.
    plain = {key: value for key, value in overrides.items() if _is_plain(value)}
    omitted = [key for key in overrides if key not in plain]
    vars(network)["model_config"] = {"model": name, "arguments": plain, "omitted": omitted}
    return network


def _is_plain(value: Any) -> bool:
    """Return whether JSON can represent a value."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _check_arguments(name: str, build: Callable[..., nn.Module], arguments: dict[str, Any], given: list[str]) -> None:
    """Raise a TypeError that names unknown or missing arguments."""
    known = inspect.signature(build).parameters
    named = {n: p for n, p in known.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    unknown = [n for n in given if n not in named]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        hint = closest(unknown[0], named) or f"; it has {', '.join(named)}"
        raise TypeError(f"{name!r} has no argument {unknown[0]!r}{hint}")
    missing = [n for n, p in named.items() if p.default is p.empty and n not in arguments]
    if missing:
        *most, last = missing
        wanted = f"{', '.join(most)} and {last}" if most else last
        raise TypeError(f"{name!r} needs {wanted} too, got {', '.join(given) or 'no arguments'}")


def options_of(name: str) -> dict[str, Any]:
    """Return the arguments of a named network with their values; ``inspect.Parameter.empty`` for required ones.

    >>> options_of("ccnn_4_140")["channels"]
    140
    """
    chosen = configuration(name)
    parameters = inspect.signature(chosen.build).parameters.values()
    named = {p.name: p.default for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    return {**named, **chosen.arguments}


@checked(pattern=TEXT)
def list_models(pattern: str = "*", *, pretrained: bool = False) -> list[str]:
    """Return the sorted names of networks, or of pretrained weights.

    Args:
        pattern: pattern that the names match, with * and ? as in file names.
        pretrained: whether to list weights, MODEL.TAG, instead of networks.

    >>> list_models("ccnn_?_??")
    ['ccnn_4_16', 'ccnn_4_32', 'ccnn_4_48']
    >>> list_models("flextcn_2.*", pretrained=True)
    ['flextcn_2.smnist']
    """
    if pretrained:
        from .pretrained import list_weights  # noqa: PLC0415

        return list_weights(pattern)
    return sorted(name for name in _CONFIGURATIONS if fnmatch(name, pattern))


#: arguments of networks that may be given by name, with the module of the names and their base class
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
    # Groups such as SE2() are made by functions.
    known |= {n: c for n in ("E2", "SE2", "scale_translation") if (c := getattr(module, n, None)) is not None}
    if written not in known:
        hint = closest(written, known) or f"; known are {', '.join(known)}"
        raise ValueError(f"{name} must be a {base.__name__} of {module.__name__}, got {written!r}{hint}")
    return known[written]


def import_network(name: str) -> type[nn.Module]:
    """Import a network's class by ``package.module:Class`` and register it under that name.

    Importing runs code, so a name in a recipe or in the folder of a run never imports anything by itself. The command
    line calls this function for the recipe that you pass to ``train`` and for ``--import``. In Python, call it before
    you load a run that was trained with such a network.

    Args:
        name: ``package.module:Class`` of a :class:`torch.nn.Module`.

    >>> import_network("torch.nn:Identity")
    <class 'torch.nn.modules.linear.Identity'>
    >>> import_network("json:dumps")
    Traceback (most recent call last):
    ValueError: name must be package.module:Class of a torch.nn.Module, got 'json:dumps', which is a function
    """
    module_name, colon, class_name = name.partition(":")
    if not colon or not module_name or not class_name.isidentifier():
        raise ValueError(f"name must be package.module:Class, got {name!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"name must be package.module:Class, got {name!r}: {error}") from error
    kind = getattr(module, class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        what = "missing" if kind is None else f"a {type(kind).__name__}"
        raise ValueError(f"name must be package.module:Class of a torch.nn.Module, got {name!r}, which is {what}")  # noqa: TRY004
    if name not in _CONFIGURATIONS:
        register(name, kind, f"imported from {module_name}")
    return kind
