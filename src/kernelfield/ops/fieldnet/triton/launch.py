"""Launches of the kernels: packing of parameters, grids, and the function that autograd meets."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

from ...double_backward import grads_by_formula
from .kernels import filter_grads_kernel, filter_kernel, sine_grads_kernel, sine_kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....grids import KernelGrid
    from .. import Shape

__all__ = ["fused_features"]

#: grid points of a tile, and rows of partial gradients of a network at most
_TILE, _ROWS = 16, 512


class _Features(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shape: Shape, networks: int, grid: KernelGrid, formula: Any, *parameters: Tensor) -> Tensor:
        packed = torch.cat([p.reshape(-1) for p in parameters])
        call = _Call(shape, networks, grid, packed)
        ctx.call, ctx.formula = call, formula
        ctx.save_for_backward(packed, *parameters)
        return call.forward(packed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        packed, *parameters = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives: by operations that have some
            return (*(None,) * 4, *grads_by_formula(ctx.formula, parameters, grad))
        whole = ctx.call.backward(grad.contiguous(), packed)
        ends = list(accumulate(p.numel() for p in parameters))
        return (
            *(None,) * 4,
            *(whole[end - p.numel() : end].view(p.shape) for p, end in zip(parameters, ends, strict=True)),
        )


class _Call:
    """One evaluation: its grid of programs and what all kernels are told."""

    def __init__(self, shape: Shape, networks: int, grid: KernelGrid, packed: Tensor) -> None:
        self.shape, self.networks, self.points = shape, networks, grid.points
        self.width = packed.numel() // networks
        pad: tuple[Any, ...] = (1,) * (3 - len(grid.count))
        self.place = (
            *((*grid.count, *pad)[1:]),
            *(*grid.first, *pad),
            *(float(s) for s in (*grid.step, *pad)),
            *(float(n) for n in (*grid.size, *pad)),
        )
        hidden = max(16, triton.next_power_of_2(shape.hidden))
        tile = _TILE if packed.is_cuda else 128  # an interpreter runs programs one after the other
        tiles = triton.cdiv(self.points, tile)
        self.tiles, self.each = tiles, triton.next_power_of_2(triton.cdiv(tiles, _ROWS))
        self.kind: dict[str, Any] = {"F": shape.layers, "H": shape.hidden, "D": len(grid.count), "HB": hidden}
        self.kind["T"] = tile
        self.kind["num_warps"] = 2 if hidden <= 32 else 4  # two hold no more units without spilling
        self.kind["PRECISION"] = "tf32x3" if packed.is_cuda else "ieee"
        self.sine = shape.omega is not None
        if not self.sine:
            self.kind["A"] = shape.widths

    def forward(self, packed: Tensor) -> Tensor:
        out = packed.new_empty((self.networks, self.shape.hidden, self.points))
        kernel = sine_kernel if self.sine else filter_kernel
        kernel[self.tiles, self.networks](packed, out, *self._sizes(), **self.kind)
        return out

    def backward(self, grad: Tensor, packed: Tensor) -> Tensor:
        rows = triton.cdiv(self.tiles, self.each)
        make: Callable[..., Tensor] = packed.new_empty if self.each == 1 else packed.new_zeros
        parts = make((self.networks, rows, self.width))
        kernel = sine_grads_kernel if self.sine else filter_grads_kernel
        scratch = packed.new_empty((self.networks, self.shape.layers - 1, self.shape.hidden, self.points))
        kernel[rows, self.networks](grad, packed, parts, scratch, *self._sizes(), EACH=self.each, **self.kind)
        return parts.sum(dim=1).view(-1)

    def _sizes(self) -> tuple[Any, ...]:
        sizes = (self.points, self.width, *self.place)
        return (self.shape.omega, *sizes) if self.sine else sizes


def fused_features(
    shape: Shape, networks: list[list[Tensor]], grid: KernelGrid, formula: Callable[..., Tensor]
) -> Tensor:
    """Return the last hidden layers, (networks, hidden, points); ``formula`` of all parameters does the same."""
    return _Features.apply(shape, len(networks), grid, formula, *(p for network in networks for p in network))
