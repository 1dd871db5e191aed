"""Argument checks of group attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..._kinds import Int, ListOf
from ..._object_kinds import TensorOf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["KINDS", "check_attention"]

#: kinds of the arguments of :func:`kernelfield.ops.group_attention` and its reference
KINDS: dict[str, Any] = {
    "q": TensorOf("float", "n, query_elements, *space, channels", empty=False),
    "k": TensorOf("float", "n, elements, *space, channels", empty=False),
    "v": TensorOf("float", "n, elements, *space, values", empty=False),
    "positions": TensorOf("float", "out_elements, *around, a"),
    "elements": TensorOf("float", "out_elements, …, elements, b"),
    "neighborhood": ListOf(Int(1, odd=True)) | None,
    "crop": Int(0),
    "valid": TensorOf("bool", "queries, keys") | None,
    "keep": TensorOf("any", "n, places, elements, keys") | None,
}


def check_attention(
    q: Tensor, positions: Tensor, elements: Tensor, neighborhood: Sequence[int] | None, crop: int
) -> None:
    """Raise an error if the codes do not fit the queries and the neighborhood, or nothing is left after the crop."""
    space = q.shape[2:-1]
    if neighborhood is not None and len(neighborhood) != len(space):
        raise ValueError(
            f"neighborhood must have {len(space)} entries for q of shape {tuple(q.shape)}, got {neighborhood}"
        )
    around = positions.shape[1:-1]
    places = math.prod(n - 2 * crop for n in space), math.prod(space)
    pairs = len(around) == 2 and all(n in (1, m) for n, m in zip(around, places, strict=True))
    fits = pairs if neighborhood is None else tuple(around) == tuple(neighborhood)
    if not fits:
        wanted = "queries or 1, keys or 1" if neighborhood is None else ", ".join(map(str, neighborhood))
        raise ValueError(
            f"positions must have shape (out_elements, {wanted}, a) for neighborhood={neighborhood}, "
            f"got {tuple(positions.shape)}"
        )
    if positions.shape[-1] + elements.shape[-1] > q.shape[-1]:
        raise ValueError(
            f"positions and elements must together have at most {q.shape[-1]} channels, as many as q, "
            f"got {positions.shape[-1]} and {elements.shape[-1]}"
        )
    if any(type(n) is int and n <= 2 * crop for n in space):
        raise ValueError(f"crop must leave positions along each axis of {tuple(space)}, got {crop}")
