"""Up-sampling of signals on a group: the counterpart of pooling by 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._arguments import checked
from ..._kinds import Choice, Int
from .signal import SIGNAL, Signal, ValueLayer, map_values

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SpatialUpsample"]


class SpatialUpsample(ValueLayer):
    r"""Up-sampling of space by a factor of 2, at each element. It is symmetric and therefore equivariant.

    A line of n samples becomes a line of 2n or 2n - 1. The 2n samples lie a quarter of a step to the left and right of
    each old one. The 2n - 1 are the old ones, with one new sample between each two. The second form restores an odd
    length that :class:`SpatialPool` has halved.

    It takes a :class:`GroupSignal` or a tensor, with or without a group axis, and returns the same type.

    Args:
        kind: "linear" interpolates between neighbours; "nearest" copies the nearest sample, or the mean of two at equal
            distance.
        dim: number of spatial axes.

    >>> up = SpatialUpsample(dim=1)
    >>> up(torch.tensor([[[0.0, 4.0]]])), up(torch.tensor([[[0.0, 4.0]]]), shape=(3,))
    (tensor([[[0., 1., 3., 4.]]]), tensor([[[0., 2., 4.]]]))
    """

    @checked(kind=Choice("linear", "nearest"), dim=Int(1, 3))
    def __init__(self, kind: str = "linear", *, dim: int = 2) -> None:
        super().__init__()
        self.kind, self.dim = kind, dim

    @checked(x=SIGNAL)
    def forward(self, x: Signal, shape: Sequence[int] | None = None) -> Signal:
        r"""Return the signal on a finer grid.

        Args:
            x: (batch, channels, group, \*space) signal, or a tensor with or without the group axis.
            shape: lengths of the new axes of space, 2n or 2n - 1 each; 2n if not given.
        """
        return map_values(x, lambda values: self._upsample(values, shape))

    def transform(self, x: Tensor) -> Tensor:
        return self._upsample(x, None)

    def _upsample(self, x: Tensor, shape: Sequence[int] | None) -> Tensor:
        if x.dim() not in (self.dim + 2, self.dim + 3):
            raise ValueError(
                f"x must have shape (batch, channels, group, *space) with {self.dim} spatial axes, got {tuple(x.shape)}"
            )
        lengths = x.shape[-self.dim :]
        if shape is not None and len(shape) != self.dim:
            raise ValueError(f"shape must have {self.dim} lengths, got {tuple(shape)}")
        for axis, length in enumerate(lengths):
            wanted = 2 * length if shape is None else shape[axis]
            if wanted not in (2 * length, 2 * length - 1):
                raise ValueError(
                    f"shape must be {2 * length} or {2 * length - 1} along spatial axis {axis} of length {length}, "
                    f"got {wanted}"
                )
            x = self._along(x, axis - self.dim, wanted == 2 * length)
        return x

    def _along(self, x: Tensor, axis: int, even: bool) -> Tensor:
        """Double the samples along one axis."""
        n = x.shape[axis]
        before, after = x.narrow(axis, 0, n - 1), x.narrow(axis, 1, n - 1)
        if not even:
            pairs = _interleaved(before, (before + after) / 2, axis)
            return torch.cat([pairs, x.narrow(axis, n - 1, 1)], dim=axis)
        if self.kind == "nearest":
            return x.repeat_interleave(2, dim=axis)
        first, last = x.narrow(axis, 0, 1), x.narrow(axis, n - 1, 1)
        left = 0.75 * x + 0.25 * torch.cat([first, before], dim=axis)
        right = 0.75 * x + 0.25 * torch.cat([after, last], dim=axis)
        return _interleaved(left, right, axis)

    def extra_repr(self) -> str:
        return repr(self.kind)


def _interleaved(first: Tensor, second: Tensor, axis: int) -> Tensor:
    """Interleave the samples of two tensors along an axis that is counted from the end."""
    position = first.dim() + axis
    return torch.stack([first, second], dim=position + 1).flatten(position, position + 1)
