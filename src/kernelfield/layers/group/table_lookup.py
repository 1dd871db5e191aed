"""Kernels that are permuted copies of a table: one look-up for all entries, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["LookUp", "nodes_at"]


class LookUp(nn.Module):
    r"""A table's entries in the order of a kernel, (out, n_out, in, n_in, \*points).

    Torch's convolutions are correlations: they take a kernel reversed along its axes of space. A look-up can give it so
    for nothing, and in the order of memory that convolutions of the plane are fastest in, channels last.

    Args:
        index: (out, n_out, in, n_in, \*points) place of every entry of the kernel in the table.
        times: how often each entry of the table is looked up, by as many output elements one after the other.
        reverse: whether to give the kernel reversed.

    >>> index = torch.tensor([2, 0, 1]).view(1, 1, 1, 1, 3)
    >>> LookUp(index, 1)(torch.tensor([5.0, 6.0, 7.0])).flatten()
    tensor([7., 5., 6.])
    >>> LookUp(index, 1, reverse=True)(torch.tensor([5.0, 6.0, 7.0])).flatten()
    tensor([6., 5., 7.])
    """

    index: Tensor
    inverse: Tensor

    def __init__(self, index: Tensor, times: int, *, reverse: bool = False) -> None:
        super().__init__()
        self.reverse = reverse
        space = tuple(range(4, index.dim()))
        # Channels last, as the kernel is stored; only in the plane is it a format that torch knows of.
        self.order = (0, 1, *space, 2, 3) if reverse and len(space) == 2 else tuple(range(index.dim()))
        stored = (index.flip(space) if reverse else index).permute(self.order).contiguous().int()
        self.register_buffer("index", stored, persistent=False)
        self.register_buffer("inverse", _invert(stored, times), persistent=False)

    def forward(self, table: Tensor) -> Tensor:
        """Return the kernel, reversed if this is what it was made for, of a table of any shape."""
        index = self.index.flatten()
        if torch.compiler.is_compiling():
            values = table.flatten().index_select(0, index)
        else:
            values = _Permuted.apply(table.flatten(), index, self.inverse)
        return self._arranged(values.view(self.index.shape))

    def places(self) -> Tensor:
        r"""Return the (out, n_out, in, n_in, \*points) index that it was made of."""
        index = self._arranged(self.index)
        return index.flip(tuple(range(4, index.dim()))) if self.reverse else index

    def _arranged(self, stored: Tensor) -> Tensor:
        return stored.permute(tuple(self.order.index(axis) for axis in range(len(self.order))))


class _Permuted(torch.autograd.Function):
    """Entries of a table, each of them equally often. Its gradient looks up, too, where that of torch's scatters."""

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
    """Return the places in the kernel at which each entry of the table is looked up: (times, entries)."""
    places = torch.arange(index.numel(), dtype=torch.int32).view(index.shape)
    # Once by every output element, the second axis.
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
