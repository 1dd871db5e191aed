"""Differentiable exchanges between the processes of a context group.

Each process computes a loss, and gradients are those of the sum of these losses. The backward pass of an exchange sends
every gradient back to the process that its value came from. Gradients of parameters are then averaged over the
processes, as in data parallel training.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from .slabs import split_length

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .slabs import Slabs

__all__ = ["channels_to_space", "count_bytes", "exchange", "segments", "space_to_channels", "sum_to_space", "window"]

#: bytes of each exchange inside :func:`count_bytes`. A context variable would miss backward passes, which run in other
#: threads.
_counter: list[int] | None = None


@contextlib.contextmanager
def count_bytes() -> Iterator[list[int]]:
    """Count the bytes that convolutions of this process send to other processes inside the ``with`` block.

    The block yields a list with one entry for each exchange, forward or backward. Sums over processes, of norms,
    readouts and gradients, are not counted.

    >>> with count_bytes() as sent:
    ...     pass
    >>> sum(sent)
    0
    """
    sent: list[int] = []
    global _counter  # noqa: PLW0603
    before, _counter = _counter, sent
    try:
        yield sent
    finally:
        _counter = before


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slabs: Slabs, shapes: Sequence[Sequence[int]], *pieces: Tensor) -> tuple[Tensor, ...]:
        ctx.slabs, ctx.shapes = slabs, [piece.shape for piece in pieces]
        # Sent as bytes, because not every backend supports every dtype.
        send = torch.cat([piece.reshape(-1) for piece in pieces]).view(torch.uint8)
        size = pieces[0].element_size()
        ours = [piece.numel() * size for piece in pieces]
        theirs = [torch.Size(shape).numel() * size for shape in shapes]
        received = send.new_empty(sum(theirs))
        dist.all_to_all_single(received, send, theirs, ours, group=slabs.group)
        if _counter is not None:
            _counter.append(sum(ours) - ours[slabs.rank])
        parts = received.view(pieces[0].dtype).split([n // size for n in theirs])
        return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return None, None, *_Exchange.apply(ctx.slabs, ctx.shapes, *grads)


def exchange(pieces: Sequence[Tensor], shapes: Sequence[Sequence[int]], slabs: Slabs) -> Sequence[Tensor]:
    """Send one tensor to each process and receive one from each, of any shapes (all-to-all).

    Args:
        pieces: the tensor for each process.
        shapes: shape of the tensor that each process sends to this one.
        slabs: the processes.
    """
    return _Exchange.apply(slabs, tuple(map(tuple, shapes)), *pieces)


def space_to_channels(x: Tensor, slabs: Slabs) -> Tensor:
    r"""Exchange space for channels: (batch, channels, slab, \*rest) to (batch, channels / P, length, \*rest)."""
    parts = split_length(x.shape[1], slabs.size)
    shapes = [(len(x), parts[slabs.rank], n, *x.shape[3:]) for n in slabs.lengths]
    return torch.cat(list(exchange(x.split(parts, dim=1), shapes, slabs)), dim=2)


def channels_to_space(y: Tensor, channels: int, slabs: Slabs) -> Tensor:
    r"""Exchange channels for space: (batch, channels / P, length, \*rest) to (batch, channels, slab, \*rest)."""
    own = slabs.lengths[slabs.rank]
    shapes = [(len(y), part, own, *y.shape[3:]) for part in split_length(channels, slabs.size)]
    return torch.cat(list(exchange(y.split(slabs.lengths, dim=2), shapes, slabs)), dim=1)


def sum_to_space(y: Tensor, slabs: Slabs) -> Tensor:
    r"""Sum signals (batch, channels, length, \*rest) over all processes and return this process's slab of the sum."""
    shape = (*y.shape[:2], slabs.lengths[slabs.rank], *y.shape[3:])
    total, *others = exchange(y.split(slabs.lengths, dim=2), [shape] * slabs.size, slabs)
    for other in others:
        total = total + other
    return total


def segments(
    lengths: Sequence[int], rank: int, before: int, after: int, periodic: bool
) -> tuple[list[tuple[int, int, int]], tuple[int, int]]:
    """Return the pieces of slabs that make up the window of a process, and the numbers of zeros around them.

    Args:
        lengths: length of each slab.
        rank: the process whose slab the window extends.
        before: number of samples before the slab.
        after: number of samples after the slab.
        periodic: whether the axis is periodic.

    Returns:
        Process, start and end within its slab, for each piece; and the numbers of zeros before and after.

    >>> segments((4, 4, 2), 1, 2, 3, periodic=False)
    ([(0, 2, 4), (1, 0, 4), (2, 0, 2)], (0, 1))
    """
    total, start = sum(lengths), sum(lengths[:rank])
    first, last = start - before, start + lengths[rank] + after
    zeros = (0, 0)
    if not periodic:
        zeros = (max(0, -first), max(0, last - total))
        first, last = max(first, 0), min(last, total)
    found: list[tuple[int, int, int]] = []
    while first < last:
        position, owner = first % total, 0
        while position >= lengths[owner]:
            position -= lengths[owner]
            owner += 1
        count = min(lengths[owner] - position, last - first)
        found.append((owner, position, position + count))
        first += count
    return found, zeros


def window(x: Tensor, before: int, after: int, slabs: Slabs, *, periodic: bool = False) -> Tensor:
    r"""Return the slab ``x`` (batch, channels, slab, \*rest) with samples of its neighbours on both sides.

    Beyond the ends of the axis the window holds zeros, or the other end of the axis if ``periodic``.
    """
    pieces = []
    for rank in range(slabs.size):
        wanted, _ = segments(slabs.lengths, rank, before, after, periodic)
        own = [x[:, :, a:b] for owner, a, b in wanted if owner == slabs.rank and rank != slabs.rank]
        pieces.append(torch.cat(own, dim=2) if own else x[:, :, :0])
    needed, zeros = segments(slabs.lengths, slabs.rank, before, after, periodic)
    counts = [0] * slabs.size
    for owner, a, b in needed:
        if owner != slabs.rank:
            counts[owner] += b - a
    received = exchange(pieces, [(*x.shape[:2], n, *x.shape[3:]) for n in counts], slabs)
    used, parts = [0] * slabs.size, []
    for owner, a, b in needed:
        if owner == slabs.rank:
            parts.append(x[:, :, a:b])
        else:
            parts.append(received[owner].narrow(2, used[owner], b - a))
            used[owner] += b - a
    padding = [x.new_zeros(*x.shape[:2], n, *x.shape[3:]) for n in zeros]
    # Empty pieces are included, because the backward pass of an exchange must run on every process.
    empty = [piece.narrow(2, 0, 0) for piece in received]
    return torch.cat([padding[0], *parts, padding[1], *empty], dim=2)
