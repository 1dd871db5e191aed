"""Chunk sizes of operators on points, and a limit on their memory."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch

from ..._arguments import checked
from ..._checks import is_symbolic
from ..._kinds import Int

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CHUNK_VALUES", "chunk_values", "limit_point_memory", "points_per_chunk"]

#: number of values of the largest tensor in memory: offsets, kernel values or a field's hidden values. A GPU is idle
#: between small chunks and has memory for large ones. On a CPU, blocks above 32 MiB get new pages at each allocation.
CHUNK_VALUES = {"cpu": 1 << 21, "cuda": 1 << 26}
#: bytes in memory for each value of the largest tensor; the backward pass of a field keeps many tensors of its size
BYTES_PER_VALUE = 96

_limit: ContextVar[int | None] = ContextVar("kernelfield_point_memory", default=None)


class limit_point_memory:  # noqa: N801
    """Limit the memory for intermediate results of operators on points, from now on or inside a ``with`` block.

    Offsets, kernel values and distances between points are computed in chunks that fit into the limit, forward and
    backward. Inputs, outputs, indices of neighbours and grids, which grow linearly with the number of points, are not
    counted. Less memory means more chunks and therefore more time. The setting applies to the current thread.

    Args:
        limit: largest number of bytes.

    >>> with limit_point_memory(64 * 2**20):
    ...     chunk_values("cuda")
    699050
    """

    @checked(limit=Int(1 << 16, 1 << 50))
    def __init__(self, limit: int) -> None:
        self._limit, self._before = limit, _limit.get()
        _limit.set(limit)

    def __enter__(self) -> None:
        _limit.set(self._limit)

    def __exit__(self, *_: object) -> None:
        _limit.set(self._before)


def chunk_values(device: str, most: int | None = None) -> int:
    """Return the largest number of values of a tensor on a kind of device.

    Args:
        device: "cpu" or "cuda".
        most: the number without a limit; by default :data:`CHUNK_VALUES`.
    """
    most = CHUNK_VALUES.get(device, 1 << 26) if most is None else most
    limit = None if torch.compiler.is_compiling() else _limit.get()
    return most if limit is None else max(1, min(most, limit // BYTES_PER_VALUE))


def points_per_chunk(coords: Tensor, *values: int) -> int:
    """Return the number of points to compute at once.

    Args:
        coords: (batch, points, dim) coordinates.
        values: numbers of values of the intermediate tensors for one point.
    """
    if is_symbolic(coords.shape[1], *values):
        return coords.shape[1]  # a traced loop would fix a dynamic number of points
    return max(1, chunk_values(coords.device.type) // max(1, *values))
