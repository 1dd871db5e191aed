"""Kernels as permuted copies of tables, looked up for one kernel or for all kernels of a network at once."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..._module_state import ComputedBuffers
from .correlate import prefers_channels_last

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["LookUp", "SharedLookUp", "nodes_at"]

#: kernel entries that a :class:`SharedLookUp` has looked up, by :class:`LookUp`
_looked_up: ContextVar[dict[LookUp, Tensor] | None] = ContextVar("kernelfield_looked_up", default=None)


class LookUp(ComputedBuffers):
    r"""A kernel (out, n_out, in, n_in, \*points) whose entries are looked up in a table.

    Torch's convolutions are correlations: they take a kernel flipped along its axes of space. A look-up flips it at no
    cost. It also writes the kernel in the memory format, channels-last or not, in which the device convolves planes
    fastest.

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
        # Only kernels on planes use the channels-last format.
        self.channels_last = flip and len(space) == 2
        order = (0, 1, *space, 2, 3) if self.channels_last else tuple(range(index.dim()))
        self.axes = tuple(order.index(axis) for axis in range(len(order)))
        stored = (index.flip(space) if flip else index).permute(order).contiguous().int()
        self.shape = index.shape
        self.register_computed("index", stored)
        self.register_computed("inverse", _invert(stored, times))
        #: index and inverse for the contiguous memory format, computed at their first use
        self._in_order: tuple[Tensor, Tensor] | None = None

    def forward(self, table: Tensor) -> Tensor:
        r"""Return the kernel of a table of any shape: (out, n_out, in, n_in, \*points)."""
        # torch.func can transform torch's own look-up but not _Permuted, and a compiler chooses memory formats itself.
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():  # noqa: SLF001
            values = table.flatten().index_select(0, self.index.flatten())
            return values.view(self.index.shape).permute(self.axes)
        shared = _looked_up.get()
        entries = None if shared is None else shared.get(self)
        if entries is None:
            index, inverse = self.indices()
            entries = _Permuted.apply(table.flatten(), index.flatten(), inverse)
        if self.channels_last and prefers_channels_last(entries.device):
            return entries.view(self.index.shape).permute(self.axes)
        return entries.view(self.shape)

    def indices(self) -> tuple[Tensor, Tensor]:
        """Return the index of every kernel entry, and its inverse, in the memory format now in use."""
        if not self.channels_last or prefers_channels_last(self.index.device):
            return self.index, self.inverse
        found = self._in_order
        if found is None or found[0].device != self.index.device:
            with torch.inference_mode(False):  # training may use these tensors later
                index = self.index.permute(self.axes).contiguous()
                found = self._in_order = index, _invert(index, self.times)
        return found

    def kernel_index(self) -> Tensor:
        r"""Return the (out, n_out, in, n_in, \*points) index of the kernel, not flipped."""
        index = self.index.permute(self.axes)
        return index.flip(tuple(range(4, index.dim()))) if self.flip else index


class SharedLookUp:
    """The look-ups of all kernels of a network as a single one, so their number does not affect the launches.

    Args:
        look_ups: the look-ups.

    >>> look_ups = [LookUp(torch.tensor([1, 0]).view(1, 1, 1, 1, 2), 1), LookUp(torch.zeros(1, 1, 1, 1, 1).long(), 1)]
    >>> tables = [torch.nn.Parameter(torch.tensor(values)) for values in ([3.0, 4.0], [5.0])]
    >>> with SharedLookUp(look_ups).kernels(tables):
    ...     [look_up(table).flatten().tolist() for look_up, table in zip(look_ups, tables)]
    [[4.0, 3.0], [5.0]]
    """

    def __init__(self, look_ups: Sequence[LookUp]) -> None:
        self.look_ups = list(look_ups)
        #: joint index and inverse, and the tensors they were joined from
        self._joint: dict[bool, tuple[Tensor, Tensor, list[Tensor]]] = {}

    @contextlib.contextmanager
    def kernels(self, tables: Sequence[Tensor]) -> Iterator[None]:
        """Look up the kernels of ``tables`` at once; each look-up returns its own inside the ``with`` block.

        Args:
            tables: one table for each look-up. If devices or dtypes differ, each look-up reads its own table instead.
        """
        first = tables[0] if tables else None
        alike = first is not None and len({(t.device, t.dtype) for t in tables}) == 1
        transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()  # noqa: SLF001
        times = {look_up.times for look_up in self.look_ups}
        if transformed or not alike or len(tables) < 2 or len(times) > 1:
            yield
            return
        index, inverse, parts = self._indices()
        entries = _PermutedTables.apply(index, inverse, [part.numel() for part in parts], *tables)
        token = _looked_up.set(dict(zip(self.look_ups, entries, strict=True)))
        try:
            yield
        finally:
            _looked_up.reset(token)

    def _indices(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the index and the inverse of all kernels, one after the other, and the index of each."""
        pairs = [look_up.indices() for look_up in self.look_ups]
        last = prefers_channels_last(pairs[0][0].device)
        found = self._joint.get(last)
        if found is not None and all(a is b for a, (b, _) in zip(found[2], pairs, strict=True)):
            return found
        indices, inverses, begin, place = [], [], 0, 0
        with torch.inference_mode(False):  # training may use these tensors later
            for index, inverse in pairs:
                indices.append(index.flatten() + begin)
                inverses.append(inverse + place)
                begin, place = begin + inverse.shape[1], place + index.numel()
            self._joint[last] = torch.cat(indices), torch.cat(inverses, dim=1), [index for index, _ in pairs]
        return self._joint[last]


class _PermutedTables(Function):
    """Look up the entries of several tables at once; see :class:`_Permuted`."""

    @staticmethod
    def forward(ctx: Any, index: Tensor, inverse: Tensor, counts: list[int], *tables: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(inverse)
        ctx.shapes = [table.shape for table in tables]
        return torch.cat([table.flatten() for table in tables]).index_select(0, index).split(counts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (inverse,) = ctx.saved_tensors
        found = torch.cat([grad.flatten() for grad in grads]).index_select(0, inverse.flatten())
        total = found if len(inverse) == 1 else found.view(inverse.shape).sum(dim=0)
        pieces = total.split([shape.numel() for shape in ctx.shapes])
        return None, None, None, *[piece.view(shape) for piece, shape in zip(pieces, ctx.shapes, strict=True)]


class _Permuted(Function):
    """Look up the entries of a table, all equally often. Its gradient is a look-up too; that of torch is a scatter."""

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
    """Return the positions in the kernel at which each entry of the table appears: (times, entries)."""
    positions = torch.arange(index.numel(), dtype=torch.int32, device=index.device).view(index.shape)
    # Each output element (second axis) looks up every entry once.
    index, positions = (t.movedim(1, 0).reshape(times, -1) for t in (index, positions))
    return torch.empty_like(positions).scatter_(1, index.long(), positions)


def nodes_at(coords: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return the table rows at the nodes given by the first ``len(sizes)`` coordinates, for a table of ``sizes``.

    >>> nodes_at(torch.tensor([[-1.0, 1.0], [0.0, 0.0]]), (3, 3))
    tensor([2, 4])
    """
    index = torch.zeros_like(coords[..., 0], dtype=torch.long)
    for d, n in enumerate(sizes):
        node = torch.round((coords[..., d] + 1) * ((n - 1) / 2)).long()
        index = index * n + node
    return index
