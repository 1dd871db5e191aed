"""Sort samples at irregular times, for norms that accumulate over the past."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["in_time_order", "original_order"]


def in_time_order(
    x: Tensor, mask: Tensor | None, sampling: dict[str, Any]
) -> tuple[Tensor, Tensor | None, dict[str, Any], Tensor | None]:
    """Return values, mask and sampling arguments sorted by time, and the order.

    Samples at one time keep their order. Unseen samples come last, so that they enter no statistics of seen ones; a
    cumulative norm makes their own outputs depend on all samples. Samples on a grid stay as they are, and so do
    arguments that do not fit together, which the layers reject; the order is then None.

    Args:
        x: (batch, channels, points) values.
        mask: (batch, points) whether a sample was seen.
        sampling: coords (batch, points, 1) or (points, 1), density (batch, points), and other arguments of layers.

    >>> x, coords = torch.tensor([[[3.0, 1.0, 2.0]]]), torch.tensor([[3.0], [1.0], [2.0]])
    >>> moved, _, _, order = in_time_order(x, None, {"coords": coords})
    >>> moved, original_order(order, moved)
    (tensor([[[1., 2., 3.]]]), tensor([[[3., 1., 2.]]]))
    """
    coords = sampling.get("coords")
    if not (isinstance(coords, Tensor) and x.dim() == 3 and _fits(coords, mask, x)):
        return x, mask, sampling, None
    times = coords[..., 0].expand(x.shape[0], -1)
    order = torch.sort(times if mask is None else times.masked_fill(~mask, math.inf), dim=1, stable=True).indices
    moved = {**sampling, "coords": coords.expand(x.shape[0], -1, -1).gather(1, order.unsqueeze(-1))}
    if isinstance(sampling.get("density"), Tensor):
        moved["density"] = sampling["density"].expand(order.shape).gather(1, order)
    x = x.gather(2, order.unsqueeze(1).expand(x.shape))
    return x, None if mask is None else mask.gather(1, order), moved, order


def original_order(order: Tensor, y: Tensor) -> Tensor:
    """Return (batch, channels, points) values in the samples' original order."""
    return y.gather(2, torch.sort(order, dim=1).indices.unsqueeze(1).expand(y.shape))


def _fits(coords: Tensor, mask: Tensor | None, x: Tensor) -> bool:
    batch, points = x.shape[0], x.shape[2]
    coords_fit = coords.shape[-2:] == (points, 1) and (
        coords.dim() == 2 or (coords.dim() == 3 and coords.shape[0] in (1, batch))
    )
    return coords_fit and (mask is None or (mask.dtype == torch.bool and mask.shape == (batch, points)))
