"""The neighbourhood of every sample of a grid, as a view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["windows"]


def windows(x: Tensor, points: Sequence[int], padding: Sequence[int], dilation: int = 1) -> Tensor:
    r"""Return the samples around each position of a grid, without copying those of a signal that needs no padding.

    Args:
        x: (…, \*space) signal with ``len(points)`` spatial axes.
        points: number of samples of the neighbourhood along each axis.
        padding: zeros to put at both ends of each axis; a negative number takes samples away.
        dilation: distance of the neighbourhood's samples.

    Returns:
        (…, \*positions, \*points) view: n + 2 · padding - dilation · (points - 1) positions along each axis.

    >>> import torch
    >>> windows(torch.arange(4), [3], [1])
    tensor([[0, 0, 1],
            [0, 1, 2],
            [1, 2, 3],
            [2, 3, 0]])
    """
    first = x.dim() - len(points)
    if any(padding):
        x = F.pad(x, [n for n in reversed(tuple(padding)) for _ in range(2)])
    for axis, count in enumerate(points, start=first):
        x = x.unfold(axis, dilation * (count - 1) + 1, 1)[..., ::dilation]
    return x
