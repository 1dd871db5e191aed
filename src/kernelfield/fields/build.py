"""Building a field for a layer."""

from __future__ import annotations

import inspect
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from .._arguments import checked
from .._kinds import TEXT
from .base import Field

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["bind_field", "bind_start", "build_field"]


@checked()
def bind_field(field: Callable[..., Field], **hints: Any) -> Callable[..., Field]:
    """Bind those of ``hints`` that ``field`` takes and that are not bound yet.

    >>> from kernelfield.fields import SIREN
    >>> bind_field(partial(SIREN, omega_0=10), omega_0=30, hidden=16, size=5).keywords
    {'omega_0': 10, 'hidden': 16}
    """
    bound = field.keywords if isinstance(field, partial) else {}
    made = field.func if isinstance(field, partial) and not field.args else field
    taken = _argument_names(made) if isinstance(made, type) else inspect.signature(field).parameters
    return partial(field, **{k: v for k, v in hints.items() if k in taken and k not in bound})


@lru_cache(maxsize=128)
def _argument_names(field: type[Field]) -> frozenset[str]:
    """Return the arguments of a field's class. Read once: signatures took a tenth of the time to build a network."""
    return frozenset(inspect.signature(field).parameters)


@checked(start=TEXT)
def bind_start(field: Callable[..., Field], start: str) -> Callable[..., Field]:
    """Bind the starting values ``start`` if ``field`` has them and no others are bound yet.

    >>> from kernelfield.fields import SIREN, MAGNet
    >>> bind_start(MAGNet, "ccnn").keywords, bind_start(SIREN, "ccnn").keywords
    ({'start': 'ccnn'}, {})
    """
    made = field.func if isinstance(field, partial) else field
    return bind_field(field, **({"start": start} if start in getattr(made, "starts", ()) else {}))


@checked()
def build_field(field: Callable[..., Field] | Field, dim: int, channels: int, **hints: Any) -> Field:
    """Build a field of ``dim`` coordinates and ``channels`` values.

    Args:
        field: a class, ``functools.partial`` of one or any callable that makes a field from ``(dim, channels)``; or a
            field, which is checked and returned, so that layers may share one.
        dim: number of coordinates.
        channels: number of values.
        hints: arguments of the layer that some fields take, such as ``size`` or ``mean_range``; see :func:`bind_field`.

    >>> from kernelfield.fields import Table
    >>> build_field(Table, 2, 4, size=5, mean_range=(0, 1)).size
    (5, 5)
    """
    built = field if isinstance(field, Field) else bind_field(field, **hints)(dim, channels)
    if not isinstance(built, Field):
        raise TypeError(f"field must make a kernelfield.fields.Field, got {type(built).__name__}")
    if (built.dim, built.channels) != (dim, channels):
        raise ValueError(
            f"field must have dim={dim} and channels={channels}, got dim={built.dim} and channels={built.channels}"
        )
    return built
