r"""Communication volume of convolutions of split signals, and the choice of the method that sends less.

A signal of C channels and L samples lies on P processes, a slab of n = L/P samples on each. Per sample of the batch and
per point of the other axes a process sends, in the forward pass,

.. math::
    \text{channels for space, depthwise:} \quad & 2\, C\, n\, (1 - 1/P) \\
    \text{channels for space, dense:} \quad & C_\mathrm{in}\, n\, (1 - 1/P) + C_\mathrm{out}\, (L - n) \\
    \text{halos:} \quad & C_\mathrm{in}\, h

values, where h is the number of samples in other slabs that the kernel reaches. In the backward pass it sends as many
values as it received in the forward pass; with slabs of equal length the two numbers are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._arguments import checked
from .._kinds import Int, ListOf
from .collectives import segments
from .slabs import split_length

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ConvPlan", "plan_conv"]


@dataclass(frozen=True)
class ConvPlan:
    """A plan for splitting a convolution over processes.

    Args:
        method: "halo" extends each slab by samples of its neighbours; "channels" exchanges channels for space.
        before: number of samples before a slab that the kernel reaches.
        after: number of samples after a slab that the kernel reaches.
        sent: values that each process sends in the forward pass, per sample of the batch and point of other axes.
        received: values that each process receives; it sends their gradients in the backward pass.

    >>> plan = plan_conv((64, 64), 9, in_channels=8, out_channels=8, depthwise=True)
    >>> plan.bytes_sent(0, (2, 8, 128), itemsize=4, backward=True)
    512
    """

    method: str
    before: int
    after: int
    sent: tuple[int, ...]
    received: tuple[int, ...]

    def bytes_sent(self, rank: int, shape: Sequence[int], itemsize: int, *, backward: bool = False) -> int:
        r"""Return the bytes that a process sends for signals of this (batch, channels, \*space) ``shape``.

        Args:
            rank: the process.
            shape: shape of the whole signal.
            itemsize: bytes of a value.
            backward: whether to include the backward pass.
        """
        values = self.sent[rank] + (self.received[rank] if backward else 0)
        return values * shape[0] * math.prod(shape[3:]) * itemsize


@checked(lengths=ListOf(Int(1)), points=Int(1), in_channels=Int(1), out_channels=Int(1))
def plan_conv(
    lengths: Sequence[int],
    points: int,
    *,
    in_channels: int,
    out_channels: int,
    depthwise: bool,
    causal: bool = False,
    periodic: bool = False,
) -> ConvPlan:
    """Return the plan that sends the fewest values to split a convolution along its first axis.

    Halos must not exceed half a slab, because longer halos would undo the savings in memory. With fewer channels than
    processes, only halos are possible, and they may have any length. Such layers, usually the first of a network, have
    few channels to send.

    Args:
        lengths: length of each slab.
        points: number of kernel points along the axis.
        in_channels: channels of the input.
        out_channels: channels of the output.
        depthwise: whether each channel has its own kernel.
        causal: whether the kernel's first point is offset zero.
        periodic: whether the axis is periodic.

    >>> plan_conv((64, 64), 9, in_channels=8, out_channels=8, depthwise=True)
    ConvPlan(method='halo', before=4, after=4, sent=(32, 32), received=(32, 32))
    >>> plan_conv((64, 64), 255, in_channels=8, out_channels=8, depthwise=True).method
    'channels'
    """
    processes, total = len(lengths), sum(lengths)
    centre = 0 if causal else (points - 1) // 2
    before, after = points - 1 - centre, centre
    foreign, sent = [0] * processes, [0] * processes
    for rank in range(processes):
        for owner, start, stop in segments(lengths, rank, before, after, periodic)[0]:
            if owner != rank:
                foreign[rank] += stop - start
                sent[owner] += in_channels * (stop - start)
    halo = ConvPlan("halo", before, after, tuple(sent), tuple(in_channels * n for n in foreign))
    if in_channels < processes:
        return halo
    ours = split_length(in_channels, processes)
    # Each process first sends its slab of the channels of others, then the slabs of its results that belong to others.
    away = [n * (in_channels - c) for n, c in zip(lengths, ours, strict=True)]
    theirs = [(total - n) * c for n, c in zip(lengths, ours, strict=True)]
    sums = [n * (processes - 1) * out_channels for n in lengths]
    back = theirs if depthwise else [(total - n) * out_channels for n in lengths]
    sent = [a + b for a, b in zip(away, back, strict=True)]
    received = [a + b for a, b in zip(theirs, away if depthwise else sums, strict=True)]
    channels = ConvPlan("channels", before, after, tuple(sent), tuple(received))
    is_short = all(2 * extra <= n for extra, n in zip(foreign, lengths, strict=True))
    return halo if is_short and sum(halo.sent) <= sum(channels.sent) else channels
