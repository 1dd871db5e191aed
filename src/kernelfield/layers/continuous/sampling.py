"""Checks of an input's samples, on a grid or at points, and their weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..._arguments import checked
from ..._checks import check_choice
from ..._object_kinds import TensorOf
from ...ops import sample_density
from ...ops.points.finite import fill_padding, may_read

__all__ = ["check_points", "check_queries", "sample_weight", "seen_only"]


def check_points(x: Tensor, coords: Tensor | None, mask: Tensor | None, channels: int, dim: int) -> Tensor | None:
    """Check that ``x``, ``coords`` and ``mask`` fit together; return ``coords`` with a batch axis, or None.

    Coordinates of unseen points, which may be NaN, become finite.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a torch.Tensor, got {type(x).__name__}")
    axes, space = (dim, "*space") if coords is None else (1, "points")
    if x.dim() != 2 + axes or x.shape[1] != channels:
        given = "without" if coords is None else "with"
        raise ValueError(
            f"x must have shape (batch, {channels}, {space}) with {axes} axes after the channels, {given} coords, "
            f"got {tuple(x.shape)}"
        )
    if mask is not None:
        if mask.dtype != torch.bool:
            raise TypeError(f"mask must be a bool tensor, got {mask.dtype}")
        wanted = (x.shape[0], *x.shape[2:])
        if mask.shape != wanted:
            raise ValueError(f"mask must have shape {wanted} like x without channels, got {tuple(mask.shape)}")
    if coords is None:
        return None
    points = coords.unsqueeze(0) if coords.dim() == 2 else coords
    fits = points.dim() == 3 and points.shape[1:] == (x.shape[2], dim) and points.shape[0] in (1, x.shape[0])
    if not fits:
        raise ValueError(
            f"coords must have shape (batch, points, dim) = {(x.shape[0], x.shape[2], dim)} or (points, dim) to go "
            f"with x, got {tuple(coords.shape)}"
        )
    if not points.is_floating_point():
        raise TypeError(f"coords must be a floating-point tensor, got {points.dtype}")
    return fill_padding(points, mask)


def check_queries(at: Tensor, points: Tensor | None, dim: int) -> Tensor:
    """Check that outputs can be computed ``at`` these coordinates; return them with a batch axis."""
    if points is None:
        raise ValueError("at must be None without coords, got a tensor")
    queries = at.unsqueeze(0) if at.dim() == 2 else at
    if (
        queries.dim() != 3
        or queries.shape[-1] != dim
        or (queries.shape[0] != 1 and points.shape[0] not in (1, queries.shape[0]))
    ):
        raise ValueError(
            f"at must have shape (batch, queries, {dim}) or (queries, {dim}) to go with coords, got {tuple(at.shape)}"
        )
    if queries.shape[1] == 0:
        raise ValueError(f"at must hold at least one query, got shape {tuple(at.shape)}")
    return queries


@checked(x=TensorOf("any", "batch, channels, *space"), mask=TensorOf("bool", "batch, *space") | None)
def seen_only(x: Tensor, mask: Tensor | None) -> Tensor:
    r"""Set values at unseen positions, which may be NaN, to zero.

    Args:
        x: (batch, channels, \*space) values.
        mask: (batch, \*space), True where a position was seen; None if all were.

    Returns:
        (batch, channels, \*space) values.

    >>> seen_only(torch.tensor([[[1.0, float("nan")]]]), torch.tensor([[True, False]]))
    tensor([[[1., 0.]]])
    """
    return x if mask is None else x.masked_fill(~mask.unsqueeze(1), 0)


def sample_weight(
    coords: Tensor | None,
    mask: Tensor | None,
    density: Tensor | str | None,
    steps: tuple[float, ...],
    causal: bool = False,
) -> Tensor | None:
    """Return the weight of each sample, (batch, points) or (batch, *space); None if all weights are equal."""
    if density is None:
        return mask
    if isinstance(density, str):
        check_choice("density", density, ("estimate",))
        if coords is None:
            raise ValueError("density must be a tensor if there are no coords to estimate it from, got 'estimate'")
        if mask is not None:
            coords = coords.expand(mask.shape[0], -1, -1)
        density = sample_density(coords, mask, causal=causal)
    else:
        _check_density(density, mask)
    # A grid has one sample per step. Weights are relative to that density.
    weight = 1 / (density * math.prod(steps))
    return weight if mask is None else torch.where(mask, weight, 0.0)


def _check_density(density: Tensor, mask: Tensor | None) -> None:
    """Raise a ValueError unless the density of every seen sample is positive and finite, if the host may read it."""
    if not may_read(density):
        return
    good = (density > 0) & density.isfinite()
    good = good if mask is None else good | ~mask
    if not bool(good.all()):
        wrong = (density if mask is None else density.expand(mask.shape))[~good]
        raise ValueError(f"density must be above 0 and finite where a sample was seen, got {float(wrong[0])}")
