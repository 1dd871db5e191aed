"""Launches of the Toeplitz products: short lines with a boundary of zeros."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..shape import centres
from . import precision
from .plan import LEAST, power
from .toeplitz import band_grads_kernel, band_kernel, copies_kernel

__all__ = ["Band", "band_conv", "band_grads", "choose"]


@dataclass(frozen=True)
class Band:
    """Sides of the tiles, and what else a launch may choose.

    Args:
        outputs: of a tile of the band.
        inputs: of a tile of the band.
        window: gradients that a block of 64 inputs meets, for the gradients of ``window - 64`` points of the kernel.
        copies: whether the kernel is copied first, so that a band is read in whole vectors.
        warps: of a program.
        stages: loads asked for ahead.
    """

    outputs: int = 128
    inputs: int = 64
    window: int = 128
    copies: bool = False
    warps: int = 4
    stages: int = 2


#: inputs of one step of the kernel's gradient
SIDE = 64


def choose(length: int) -> Band:
    """Return the choices measured to be good on an H200."""
    return Band(outputs=64) if length <= 256 else Band(copies=True, stages=3)


def _arguments(x: Tensor, kernel: Tensor, causal: bool, band: Band) -> tuple[Tensor, tuple[int, ...], dict[str, Any]]:
    """Return the kernel as it is to be read, the numbers and the constants that all launches take."""
    points = kernel.shape[-1]
    (centre,) = centres((points,), causal)
    row = zeros = 0
    kernel = kernel.contiguous()
    if band.copies:
        side = max(band.outputs, band.inputs)
        zeros = -(-x.shape[-1] // side) * side
        row = zeros + -(-(zeros + centre) // LEAST) * LEAST
        copies = kernel.new_empty((kernel.shape[0], 8, row))
        copies_kernel[(-(-row // 256), kernel.shape[0])](kernel, copies, points, row, zeros, BLOCK=256)
        kernel = copies
    how = precision(x.dtype) if x.is_cuda else "ieee"
    return (
        kernel,
        (x.shape[0], x.shape[1], x.shape[2], points, centre, row, zeros),
        {
            "BM": max(LEAST, min(64, power(x.shape[0]))),  # rows of one matrix instruction
            "BN": band.outputs,
            "BK": band.inputs,
            "COPIES": band.copies,
            "PRECISION": how,
            "STAGES": band.stages,
            "STEPS": 0 if x.is_cuda else -(-x.shape[2] // band.inputs),
            "num_warps": band.warps,
        },
    )


def band_conv(x: Tensor, kernel: Tensor, causal: bool, band: Band | None = None) -> Tensor:
    """Convolve (batch, channels, length) with (channels, 1, points)."""
    x, band = x.contiguous(), band or choose(x.shape[2])
    out = torch.empty_like(x)
    taps, numbers, how = _arguments(x, kernel, causal, band)
    grid = x.shape[1], -(-x.shape[0] // how["BM"]), -(-x.shape[2] // band.outputs)
    band_kernel[grid](x, taps, out, *numbers, **how)
    return out


def band_grads(
    grad: Tensor,
    x: Tensor,
    kernel: Tensor,
    need_x: bool,
    need_kernel: bool,
    causal: bool,
    band: Band | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`band_conv`; one that is not needed is empty."""
    grad, x, band = grad.contiguous(), x.contiguous(), band or choose(x.shape[2])
    grad_x = x.new_empty(x.shape if need_x else 0)
    grad_kernel = kernel.new_empty(kernel.shape if need_kernel else 0)
    taps, numbers, how = _arguments(x, kernel, causal, band if need_x else replace(band, copies=False))
    points, centre = numbers[3:5]
    # Offsets are counted from a multiple of 16, so that loads are of whole vectors.
    first = -(-(-centre // LEAST) * LEAST)
    width = band.window - SIDE
    blocks = -(-(points - centre - first) // width) if need_kernel else 0
    outputs = -(-x.shape[2] // band.outputs)
    parts = -(-x.shape[0] // how["BM"]) if need_x else 0
    rounds = -(-x.shape[2] // SIDE) * -(-x.shape[0] // how["BM"]) if how["STEPS"] else 0
    band_grads_kernel[(x.shape[1], blocks + outputs * parts)](
        *(grad, x, taps, grad_x, grad_kernel, *numbers, first, blocks, outputs), TJ=SIDE, W=width, ROUNDS=rounds, **how
    )
    return grad_x, grad_kernel
