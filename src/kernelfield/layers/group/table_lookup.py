"""Kernels as permuted copies of a table: one index for all entries, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...ops.eager_function import EagerFunction
from .correlate import prefers_channels_last

__all__ = ["LookUp", "nodes_at"]


class LookUp(nn.Module):
    r"""A table's entries in the order of a kernel, (out, n_out, in, n_in, \*points).

    Torch's convolutions are correlations: they take a kernel flipped along its axes of space. A look-up flips it at no
    cost, and writes it in the memory format in which convolutions of planes are fastest on a device, channels last
    or not.

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
        self.flip, self.times = flip, times
        space = tuple(range(4, index.dim()))
        # Channels last is a memory format of planes only.
        self.channels_last = flip and len(space) == 2
        order = (0, 1, *space, 2, 3) if self.channels_last else tuple(range(index.dim()))
        self.axes = tuple(order.index(axis) for axis in range(len(order)))
        stored = (index.flip(space) if flip else index).permute(order).contiguous().int()
        self.register_buffer("index", stored, persistent=False)
        self.register_buffer("inverse", _invert(stored, times), persistent=False)
        #: index and inverse of the kernel in the order of its axes, once they are needed
        self._in_order: tuple[Tensor, Tensor] | None = None

    def forward(self, table: Tensor) -> Tensor:
        r"""Return the kernel of a table of any shape: (out, n_out, in, n_in, \*points)."""
        index, inverse = self.index, self.inverse
        # torch.func transforms torch's own look-up, but not ours; a compiler chooses memory formats by itself.
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():  # noqa: SLF001
            return table.flatten().index_select(0, index.flatten()).view(index.shape).permute(self.axes)
        ordered = self.channels_last and not prefers_channels_last(index.device)
        if ordered:
            index, inverse = self._ordered()
        values = _Permuted.apply(table.flatten(), index.flatten(), inverse).view(index.shape)
        return values if ordered or not self.channels_last else values.permute(self.axes)

    def _ordered(self) -> tuple[Tensor, Tensor]:
        """Return the index of the kernel, in the order of its axes, and its inverse."""
        found = self._in_order
        if found is None or found[0].device != self.index.device:
            index = self.index.permute(self.axes).contiguous()
            found = self._in_order = index, _invert(index, self.times)
        return found

    def kernel_index(self) -> Tensor:
        r"""Return the (out, n_out, in, n_in, \*points) index of the kernel, not flipped."""
        index = self.index.permute(self.axes)
        return index.flip(tuple(range(4, index.dim()))) if self.flip else index


class _Permuted(EagerFunction):
    """Look up entries of a table, each equally often. The gradient is a look-up too, where torch's is a scatter."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return table.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (inverse,) = ctx.saved_tensors
        found = grad.index_select(0, inverse.flatten())
        return found if len(inverse) == 1 else found.view(inverse.shape).sum(dim=0), None, None


def _invert(index: Tensor, times: int) -> Tensor:
    """Return where in the kernel each entry of the table appears: (times, entries)."""
    places = torch.arange(index.numel(), dtype=torch.int32, device=index.device).view(index.shape)
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
