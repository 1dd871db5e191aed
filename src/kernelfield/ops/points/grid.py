r"""Convolution between points on a fine grid: spread, convolve, gather.

.. math::
    k(s - t) \approx \sum_{ab} w(s/h - a)\, k\big((a - b) h\big)\, w(b - t/h)

for a window w (:mod:`kernelfield.ops.points.window`) and a spacing h that is fine enough for the kernel. The kernel is
evaluated only on the grid, and the sum over b is :func:`kernelfield.ops.conv`.

The kernel of a causal convolution jumps at offset zero. A smooth step splits it in two. The near part, a few tens of
training steps, is summed pair by pair (:mod:`kernelfield.ops.points.cells`). The far part is smooth and uses the grid.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..backend import recompute
from ..conv import conv
from .cells import cell_pairs
from .chunks import chunk_values
from .plan import CellPlan, GridPlan
from .window import gather, spread, stencil, window_points

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .shape import PointConv

__all__ = ["extent", "fits", "grid_sum", "near_part", "plan_grid"]

#: spacings to try, in training steps
SPACINGS = (0.5, 0.25, 0.125)
#: number of training steps over which the near part of a causal kernel changes into the far part
TRANSITION = 24.0
#: number of offsets at which the interpolated kernel is compared with the exact one, by number of axes
PROBES = {2: 128, 3: 16}


class _Split(NamedTuple):
    """The transition between the parts of a causal kernel, near up to ``begin`` and far beyond ``end``."""

    begin: float
    end: float

    def far(self, distance: Tensor) -> Tensor:
        """Return the share of the far part at (…) distances in training steps."""
        middle, width = (self.begin + self.end) / 2, (self.end - self.begin) / 2
        step = torch.special.erfc(-3.1 * (distance - middle) / width) / 2
        return torch.where(distance <= self.begin, 0.0, torch.where(distance >= self.end, 1.0, step))


def plan_grid(c: PointConv, tolerance: float, span: list[float]) -> GridPlan:
    """Return the coarsest grid for this kernel; raise a ValueError if none meets the tolerance."""
    tolerance /= c.coords.shape[-1]  # errors of the axes add up
    spacing, error = find_spacing(c, tolerance, span)
    if spacing is None:
        raise ValueError(
            f"method must be 'auto', 'pairs' or 'cells' for this kernel, got 'grid': interpolation between points "
            f"{SPACINGS[-1]} training steps apart has an error of {error:.1e}, above the tolerance"
        )
    return GridPlan(tuple(span), tuple(c.size.tolist()), spacing, tolerance)


def grid_sum(c: PointConv, plan: GridPlan, cells: CellPlan | None = None) -> Tensor:
    """Return the convolution through a fine grid, (batch, out, queries).

    Args:
        c: the convolution.
        plan: the grid, which must contain all points.
        cells: sizes of the search for the near part of a causal kernel; measured if None.
    """
    split = _split(plan.spacing, plan.tolerance) if c.causal else None
    y = _far(c, plan, split)
    return y if split is None else y + cell_pairs(near_part(c, plan), cells).to(y.dtype)


def near_part(c: PointConv, plan: GridPlan) -> PointConv:
    """Return the convolution with the near part of a causal kernel, which jumps at zero."""
    split = _split(plan.spacing, plan.tolerance)
    near = torch.full_like(c.size, split.end).clamp(max=c.size)

    def kernel(offsets: Tensor) -> Tensor:
        return c.kernel(offsets * (near / c.size)) * (1 - split.far(offsets[..., 0] * near)).unsqueeze(-1)

    return c._replace(kernel=kernel, size=near)


@torch.no_grad()
def fits(c: PointConv, span: tuple[float, ...] | None) -> Tensor:
    """Return a (batch or 1,) mask of the samples with finite coordinates that differ by at most ``span``."""
    low, high = _bounds(c)
    extent = (high - low).where(low <= high, 0.0) if c.mask is not None else high - low
    inside = extent.isfinite().all(dim=-1)
    for axis, most in enumerate(span or ()):
        inside = inside & (extent[:, axis] <= most)
    return inside


@torch.no_grad()
def extent(c: PointConv) -> list[float]:
    """Return the largest difference of coordinates of a sample's points and queries, along each axis."""
    low, high = _bounds(c)
    span: list[float] = (high - low).amax(dim=0).clamp(min=0).tolist()
    if not all(map(math.isfinite, span)):
        raise ValueError(f"coords and at must be finite, got differences of up to {span}")
    return span


def _bounds(c: PointConv) -> tuple[Tensor, Tensor]:
    points = c.coords if c.mask is None else c.coords.expand(c.mask.shape[0], -1, -1)
    low, high = points, points
    if c.mask is not None:
        seen = c.mask.unsqueeze(-1)
        low, high = torch.where(seen, points, torch.inf), torch.where(seen, points, -torch.inf)
    low, high = torch.minimum(low.amin(1), c.at.amin(1)), torch.maximum(high.amax(1), c.at.amax(1))
    return low, high


def _split(spacing: float, tolerance: float) -> _Split:
    # The stencil of a later point never reaches the far part, so the future has no effect at all.
    begin = spacing * window_points(tolerance)
    return _Split(begin, begin + TRANSITION)


@torch.no_grad()
def find_spacing(c: PointConv, tolerance: float, span: list[float]) -> tuple[float | None, float]:
    """Return the largest spacing at which the window interpolates the kernel, or None, and the last error.

    The interpolated kernel is compared with the exact one: on a line at all midpoints between grid points, so that no
    jump is missed, otherwise at a few offsets.
    """
    error = math.inf
    for spacing in SPACINGS:
        split = _split(spacing, tolerance) if c.causal else None
        cut = any(a >= b for a, b in zip(span, c.size.tolist(), strict=True))
        sums = torch.zeros(3, dtype=torch.float64)  # squares of errors, of rounding and of the kernel
        for at in _probes(c, span, spacing, tolerance, cut=cut):
            exact = _sampled(c, at, split)
            # Kernels with high frequencies have rounding errors. Their values one digit away show the size of these.
            moved = _sampled(c, at * (1 + torch.finfo(exact.dtype).eps), split)
            found = _interpolated(c, at, spacing, tolerance, split, cut=cut)
            sums += torch.stack([d.double().square().mean().cpu() for d in (found - exact, moved - exact, exact)])
        error, rounding = (sums[:2] / sums[2].clamp(min=torch.finfo(torch.float64).tiny)).sqrt().tolist()
        if error <= tolerance + 3 * rounding:
            return spacing, error
    return None, error


def _probes(c: PointConv, span: list[float], spacing: float, tolerance: float, *, cut: bool) -> Iterator[Tensor]:
    """Yield (probes, dim) offsets in training steps at which to compare the interpolated kernel with the exact one."""
    dim, n = c.coords.shape[-1], window_points(tolerance)
    reach = [min(size, length + n * spacing) for size, length in zip(c.size.tolist(), span, strict=True)]
    if dim == 1:
        most = math.floor(reach[0] / spacing)
        middle = (torch.arange(0 if c.causal else -most, most).to(c.size) + 0.5) * spacing
        yield from middle.unsqueeze(-1).split(max(1, chunk_values("cpu") // c.values))
        return
    # Multiples of golden ratios give offsets without a pattern, and without drawing random numbers.
    phi = {2: 1.3247179572, 3: 1.2207440846}[dim]
    number = torch.arange(1, PROBES[dim] + 1, dtype=torch.float64).unsqueeze(-1)
    unit = ((number * torch.tensor([phi ** -(axis + 1) for axis in range(dim)], dtype=torch.float64)) % 1).to(c.size)
    at = (2 * unit - 1) * torch.tensor(reach).to(c.size)
    yield at
    if cut:  # near the end of the kernel too, where it must be small
        yield torch.sign(at) * (c.size - 2 * spacing * (1 + unit))


def _interpolated(
    c: PointConv, at: Tensor, spacing: float, tolerance: float, split: _Split | None, *, cut: bool
) -> Tensor:
    dim = at.shape[-1]
    first, weights = stencil(at / spacing, tolerance)
    if dim == 1:  # midpoints of consecutive grid points, whose stencils share all but one point
        count, n = len(at), weights.shape[-1]
        line = (first[0] + torch.arange(count + n - 1, device=at.device)).unsqueeze(-1).to(at.dtype) * spacing
        values = _sampled(c, line, split, cut=cut)
        return sum((weights[0, 0, t] * values[t : t + count] for t in range(n)), start=torch.zeros_like(values[:count]))
    places = torch.cartesian_prod(*[torch.arange(weights.shape[-1], device=at.device)] * dim).view(-1, dim)
    around = (first.unsqueeze(1) + places).to(at.dtype) * spacing  # (probes, n^dim, dim)
    share = weights[:, 0, places[:, 0]]
    for axis in range(1, dim):
        share = share * weights[:, axis, places[:, axis]]
    return (_sampled(c, around, split, cut=cut) * share.unsqueeze(-1)).sum(dim=1)


def _sampled(c: PointConv, offsets: Tensor, split: _Split | None, *, cut: bool = False) -> Tensor:
    """Return the values of the (far part of the) kernel at offsets in training steps, flat in the last axis."""
    values = c.sample(offsets / c.size).flatten(-3)
    if split is not None:
        values = values * split.far(offsets[..., 0]).unsqueeze(-1)
    return values * ((offsets.abs() < c.size).all(dim=-1, keepdim=True)) if cut else values


def _far(c: PointConv, plan: GridPlan, split: _Split | None) -> Tensor:
    span, _, spacing, tolerance = plan
    batch, dim, n = c.x.shape[0], c.coords.shape[-1], window_points(tolerance)
    shared = c.coords.shape[0] == c.at.shape[0] == 1 and c.mask is None
    grids = 1 if shared else batch
    points = [math.ceil(length / spacing) + n + 1 for length in span]
    # The origin is a multiple of the spacing, so points on a coarse grid also lie on the fine one.
    low = (_bounds(c)[0].detach() / spacing).floor() * spacing if c.mask is None else _low_of_seen(c, spacing)
    low = (low - (n // 2 - 1) * spacing).expand(grids, dim).unsqueeze(1)
    count = (grids, *points)
    x = c.x.float() if c.x.dtype in (torch.float16, torch.bfloat16) else c.x
    rows = x.permute(2, 0, 1).flatten(1) if shared else x.mT.flatten(0, 1)
    block = torch.arange(grids, device=x.device)
    there = (c.coords.expand(grids, -1, -1) - low) / spacing
    if c.mask is not None:  # padding, whose values are zero, may lie outside the grid
        there = torch.where(c.mask.unsqueeze(-1), there, float(n // 2))
    first, weights = stencil(_inside(there, points, n).flatten(0, 1), tolerance)
    grid = spread(rows, first, weights.to(x.dtype), count, block.repeat_interleave(c.coords.shape[1]))
    kernel = _kernel(c, points, plan, split).to(x.dtype)
    channels = x.shape[1]
    if shared:  # (points, batch · channels)
        signal = grid.view(*points, batch, channels).movedim((-2, -1), (0, 1))
    else:
        signal = grid.view(batch, *points, channels).movedim(-1, 1)
    y = conv(signal.contiguous(), kernel, causal=c.causal, groups=c.groups).to(x.dtype)  # autocast may lower it
    if shared:
        lines = y.movedim((0, 1), (-2, -1)).reshape(math.prod(points), batch * c.out_channels)
    else:
        lines = y.movedim(1, -1).reshape(-1, c.out_channels)
    targets = (c.at.expand(grids, -1, -1) - low) / spacing
    first, weights = stencil(_inside(targets, points, n).flatten(0, 1), tolerance)
    found = gather(lines, first, weights.to(x.dtype), count, block.repeat_interleave(c.at.shape[1]))
    queries = c.at.shape[1]
    found = found.view(queries, batch, -1).permute(1, 2, 0) if shared else found.view(batch, queries, -1).mT
    return found.to(c.x.dtype)


def _inside(at: Tensor, points: list[int], n: int) -> Tensor:
    """Move coordinates that lie outside a planned grid to its edge, so that no index leaves the grid."""
    low = float(n // 2 - 1)
    lines = zip(at.unbind(-1), points, strict=True)
    return torch.stack([line.nan_to_num(low, low, low).clamp(low, m - n // 2 - 0.01) for line, m in lines], dim=-1)


@torch.no_grad()
def _low_of_seen(c: PointConv, spacing: float) -> Tensor:
    low = _bounds(c)[0]
    return (torch.where(low.isfinite(), low, 0.0) / spacing).floor() * spacing


def _kernel(c: PointConv, points: list[int], plan: GridPlan, split: _Split | None) -> Tensor:
    """Return the kernel at all offsets between grid points, (out, in / groups, *points)."""
    span, size, spacing, _ = plan
    # Offsets beyond the reach matter only if the points extend further.
    cut = any(a >= b for a, b in zip(span, size, strict=True))
    most = [min(n - 1, math.ceil(reach / spacing) - 1) if cut else n - 1 for n, reach in zip(points, size, strict=True)]
    where: dict[str, Any] = {"dtype": c.size.dtype, "device": c.size.device}  # made on the device, without a copy
    lines = [torch.arange(0 if c.causal else -m, m + 1, **where) * spacing for m in most]
    offsets = torch.cartesian_prod(*lines).view(-1, len(lines))
    step = max(1, chunk_values(c.x.device.type) // c.values)

    def sampled(part: Tensor) -> Tensor:
        return _sampled(c, part, split, cut=cut)

    if len(offsets) <= step:
        values = sampled(offsets)
    else:
        values = torch.cat([recompute(sampled, part) for part in offsets.split(step)])
    return values.mT.reshape(c.out_channels, c.fan_in, *(len(line) for line in lines))
