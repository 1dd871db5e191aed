"""Convolution between points at arbitrary coordinates, pair by pair."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._arguments import checked
from ..._kinds import Int
from ..._object_kinds import CALLABLE, TensorOf
from ..backend import recompute
from ..conv.shape import is_symbolic
from .chunks import points_per_chunk

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["point_conv", "point_sums"]

_KINDS = {
    "x": TensorOf("float", "batch, channels, points"),
    "coords": TensorOf("float", "batch|1, points, dim"),
    "kernel": CALLABLE,
    "size": TensorOf("float", "dim"),
    "hidden": Int(0),
}


@checked(**_KINDS, mask=TensorOf("bool", "batch, points") | None)
def point_conv(
    x: Tensor,
    coords: Tensor,
    kernel: Callable[[Tensor], Tensor],
    size: Tensor,
    *,
    out_channels: int,
    groups: int = 1,
    causal: bool = False,
    neighbors: int | None = None,
    mask: Tensor | None = None,
    hidden: int = 0,
) -> Tensor:
    r"""Convolve values at points with a kernel that is a function of the offset between them (chapter 2, section 4.1).

    .. math::
        y_o(t_i) = \sum_j \sum_c k_{oc}\big((t_i - t_j) / \mathrm{size}\big)\, x_c(t_j),
        \qquad |t_i - t_j| < \mathrm{size}

    Outputs are computed in chunks of points, which are recomputed in the backward pass. No intermediate tensor is
    larger than ``chunks.CHUNK_VALUES``, or than what one point needs, and memory is linear in the number of points.

    Args:
        x: (batch, in, points) values, already weighted by whatever measure and mask apply.
        coords: (batch or 1, points, dim) coordinates in training steps.
        kernel: maps (…, dim) offsets in (-1, 1)^dim to (…, out · in / groups) values.
        size: (dim,) reach in training steps; points further apart along any axis do not interact.
        out_channels: number of output channels.
        groups: number of groups of channels; ``in`` groups make a depthwise convolution.
        causal: whether a point depends only on points at or before its own time; dim 1 only.
        neighbors: number of nearest points to sum over, the point itself included; None for all.
        mask: (batch, points) true for points, false for padding, whose values are zero and which is no neighbour.
        hidden: values that the kernel holds at once for one offset, if they are more than it returns.

    Returns:
        (batch, out, points) values.

    >>> x, t = torch.ones(1, 1, 3), torch.tensor([[[0.0], [1.0], [4.0]]])
    >>> point_conv(x, t, torch.ones_like, torch.tensor([2.0]), out_channels=1)
    tensor([[[2., 2., 1.]]])
    """
    points = coords.shape[1]
    if x.shape[1] % groups or out_channels % groups:
        raise ValueError(
            f"groups must divide the {x.shape[1]} channels of x and out_channels={out_channels}, got {groups}"
        )
    fan_in, fan_out = x.shape[1] // groups, out_channels // groups
    # With few neighbours, a depthwise convolution reads one contiguous row of all channels per neighbour.
    rows = neighbors is not None and fan_in == fan_out == 1
    signals = x.mT.contiguous() if rows else x.unflatten(1, (groups, fan_in))
    seen = None if mask is None else mask.unsqueeze(1)

    def sampled(offsets: Tensor) -> Tensor:
        values = kernel(offsets)
        if values.shape[-1] != out_channels * fan_in:
            raise ValueError(
                f"kernel must return out_channels · in / groups = {out_channels} · {fan_in} values per offset for the "
                f"{x.shape[1]} channels of x, got {values.shape[-1]}"
            )
        return values

    def block(signals: Tensor, queries: Tensor) -> Tensor:
        offsets = (queries.unsqueeze(2) - coords.unsqueeze(1)) / size  # (batch or 1, queries, points, dim)
        meets = (offsets.abs() < 1).all(dim=-1)
        if causal:
            meets = meets & (offsets[..., 0] >= 0)
        if neighbors is None:
            values = (sampled(offsets) * meets.unsqueeze(-1)).unflatten(-1, (groups, fan_out, fan_in))
            # Do not repeat offsets that all samples share.
            shared, values = ("", values.squeeze(0)) if coords.shape[0] == 1 else ("b", values)
            return torch.einsum(f"{shared}qngoi,bgin->bgoq", values, signals).flatten(1, 2)
        offsets, meets, index = _nearest(offsets, meets if seen is None else meets & seen, size, neighbors)
        values = sampled(offsets) * meets.unsqueeze(-1)
        index = index.expand(x.shape[0], -1, -1)
        if rows:
            # Concatenate the rows of all samples: their gradient is then added row by row, without sorting the index.
            sample = torch.arange(x.shape[0], device=x.device).view(-1, 1, 1)
            met = signals.flatten(0, 1).index_select(0, (index + sample * signals.shape[1]).flatten())
            return (values * met.unflatten(0, index.shape)).sum(dim=2).mT
        values = values.unflatten(-1, (groups, fan_out, fan_in)).expand(x.shape[0], *(-1,) * 5)
        index = index.flatten(1)[:, None, None].expand(-1, groups, fan_in, -1)
        met = signals.gather(-1, index).unflatten(-1, values.shape[1:3])
        return torch.einsum("bqngoi,bgiqn->bgoq", values, met).flatten(1, 2)

    samples, met = (coords.shape[0], points) if neighbors is None else (x.shape[0], neighbors)
    step = points_per_chunk(
        coords,
        coords.shape[0] * points * coords.shape[-1],  # offsets from all points, to find the neighbours
        0 if mask is None else x.shape[0] * points,  # distances, which differ between samples if there is a mask
        samples * met * max(out_channels * fan_in, hidden),
    )
    if step >= points:
        return block(signals, coords)
    return torch.cat([recompute(block, signals, queries) for queries in coords.split(step, dim=1)], dim=-1)


@checked(**_KINDS)
def point_sums(
    x: Tensor,
    coords: Tensor,
    kernel: Callable[[Tensor], Tensor],
    size: Tensor,
    *,
    causal: bool = False,
    hidden: int = 0,
) -> Tensor:
    r"""Convolve every channel with each of a few kernels.

    .. math:: y_{ch}(t_i) = \sum_j k_h\big((t_i - t_j) / \mathrm{size}\big)\, x_c(t_j)

    A dense convolution whose kernels are linear in H features of the offset, :math:`k_{oc} = \sum_h W_{och} \phi_h`, is
    such a convolution with the features and one product with W, C · H instead of C · O values for every pair of points.

    Args:
        x: (batch, in, points) values.
        coords: (batch or 1, points, dim) coordinates in training steps.
        kernel: maps (…, dim) offsets in (-1, 1)^dim to (…, kernels) values.
        size: (dim,) reach in training steps.
        causal: whether a point depends only on points at or before its own time; dim 1 only.
        hidden: values that the kernel holds at once for one offset, if they are more than it returns.

    Returns:
        (batch, in, kernels, points) values.

    >>> x, t = torch.ones(1, 2, 3), torch.tensor([[[0.0], [1.0], [4.0]]])
    >>> point_sums(x, t, lambda offsets: torch.ones(*offsets.shape[:-1], 5), torch.tensor([2.0])).shape
    torch.Size([1, 2, 5, 3])
    """
    points = coords.shape[1]

    def block(x: Tensor, queries: Tensor) -> Tensor:
        offsets = (queries.unsqueeze(2) - coords.unsqueeze(1)) / size
        meets = (offsets.abs() < 1).all(dim=-1)
        if causal:
            meets = meets & (offsets[..., 0] >= 0)
        values = kernel(offsets) * meets.unsqueeze(-1)
        if coords.shape[0] == 1:
            return torch.einsum("qnh,bcn->bchq", values.squeeze(0), x)
        return torch.einsum("bqnh,bcn->bchq", values, x)

    with torch.no_grad():
        kernels = kernel(coords.new_zeros(1, coords.shape[-1])).shape[-1]
    step = points_per_chunk(
        coords, coords.shape[0] * points * max(kernels, hidden, coords.shape[-1]), x.shape[0] * x.shape[1] * kernels
    )
    if step >= points:
        return block(x, coords)
    return torch.cat([recompute(block, x, queries) for queries in coords.split(step, dim=1)], dim=-1)


def _nearest(offsets: Tensor, meets: Tensor, size: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return offsets, validity and indices of the ``count`` nearest points that each query interacts with."""
    if not is_symbolic(meets.shape[-1]):  # a dynamic number of points is assumed to suffice
        count = min(count, meets.shape[-1])
    distance = (offsets.detach() * size).square().sum(dim=-1).masked_fill(~meets, math.inf)
    index = distance.topk(count, dim=-1, largest=False, sorted=False).indices  # (batch or 1, queries, count)
    if offsets.shape[0] != index.shape[0]:
        offsets = offsets.expand(index.shape[0], *(-1,) * 3)
    offsets = offsets.gather(2, index.unsqueeze(-1).expand(*index.shape, offsets.shape[-1]))
    return offsets, meets.gather(2, index), index
