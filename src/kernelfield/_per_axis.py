"""One value for all axes, or one per axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    Value = TypeVar("Value", int, float)

__all__ = ["per_axis"]


def per_axis(value: Value | Sequence[Value], dim: int) -> tuple[Value, ...]:
    """Return one value per axis; a :class:`~kernelfield._kinds.PerAxis` argument has been checked before.

    >>> per_axis(3, 2), per_axis([3, 4], 2)
    ((3, 3), (3, 4))
    """
    return tuple(value) if isinstance(value, (list, tuple)) else (value,) * dim  # type: ignore[return-value]
