"""Offsets and checks for attention layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ...groups import Group
    from .signal import GroupSignal

__all__ = ["check_complete", "check_points", "check_space", "dilations", "neighborhood_reach", "pairs_of"]


def pairs_of(space: Sequence[int], crop: int, device: torch.device) -> Tensor:
    """Return the index of the offset of each pair of positions among all offsets of a grid: (queries, keys)."""
    index = torch.zeros((), dtype=torch.long, device=device)
    dim = len(space)
    for axis, n in enumerate(space):
        at = torch.arange(n, device=device)
        axes = [1] * (2 * dim)
        axes[axis], axes[dim + axis] = n - 2 * crop, n
        index = index * (2 * n - 1) + (at[None] - at[crop : n - crop, None] + n - 1).view(axes)
    return index.flatten(0, dim - 1).flatten(1)


def neighborhood_reach(neighborhood: int | None, size: int | None) -> float:
    """Return the number of steps at which a coordinate equals 1."""
    if neighborhood is not None:
        return max((neighborhood - 1) / 2, 0.5)
    if size is None:
        raise ValueError("size must be given for a global neighborhood, got None")
    return float(size)


def dilations(group: Group, elements: Tensor) -> list[int]:
    """Return the factor by which each element dilates a neighbourhood, which must be a whole number."""
    factors = [v ** (1 / group.dim) for v in group.determinant(elements.detach().double().cpu()).tolist()]
    for factor in factors:
        if factor < 1 - 1e-6 or abs(factor - round(factor)) > 1e-6:
            raise ValueError(f"elements must dilate by whole numbers for a local neighbourhood, got {factor:.3g}")
    return [round(factor) for factor in factors]


def check_complete(signal: GroupSignal) -> GroupSignal:
    """Return a signal that holds all elements of its group in order, without gates; raise if it does not.

    Layers whose matrices have one row for each element take no others.

    >>> from kernelfield.groups import Cyclic
    >>> from kernelfield.layers import GroupSignal
    >>> signal = GroupSignal(torch.randn(2, 3, 4, 8, 8), Cyclic(4).elements().flip(0), group=Cyclic(4))
    >>> check_complete(signal)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: x must hold all elements of Cyclic(4) in order and no gates, got GroupSignal((2, 3, 4, 8, 8), ...
    """
    if not signal.complete or signal.gates is not None:
        raise ValueError(f"x must hold all elements of {signal.group} in order and no gates, got {signal}")
    return signal


def check_space(x: Tensor, channels: int, axes: int, dim: int) -> None:
    """Raise if a signal does not have the channels and axes that a layer takes."""
    if x.dim() != axes or x.shape[1] != channels:
        raise ValueError(
            f"x must have shape (batch, {channels}, *space) with {dim} spatial axes, or (batch, {channels}, points) "
            f"with coords, and a group axis before space on a group, got {tuple(x.shape)}"
        )


def check_points(x: Tensor, coords: Tensor | None, mask: Tensor | None, crop: int, dim: int) -> None:
    r"""Raise if coordinates, mask and crop do not go with (batch, channels, group, \*space) values."""
    if coords is None:
        if mask is not None:
            raise ValueError(f"mask must be None without coords, got shape {tuple(mask.shape)}")
        return
    if crop:
        raise ValueError(f"crop must be 0 with coords, got {crop}")
    batch, points = x.shape[0], x.shape[-1]
    if coords.dim() != 3 or coords.shape[1:] != (points, dim) or coords.shape[0] not in (1, batch):
        raise ValueError(f"coords must have shape ({batch} or 1, {points}, {dim}), got {tuple(coords.shape)}")
    if mask is not None and mask.shape != (batch, points):
        raise ValueError(f"mask must have shape {(batch, points)}, got {tuple(mask.shape)}")
