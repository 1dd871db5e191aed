r"""The number of operations of a CCNN's forward pass, from its sizes (chapter 6, appendix D).

With L positions and N channels, per sample:

.. math::
    C_\mathrm{lin} = L\, N_\mathrm{in} N_\mathrm{out}, \qquad
    C_{\mathcal{F}\mathrm{conv}} = N\, L \log_2 L, \qquad
    C_\mathrm{pointwise} = L\, N

Sizes may be numbers or tensors; for tensors the count is differentiable. Chapter 6 prints the Fourier convolution for
one channel; a depthwise convolution of N channels needs N times as many operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..ccnn import CCNN

__all__ = ["BlockSizes", "block_cost", "network_cost", "outer_cost", "training_size"]


@dataclass(frozen=True)
class BlockSizes:
    """The sizes of a block, numbers or tensors.

    Args:
        read: channels that the residual branch reads.
        middle: channels in its middle.
        written: channels that it writes.
        lengths: resolution along each axis.
    """

    read: Any
    middle: Any
    written: Any
    lengths: Sequence[Any]


def linear(length: Any, before: Any, after: Any) -> Any:
    """Return the operations of a linear map at every position."""
    return length * before * after


def fourier(length: Any, channels: Any) -> Any:
    """Return the operations of a depthwise convolution by Fourier transforms."""
    if isinstance(length, Tensor):
        return channels * length * torch.log2(length.clamp(min=1.0))
    return channels * length * math.log2(max(1.0, length))


def block_cost(network: CCNN, sizes: BlockSizes) -> Any:
    """Return the operations of one block: norm and sum at the input's resolution, the rest at the block's own."""
    arguments = network.arguments
    whole, length = math.prod(training_size(network)), math.prod(sizes.lengths)
    cost = fourier(length, sizes.read) + linear(length, sizes.read, sizes.middle)
    cost = cost + linear(length, sizes.middle, sizes.written)
    cost = cost + length * sizes.middle * (2 if arguments["dropout"] else 1)  # nonlinearity, and dropout
    if arguments["block"] == "ccnn":
        cost = cost + length * sizes.written
    if arguments["norm"] != "none":
        cost = cost + whole * (sizes.read if arguments["prenorm"] else arguments["channels"])
    return cost + whole * sizes.written


def outer_cost(network: CCNN) -> float:
    """Return the operations outside the blocks: stem, norms and readout."""
    arguments = network.arguments
    length, channels, before = math.prod(training_size(network)), arguments["channels"], arguments["in_channels"]
    cost = linear(length, before, channels) + length * channels
    if arguments["stem"] == "conv":
        cost += fourier(length, before)
    if arguments["norm"] != "none":
        cost += length * channels * (2 if arguments["prenorm"] else 1)
    if arguments["readout"] == "dense":
        return cost + linear(length, channels, arguments["out_channels"])
    return (
        cost
        + linear(1, channels, arguments["out_channels"])
        + (length * channels if arguments["readout"] in ("mean", "pair") else 0)
    )


def network_cost(network: CCNN) -> float:
    """Return the operations of a CCNN as it was built.

    >>> from kernelfield import CCNN
    >>> network_cost(CCNN(1, 10, dim=2, size=8, channels=16, blocks=2)) > network_cost(
    ...     CCNN(1, 10, dim=2, size=8, channels=16, blocks=1)
    ... )
    True
    """
    size, channels = training_size(network), network.arguments["channels"]
    blocks = network.arguments["active"] or [None] * network.arguments["blocks"]
    total = outer_cost(network)
    for active in blocks:
        widths = (channels, channels, channels) if active is None or active.channels is None else active.channels
        lengths = size
        if active is not None and active.band_limit is not None:
            lengths, _ = active.band_limit.grid(size, (1.0,) * len(size))
        total += block_cost(network, BlockSizes(widths[0], widths[1], widths[2], lengths))
    return float(total)


def training_size(network: CCNN) -> tuple[int, ...]:
    """Return the length of the training input along each axis."""
    size, dim = network.arguments["size"], network.arguments["dim"]
    return (size,) * dim if isinstance(size, int) else tuple(size)
