"""Launches of the kernels: packing of parameters, grids, and the autograd function."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

from ...double_backward import grads_by_formula
from .kernels import filter_grads_kernel, filter_kernel, sine_grads_kernel, sine_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....fields.base import Architecture
    from ....grids import KernelGrid

__all__ = ["fused_features"]

#: grid points of a tile, and rows of partial gradients of a network at most
_TILE, _ROWS = 16, 512


class _Features(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, architecture: Architecture, networks: int, grid: KernelGrid, formula: Any, *parameters: Tensor
    ) -> Tensor:
        packed = torch.cat([p.reshape(-1) for p in parameters])
        call = _Call(architecture, networks, grid, packed)
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
    """One evaluation: its grid of programs and the arguments that all kernels share."""

    def __init__(self, architecture: Architecture, networks: int, grid: KernelGrid, packed: Tensor) -> None:
        self.architecture, self.networks, self.points = architecture, networks, grid.points
        self.width = packed.numel() // networks
        pad: tuple[Any, ...] = (1,) * (3 - len(grid.count))
        self.place = (
            *((*grid.count, *pad)[1:]),
            *(*grid.first, *pad),
            *(float(s) for s in (*grid.step, *pad)),
            *(float(n) for n in (*grid.size, *pad)),
        )
        hidden = max(16, triton.next_power_of_2(architecture.hidden))
        tile = _TILE if packed.is_cuda else 128  # an interpreter runs programs one after the other
        tiles = triton.cdiv(self.points, tile)
        self.tiles, self.each = tiles, triton.next_power_of_2(triton.cdiv(tiles, _ROWS))
        self.kind: dict[str, Any] = {
            "F": architecture.layers, "H": architecture.hidden, "D": len(grid.count), "HB": hidden,
        }  # fmt: skip
        self.kind["T"] = tile
        self.kind["num_warps"] = 2 if hidden <= 32 else 4  # two hold no more units without spilling
        self.kind["PRECISION"] = "tf32x3" if packed.is_cuda else "ieee"
        self.sine = architecture.kind == "sines"
        if not self.sine:
            self.kind["A"] = architecture.widths

    def forward(self, packed: Tensor) -> Tensor:
        out = packed.new_empty((self.networks, self.architecture.hidden, self.points))
        kernel = sine_kernel if self.sine else filter_kernel
        kernel[self.tiles, self.networks](packed, out, *self._sizes(), **self.kind)
        return out

    def backward(self, grad: Tensor, packed: Tensor) -> Tensor:
        rows = triton.cdiv(self.tiles, self.each)
        make: Callable[..., Tensor] = packed.new_empty if self.each == 1 else packed.new_zeros
        parts = make((self.networks, rows, self.width))
        kernel = sine_grads_kernel if self.sine else filter_grads_kernel
        scratch = packed.new_empty((self.networks, self.architecture.layers - 1, self.architecture.hidden, self.points))
        kernel[rows, self.networks](grad, packed, parts, scratch, *self._sizes(), EACH=self.each, **self.kind)
        return parts.sum(dim=1).view(-1)

    def _sizes(self) -> tuple[Any, ...]:
        sizes = (self.points, self.width, *self.place)
        return (self.architecture.omega, *sizes) if self.sine else sizes


def fused_features(architectures: Sequence[Architecture], grid: KernelGrid, formula: Callable[..., Tensor]) -> Tensor:
    """Return the last hidden layers of networks of one architecture on a grid, (networks, hidden, points).

    Args:
        architectures: one for each network; they differ in their parameters alone.
        grid: the points.
        formula: the same function of all parameters in a row, for second derivatives.
    """
    parameters = [p for architecture in architectures for p in architecture.parameters]
    return _Features.apply(architectures[0], len(architectures), grid, formula, *parameters)
