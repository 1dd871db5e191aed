"""Convolution between points at arbitrary coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._arguments import checked
from ..._kinds import POSITIVE, Choice, Int
from ..._object_kinds import CALLABLE, Instance, TensorOf
from ..backend import recompute
from .cells import cell_pairs, plan_cells
from .choose import choose_method
from .chunks import points_per_chunk
from .finite import check_finite, fill_padding, may_read
from .grid import extent, fits, grid_sum, near_part, plan_grid
from .pairs import all_pairs, nearest_pairs
from .plan import PointPlan
from .shape import PointConv

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["METHODS", "plan_points", "point_conv", "point_sums"]

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
    plan=Instance("kernelfield.ops.points.plan.PointPlan") | None,
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
    plan: PointPlan | None = None,
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

    Memory is linear in the number of points: large intermediate tensors are computed in chunks, and again in the
    backward pass.

    Args:
        x: (batch, in, points) values, already weighted by measure and mask.
        coords: (batch or 1, points, dim) coordinates in training steps. On a CPU, NaN or infinity is an error. On a
            GPU, where the host does not wait, and in a graph, the outputs of the sample are NaN.
        kernel: maps (…, dim) offsets in (-1, 1)^dim to (…, out · in / groups) values.
        size: (dim,) reach in training steps; points further apart along any axis do not interact.
        out_channels: number of output channels.
        groups: number of groups of channels; ``in`` groups make a depthwise convolution.
        causal: whether an output depends only on points at or before its own time; dim 1 only. Outputs before the first
            point are zero.
        neighbors: number of nearest points to sum over, the point itself included; None for all. Computed pair by pair.
        mask: (batch, points), True for points, False for padding. Padding must have zero values, may have any
            coordinates, and is never a neighbour.
        hidden: number of intermediate values of the kernel for one offset, if it is larger than that of the results.
        at: (batch or 1, queries, dim) coordinates of the outputs; those of the points if not given.
        method: "pairs", "cells", "grid", or "auto" for the method with the smallest estimated cost. "grid" is an error
            for a kernel that the window cannot interpolate; "auto" then takes another method. Compiled and exported
            graphs use "pairs" unless there is a plan.
        tolerance: error of the method "grid", relative to the root mean square of the kernel.
        pairs: function that returns the sum over all pairs at a lower cost than ``kernel``; used by "pairs".
        plan: a plan of :func:`plan_points`, in place of ``method`` and ``tolerance``. The host then does not wait for
            the device, and samples that do not fit into the plan get NaN.

    Returns:
        (batch, out, queries) values.

    >>> x, t = torch.ones(1, 1, 3), torch.tensor([[[0.0], [1.0], [4.0]]])
    >>> point_conv(x, t, torch.ones_like, torch.tensor([2.0]), out_channels=1)
    tensor([[[2., 2., 1.]]])
    >>> point_conv(x, t, torch.ones_like, torch.tensor([2.0]), out_channels=1, at=torch.tensor([[[2.5]]]))
    tensor([[[2.]]])
    """
    queries = coords if at is None else at
    given = _check(PointConv(x, coords, queries, kernel, size, out_channels, groups, causal, mask, hidden))
    if plan is None:
        check_finite(coords=given.coords, at=None if at is None else given.at)
    if neighbors is not None:
        if method not in ("auto", "pairs") or plan is not None:
            raise ValueError(
                f"method must be 'auto' or 'pairs' and plan None with neighbors={neighbors}, got {method!r}, {plan}"
            )
        y = nearest_pairs(given, neighbors)
        return y if may_read(coords) else _nan_unless_finite(given, y)
    if plan is not None:
        return _planned(given, plan, pairs)
    grid = None
    if torch.compiler.is_compiling():
        if method not in ("auto", "pairs"):
            raise ValueError(f"plan must be given for method={method!r} in a compiled or exported graph, got None")
        method = "pairs"
    if method == "auto":
        method, grid = choose_method(given, tolerance)
    if method == "pairs" or 0 in (x.shape[0], coords.shape[1], queries.shape[1]):
        y = all_pairs(given) if pairs is None else pairs()
        return y if may_read(coords) else _nan_unless_finite(given, y)
    span = extent(given) if grid is None else list(grid.span)  # an error if coordinates are not finite
    if method == "cells":
        return cell_pairs(given)
    return grid_sum(given, grid or plan_grid(given, tolerance, span))


def _check(c: PointConv) -> PointConv:
    """Check that the arguments fit together; return them with finite coordinates of padding."""
    if c.x.shape[1] % c.groups or c.out_channels % c.groups:
        raise ValueError(
            f"groups must divide the {c.x.shape[1]} channels of x and out_channels={c.out_channels}, got {c.groups}"
        )
    _check_causal(c.coords, causal=c.causal)
    coords = fill_padding(c.coords, c.mask)
    return c._replace(coords=coords, at=coords if c.at is c.coords else c.at.to(coords.dtype))


def _check_causal(coords: Tensor, *, causal: bool) -> None:
    if causal and coords.shape[-1] != 1:
        raise ValueError(f"causal must be False for {coords.shape[-1]} axes: only a line has a past, got True")


def _nan_unless_finite(c: PointConv, y: Tensor) -> Tensor:
    """Return NaN for samples whose coordinates are not finite."""
    finite = c.coords.isfinite().flatten(1).all(dim=1)
    if c.at is not c.coords:
        finite = finite & c.at.isfinite().flatten(1).all(dim=1)
    return torch.where(finite[:, None, None], y, torch.nan)


def _planned(c: PointConv, plan: PointPlan, pairs: Callable[[], Tensor] | None) -> Tensor:
    if plan.method == "pairs":
        return _nan_unless_finite(c, all_pairs(c) if pairs is None else pairs())
    if plan.grid is not None:
        y, inside = grid_sum(c, plan.grid, plan.cells), fits(c, plan.grid.span)
    else:
        y, inside = cell_pairs(c, plan.cells), fits(c, None)
    return torch.where(inside[:, None, None], y, torch.nan)


@checked(
    coords=TensorOf("float", "batch|1, points, dim"),
    kernel=CALLABLE,
    size=TensorOf("float", "dim"),
    mask=TensorOf("bool", "batch, points") | None,
    at=TensorOf("float", "batch|1, queries, dim") | None,
    method=Choice("auto", *METHODS),
    tolerance=POSITIVE,
    hidden=Int(0),
    slack=POSITIVE,
)
def plan_points(
    coords: Tensor,
    kernel: Callable[[Tensor], Tensor],
    size: Tensor,
    *,
    in_channels: int,
    out_channels: int,
    groups: int = 1,
    causal: bool = False,
    mask: Tensor | None = None,
    hidden: int = 0,
    at: Tensor | None = None,
    method: str = "auto",
    tolerance: float = 1e-4,
    slack: float = 1.25,
) -> PointPlan:
    """Measure points once, so that convolutions between points like these never wait for the device.

    Args:
        coords: (batch or 1, points, dim) coordinates in training steps.
        kernel: the kernel; see :func:`point_conv`.
        size: (dim,) reach in training steps.
        in_channels: number of input channels.
        out_channels: number of output channels.
        groups: number of groups of channels.
        causal: whether outputs depend only on points at or before their own time.
        mask: (batch, points), True for points, False for padding.
        hidden: number of intermediate values of the kernel for one offset.
        at: (batch or 1, queries, dim) coordinates of the outputs; those of the points if not given.
        method: "pairs", "cells", "grid", or "auto" for the method with the smallest estimated cost.
        tolerance: error of the method "grid".
        slack: factor by which later points may be denser and may extend further than these. Points that extend less
            than ``size`` get room up to ``size`` at most.

    Returns:
        A plan for :func:`point_conv`, for any number of points.

    >>> t = torch.arange(2000.0).view(1, -1, 1)
    >>> plan = plan_points(t, torch.ones_like, torch.tensor([4.0]), in_channels=1, out_channels=1)
    >>> plan.method
    'cells'
    >>> point_conv(torch.ones(1, 1, 5), t[:, :5], torch.ones_like, torch.tensor([4.0]), out_channels=1, plan=plan)
    tensor([[[4., 5., 5., 5., 4.]]])
    """
    if slack < 1:
        raise ValueError(f"slack must be at least 1, got {slack}")
    samples = max(coords.shape[0], 1 if mask is None else mask.shape[0])
    x = coords.new_zeros(1).expand(samples, in_channels, coords.shape[1])
    queries = coords if at is None else at
    c = _check(PointConv(x, coords, queries, kernel, size, out_channels, groups, causal, mask, hidden))
    check_finite(coords=c.coords, at=None if at is None else c.at)
    if 0 in (coords.shape[1], queries.shape[1]):
        raise ValueError(f"coords must hold points to measure, got {tuple(coords.shape)}")
    grid = None
    if method == "auto":
        method, grid = choose_method(c, tolerance)
    if method == "pairs":
        return PointPlan("pairs")
    if method == "cells":
        extent(c)  # an error if coordinates are not finite
        return PointPlan("cells", cells=plan_cells(c, slack))
    # A kernel that reaches beyond the extent of the points is smooth there; one that is cut at its end may not be.
    span = [
        min(slack * length, reach * (1 - 1e-6)) if length < reach else slack * length
        for length, reach in zip(extent(c), size.tolist(), strict=True)
    ]
    grid = plan_grid(c, tolerance, span)
    return PointPlan("grid", grid, plan_cells(near_part(c, grid), slack) if causal else None)


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

    Let the kernels of a dense convolution be linear in H features of the offset, :math:`k_{oc} = \sum_h W_{och}
    \phi_h`. The convolution is then this one with the features, followed by a product with W. It needs C · H instead of
    C · O values for every pair of points.

    Args:
        x: (batch, in, points) values.
        coords: (batch or 1, points, dim) coordinates in training steps.
        kernel: maps (…, dim) offsets in (-1, 1)^dim to (…, kernels) values.
        size: (dim,) reach in training steps.
        causal: whether a point depends only on points at or before its own time; dim 1 only.
        hidden: number of intermediate values of the kernel for one offset, if it is larger than that of the results.
        at: (batch or 1, queries, dim) coordinates of the outputs; those of the points if not given.

    Returns:
        (batch, in, kernels, queries) values.

    >>> x, t = torch.ones(1, 2, 3), torch.tensor([[[0.0], [1.0], [4.0]]])
    >>> point_sums(x, t, lambda offsets: torch.ones(*offsets.shape[:-1], 5), torch.tensor([2.0])).shape
    torch.Size([1, 2, 5, 3])
    """
    _check_causal(coords, causal=causal)
    targets = coords if at is None else at.to(coords.dtype)
    check_finite(coords=coords, at=None if at is None else targets)
    points, samples = coords.shape[1], max(coords.shape[0], targets.shape[0])

    def block(x: Tensor, queries: Tensor) -> Tensor:
        offsets = (queries.unsqueeze(2) - coords.unsqueeze(1)) / size
        meets = (offsets.abs() < 1).all(dim=-1)
        if causal:
            meets = meets & (offsets[..., 0] >= 0)
        values = (kernel(offsets) * meets.unsqueeze(-1)).to(x.dtype)
        if samples == 1:
            return torch.einsum("qnh,bcn->bchq", values.squeeze(0), x)
        return torch.einsum("bqnh,bcn->bchq", values, x)

    with torch.no_grad():
        kernels = kernel(coords.new_zeros(1, coords.shape[-1])).shape[-1]
    step = points_per_chunk(
        targets, samples * points * max(kernels, hidden, coords.shape[-1]), x.shape[0] * x.shape[1] * kernels
    )
    if step >= targets.shape[1]:
        return block(x, targets)
    return torch.cat([recompute(block, x, queries) for queries in targets.split(step, dim=1)], dim=-1)
