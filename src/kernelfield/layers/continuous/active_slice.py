r"""The part of a layer or residual block that is in use (chapter 6, section 2.4).

A network with a learned architecture has layers of the largest allowed size, and masks keep only their first channels.
An :class:`ActiveSlice` tells a layer which part is in use. A layer maps one stage of channels to the next, and a block
has three stages:

.. code-block:: text

    stage      0                      1                     2
             read  ── conv, map ──▶ middle ── linear ──▶ written        × scale, at the resolution of band_limit
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .band_limit import BandLimit, FixedShapeBandLimit

__all__ = ["ActiveSlice", "add_to_first", "join_channels", "join_first", "split_channels"]


@dataclass(frozen=True)
class ActiveSlice:
    """The part of a layer or block that is in use; by default all of it.

    Args:
        channels: number of channels in use at each stage, counted from the first; None for all.
        factors: (n,) factors of these channels at each stage; None for ones.
        band_limit: frequencies at which a block's residual branch is computed; None for all.
        scale: factor of a block's residual branch; None for one.

    >>> block = ActiveSlice(channels=(2, 3, 4))
    >>> block.conv.channels, block.linear.channels
    ((2, 3), (3, 4))
    """

    channels: tuple[int, ...] | None = None
    factors: tuple[Tensor | None, ...] | None = None
    band_limit: BandLimit | FixedShapeBandLimit | None = None
    scale: Tensor | float | None = None

    @property
    def conv(self) -> ActiveSlice:
        """The slice of a block's convolution."""
        return ActiveSlice(self.channels and self.channels[:2], self.factors and self.factors[:2])

    @property
    def linear(self) -> ActiveSlice:
        """The slice of a block's linear map, without the middle factors, which the convolution has applied."""
        return ActiveSlice(self.channels and self.channels[1:], self.factors and (None, *self.factors[2:]))

    def of_map(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the part of an (out, in) ``weight`` and an (out,) ``bias`` that is in use, times the factors."""
        if self.channels is not None:
            before, after = self.channels
            weight = weight[:after, :before]
            bias = None if bias is None else bias[:after]
        columns, rows = (None, None) if self.factors is None else self.factors
        if columns is not None:
            weight = weight * columns.to(weight.dtype)
        if rows is not None:
            weight = weight * rows.to(weight.dtype).unsqueeze(1)
            bias = None if bias is None else bias * rows.to(bias.dtype)
        return weight, bias


# A residual branch that uses only the first channels does not change the others. The identity branch is split once into
# pieces that do not overlap, because autograd pads the gradient of each overlapping view with zeros and adds them.


def split_channels(x: Tensor, *cuts: int) -> Sequence[Tensor]:
    """Return ``x`` (batch, channels, *space) split along its channels at ``cuts``."""
    ends = sorted({x.shape[1], *cuts})
    sizes = [b - a for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    return [x] if len(sizes) == 1 else x.split(sizes, dim=1)


def join_channels(pieces: Sequence[Tensor]) -> Tensor:
    """Return (batch, channels, *space) signals joined along their channels."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), dim=1)


def join_first(pieces: Sequence[Tensor], channels: int) -> Tensor:
    """Return the first ``channels`` of a signal in pieces; they must end where a piece ends."""
    return join_channels(_first(pieces, channels))


def add_to_first(branch: Tensor, pieces: Sequence[Tensor]) -> Tensor:
    """Join a signal in pieces and add ``branch`` to its first channels.

    >>> add_to_first(torch.ones(1, 1, 2), split_channels(torch.zeros(1, 2, 2), 1))
    tensor([[[1., 1.],
             [0., 0.]]])
    """
    if len(pieces) == 1:
        pieces = split_channels(pieces[0], branch.shape[1])
    touched = _first(pieces, branch.shape[1])
    parts = branch.split([piece.shape[1] for piece in touched], dim=1)
    sums = [part + piece for part, piece in zip(parts, touched, strict=True)]
    return join_channels([*sums, *pieces[len(touched) :]])


def _first(pieces: Sequence[Tensor], channels: int) -> list[Tensor]:
    first: list[Tensor] = []
    for piece in pieces:
        if channels <= 0:
            break
        first.append(piece)
        channels -= piece.shape[1]
    return first
