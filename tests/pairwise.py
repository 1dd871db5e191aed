"""Parametrisation by several axes: every pair of values runs by default, every combination with ``--slow``."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["pairwise"]


def pairwise(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Return a parametrisation by the product of ``axes`` whose default tests cover all pairs of values.

    Most faults depend on one argument or on how two interact. The remaining combinations are marked slow.
    """
    values = [list(axis) for axis in axes.values()]
    combinations = list(itertools.product(*(range(len(axis)) for axis in values)))
    covering = _cover(combinations)
    params = [
        pytest.param(
            *(axis[i] for axis, i in zip(values, indices, strict=True)),
            id="-".join(_name(axis[i]) for axis, i in zip(values, indices, strict=True)),
            marks=() if indices in covering else pytest.mark.slow,
        )
        for indices in combinations
    ]
    return pytest.mark.parametrize(tuple(axes), params)


def _cover(combinations: list[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Return some of the combinations, chosen greedily, in which every pair of values occurs."""
    pairs = {combination: set(itertools.combinations(enumerate(combination), 2)) for combination in combinations}
    missing, chosen = set().union(*pairs.values()), set()
    while missing:
        best = max(combinations, key=lambda combination: len(pairs[combination] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return chosen


def _name(value: Any) -> str:
    if isinstance(value, functools.partial):
        options = ",".join(f"{key}={option}" for key, option in value.keywords.items())
        return f"{_name(value.func)}({options})"
    return getattr(value, "__name__", None) or str(value)
