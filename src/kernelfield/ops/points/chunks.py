"""How many points are computed at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..conv.shape import is_symbolic

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CHUNK_VALUES", "points_per_chunk"]

#: number of values of the largest tensor held at once: offsets, kernel values or a field's hidden values. A GPU is idle
#: between small chunks and has memory for large ones. A CPU requests every block above 32 MiB anew, page by page.
CHUNK_VALUES = {"cpu": 1 << 21, "cuda": 1 << 26}


def points_per_chunk(coords: Tensor, *values: int) -> int:
    """Return how many of the points ``coords`` to compute at once.

    Args:
        coords: (batch, points, dim) coordinates.
        values: number of values that each tensor holds for one point.
    """
    if is_symbolic(coords.shape[1], *values):
        return coords.shape[1]  # a traced loop would fix a dynamic number of points
    return max(1, CHUNK_VALUES.get(coords.device.type, 1 << 26) // max(1, *values))
