"""Outputs at any coordinates: append query points, which have no values, to the input's points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._checks import floats_per_axis

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["append_queries", "check_query_points"]

#: norms over one position, or over the batch in training, with which no output depends on other queries
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

    Every layer computes outputs at all of them from the input's points alone, so no output depends on other queries. A
    signal on a grid becomes values at the grid's points.

    Args:
        x: (batch, channels, points) values, or (batch, channels, *space) on a grid if there are no ``coords``.
        mask: (batch, points) or (batch, *space) whether a sample was seen, or None.
        at: (batch, queries, dim) or (queries, dim) coordinates in training steps.
        dim: number of axes.
        norm: name of the network's norm; a norm over positions would mix queries and values.
        readout: the network's readout, "dense".
        coords: (batch, points, dim) or (points, dim) coordinates.
        step: sampling step.
        sampling: further arguments of the layers.
    """
    check_query_points(at, x.shape[0], dim, readout)
    if norm not in PER_POSITION:
        raise ValueError(
            f"at must be None unless the norm is 'batch', 'channel' or 'none', got norm={norm!r}, which mixes positions"
        )
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
    both = torch.cat([coords, at.to(coords)], dim=-2)
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
    if _may_wait(at) and not bool(at.isfinite().all()):
        raise ValueError("at must be finite, got NaN or infinity")


def _may_wait(at: Tensor) -> bool:
    """Return whether the host may read values: not while a graph is compiled, exported or captured."""
    if torch.compiler.is_compiling():
        return False
    return at.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()
