"""Named configurations of networks."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["Configuration", "configuration", "create_model", "list_models", "register"]


@dataclass(frozen=True)
class Configuration:
    """A network's class (or any function that builds one) and the arguments that make it a named one.

    Args:
        build: builds the network from keyword arguments.
        arguments: what the name stands for; the caller of :func:`create_model` adds to them and may override them.
        summary: one line: which network of which chapter this is.
    """

    build: Callable[..., nn.Module]
    arguments: dict[str, Any]
    summary: str


_CONFIGURATIONS: dict[str, Configuration] = {}


def register(name: str, build: Callable[..., nn.Module], summary: str, **arguments: Any) -> None:
    """Give ``build`` with ``arguments`` a name."""
    if name in _CONFIGURATIONS:
        raise ValueError(f"name must not be registered yet, got {name!r}")
    _CONFIGURATIONS[name] = Configuration(build, arguments, summary)


def configuration(name: str) -> Configuration:
    """Return the named configuration.

    >>> configuration("ccnn_4_410")
    Traceback (most recent call last):
    ValueError: name must be one of list_models(), got 'ccnn_4_410'; the closest is 'ccnn_4_140'
    """
    if name not in _CONFIGURATIONS:
        close = difflib.get_close_matches(str(name), _CONFIGURATIONS, n=1)
        hint = f"; the closest is {close[0]!r}" if close else ""
        raise ValueError(f"name must be one of list_models(), got {name!r}{hint}")
    return _CONFIGURATIONS[name]


def create_model(name: str, **overrides: Any) -> nn.Module:
    """Build a named network, with ``overrides`` of its arguments.

    >>> net = create_model("ccnn_4_140", dim=1, size=784, in_channels=1, out_channels=10)
    >>> sum(p.numel() for p in net.parameters())
    198769
    """
    chosen = configuration(name)
    return chosen.build(**{**chosen.arguments, **overrides})


def list_models(pattern: str = "*") -> list[str]:
    """Return the names that match ``pattern``, sorted.

    >>> list_models("ccnn_?_??")
    ['ccnn_4_16', 'ccnn_4_32', 'ccnn_4_48']
    """
    return sorted(name for name in _CONFIGURATIONS if fnmatch(name, pattern))
