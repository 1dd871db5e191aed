"""Recipes, training, evaluation and reproduction of published results.

:func:`fit` trains the network of a recipe, :func:`find_recipe` reads a recipe, and :class:`Task` wraps any network as a
Lightning module. Parts that need Lightning are imported at their first use.
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
