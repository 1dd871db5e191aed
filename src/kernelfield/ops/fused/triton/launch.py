"""Launches of the kernels, and their autograd functions."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ...autograd import EagerFunction, grads_by_formula
from ...launch_sizes import ceil_div, power_of_2
from ..channel_map import sum_of_products
from ..reference import batch_norm, kept_gelu, kept_gelu_of_map, mapped_offset
from .kernels import (
    activate_grads_kernel,
    activate_kernel,
    norm_grads_kernel,
    norm_kernel,
    norm_sums_kernel,
    sums_kernel,
)

__all__ = ["FusedActivate", "FusedLinear", "FusedNorm"]

#: elements per tile, and target number of programs, enough to fill a large GPU a few times over
_TILE, _PROGRAMS = 1024, 4096


class _Tiles:
    """The division of a (batch, channels, length) signal among programs."""

    def __init__(self, b: int, c: int, n: int, parallel: bool) -> None:
        lb = min(_TILE, max(16, power_of_2(n)))
        bb = min(_TILE // lb, power_of_2(b))
        columns = ceil_div(n, lb)
        tiles = ceil_div(b, bb) * columns
        parts = max(1, min(tiles, _PROGRAMS // c, 256)) if parallel else min(tiles, 2)
        per = power_of_2(ceil_div(tiles, parts))  # powers of two give few loop lengths to compile
        self.parts = ceil_div(tiles, per)
        self.grid = (c, self.parts)
        self.sizes = (b, c, n, columns)
        self.count = float(b * n)
        self.kind: dict[str, Any] = {"PER": per, "BB": bb, "LB": lb, "num_warps": max(1, min(4, bb * lb // 256))}
        self.added = power_of_2(self.parts)


#: cached, because dividing a signal takes longer than launching a kernel
_tiles = functools.lru_cache(4096)(_Tiles)


def _flat(x: Tensor) -> Tensor:
    """(batch, channels, *space) -> (batch, channels, length), contiguous; a length of 1 if there is no space."""
    if x.dim() != 3:
        x = x.flatten(2) if x.dim() > 2 else x.unsqueeze(2)
    return x.contiguous()


class _Activation:
    """Bias, GELU, dropout and residual sum of the first channels of a signal, forward and backward."""

    def __init__(self, channels: int, dropout: float, dropout_channels: bool, device: torch.device) -> None:
        self.channels, self.drop_channels = channels, dropout_channels
        self.drop = (round((1 - dropout) * (1 << 31)) - 1, 1 / (1 - dropout))
        self.seed: Tensor | None = None
        if dropout > 0:
            self.seed = torch.randint(-(1 << 31), (1 << 31) - 1, (2,), dtype=torch.int32, device=device)

    def forward(self, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        """Return residual + drop(gelu(x + bias)) for the used channels of ``x``, (batch, rows, length)."""
        tiles = _tiles(x.shape[0], self.channels, x.shape[2], x.is_cuda)
        dtype = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
        out = torch.empty((x.shape[0], self.channels, x.shape[2]), dtype=dtype, device=x.device)
        activate_kernel[tiles.grid](
            x, x if bias is None else bias, x if residual is None else residual, x if self.seed is None else self.seed,
            out, *tiles.sizes, x.shape[1], *self.drop,
            BIAS=bias is not None, RESIDUAL=residual is not None, DROP=self.seed is not None,
            CHANNELS=self.drop_channels, **tiles.kind,
        )  # fmt: skip
        return out

    def backward(self, grad: Tensor, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradient of ``x``, zero in unused channels, and that of the bias."""
        tiles = _tiles(x.shape[0], self.channels, x.shape[2], x.is_cuda)
        out = torch.empty_like(x)
        sums = torch.empty((tiles.parts, self.channels), dtype=torch.float32, device=x.device)
        activate_grads_kernel[x.shape[1], tiles.parts](
            grad, x, x if bias is None else bias, x if self.seed is None else self.seed, out, sums,
            *tiles.sizes, x.shape[1], *self.drop,
            BIAS=bias is not None, DROP=self.seed is not None, CHANNELS=self.drop_channels, **tiles.kind,
        )  # fmt: skip
        return out, None if bias is None else sums.sum(dim=0).to(bias.dtype)

    def kept(self, shape: torch.Size, like: Tensor) -> Tensor | None:
        """Return the dropout mask times its factor, from the kernel's output for a signal whose GELU is known."""
        if self.seed is None:
            return None
        ten = torch.full(shape, 10.0, dtype=torch.float32, device=like.device)  # GELU(10) is 10
        return (self.forward(_flat(ten), None, None) / 10.0).view(shape).to(like.dtype)


class FusedActivate(EagerFunction):
    """residual + drop(gelu(x + bias))."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor | None, residual: Tensor | None, dropout: float, dropout_channels: bool
    ) -> Tensor:
        ctx.op = _Activation(x.shape[1], dropout, dropout_channels, x.device)
        ctx.save_for_backward(x, bias)
        ctx.residual_dtype = None if residual is None else residual.dtype
        return ctx.op.forward(_flat(x), bias, None if residual is None else _flat(residual)).view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        to_residual = None if ctx.residual_dtype is None else grad.to(ctx.residual_dtype)
        if torch.is_grad_enabled():
            kept = ctx.op.kept(x.shape, x)
            found = grads_by_formula(lambda x, bias: kept_gelu(x, bias, kept), (x, bias), grad)
            return (*found, to_residual, None, None)
        to_x, to_bias = ctx.op.backward(_flat(grad), _flat(x), bias)
        return to_x.view(x.shape), to_bias, to_residual, None, None


class FusedLinear(EagerFunction):
    """residual + drop(gelu(W x + bias)): a linear map of the channels and the activation after it.

    Matrix products are fastest if the rows of all matrices are multiples of 16 bytes, which 380 channels in bfloat16
    are not. The map then computes a few extra outputs with zero weights. They are never read, and their gradients are
    zero.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        offset: Tensor | None,
        residual: Tensor | None,
        dropout: float,
        dropout_channels: bool,
    ) -> Tensor:
        flat = _flat(x)
        columns = _columns(weight, x)
        batch, channels = x.shape[0], weight.shape[0]
        mapped = torch.bmm(columns.mT.expand(batch, -1, -1), flat)
        ctx.op = _Activation(channels, dropout, dropout_channels, x.device)
        total = bias if offset is None else mapped_offset(offset, weight, bias)
        ctx.save_for_backward(x, weight, bias, offset, mapped, columns, total)
        ctx.residual_dtype = None if residual is None else residual.dtype
        y = ctx.op.forward(mapped, total, None if residual is None else _flat(residual))
        return y if x.dim() == 3 else y.view(batch, -1, *x.shape[2:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, offset, mapped, columns, total = ctx.saved_tensors
        to_residual = None if ctx.residual_dtype is None else grad.to(ctx.residual_dtype)
        if torch.is_grad_enabled():
            kept = ctx.op.kept(grad.shape, x)

            def formula(x: Tensor, weight: Tensor, bias: Tensor | None, offset: Tensor | None) -> Tensor:
                total = bias if offset is None else mapped_offset(offset, weight, bias)
                return kept_gelu_of_map(x, weight, total, kept)

            return (*grads_by_formula(formula, (x, weight, bias, offset), grad), to_residual, None, None)
        slope, to_total = ctx.op.backward(_flat(grad), mapped, total)
        to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            to_x = torch.bmm(columns.expand(x.shape[0], -1, -1), slope).view(x.shape)
        if ctx.needs_input_grad[1]:
            to_weight = sum_of_products(slope, _flat(x))[: weight.shape[0]].to(weight.dtype)
        to_offset = None
        if offset is not None and to_total is not None:
            if to_weight is not None:
                to_weight = to_weight.addcmul(to_total.unsqueeze(1), offset)
            if ctx.needs_input_grad[3]:
                to_offset = mapped_offset(to_total, weight.mT, None)
        to_bias = None if bias is None else to_total
        return to_x, to_weight, to_bias, to_offset, to_residual, None, None


def _columns(weight: Tensor, x: Tensor) -> Tensor:
    """Return an (out, in) weight as (in, columns) in the dtype of ``x``, with rows padded to 16 bytes by zeros."""
    channels, inputs = weight.shape
    grain = 16 // x.element_size()
    if channels % grain == 0 and inputs % grain == 0:
        return weight.to(x.dtype).mT
    columns = torch.zeros((inputs, -(-channels // grain) * grain), dtype=x.dtype, device=x.device)
    columns[:, :channels] = weight.mT
    return columns


class FusedNorm(EagerFunction):
    """Batch normalisation with an optional GELU. It returns its input too, so that one kernel adds both gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: tuple[Tensor, Tensor] | None,
        momentum: float,
        eps: float,
        gelu: bool,
    ) -> tuple[Tensor, Tensor]:
        flat = _flat(x)
        tiles = _tiles(*flat.shape, flat.is_cuda)
        new: dict[str, Any] = {"dtype": torch.float32, "device": x.device}
        sums, statistics = torch.empty((2, tiles.parts, x.shape[1]), **new), torch.empty((2, x.shape[1]), **new)
        out = torch.empty_like(flat)
        sums_kernel[tiles.grid](flat, sums, *tiles.sizes, tiles.parts, **tiles.kind)
        norm_kernel[tiles.grid](
            flat, sums, flat if weight is None else weight, flat if bias is None else bias,
            *((flat, flat) if running is None else running), statistics, out,
            *tiles.sizes, tiles.parts, tiles.count, momentum, eps,
            AFFINE=weight is not None, RUNNING=running is not None, GELU=gelu, PARTS=tiles.added, **tiles.kind,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, statistics)
        ctx.gelu, ctx.eps = gelu, eps
        ctx.set_materialize_grads(False)
        return out.view(x.shape), x

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, identity: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, statistics = ctx.saved_tensors
        rest = (None,) * 4
        if grad is None:
            return (identity, None, None, *rest)
        if torch.is_grad_enabled():

            def formula(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
                return batch_norm(x, weight, bias, None, True, 0.0, ctx.eps, "gelu" if ctx.gelu else None)

            to_x, *others = grads_by_formula(formula, (x, weight, bias), grad)
            return (to_x if identity is None or to_x is None else to_x + identity, *others, *rest)
        flat, slope = _flat(x), _flat(grad)
        tiles = _tiles(*flat.shape, flat.is_cuda)
        sums, parameters = statistics.new_empty((2, tiles.parts, x.shape[1])), torch.empty_like(statistics)
        out = torch.empty_like(flat)
        affine = flat if weight is None else weight, flat if bias is None else bias
        constants = {"AFFINE": weight is not None, "GELU": ctx.gelu, **tiles.kind}
        norm_sums_kernel[tiles.grid](slope, flat, statistics, *affine, sums, *tiles.sizes, tiles.parts, **constants)
        norm_grads_kernel[tiles.grid](
            slope, flat, flat if identity is None else _flat(identity), statistics, *affine, sums, out, parameters,
            *tiles.sizes, tiles.parts, tiles.count, IDENTITY=identity is not None, PARTS=tiles.added, **constants,
        )  # fmt: skip
        to_weight, to_bias = (None, None) if weight is None else parameters.to(weight.dtype).unbind()
        return out.view(x.shape), to_weight, to_bias, *rest
