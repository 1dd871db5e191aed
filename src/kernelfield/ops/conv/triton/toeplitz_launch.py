"""Launch the Toeplitz products, for short lines with zeros beyond the boundary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..shape import centres
from . import precision
from .plan import LEAST, power
from .toeplitz import copies_kernel, toeplitz_grads_kernel, toeplitz_kernel

__all__ = ["ToeplitzTile", "choose", "toeplitz_conv", "toeplitz_grads"]


@dataclass(frozen=True)
class ToeplitzTile:
    """Tile sizes and other launch parameters of the Toeplitz products.

    Args:
        outputs: number of outputs in a tile of the Toeplitz matrix.
        inputs: number of inputs in such a tile.
        window: number of output gradients by which one block of 64 inputs is multiplied, for the gradients of
            ``window - 64`` kernel points.
        copies: whether to write shifted copies of the kernel first, so that tiles are read with aligned vector loads.
        warps: warps per program.
        stages: depth of the load pipeline.
    """

    outputs: int = 128
    inputs: int = 64
    window: int = 128
    copies: bool = False
    warps: int = 4
    stages: int = 2


#: inputs per step of the kernel gradient
SIDE = 64


def choose(length: int) -> ToeplitzTile:
    """Return the tile that was fastest on an H200."""
    return ToeplitzTile(outputs=64) if length <= 256 else ToeplitzTile(copies=True, stages=3)


def _arguments(
    x: Tensor, kernel: Tensor, causal: bool, tile: ToeplitzTile
) -> tuple[Tensor, tuple[int, ...], dict[str, Any]]:
    """Return the kernel (or its copies), and the integers and compile-time constants common to all launches."""
    points = kernel.shape[-1]
    (centre,) = centres((points,), causal)
    row = zeros = 0
    kernel = kernel.contiguous()
    if tile.copies:
        side = max(tile.outputs, tile.inputs)
        zeros = -(-x.shape[-1] // side) * side
        row = zeros + -(-(zeros + centre) // LEAST) * LEAST
        copies = kernel.new_empty((kernel.shape[0], 8, row))
        copies_kernel[(-(-row // 256), kernel.shape[0])](kernel, copies, points, row, zeros, BLOCK=256)
        kernel = copies
    return (
        kernel,
        (x.shape[0], x.shape[1], x.shape[2], points, centre, row, zeros),
        {
            "BM": max(LEAST, min(64, power(x.shape[0]))),  # rows of a matrix instruction
            "BN": tile.outputs,
            "BK": tile.inputs,
            "COPIES": tile.copies,
            "PRECISION": precision(x.dtype) if x.is_cuda else "ieee",
            "STAGES": tile.stages,
            "STEPS": 0 if x.is_cuda else -(-x.shape[2] // tile.inputs),
            "num_warps": tile.warps,
        },
    )


def toeplitz_conv(x: Tensor, kernel: Tensor, causal: bool, tile: ToeplitzTile | None = None) -> Tensor:
    """Convolve (batch, channels, length) with (channels, 1, points)."""
    x, tile = x.contiguous(), tile or choose(x.shape[2])
    out = torch.empty_like(x)
    taps, numbers, constants = _arguments(x, kernel, causal, tile)
    grid = x.shape[1], -(-x.shape[0] // constants["BM"]), -(-x.shape[2] // tile.outputs)
    toeplitz_kernel[grid](x, taps, out, *numbers, **constants)
    return out


def toeplitz_grads(
    grad: Tensor, x: Tensor, kernel: Tensor, needs: tuple[bool, bool], causal: bool, tile: ToeplitzTile | None = None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`toeplitz_conv`; a gradient that is not needed is empty."""
    grad, x, tile = grad.contiguous(), x.contiguous(), tile or choose(x.shape[2])
    need_x, need_kernel = needs
    grad_x = x.new_empty(x.shape if need_x else 0)
    grad_kernel = kernel.new_empty(kernel.shape if need_kernel else 0)
    taps, numbers, constants = _arguments(x, kernel, causal, tile if need_x else replace(tile, copies=False))
    points, centre = numbers[3:5]
    # The first offset is a multiple of 16, so that vector loads are aligned.
    first = -(-(-centre // LEAST) * LEAST)
    width = tile.window - SIDE
    blocks = -(-(points - centre - first) // width) if need_kernel else 0
    outputs = -(-x.shape[2] // tile.outputs)
    parts = -(-x.shape[0] // constants["BM"]) if need_x else 0
    rounds = -(-x.shape[2] // SIDE) * -(-x.shape[0] // constants["BM"]) if constants["STEPS"] else 0
    toeplitz_grads_kernel[(x.shape[1], blocks + outputs * parts)](
        *(grad, x, taps, grad_x, grad_kernel, *numbers, first, blocks, outputs),
        TJ=SIDE,
        W=width,
        ROUNDS=rounds,
        **constants,
    )
    return grad_x, grad_kernel
