"""Training: from a network and data to a trained network.

:func:`fit` trains what a recipe describes; :class:`Task` is Lightning's module around any network; recipes are read by
:func:`find_recipe`. What needs Lightning is imported when it is first used.
"""

from __future__ import annotations

from typing import Any

from .recipe import Recipe, find_recipe, list_recipes, with_settings

__all__ = ["Recipe", "Run", "Task", "find_recipe", "fit", "list_recipes", "with_settings"]

_LATER = {"Run": ".run", "Task": ".task", "fit": ".fitting"}


def __getattr__(name: str) -> Any:
    from importlib import import_module  # noqa: PLC0415

    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name], __name__), name)
