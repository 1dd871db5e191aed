"""Launches of the kernels: packing of parameters, grids, and the autograd function."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ....grids import KernelGrid
from ...autograd import EagerFunction, grads_by_formula
from ...kernel_operator import kernel_operator
from ...launch_sizes import ceil_div, power_of_2
from .kernels import filter_grads_kernel, filter_kernel, sine_grads_kernel, sine_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....fields.base import Architecture

__all__ = ["fused_features"]

#: grid points per tile, and largest number of rows of partial gradients per network
_TILE, _ROWS = 16, 512


class _Features(EagerFunction):
    @staticmethod
    def forward(
        ctx: Any, architecture: Architecture, networks: int, grid: KernelGrid, formula: Any, *parameters: Tensor
    ) -> Tensor:
        packed = torch.cat([p.reshape(-1) for p in parameters])
        a = architecture
        layers = a.kind, a.hidden, a.layers, a.widths, a.omega
        call = _call(*layers, networks, grid, packed.numel() // networks, packed.is_cuda)
        ctx.call, ctx.formula = call, formula
        ctx.save_for_backward(packed, *parameters)
        return call.forward(packed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        packed, *parameters = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives need differentiable operations
            return (*(None,) * 4, *grads_by_formula(ctx.formula, parameters, grad))
        gradients = ctx.call.backward(grad.contiguous(), packed)
        pieces = gradients.split([p.numel() for p in parameters])
        return None, None, None, None, *[piece.view(p.shape) for piece, p in zip(pieces, parameters, strict=True)]


class _Call:
    """The grid of programs and the common kernel arguments of one evaluation.

    Args:
        kind: kind of network; see :class:`~kernelfield.fields.base.Architecture` for this and the next four.
        hidden: units per layer.
        layers: number of layers.
        widths: inverse widths of an envelope.
        omega: factor inside the sines.
        networks: number of networks.
        grid: the points.
        width: number of parameters of a network.
        on_gpu: whether a GPU runs the kernels; otherwise an interpreter does.
    """

    def __init__(
        self,
        kind: str,
        hidden: int,
        layers: int,
        widths: int,
        omega: float,
        networks: int,
        grid: KernelGrid,
        width: int,
        on_gpu: bool,
    ) -> None:
        self.hidden, self.layers, self.omega = hidden, layers, omega
        self.networks, self.points, self.width = networks, grid.points, width
        pad: tuple[Any, ...] = (1,) * (3 - len(grid.count))
        self.place = (
            *((*grid.count, *pad)[1:]),
            *(*grid.first, *pad),
            *(float(s) for s in (*grid.step, *pad)),
            *(float(n) for n in (*grid.size, *pad)),
        )
        block = max(16, power_of_2(hidden))
        tile = _TILE if on_gpu else 128  # an interpreter runs programs one after the other
        tiles = ceil_div(self.points, tile)
        self.tiles, self.each = tiles, power_of_2(ceil_div(tiles, _ROWS))
        self.kind: dict[str, Any] = {
            "F": layers, "H": hidden, "D": len(grid.count), "HB": block, "T": tile,
            "num_warps": 2 if block <= 32 else 4,  # with more units, registers of two warps would spill
            "PRECISION": "tf32x3" if on_gpu else "ieee",
        }  # fmt: skip
        self.sine = kind == "sines"
        if not self.sine:
            self.kind["A"] = widths

    def forward(self, packed: Tensor) -> Tensor:
        out = packed.new_empty((self.networks, self.hidden, self.points))
        kernel = sine_kernel if self.sine else filter_kernel
        kernel[self.tiles, self.networks](packed, out, *self._sizes(), **self.kind)
        return out

    def backward(self, grad: Tensor, packed: Tensor) -> Tensor:
        rows = -(-self.tiles // self.each)
        make: Callable[..., Tensor] = packed.new_empty if self.each == 1 else packed.new_zeros
        parts = make((self.networks, rows, self.width))
        kernel = sine_grads_kernel if self.sine else filter_grads_kernel
        scratch = packed.new_empty((self.networks, self.layers - 1, self.hidden, self.points))
        kernel[rows, self.networks](grad, packed, parts, scratch, *self._sizes(), EACH=self.each, **self.kind)
        return parts.sum(dim=1).view(-1)

    def _sizes(self) -> tuple[Any, ...]:
        sizes = (self.points, self.width, *self.place)
        return (self.omega, *sizes) if self.sine else sizes


#: cached, because a call is the same for every training step
_call = functools.lru_cache(1024)(_Call)


def fused_features(architectures: Sequence[Architecture], grid: KernelGrid, formula: Callable[..., Tensor]) -> Tensor:
    """Return the last hidden layers of networks of one architecture on a grid, (networks, hidden, points).

    Args:
        architectures: one for each network; they differ only in their parameters.
        grid: the points.
        formula: the same function of the parameters of all networks in torch operations, for second derivatives.
    """
    parameters = [p for architecture in architectures for p in architecture.parameters]
    if torch.compiler.is_compiling():
        packed, a = torch.cat([p.reshape(-1) for p in parameters]), architectures[0]
        layers = a.kind, a.hidden, a.layers, a.widths, float(a.omega)
        steps = [float(step) for step in grid.step]
        return _features_op(packed, *layers, len(architectures), grid.first, grid.count, steps, grid.size)
    return _Features.apply(architectures[0], len(architectures), grid, formula, *parameters)


def _features_forward(packed: Tensor, *described: Any) -> list[Tensor]:
    """Return the features, from the parameters of all networks in one tensor and a description of the call."""
    return [_described(packed, *described).forward(packed)]


def _features_grads(grad: Tensor, packed: Tensor, *described: Any) -> list[Tensor]:
    return [_described(packed, *described).backward(grad, packed)]


def _features_shape(packed: Tensor, kind: str, hidden: int, *rest: Any) -> list[Tensor]:  # noqa: ARG001
    networks, count = rest[3], rest[5]
    return [packed.new_empty((networks, hidden, math.prod(count)))]


def _described(packed: Tensor, *described: Any) -> _Call:
    """Return the call for the operator's arguments: layers, number of networks, and the four tuples of a grid."""
    *layers, networks = described[:-4]
    grid = KernelGrid(*map(tuple, described[-4:]))
    return _call(*layers, networks, grid, packed.numel() // networks, packed.is_cuda)


_features_op = kernel_operator(
    "field_features",
    "Tensor packed, str kind, int hidden, int layers, int widths, float omega, int networks, int[] first, int[] count, "
    "float[] step, int[] size",
    0,
    1,
    _features_forward,
    _features_grads,
    _features_shape,
)
