"""Recipes, training, evaluation and reproduction of published results.

:func:`fit` trains the network of a recipe, :func:`find_recipe` reads a recipe, and :class:`Task` wraps any network as a
Lightning module. Parts that need Lightning are imported at their first use.

The files, in the order in which a training uses them:

- a recipe: ``recipe``, ``settings``, ``recipe_files``; the folder ``recipes/`` holds the bundled ones;
- its data: ``datasets``, ``data_summary``; ``custom_data`` writes a recipe for the user's own files;
- one training: ``fitting`` (from a recipe to a run), ``run`` and ``run_files`` (the folder), ``start_from``,
  ``effects`` (settings that do nothing), ``task`` (network and loss), ``regularizers``, ``loop`` (the steps),
  ``optim``, ``metrics``, ``evaluation``, ``loop_state``, ``checkpoint``, ``causality``, ``kernels_ahead``,
  ``progress``, ``baseline``, ``finish`` (test and report);
- several trainings: ``jobs``, ``side_by_side``, ``seeds``, ``shares``, ``sweep``, ``samplers``, ``combine``;
  ``processes`` for several devices;
- after a training: ``finished_run``, ``robustness``, ``comparison``, ``weight``; ``predict``, ``predictions``,
  ``sample_files`` and ``stream_input`` for new inputs;
- published tables: ``reproduce``, ``results``;
- costs: ``bench``, ``card``, ``card_text``, ``operations``, ``energy``.
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
