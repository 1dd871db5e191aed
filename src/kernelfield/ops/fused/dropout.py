"""Dropout of single values, or of whole channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["drop", "drop_factors"]

_BITS = 16


def drop(x: Tensor, p: float, *, channels: bool = False, few_bits: bool = False) -> Tensor:
    r"""Return ``x`` with zeros at random, the rest multiplied by :math:`1/(1 - p)`.

    For each single value on a CPU, torch draws a float64, which takes longer than the convolution before it. With
    ``few_bits`` it draws only 16 random bits per value, so p is rounded to a multiple of 1/65,536.

    Args:
        x: any signal; (batch, channels, \*space) to drop channels.
        p: probability of a zero.
        channels: whether to draw once for each sample and channel, for all positions.
        few_bits: whether to draw 16 bits per value on a CPU. Compiled code draws as torch does, so its draws differ.

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
    like = torch.empty_like(x, device="meta")  # dense, with the axes in x's memory order
    return (x * _kept(x.numel(), dropped).as_strided(x.shape, like.stride())).mul_(2**_BITS / (2**_BITS - dropped))


def drop_factors(shape: Sequence[int], p: float, like: Tensor, *, few_bits: bool = False) -> tuple[Tensor, float]:
    """Return the mask of the values of a contiguous tensor that are kept, and their factor.

    These are the draws of :func:`drop` for a tensor of this ``shape`` with the device and dtype of ``like``.

    >>> kept, factor = drop_factors((2, 3), 0.5, torch.zeros(1))
    >>> kept.dtype, factor
    (torch.bool, 2.0)
    """
    dropped, device = round(p * 2**_BITS), like.device
    if few_bits and device.type == "cpu" and 0 < dropped < 2**_BITS:
        return _kept(torch.Size(shape).numel(), dropped).view(shape), 2**_BITS / (2**_BITS - dropped)
    if device.type == "cuda" and 0 < p < 1:
        # The kernel of F.dropout draws in the order of its threads, which depends on size and dtype.
        return torch.native_dropout(like.new_ones(shape), p, True)[1], 1 / (1 - p)
    return torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(1 - p), 1 / (1 - p)


def _kept(count: int, dropped: int) -> Tensor:
    """Return a random mask of ``count`` values, True for those that are kept."""
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    return words.view(torch.int16)[:count] >= dropped - 2 ** (_BITS - 1)
