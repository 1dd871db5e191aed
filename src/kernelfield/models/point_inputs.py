"""Inputs at points: coordinates at which to predict, and samples in the order of time.

:func:`append_queries` adds the coordinates at which to predict. :func:`in_time_order` sorts samples for norms that
accumulate over the past.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._checks import floats_per_axis
from ..ops.points.finite import may_read

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["append_queries", "check_query_points", "in_time_order", "original_order"]

#: norms that do not mix positions in evaluation, so that no output depends on other queries
PER_POSITION = ("batch", "channel", "none")


def append_queries(
    x: Tensor,
    mask: Tensor | None,
    at: Tensor,
    *,
    dim: int,
    norm: str,
    readout: str,
    coords: Tensor | None = None,
    step: float | Sequence[float] = 1.0,
    **sampling: Any,
) -> tuple[Tensor, Tensor | None, dict[str, Any]]:
    """Return values, mask and sampling arguments of the input's points, followed by query points without values.

    Every layer computes outputs at all points from the input's points alone, so no output depends on other queries. A
    signal on a grid becomes values at the grid's points.

    Args:
        x: (batch, channels, points) values, or (batch, channels, *space) on a grid if there are no ``coords``.
        mask: (batch, points) or (batch, *space), True where a sample was seen, or None.
        at: (batch, queries, dim) or (queries, dim) coordinates in training steps.
        dim: number of axes.
        norm: name of the network's norm; a norm over positions would mix queries and values.
        readout: the network's readout, which must be "dense".
        coords: (batch, points, dim) or (points, dim) coordinates.
        step: sampling step.
        sampling: further arguments of the layers.
    """
    check_query_points(at, x.shape[0], dim, readout)
    if norm not in PER_POSITION:
        raise ValueError(
            f"at must be None unless the norm is 'batch', 'channel' or 'none', got norm={norm!r}, which mixes positions"
        )
    # Half precision cannot tell late positions apart: bfloat16 has no 257. The layers use float32 at least.
    at = at.to(torch.promote_types(at.dtype, torch.float32))
    if coords is None:
        if x.dim() != 2 + dim:
            raise ValueError(f"x must have {dim} axes after the channels without coords, got {tuple(x.shape)}")
        steps = floats_per_axis("step", step, dim)
        lines = [
            torch.arange(n, dtype=at.dtype, device=x.device) * each for n, each in zip(x.shape[2:], steps, strict=True)
        ]
        coords = torch.cartesian_prod(*lines).view(-1, dim)
        x, mask = x.flatten(2), None if mask is None else mask.flatten(1)
    queries = at.shape[-2]
    if coords.dim() != at.dim() or coords.shape[0] != at.shape[0]:
        coords = (coords if coords.dim() == 3 else coords.unsqueeze(0)).expand(x.shape[0], -1, -1)
        at = (at if at.dim() == 3 else at.unsqueeze(0)).expand(x.shape[0], -1, -1)
    dtype = torch.promote_types(coords.dtype, at.dtype)
    both = torch.cat([coords.to(dtype), at.to(coords.device, dtype)], dim=-2)
    how = {**sampling, "coords": both, "step": step, "queries": queries}
    if isinstance(sampling.get("density"), Tensor):
        how["density"] = pad(sampling["density"], (0, queries), value=1.0)
    return pad(x, (0, queries)), None if mask is None else pad(mask, (0, queries)), how


def check_query_points(at: Tensor, batch: int, dim: int, readout: str) -> None:
    """Raise a ValueError unless a network with this readout can predict ``at`` these coordinates.

    Args:
        at: (batch, queries, dim), (1, queries, dim) or (queries, dim) coordinates.
        batch: number of samples.
        dim: number of axes.
        readout: the network's readout.
    """
    if readout != "dense":
        raise ValueError(
            f"at must be None for a network with readout={readout!r}, which predicts once per sample; got a tensor"
        )
    if at.dim() not in (2, 3) or at.shape[-1] != dim or (at.dim() == 3 and at.shape[0] not in (1, batch)):
        raise ValueError(f"at must have shape (batch, queries, {dim}) or (queries, {dim}), got {tuple(at.shape)}")
    if at.shape[-2] == 0:
        raise ValueError(f"at must hold at least one query, got shape {tuple(at.shape)}")
    if may_read(at, wait=True) and not bool(at.isfinite().all()):
        raise ValueError("at must be finite, got NaN or infinity")


def in_time_order(
    x: Tensor, mask: Tensor | None, sampling: dict[str, Any]
) -> tuple[Tensor, Tensor | None, dict[str, Any], Tensor | None]:
    """Return values, mask and sampling arguments sorted by time, and the order.

    Samples at the same time keep their order. Unseen samples come last, so the statistics of seen samples do not
    include them. (With a cumulative norm, outputs at unseen samples depend on all samples.) Nothing changes, and the
    order is None, for samples on a grid and for arguments that do not fit together, which the layers will reject.

    Args:
        x: (batch, channels, points) values.
        mask: (batch, points), True where a sample was seen, or None.
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
