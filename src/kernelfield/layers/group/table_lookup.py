"""Kernels as permuted copies of a table: one index for all entries, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["LookUp", "nodes_at"]


class LookUp(nn.Module):
    r"""A table's entries in the order of a kernel, (out, n_out, in, n_in, \*points).

    Torch's convolutions are correlations: they take a kernel flipped along its axes of space. A look-up flips it at no
    cost, and writes it in the memory format in which convolutions of planes are fastest, channels last.

    Args:
        index: (out, n_out, in, n_in, \*points) index of every kernel entry in the table.
        times: number of times each entry of the table is looked up, once per output element.
        flip: whether to return the flipped kernel.

    >>> index = torch.tensor([2, 0, 1]).view(1, 1, 1, 1, 3)
    >>> LookUp(index, 1)(torch.tensor([5.0, 6.0, 7.0])).flatten()
    tensor([7., 5., 6.])
    >>> LookUp(index, 1, flip=True)(torch.tensor([5.0, 6.0, 7.0])).flatten()
    tensor([6., 5., 7.])
    """

    index: Tensor
    inverse: Tensor

    def __init__(self, index: Tensor, times: int, *, flip: bool = False) -> None:
        super().__init__()
        self.flip = flip
        space = tuple(range(4, index.dim()))
        # Channels last is a memory format of planes only.
        order = (0, 1, *space, 2, 3) if flip and len(space) == 2 else tuple(range(index.dim()))
        self.axes = tuple(order.index(axis) for axis in range(len(order)))
        stored = (index.flip(space) if flip else index).permute(order).contiguous().int()
        self.register_buffer("index", stored, persistent=False)
        self.register_buffer("inverse", _invert(stored, times), persistent=False)

    def forward(self, table: Tensor) -> Tensor:
        r"""Return the kernel of a table of any shape: (out, n_out, in, n_in, \*points)."""
        index = self.index.flatten()
        if torch.compiler.is_compiling():
            values = table.flatten().index_select(0, index)
        else:
            values = _Permuted.apply(table.flatten(), index, self.inverse)
        return values.view(self.index.shape).permute(self.axes)

    def kernel_index(self) -> Tensor:
        r"""Return the (out, n_out, in, n_in, \*points) index of the kernel, not flipped."""
        index = self.index.permute(self.axes)
        return index.flip(tuple(range(4, index.dim()))) if self.flip else index


class _Permuted(torch.autograd.Function):
    """Look up entries of a table, each equally often. The gradient is a look-up too, where torch's is a scatter."""

    generate_vmap_rule = True

    @staticmethod
    def forward(table: Tensor, index: Tensor, inverse: Tensor) -> Tensor:  # noqa: ARG004
        return table.index_select(0, index)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (inverse,) = ctx.saved_tensors
        return grad.index_select(0, inverse.flatten()).view(inverse.shape).sum(dim=0), None, None


def _invert(index: Tensor, times: int) -> Tensor:
    """Return where in the kernel each entry of the table appears: (times, entries)."""
    places = torch.arange(index.numel(), dtype=torch.int32).view(index.shape)
    # Each output element (second axis) looks up every entry once.
    index, places = (t.movedim(1, 0).reshape(times, -1) for t in (index, places))
    return torch.empty_like(places).scatter_(1, index.long(), places)


def nodes_at(coords: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return the rows of a table of ``sizes`` that lie at the first ``len(sizes)`` of ``coords``.

    >>> nodes_at(torch.tensor([[-1.0, 1.0], [0.0, 0.0]]), (3, 3))
    tensor([2, 4])
    """
    index = torch.zeros_like(coords[..., 0], dtype=torch.long)
    for d, n in enumerate(sizes):
        node = torch.round((coords[..., d] + 1) * ((n - 1) / 2)).long()
        index = index * n + node
    return index
