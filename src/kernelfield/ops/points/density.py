"""The density of samples at irregular coordinates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ..._arguments import checked
from ..._object_kinds import TensorOf
from .chunks import points_per_chunk
from .equal_times import group_times
from .finite import check_finite, fill_padding

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["sample_density"]


@checked(coords=TensorOf("float", "batch, points, dim", empty=False), mask=TensorOf("bool", "batch, points") | None)
def sample_density(coords: Tensor, mask: Tensor | None = None, neighbors: int = 8, *, causal: bool = False) -> Tensor:
    r"""Estimate the number of samples per unit of space around each sample (chapter 2, appendix 1.1).

    A sum over samples approximates an integral if each is weighted by the inverse of this density. On a line the
    density is the inverse of half the distance between the two neighbouring samples. In more dimensions it is the
    number of ``neighbors`` divided by the volume of the ball that reaches the last of them. If m samples are at the
    same place, each has m times the density of a single one, and they count as one neighbour. Repeated samples of a
    cloud therefore change no sum. If all m samples are at one place, each has density m.

    Args:
        coords: (batch, points, dim) coordinates.
        mask: (batch, points), True where a sample was seen; unseen samples are ignored and get density 1.
        neighbors: number of neighbours of the estimate in 2 and more dimensions.
        causal: whether to use only the distance to the previous time, on a line, so that no later time has an effect.
            The first time then represents a unit of time.

    Returns:
        (batch, points) samples per unit of space.

    >>> sample_density(torch.tensor([[[0.0], [1.0], [2.0], [4.0]]]))
    tensor([[1.0000, 1.0000, 0.6667, 0.5000]])
    >>> sample_density(torch.tensor([[[0.0], [1.0], [2.0], [4.0]]]), causal=True)
    tensor([[1.0000, 1.0000, 1.0000, 0.5000]])
    >>> sample_density(torch.tensor([[[0.0], [1.0], [1.0], [2.0]]]))
    tensor([[1., 2., 2., 1.]])
    """
    coords = fill_padding(coords, mask)
    check_finite(coords=coords)
    seen = torch.ones(coords.shape[:2], dtype=torch.bool, device=coords.device) if mask is None else mask
    on_line = coords.shape[-1] == 1
    density = _line_density(coords[..., 0], seen, causal) if on_line else _ball_density(coords, seen, neighbors)
    return torch.where(seen, density, 1.0)


def _line_density(t: Tensor, seen: Tensor, causal: bool) -> Tensor:
    ordered, order, group = group_times(t.masked_fill(~seen, math.inf))
    one = torch.ones_like(ordered)
    count = torch.zeros_like(one).scatter_add(1, group, one)
    # The distance of each group of equal times to the one before. Within a group the other distances are zero.
    apart = ordered.diff(dim=1)
    apart = torch.where(apart.isnan(), 0.0, apart)  # between unseen samples, whose gradient would be NaN
    gap = torch.cat([torch.full_like(ordered[:, :1], math.inf), apart], dim=1)
    before = torch.zeros_like(gap).scatter_reduce(1, group, gap, "amax")
    if causal:
        cell = before
    else:  # the first and the last time have one neighbour, whose distance counts twice
        after = torch.cat([before[:, 1:], torch.full_like(before[:, :1], math.inf)], dim=1)
        last = group[:, -1:] == torch.arange(group.shape[1], device=t.device)
        after = torch.where(last, math.inf, after)
        after, before = torch.where(after.isfinite(), after, before), torch.where(before.isfinite(), before, after)
        cell = (before + after) / 2
    cell = torch.where(cell.isfinite(), cell, 1.0)
    return torch.empty_like(cell).scatter_(1, order, (count / cell).gather(1, group))


def _ball_density(coords: Tensor, seen: Tensor, neighbors: int) -> Tensor:
    dim = coords.shape[-1]
    coords = coords.float() if coords.dtype in (torch.float16, torch.bfloat16) else coords
    volume = math.pi ** (dim / 2) / math.gamma(dim / 2 + 1)
    step = points_per_chunk(coords, coords.shape[0] * coords.shape[1])
    copies, first = _places(coords, seen)
    count = (first.sum(dim=1, keepdim=True) - 1).clamp(0, neighbors)
    parts = [_distance(queries, coords, first, count, neighbors) for queries in coords.split(step, dim=1)]
    # If there is no sample elsewhere, the samples at one place together represent a unit of space.
    radius = torch.where(count > 0, torch.cat(parts, dim=1), 1.0)
    return copies * torch.where(count > 0, count / (volume * radius.pow(dim)), 1.0)


def _places(coords: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of samples at the place of each one, and whether it is the first of them: (batch, points)."""
    order = torch.arange(coords.shape[1], device=coords.device).expand(seen.shape)
    for key in (*coords.unbind(-1)[::-1], ~seen):  # sort by all coordinates, seen samples first
        order = order.gather(1, key.gather(1, order).to(coords.dtype).sort(dim=1, stable=True).indices)
    ordered = coords.gather(1, order.unsqueeze(-1).expand_as(coords))
    new = torch.cat([torch.ones_like(seen[:, :1]), (ordered[:, 1:] != ordered[:, :-1]).any(dim=-1)], dim=1)
    group = new.long().cumsum(dim=1)
    known = seen.gather(1, order)
    total = torch.zeros_like(group).scatter_add(1, group - 1, known.long())
    copies = torch.zeros_like(group).scatter(1, order, total.gather(1, group - 1))
    return copies, torch.zeros_like(seen).scatter(1, order, new & known)


def _distance(queries: Tensor, coords: Tensor, first: Tensor, count: Tensor, neighbors: int) -> Tensor:
    """Return the (batch, queries) distance to the ``count``-th nearest place that has a ``first`` sample."""
    # Without matrix products, which would give equal points a distance above zero.
    far = torch.cdist(queries, coords, compute_mode="donot_use_mm_for_euclid_dist")
    far = far.masked_fill(~first.unsqueeze(1), math.inf)
    nearest = far.topk(min(neighbors + 1, coords.shape[1]), dim=-1, largest=False).values
    return nearest.gather(2, count.unsqueeze(1).expand(-1, queries.shape[1], 1)).squeeze(-1)
