"""The density of samples at irregular coordinates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ..._arguments import checked
from ..._object_kinds import TensorOf
from .chunks import points_per_chunk

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["sample_density"]


@checked(coords=TensorOf("float", "batch, points, dim", empty=False), mask=TensorOf("bool", "batch, points") | None)
def sample_density(coords: Tensor, mask: Tensor | None = None, neighbors: int = 8, *, causal: bool = False) -> Tensor:
    r"""Estimate how many samples lie in a unit of space around each of them (chapter 2, appendix 1.1).

    A sum over samples approximates an integral if each is weighted by the inverse of this density. On a line the
    density is one over half the distance of the two neighbouring samples; in more dimensions it is the number of
    ``neighbors`` over the volume of the ball that reaches the last of them.

    Args:
        coords: (batch, points, dim) coordinates.
        mask: (batch, points) whether a sample was seen; unseen ones do not count, and get density 1.
        neighbors: number of neighbours of the estimate in 2 and more dimensions.
        causal: on a line, use the distance to the sample before alone, so that no later time has an effect. The first
            sample then has density 1.

    Returns:
        (batch, points) samples per unit of space.

    >>> sample_density(torch.tensor([[[0.0], [1.0], [2.0], [4.0]]]))
    tensor([[1.0000, 1.0000, 0.6667, 0.5000]])
    >>> sample_density(torch.tensor([[[0.0], [1.0], [2.0], [4.0]]]), causal=True)
    tensor([[1.0000, 1.0000, 1.0000, 0.5000]])
    """
    seen = torch.ones(coords.shape[:2], dtype=torch.bool, device=coords.device) if mask is None else mask
    on_line = coords.shape[-1] == 1
    density = _line_density(coords[..., 0], seen, causal) if on_line else _ball_density(coords, seen, neighbors)
    return torch.where(seen, density, 1.0)


def _line_density(t: Tensor, seen: Tensor, causal: bool) -> Tensor:
    ordered, order = t.masked_fill(~seen, math.inf).sort(dim=-1)
    gap = ordered.diff(dim=-1)
    after = torch.cat([gap, gap.new_full((*gap.shape[:-1], 1), math.inf)], dim=-1)
    before = torch.cat([gap.new_full((*gap.shape[:-1], 1), math.inf), gap], dim=-1)
    if causal:
        cell = before
    else:  # the first and the last sample have one neighbour, whose distance stands for both
        after, before = torch.where(after.isfinite(), after, before), torch.where(before.isfinite(), before, after)
        cell = (before + after) / 2
    cell = torch.where(cell.isfinite(), cell, 1.0)
    return torch.empty_like(cell).scatter_(-1, order, 1 / cell)


def _ball_density(coords: Tensor, seen: Tensor, neighbors: int) -> Tensor:
    dim = coords.shape[-1]
    coords = coords.float() if coords.dtype in (torch.float16, torch.bfloat16) else coords
    count = min(neighbors, coords.shape[1] - 1)
    volume = math.pi ** (dim / 2) / math.gamma(dim / 2 + 1)
    step = points_per_chunk(coords, coords.shape[0] * coords.shape[1])
    radii = [
        torch.cdist(queries, coords).masked_fill(~seen.unsqueeze(1), math.inf).kthvalue(count + 1, dim=-1).values
        for queries in coords.split(step, dim=1)
    ]
    return count / (volume * torch.cat(radii, dim=1).pow(dim))
