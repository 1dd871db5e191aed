"""Dropout of single values, or of whole channels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["drop"]

_BITS = 16


def drop(x: Tensor, p: float, *, channels: bool = False, few_bits: bool = False) -> Tensor:
    r"""Return ``x`` with zeros at random, the rest multiplied by :math:`1/(1 - p)`.

    For single values on a CPU, torch draws a float64 each, which takes longer than the convolution before it. With
    ``few_bits`` a value costs 16 random bits: p, and the factor with it, is rounded to a multiple of 1/65,536.

    Args:
        x: any signal; (batch, channels, \*space) to drop channels.
        p: probability of a zero.
        channels: one draw for each sample and channel, shared by all positions.
        few_bits: draw 16 bits per value on a CPU; compiled code draws as torch does, so its draws are then others.

    >>> y = drop(torch.ones(2, 3, 5), 0.5, channels=True)
    >>> bool(((y == 0).all(dim=2) | (y == 2).all(dim=2)).all())
    True
    """
    if channels:
        return torch.feature_dropout(x, p, True)
    dropped = round(p * 2**_BITS)
    plain = x.device.type == "cpu" and not torch.compiler.is_compiling()
    if not (few_bits and plain and 0 < dropped < 2**_BITS) or torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return F.dropout(x, p)
    return (x * _kept(x, dropped)).mul_(2**_BITS / (2**_BITS - dropped))


def _kept(x: Tensor, dropped: int) -> Tensor:
    """Return which values of ``x`` are kept, in the memory layout of ``x``."""
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = words.view(torch.int16)[: x.numel()] >= dropped - 2 ** (_BITS - 1)
    like = torch.empty_like(x, device="meta")  # dense, in the order of x's axes
    return kept.as_strided(x.shape, like.stride())
