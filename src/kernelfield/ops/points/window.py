r"""Spread values at points to a grid, and gather them from it, by a smooth window.

The window is a sinc under a Kaiser window,

.. math:: w(u) = \mathrm{sinc}(u)\, I_0\big(\beta \sqrt{1 - (2u/n)^2}\big) / I_0(\beta), \qquad |u| < n/2,

for u in grid steps and n points. For signals up to half of the grid's Nyquist frequency, interpolation with it has an
error of :math:`\varepsilon` if :math:`n \approx (-20 \log_{10} \varepsilon - 8) / (2.285 \pi)` (Kaiser's formula, for a
transition from half to one and a half of the Nyquist frequency).
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["gather", "spread", "stencil", "window_points"]


def window_points(tolerance: float) -> int:
    """Return the number of grid points of the window along an axis, which is even.

    >>> window_points(1e-2), window_points(1e-4), window_points(1e-8)
    (8, 12, 24)
    """
    attenuation = _attenuation(tolerance)
    return 2 * math.ceil((attenuation - 8) / (2.285 * math.pi) / 2)


def _attenuation(tolerance: float) -> float:
    return 12 - 20 * math.log10(min(tolerance, 0.1))  # a quarter of the tolerance in decibels, since it is used twice


def stencil(at: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return the grid points around each coordinate and their weights.

    Args:
        at: (rows, dim) coordinates in grid steps.
        tolerance: error of interpolation, relative to the signal.

    Returns:
        (rows, dim) first grid points along each axis, and (rows, dim, n) weights, which sum to one along each axis.
    """
    n = window_points(tolerance)
    first = at.detach().floor() - (n // 2 - 1)
    u = at.unsqueeze(-1) - first.unsqueeze(-1) - torch.arange(n, dtype=at.dtype, device=at.device)
    beta = 0.1102 * (_attenuation(tolerance) - 8.7)
    inside = (1 - (2 * u / n).square()).clamp(min=1e-12)  # positive, so that the root has a gradient
    weights = torch.sinc(u) * torch.special.i0(beta * inside.sqrt())
    return first.long(), weights / weights.sum(dim=-1, keepdim=True)


def spread(x: Tensor, first: Tensor, weights: Tensor, count: tuple[int, ...], block: Tensor) -> Tensor:
    """Add values at points to a grid.

    Args:
        x: (rows, channels) values.
        first: (rows, dim) first grid point of each stencil.
        weights: (rows, dim, n) weights.
        count: number of grids, then grid points along each axis.
        block: (rows,) index of the grid that each row belongs to.

    Returns:
        (grids · grid points, channels) values.

    >>> first, weights = stencil(torch.tensor([[5.5]]), 1e-2)
    >>> spread(torch.ones(1, 1), first, weights, (1, 12), torch.zeros(1, dtype=torch.long)).sum()
    tensor(1.0000)
    """
    grids, *axes = count
    base = _base(first, axes, block)
    if _is_traced():
        return _traced_spread(x, weights, base, tuple(axes), grids * math.prod(axes))
    result: Tensor = _Spread.apply(x, weights, base, tuple(axes), grids * math.prod(axes))
    return result


def gather(grid: Tensor, first: Tensor, weights: Tensor, count: tuple[int, ...], block: Tensor) -> Tensor:
    """Interpolate values on a grid at points, the transpose of :func:`spread`: (rows, channels).

    >>> first, weights = stencil(torch.tensor([[5.5]]), 1e-2)
    >>> gather(torch.full((12, 1), 3.0), first, weights, (1, 12), torch.zeros(1, dtype=torch.long))
    tensor([[3.]])
    """
    _, *axes = count
    base = _base(first, axes, block)
    if _is_traced():
        return _traced_gather(grid, weights, base, tuple(axes))
    result: Tensor = _Gather.apply(grid, weights, base, tuple(axes))
    return result


def _is_traced() -> bool:
    """Return whether a compiler or torch.func transforms the call, which needs plain operations."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()  # noqa: SLF001


def _base(first: Tensor, axes: list[int], block: Tensor) -> Tensor:
    base = block
    for axis, points in enumerate(axes):
        base = base * points + first[:, axis]
    return base


def _taps(weights: Tensor, axes: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the index of each stencil point along the axes, and its distance from the first point in memory."""
    strides = [math.prod(axes[axis + 1 :]) for axis in range(len(axes))]
    for place in itertools.product(range(weights.shape[-1]), repeat=len(axes)):
        yield place, sum(stride * at for stride, at in zip(strides, place, strict=True))


def _weight(weights: Tensor, place: tuple[int, ...], without: int | None = None) -> Tensor:
    factors = [weights[:, axis, at] for axis, at in enumerate(place) if axis != without]
    return math.prod(factors[1:], start=factors[0]) if factors else torch.ones_like(weights[:, 0, 0])


def _weight_gradient(rows: Tensor, grid: Tensor, weights: Tensor, base: Tensor, axes: tuple[int, ...]) -> Tensor:
    gradient = [[torch.zeros_like(weights[:, 0, 0])] * weights.shape[-1] for _ in axes]
    for place, shift in _taps(weights, axes):
        product = (rows * grid.index_select(0, base + shift)).sum(dim=-1)
        for axis, at in enumerate(place):
            gradient[axis][at] = gradient[axis][at] + product * _weight(weights, place, without=axis)
    return torch.stack([torch.stack(line, dim=-1) for line in gradient], dim=1)


def _lines(weights: Tensor, base: Tensor, axes: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (rows, n) indices and weights of the stencil along the last axis, for each position along the others."""
    shift = torch.arange(weights.shape[-1], device=base.device)
    if len(axes) == 1:
        yield base.unsqueeze(1) + shift, weights[:, -1]
        return
    strides = [math.prod(axes[axis + 1 :]) for axis in range(len(axes))]
    for place in itertools.product(range(weights.shape[-1]), repeat=len(axes) - 1):
        begin = base + sum(stride * at for stride, at in zip(strides[:-1], place, strict=True))
        yield begin.unsqueeze(1) + shift, _weight(weights, place).unsqueeze(1) * weights[:, -1]


def _traced_spread(x: Tensor, weights: Tensor, base: Tensor, axes: tuple[int, ...], rows: int) -> Tensor:
    # A compiler differentiates and fuses plain operations, of which there should be few.
    grid = x.new_zeros(rows, x.shape[1])
    for index, weight in _lines(weights, base, axes):
        grid = grid.index_add(0, index.flatten(), (x.unsqueeze(1) * weight.unsqueeze(-1)).flatten(0, 1))
    return grid


def _traced_gather(grid: Tensor, weights: Tensor, base: Tensor, axes: tuple[int, ...]) -> Tensor:
    x = grid.new_zeros(base.shape[0], grid.shape[1])
    for index, weight in _lines(weights, base, axes):
        x = x + torch.einsum("rnc,rn->rc", grid[index], weight)
    return x


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, base: Tensor, axes: tuple[int, ...], rows: int) -> Tensor:
        ctx.save_for_backward(x, weights, base)
        ctx.axes = axes
        grid = x.new_zeros(rows, x.shape[1])
        for place, shift in _taps(weights, axes):
            grid.index_add_(0, base + shift, x * _weight(weights, place).unsqueeze(-1))
        return grid

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weights, base = ctx.saved_tensors
        to_x = _Gather.apply(gradient, weights, base, ctx.axes) if ctx.needs_input_grad[0] else None
        to_weights = _weight_gradient(x, gradient, weights, base, ctx.axes) if ctx.needs_input_grad[1] else None
        return to_x, to_weights, None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grid: Tensor, weights: Tensor, base: Tensor, axes: tuple[int, ...]) -> Tensor:
        ctx.save_for_backward(grid, weights, base)
        ctx.axes = axes
        x = grid.new_zeros(len(base), grid.shape[1])
        for place, shift in _taps(weights, axes):
            x.addcmul_(grid.index_select(0, base + shift), _weight(weights, place).unsqueeze(-1))
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        grid, weights, base = ctx.saved_tensors
        to_grid = None
        if ctx.needs_input_grad[0]:
            to_grid = _Spread.apply(gradient, weights, base, ctx.axes, len(grid))
        to_weights = _weight_gradient(gradient, grid, weights, base, ctx.axes) if ctx.needs_input_grad[1] else None
        return to_grid, to_weights, None, None
