"""Dropout of a part of a tensor, with the random numbers that one process would draw for the whole tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ops.fused.dropout import drop_factors

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["drop_part"]


def drop_part(x: Tensor, p: float, axis: int, start: int, total: int, *, few_bits: bool = False) -> Tensor:
    """Drop values of ``x``, a part that begins at ``start`` of a tensor with ``total`` entries along ``axis``.

    Every process draws for all entries and uses its own part. Processes with equal random states therefore keep them
    equal, and draw the same numbers as :func:`kernelfield.ops.fused.drop` draws for the whole tensor. Drawing needs one
    byte for each entry on a CPU, and twice the memory of the whole tensor on a GPU.

    Args:
        x: the part.
        p: probability of a zero.
        axis: axis along which ``x`` is a part.
        start: index of the part's first entry.
        total: number of entries of the whole tensor.
        few_bits: as in :class:`kernelfield.layers.Dropout`.

    >>> import torch
    >>> from kernelfield.ops.fused import drop
    >>> whole = torch.ones(2, 6)
    >>> _ = torch.manual_seed(0)
    >>> expected = drop(whole, 0.5)
    >>> _ = torch.manual_seed(0)
    >>> torch.equal(drop_part(whole[:, 2:5], 0.5, 1, 2, 6), expected[:, 2:5])
    True
    """
    shape = [total if i == axis % x.dim() else n for i, n in enumerate(x.shape)]
    # Numbers are drawn in memory order, and x may be transposed in memory.
    strides = x.stride()
    order = sorted(range(x.dim()), key=lambda i: (-strides[i], i))
    kept, factor = drop_factors([shape[i] for i in order], p, x, few_bits=few_bits)
    kept = kept.permute([order.index(i) for i in range(x.dim())]).narrow(axis, start, x.shape[axis])
    return x * kept.to(x.dtype).mul_(factor)
