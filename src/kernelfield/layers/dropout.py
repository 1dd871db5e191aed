"""Dropout of values, with random bits for all that a CPU draws."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Dropout"]

_BITS = 16


class Dropout(nn.Dropout):
    r"""Set values to zero with probability p and multiply the others by 1/(1 - p), in training.

    As :class:`torch.nn.Dropout`, which on a CPU draws a float64 for every value and takes longer over it than over the
    convolution before. Here a value costs 16 random bits: p is rounded to the nearest multiple of 1/65,536, and so is
    what the kept values are multiplied by.

    Args:
        p: probability to drop a value.

    >>> drop = Dropout(0.25)
    >>> y = drop(torch.ones(1000))
    >>> sorted(set(y.tolist())), bool((y == 0).float().mean() < 0.4)
    ([0.0, 1.3333333730697632], True)
    """

    def forward(self, x: Tensor) -> Tensor:
        dropped = round(self.p * 2**_BITS)
        plain = x.device.type == "cpu" and not torch.compiler.is_compiling()
        if not (plain and self.training and 0 < dropped < 2**_BITS) or torch._C._are_functorch_transforms_active():  # noqa: SLF001
            return super().forward(x)
        return (x * _kept(x, dropped)).mul_(2**_BITS / (2**_BITS - dropped))


def _kept(x: Tensor, dropped: int) -> Tensor:
    """Return which values of ``x`` are kept, laid out in memory as they are."""
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = words.view(torch.int16)[: x.numel()] >= dropped - 2 ** (_BITS - 1)
    like = torch.empty_like(x, device="meta")  # dense, in the order of x's axes
    return kept.as_strided(x.shape, like.stride())
