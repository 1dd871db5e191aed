"""Convolution between points at arbitrary coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._arguments import checked
from ..._kinds import POSITIVE, Choice, Int
from ..._object_kinds import CALLABLE, TensorOf
from ..backend import recompute
from .cells import cell_pairs
from .choose import choose_method
from .chunks import points_per_chunk
from .grid import extent, grid_sum, plan_grid
from .pairs import all_pairs, nearest_pairs
from .shape import PointConv

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["METHODS", "point_conv", "point_sums"]

METHODS = ("pairs", "cells", "grid")

_KINDS = {
    "x": TensorOf("float", "batch, channels, points"),
    "coords": TensorOf("float", "batch|1, points, dim"),
    "kernel": CALLABLE,
    "size": TensorOf("float", "dim"),
    "hidden": Int(0),
}


@checked(
    **_KINDS,
    mask=TensorOf("bool", "batch, points") | None,
    at=TensorOf("float", "batch|1, queries, dim") | None,
    method=Choice("auto", *METHODS),
    tolerance=POSITIVE,
)
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
    at: Tensor | None = None,
    method: str = "auto",
    tolerance: float = 1e-4,
    pairs: Callable[[], Tensor] | None = None,
) -> Tensor:
    r"""Convolve values at points with a kernel that is a function of the offset between them (chapter 2, section 4.1).

    .. math::
        y_o(s_i) = \sum_j \sum_c k_{oc}\big((s_i - t_j) / \mathrm{size}\big)\, x_c(t_j),
        \qquad |s_i - t_j| < \mathrm{size}

    Three methods give the same result:

    ======= ================================================================= ===================== ==================
    method  computes                                                          time                  error
    ======= ================================================================= ===================== ==================
    pairs   all pairs of points                                               :math:`O(N^2)`        rounding
    cells   pairs within reach, found by sorting points into cells            :math:`O(N k)`        rounding
    grid    samples spread to a fine grid by a smooth window, a convolution   :math:`O(N \log N)`   ``tolerance``
            there, and outputs gathered by the same window
    ======= ================================================================= ===================== ==================

    Memory is linear in the number of points: large intermediate tensors are computed in chunks, which the backward pass
    computes again.

    Args:
        x: (batch, in, points) values, already weighted by whatever measure and mask apply.
        coords: (batch or 1, points, dim) coordinates in training steps.
        kernel: maps (…, dim) offsets in (-1, 1)^dim to (…, out · in / groups) values.
        size: (dim,) reach in training steps; points further apart along any axis do not interact.
        out_channels: number of output channels.
        groups: number of groups of channels; ``in`` groups make a depthwise convolution.
        causal: whether an output depends only on points at or before its own time; dim 1 only. Outputs before the first
            point are zero.
        neighbors: number of nearest points to sum over, the point itself included; None for all. Pair by pair.
        mask: (batch, points) true for points, false for padding, which has zero values and is never a neighbour.
        hidden: values that the kernel holds at once for one offset, if they are more than it returns.
        at: (batch or 1, queries, dim) coordinates of the outputs; those of the points if not given.
        method: "pairs", "cells", "grid", or "auto" for the one with the smallest estimated cost. "grid" is refused for
            a kernel that the window cannot interpolate; "auto" then takes another. Compiled and exported graphs use
            "pairs".
        tolerance: error of the method "grid", relative to the root mean square of the kernel.
        pairs: returns the sum over all pairs, where there is a cheaper way than by ``kernel``; used by "pairs".

    Returns:
        (batch, out, queries) values.

    >>> x, t = torch.ones(1, 1, 3), torch.tensor([[[0.0], [1.0], [4.0]]])
    >>> point_conv(x, t, torch.ones_like, torch.tensor([2.0]), out_channels=1)
    tensor([[[2., 2., 1.]]])
    >>> point_conv(x, t, torch.ones_like, torch.tensor([2.0]), out_channels=1, at=torch.tensor([[[2.5]]]))
    tensor([[[2.]]])
    """
    if x.shape[1] % groups or out_channels % groups:
        raise ValueError(
            f"groups must divide the {x.shape[1]} channels of x and out_channels={out_channels}, got {groups}"
        )
    if causal and coords.shape[-1] != 1:
        raise ValueError(f"causal must be False for {coords.shape[-1]} axes: only a line has a past, got True")
    queries = coords if at is None else at.to(coords.dtype)
    given = PointConv(x, coords, queries, kernel, size, out_channels, groups, causal, mask, hidden)
    plan = None
    only_pairs = "a compiled or exported graph" if torch.compiler.is_compiling() else ""
    if neighbors is not None:
        only_pairs = f"neighbors={neighbors}"
    if only_pairs and method not in ("auto", "pairs"):
        raise ValueError(f"method must be 'auto' or 'pairs' with {only_pairs}, got {method!r}")
    if neighbors is not None:
        return nearest_pairs(given, neighbors)
    if method == "auto":
        method, plan = ("pairs", None) if only_pairs else choose_method(given, tolerance)
    if method == "pairs" or 0 in (coords.shape[1], queries.shape[1]):
        return all_pairs(given) if pairs is None else pairs()
    span = extent(given) if plan is None else plan.span  # refuses coordinates that are not finite
    if method == "cells":
        return cell_pairs(given)
    return grid_sum(given, plan or plan_grid(given, tolerance, span))


@checked(**_KINDS, at=TensorOf("float", "batch|1, queries, dim") | None)
def point_sums(
    x: Tensor,
    coords: Tensor,
    kernel: Callable[[Tensor], Tensor],
    size: Tensor,
    *,
    causal: bool = False,
    hidden: int = 0,
    at: Tensor | None = None,
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
        at: (batch or 1, queries, dim) coordinates of the outputs; those of the points if not given.

    Returns:
        (batch, in, kernels, queries) values.

    >>> x, t = torch.ones(1, 2, 3), torch.tensor([[[0.0], [1.0], [4.0]]])
    >>> point_sums(x, t, lambda offsets: torch.ones(*offsets.shape[:-1], 5), torch.tensor([2.0])).shape
    torch.Size([1, 2, 5, 3])
    """
    asked = coords if at is None else at.to(coords.dtype)
    points, samples = coords.shape[1], max(coords.shape[0], asked.shape[0])

    def block(x: Tensor, queries: Tensor) -> Tensor:
        offsets = (queries.unsqueeze(2) - coords.unsqueeze(1)) / size
        meets = (offsets.abs() < 1).all(dim=-1)
        if causal:
            meets = meets & (offsets[..., 0] >= 0)
        values = kernel(offsets) * meets.unsqueeze(-1)
        if samples == 1:
            return torch.einsum("qnh,bcn->bchq", values.squeeze(0), x)
        return torch.einsum("bqnh,bcn->bchq", values, x)

    with torch.no_grad():
        kernels = kernel(coords.new_zeros(1, coords.shape[-1])).shape[-1]
    step = points_per_chunk(
        asked, samples * points * max(kernels, hidden, coords.shape[-1]), x.shape[0] * x.shape[1] * kernels
    )
    if step >= asked.shape[1]:
        return block(x, asked)
    return torch.cat([recompute(block, x, queries) for queries in asked.split(step, dim=1)], dim=-1)
