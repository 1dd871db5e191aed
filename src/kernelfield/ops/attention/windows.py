"""Neighbourhoods of the samples of a grid, as views or as indices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional as F

from ..._checks import is_symbolic
from ..graph_cache import graph_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["Neighborhood", "cropped", "neighbor_index", "neighbor_tables", "neighborhoods", "windows"]


class Neighborhood(NamedTuple):
    """The keys that each query attends to, from the arguments of :func:`~kernelfield.ops.group_attention`.

    Args:
        points: number of positions along each axis, odd; None for all positions.
        dilation: distance between the positions of a neighbourhood.
        crop: number of positions at each end of each axis that get no output.
        valid: (queries, keys) bool, True for the keys that each query of a global neighbourhood attends to; all by
            default.
    """

    points: tuple[int, ...] | None = None
    dilation: int = 1
    crop: int = 0
    valid: Tensor | None = None

    @classmethod
    def of(
        cls,
        *,
        neighborhood: Sequence[int] | None = None,
        dilation: int = 1,
        crop: int = 0,
        valid: Tensor | None = None,
    ) -> Neighborhood:
        """Return the neighbourhood that these arguments describe.

        >>> Neighborhood.of(neighborhood=[3, 3]).points
        (3, 3)
        """
        return cls(None if neighborhood is None else tuple(neighborhood), dilation, crop, valid)


def windows(x: Tensor, points: Sequence[int], padding: Sequence[int], dilation: int = 1) -> Tensor:
    r"""Return the samples around each position of a grid, as a view of the padded signal.

    Args:
        x: (…, \*space) signal with ``len(points)`` spatial axes.
        points: number of samples of the neighbourhood along each axis.
        padding: zeros to add at both ends of each axis; a negative number removes samples.
        dilation: distance between the samples of a neighbourhood.

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
        span, length = dilation * (count - 1) + 1, x.shape[axis]
        if not is_symbolic(length) and length == span:
            # One position. Compiled by torch 2.13 for a CPU, the backward pass of unfold would be wrong or crash.
            x = x.unsqueeze(-1).transpose(axis, -1)[..., ::dilation]
        else:
            x = x.unfold(axis, span, 1)[..., ::dilation]
    return x


def cropped(x: Tensor, crop: int) -> Tensor:
    r"""Return (n, elements, \*space, channels) values without ``crop`` positions at each end of each axis."""
    for axis, length in enumerate(x.shape[2:-1], start=2):
        x = x.narrow(axis, crop, length - 2 * crop)
    return x


def neighborhoods(x: Tensor, neighborhood: Sequence[int], dilation: int, crop: int) -> Tensor:
    r"""Return the neighbours of each position: (n, m, \*space, channels) to (n, positions, m, neighbours, channels)."""
    padding = [dilation * (points // 2) - crop for points in neighborhood]
    around = windows(x.movedim(-1, 2), neighborhood, padding, dilation)
    dim = len(neighborhood)
    around = around.movedim(tuple(range(3, 3 + dim)), tuple(range(1, 1 + dim)))  # n, *positions, m, channels, *points
    return around.flatten(1, dim).flatten(-dim).transpose(-1, -2)


def neighbor_index(
    space: Sequence[int], points: Sequence[int], dilation: int, device: torch.device, crop: int = 0
) -> Tensor:
    """Return the position of each neighbour, -1 outside the grid: (positions, neighbours).

    Args:
        space: length of each axis.
        points: number of neighbours along each axis, odd.
        dilation: distance between neighbours.
        device: device of the result.
        crop: positions at each end of each axis to leave out.

    >>> neighbor_index([4], [3], 1, torch.device("cpu"))
    tensor([[-1,  0,  1],
            [ 0,  1,  2],
            [ 1,  2,  3],
            [ 2,  3, -1]])
    """
    result = torch.zeros((), dtype=torch.long, device=device)
    outside = torch.zeros((), dtype=torch.bool, device=device)
    dim = len(points)
    for axis, (length, count) in enumerate(zip(space, points, strict=True)):
        at = torch.arange(crop, length - crop, device=device)
        offset = dilation * (torch.arange(count, device=device) - count // 2)
        shape = [1] * (2 * dim)
        shape[axis], shape[dim + axis] = -1, count
        there = (at[:, None] + offset).view(shape)
        outside = outside | (there < 0) | (there >= length)
        result = result * length + there
    return result.masked_fill(outside, -1).flatten(0, dim - 1).flatten(1)


def neighbor_tables(
    space: tuple[int, ...], points: tuple[int, ...], dilation: int, crop: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the neighbours of each position, and the positions of which each is a neighbour; -1 for none.

    Both are int32 tensors, (neighbours, cropped positions) and (neighbours, positions), and are cached. The arguments
    are those of :func:`neighbor_index`.

    >>> neighbor_tables((4,), (3,), 1, 1, torch.device("cpu"))[1]
    tensor([[ 0,  1, -1, -1],
            [-1,  0,  1, -1],
            [-1, -1,  0,  1]], dtype=torch.int32)
    """
    return _tables(space, points, dilation, crop, device)


@graph_cache(64)
def _tables(
    space: tuple[int, ...], points: tuple[int, ...], dilation: int, crop: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    count = math.prod(space)
    with torch.inference_mode(False), torch.no_grad():
        index = neighbor_index(space, points, dilation, device, crop).mT.contiguous()
        # Entries outside the grid go to one extra column, which is dropped.
        inverse = index.new_full((len(index), count + 1), -1)
        inverse.scatter_(
            1, index.where(index >= 0, count), torch.arange(index.shape[1], device=device).expand_as(index)
        )
        return index.int(), inverse[:, :-1].int().contiguous()
