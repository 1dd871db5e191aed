r"""Gaussian windows on kernels, in one launch for all kernels of a network.

For n kernels with centres μ and widths σ on the points x of a grid,

.. math:: k_c(x) = v_c(x)\, w(x), \qquad w(x) = \prod_d g_d(x), \quad
    g_d(x) = \exp\!\big(-\tfrac12 (x_d - \mu_d)^2 / \sigma_d^2\big), \quad 0 \text{ if } g_d < T_m .

A program has a tile of points and channels of one kernel, and computes coordinates and window from the numbers of the
grid. In the backward pass it writes its part of the gradients of μ and σ. The parts are added later in a fixed order.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from ...autograd import EagerFunction, grads_by_formula
from ...launch_sizes import ceil_div
from .kernels import _coordinates

if TYPE_CHECKING:
    from torch import Tensor

    from ....grids import KernelGrid

__all__ = ["multiply_gaussians"]

_add = tl.standard._sum_combine  # noqa: SLF001
#: points and channels of a tile
_POINTS, _CHANNELS = 128, 8


@triton.jit
def _gaussian(x, mean, sigma, d, threshold, S: tl.constexpr):
    """Return the window along one axis, and (x - μ) / σ and 1 / σ; S is 0 if all axes share a width."""
    inverse = 1.0 / tl.load(sigma + d * S)
    scaled = (x - tl.load(mean + d)) * inverse
    value = tl.exp(-0.5 * scaled * scaled)
    return tl.where(value < threshold, 0.0, value), scaled, inverse


@triton.jit
def _window(x0, x1, x2, mean, sigma, threshold, D: tl.constexpr, S: tl.constexpr):
    window, _, _ = _gaussian(x0, mean, sigma, 0, threshold, S)
    if D > 1:
        factor, _, _ = _gaussian(x1, mean, sigma, 1, threshold, S)
        window *= factor
    if D > 2:
        factor, _, _ = _gaussian(x2, mean, sigma, 2, threshold, S)
        window *= factor
    return window


@triton.jit
def window_kernel(
    values, mean, sigma, out, C, P, widths, threshold,
    n1, n2, first0, first1, first2, step0, step1, step2, size0, size1, size2,
    D: tl.constexpr, S: tl.constexpr, T: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """Write values times window; each kernel has D centres and ``widths`` widths."""
    i = tl.program_id(2)
    point, c = tl.program_id(0) * T + tl.arange(0, T), tl.program_id(1) * CB + tl.arange(0, CB)
    x0, x1, x2 = _coordinates(
        point, n1, n2, first0, first1, first2, step0, step1, step2, size0, size1, size2, D
    )  # fmt: skip
    window = _window(x0, x1, x2, mean + i * D, sigma + i * widths, threshold, D, S)
    at = (i * C + c)[None, :] * P + point[:, None]
    there = (c < C)[None, :] & (point < P)[:, None]
    tl.store(out + at, tl.load(values + at, mask=there, other=0.0) * window, mask=there)


@triton.jit
def _store_slopes(parts, product, x, mean, sigma, d, threshold, D: tl.constexpr, S: tl.constexpr):
    """Write Σ p (x - μ)/σ² and Σ p (x - μ)²/σ³ for the products p of gradient, value and window."""
    _, scaled, inverse = _gaussian(x, mean, sigma, d, threshold, S)
    slope = product * (scaled * inverse)
    tl.store(parts + d, tl.reduce(tl.reduce(slope, 1, _add), 0, _add))
    tl.store(parts + D + d, tl.reduce(tl.reduce(slope * scaled, 1, _add), 0, _add))


@triton.jit
def window_grads_kernel(
    grad, values, mean, sigma, out, parts, C, P, widths, threshold,
    n1, n2, first0, first1, first2, step0, step1, step2, size0, size1, size2,
    D: tl.constexpr, S: tl.constexpr, T: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the values, and this program's part of those of centres and widths."""
    i = tl.program_id(2)
    point, c = tl.program_id(0) * T + tl.arange(0, T), tl.program_id(1) * CB + tl.arange(0, CB)
    x0, x1, x2 = _coordinates(
        point, n1, n2, first0, first1, first2, step0, step1, step2, size0, size1, size2, D
    )  # fmt: skip
    mean += i * D
    sigma += i * widths
    at = (i * C + c)[None, :] * P + point[:, None]
    there = (c < C)[None, :] & (point < P)[:, None]
    product = tl.load(grad + at, mask=there, other=0.0) * _window(x0, x1, x2, mean, sigma, threshold, D, S)
    tl.store(out + at, product, mask=there)
    product *= tl.load(values + at, mask=there, other=0.0)
    row = (i * tl.num_programs(0) + tl.program_id(0)) * tl.num_programs(1) + tl.program_id(1)
    target = parts + row * 2 * D
    _store_slopes(target, product, x0, mean, sigma, 0, threshold, D, S)
    if D > 1:
        _store_slopes(target, product, x1, mean, sigma, 1, threshold, D, S)
    if D > 2:
        _store_slopes(target, product, x2, mean, sigma, 2, threshold, D, S)


class _Windowed(EagerFunction):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, mean: Tensor, sigma: Tensor, threshold: float, grid: KernelGrid, formula: Any
    ) -> Tensor:
        values = values.contiguous()
        ctx.save_for_backward(values, mean, sigma)
        ctx.launch, ctx.formula = _launch(values.shape, sigma.shape[-1], threshold, grid), formula
        out = torch.empty_like(values)
        window_kernel[ctx.launch.programs](values, mean, sigma, out, *ctx.launch.sizes, **ctx.launch.constants)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, mean, sigma = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives need differentiable operations
            return (*grads_by_formula(ctx.formula, (values, mean, sigma), grad), None, None, None)
        launch, dim = ctx.launch, mean.shape[-1]
        tiles, blocks, n = launch.programs
        out, parts = torch.empty_like(values), values.new_empty((n, tiles * blocks, 2 * dim))
        window_grads_kernel[launch.programs](
            grad.contiguous(), values, mean, sigma, out, parts, *launch.sizes, **launch.constants
        )
        if not any(ctx.needs_input_grad[1:3]):
            return out, *(None,) * 5
        by_mean, by_sigma = parts.sum(dim=1, keepdim=True).split(dim, dim=2)
        if sigma.shape[-1] < dim:
            by_sigma = by_sigma.sum(dim=-1, keepdim=True)
        return out, by_mean, by_sigma, None, None, None


class _Launch:
    """The programs, sizes and constants of a launch."""

    def __init__(self, shape: torch.Size, widths: int, threshold: float, grid: KernelGrid) -> None:
        n, channels, points = shape
        dim = len(grid.count)
        pad: tuple[Any, ...] = (1,) * (3 - dim)
        steps, sizes = ((float(v) for v in (*numbers, *pad)) for numbers in (grid.step, grid.size))
        self.programs = (ceil_div(points, _POINTS), ceil_div(channels, _CHANNELS), n)
        self.sizes = (channels, points, widths, threshold, *(*grid.count, *pad)[1:], *grid.first, *pad, *steps, *sizes)
        self.constants = {"D": dim, "S": int(widths == dim), "T": _POINTS, "CB": _CHANNELS}


#: cached, because a launch is the same for every training step
_launch = functools.lru_cache(1024)(_Launch)


def multiply_gaussians(
    values: Tensor, mean: Tensor, sigma: Tensor, threshold: float, grid: KernelGrid, formula: Any
) -> Tensor:
    """Return values times Gaussian windows on a grid.

    Args:
        values: (n, channels, points) values of n kernels.
        mean: (n, 1, dim) centres.
        sigma: (n, 1, dim) widths, or (n, 1, 1) if all axes share one.
        threshold: factors below it are zero.
        grid: the points.
        formula: the same function of values, centres and widths in torch operations, for second derivatives.
    """
    result: Tensor = _Windowed.apply(values, mean, sigma, threshold, grid, formula)
    return result
