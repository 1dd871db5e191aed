"""Launches of the kernels, and the two functions that autograd meets."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from ...double_backward import grads_by_formula
from ..linear import sum_of_products
from .kernels import (
    activate_grads_kernel,
    activate_kernel,
    norm_grads_kernel,
    norm_kernel,
    norm_sums_kernel,
    sums_kernel,
)

__all__ = ["fused_activate", "fused_map_activate", "fused_norm"]

#: elements of a tile, and programs to aim at: enough to fill a large GPU a few times over
_TILE, _PROGRAMS = 1024, 4096


class _Tiles:
    """How a (batch, channels, length) signal is divided among programs."""

    @classmethod
    def of(cls, x: Tensor) -> _Tiles:
        b, c, n = x.shape
        return cls(b, c, n, x.is_cuda)

    def __init__(self, b: int, c: int, n: int, parallel: bool) -> None:
        lb = min(_TILE, max(16, triton.next_power_of_2(n)))
        bb = min(_TILE // lb, triton.next_power_of_2(b))
        columns = triton.cdiv(n, lb)
        tiles = triton.cdiv(b, bb) * columns
        parts = max(1, min(tiles, _PROGRAMS // c, 256)) if parallel else min(tiles, 2)
        per = triton.next_power_of_2(triton.cdiv(tiles, parts))  # few sizes of loops to compile
        self.parts = triton.cdiv(tiles, per)
        self.grid = (c, self.parts)
        self.sizes = (b, c, n, columns)
        self.count = float(b * n)
        self.kind: dict[str, Any] = {"PER": per, "BB": bb, "LB": lb, "num_warps": max(1, min(4, bb * lb // 256))}
        self.added = triton.next_power_of_2(self.parts)


def _flat(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1], -1).contiguous()


class _Activation:
    """GELU and what goes with it, forward and backward, of the first channels of a signal."""

    def __init__(self, channels: int, dropout: float, device: torch.device) -> None:
        self.channels = channels
        self.drop = (round((1 - dropout) * (1 << 31)) - 1, 1 / (1 - dropout))
        self.seed: Tensor | None = None
        if dropout > 0:
            self.seed = torch.randint(-(1 << 31), (1 << 31) - 1, (2,), dtype=torch.int32, device=device)

    def forward(self, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        """Return residual + drop(gelu(x + bias)) of the used channels of ``x``, (batch, rows, length)."""
        tiles = _Tiles(x.shape[0], self.channels, x.shape[2], x.is_cuda)
        dtype = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
        out = torch.empty((len(x), self.channels, x.shape[2]), dtype=dtype, device=x.device)
        activate_kernel[tiles.grid](
            x, *_or((bias, residual, self.seed), x), out, *tiles.sizes, x.shape[1], *self.drop,
            BIAS=bias is not None, RESIDUAL=residual is not None, DROP=self.seed is not None, **tiles.kind,
        )  # fmt: skip
        return out

    def backward(self, grad: Tensor, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of ``x``, zero in channels that are not used, and of the bias."""
        tiles = _Tiles(x.shape[0], self.channels, x.shape[2], x.is_cuda)
        out = torch.empty_like(x)
        sums = torch.empty((tiles.parts, self.channels), dtype=torch.float32, device=x.device)
        activate_grads_kernel[x.shape[1], tiles.parts](
            grad, x, *_or((bias, self.seed), x), out, sums, *tiles.sizes, x.shape[1], *self.drop,
            BIAS=bias is not None, DROP=self.seed is not None, **tiles.kind,
        )  # fmt: skip
        return out, None if bias is None else sums.sum(dim=0).to(bias.dtype)

    def kept(self, shape: torch.Size, like: Tensor) -> Tensor | None:
        """Return what dropout multiplied, for the formula: what the kernel makes of a signal whose GELU is known."""
        if self.seed is None:
            return None
        ten = torch.full(shape, 10.0, dtype=torch.float32, device=like.device)  # GELU leaves it as it is
        return (self.forward(_flat(ten), None, None) / 10.0).view(shape).to(like.dtype)


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor | None, residual: Tensor | None, dropout: float, formula: Any
    ) -> Tensor:
        ctx.how = _Activation(x.shape[1], dropout, x.device)
        ctx.save_for_backward(x, bias)
        ctx.formula, ctx.residual = formula, None if residual is None else residual.dtype
        return ctx.how.forward(_flat(x), bias, None if residual is None else _flat(residual)).view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        to_residual = None if ctx.residual is None else grad.to(ctx.residual)
        if torch.is_grad_enabled():
            kept = ctx.how.kept(x.shape, x)
            found = grads_by_formula(lambda x, bias: ctx.formula(x, bias, kept), (x, bias), grad)
            return (*found, to_residual, None, None)
        to_x, to_bias = ctx.how.backward(_flat(grad), _flat(x), bias)
        return to_x.view(x.shape), to_bias, to_residual, None, None


class _MapActivate(torch.autograd.Function):
    """A linear map of the channels and the activation after it.

    Products are fastest where the rows of all matrices are whole multiples of 16 bytes, which 380 channels in bfloat16
    are not. So the map has a few outputs more, of weights that are zero; nobody reads them, and backward they are zero
    again where the sum over outputs meets them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        dropout: float,
        formula: Any,
    ) -> Tensor:
        flat = _flat(x)
        whole = 16 // x.element_size()
        columns = torch.zeros((weight.shape[1], -(-len(weight) // whole) * whole), dtype=x.dtype, device=x.device)
        columns[:, : len(weight)] = weight.mT
        mapped = torch.bmm(columns.mT.expand(len(x), -1, -1), flat)
        ctx.how = _Activation(len(weight), dropout, x.device)
        ctx.save_for_backward(x, weight, bias, mapped, columns)
        ctx.formula, ctx.residual = formula, None if residual is None else residual.dtype
        y = ctx.how.forward(mapped, bias, None if residual is None else _flat(residual))
        return y.view(len(x), -1, *x.shape[2:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mapped, columns = ctx.saved_tensors
        to_residual = None if ctx.residual is None else grad.to(ctx.residual)
        if torch.is_grad_enabled():
            kept = ctx.how.kept(grad.shape, x)
            found = grads_by_formula(lambda *inputs: ctx.formula(*inputs, kept), (x, weight, bias), grad)
            return (*found, to_residual, None, None)
        slope, to_bias = ctx.how.backward(_flat(grad), mapped, bias)
        to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            to_x = torch.bmm(columns.expand(len(x), -1, -1), slope).view(x.shape)
        if ctx.needs_input_grad[1]:
            to_weight = sum_of_products(slope, _flat(x))[: len(weight)].to(weight.dtype)
        return to_x, to_weight, to_bias, to_residual, None, None


class _Norm(torch.autograd.Function):
    """Batch normalisation, GELU or not; also hands on its input, so that both gradients of it meet in one kernel."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        held: tuple[Tensor, Tensor] | None,
        momentum: float,
        eps: float,
        gelu: bool,
        formula: Any,
    ) -> tuple[Tensor, Tensor]:
        flat = _flat(x)
        tiles = _Tiles.of(flat)
        new: dict[str, Any] = {"dtype": torch.float32, "device": x.device}
        sums, statistics = torch.empty((2, tiles.parts, x.shape[1]), **new), torch.empty((2, x.shape[1]), **new)
        out = torch.empty_like(flat)
        sums_kernel[tiles.grid](flat, sums, *tiles.sizes, tiles.parts, **tiles.kind)
        norm_kernel[tiles.grid](
            flat, sums, *_or((weight, bias), flat), *((flat, flat) if held is None else held), statistics, out,
            *tiles.sizes, tiles.parts, tiles.count, momentum, eps,
            AFFINE=weight is not None, HELD=held is not None, GELU=gelu, PARTS=tiles.added, **tiles.kind,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, statistics)
        ctx.gelu, ctx.formula = gelu, formula
        ctx.set_materialize_grads(False)
        return out.view(x.shape), x

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, passed: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, statistics = ctx.saved_tensors
        rest = (None,) * 5
        if grad is None:
            return (passed, None, None, *rest)
        if torch.is_grad_enabled():
            to_x, *others = grads_by_formula(ctx.formula, (x, weight, bias), grad)
            return (to_x if passed is None or to_x is None else to_x + passed, *others, *rest)
        flat, slope = _flat(x), _flat(grad)
        tiles = _Tiles.of(flat)
        sums, parameters = torch.empty((2, tiles.parts, x.shape[1]), device=x.device), torch.empty_like(statistics)
        out = torch.empty_like(flat)
        affine = _or((weight, bias), flat)
        how = {"AFFINE": weight is not None, "GELU": ctx.gelu, **tiles.kind}
        norm_sums_kernel[tiles.grid](slope, flat, statistics, *affine, sums, *tiles.sizes, tiles.parts, **how)
        norm_grads_kernel[tiles.grid](
            slope, flat, flat if passed is None else _flat(passed), statistics, *affine, sums, out, parameters,
            *tiles.sizes, tiles.parts, tiles.count, PASSED=passed is not None, PARTS=tiles.added, **how,
        )  # fmt: skip
        to_weight, to_bias = (None, None) if weight is None else parameters.to(weight.dtype).unbind()
        return out.view(x.shape), to_weight, to_bias, *rest


def _or(tensors: tuple[Tensor | None, ...], other: Tensor) -> list[Tensor]:
    return [other if t is None else t for t in tensors]


def fused_activate(x: Tensor, bias: Tensor | None, residual: Tensor | None, dropout: float, formula: Any) -> Tensor:
    """Return residual + drop(gelu(x + bias)); second derivatives are those of ``formula(x, bias, kept)``."""
    return _Activate.apply(x, bias, residual, dropout, formula)


def fused_map_activate(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, dropout: float, formula: Any
) -> Tensor:
    """Return residual + drop(gelu(W x + bias)); second derivatives are those of ``formula(x, weight, bias, kept)``."""
    return _MapActivate.apply(x, weight, bias, residual, dropout, formula)


def fused_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    held: tuple[Tensor, Tensor] | None,
    momentum: float,
    eps: float,
    gelu: bool,
    formula: Any,
) -> tuple[Tensor, Tensor]:
    """Return the normalised signal and the signal, to be used in place of ``x`` from here on."""
    return _Norm.apply(x, weight, bias, held, momentum, eps, gelu, formula)
