"""The checked arguments of a convolution between points."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["PointConv"]


class PointConv(NamedTuple):
    """The arguments of :func:`kernelfield.ops.point_conv` that all methods take.

    Attributes:
        x: (batch, in, points) values.
        coords: (batch or 1, points, dim) coordinates of the points.
        at: (batch or 1, queries, dim) coordinates of the outputs.
        kernel: maps (…, dim) offsets to (…, out · in / groups) values.
        size: (dim,) reach.
        out_channels: number of output channels.
        groups: number of groups of channels.
        causal: whether outputs depend only on points at or before their own time.
        mask: (batch, points), True for points, False for padding; None if all are points.
        hidden: number of intermediate values of the kernel for one offset.
    """

    x: Tensor
    coords: Tensor
    at: Tensor
    kernel: Callable[[Tensor], Tensor]
    size: Tensor
    out_channels: int
    groups: int
    causal: bool
    mask: Tensor | None
    hidden: int

    @property
    def fan_in(self) -> int:
        """Input channels of one group."""
        return self.x.shape[1] // self.groups

    @property
    def values(self) -> int:
        """Largest number of values for one offset."""
        return max(self.out_channels * self.fan_in, self.hidden)

    def sample(self, offsets: Tensor, meets: Tensor | None = None) -> Tensor:
        """Return (…, groups, out / groups, in / groups) values of the kernel.

        Args:
            offsets: (…, dim) offsets relative to the reach.
            meets: (…) mask of offsets that count. Values at others are zero, and the result has the dtype of ``x``.
        """
        values = self.kernel(offsets)
        if values.shape[-1] != self.out_channels * self.fan_in:
            raise ValueError(
                f"kernel must return out_channels · in / groups = {self.out_channels} · {self.fan_in} values per "
                f"offset for the {self.x.shape[1]} channels of x, got {values.shape[-1]}"
            )
        values = values if meets is None else (values * meets.unsqueeze(-1)).to(self.x.dtype)
        return values.unflatten(-1, (self.groups, self.out_channels // self.groups, self.fan_in))

    def meets(self, offsets: Tensor) -> Tensor:
        """Return a mask of the (…, dim) offsets within the kernel's reach and, if it is causal, not in the future."""
        inside = (offsets.abs() < 1).all(dim=-1)
        return inside & (offsets[..., 0] >= 0) if self.causal else inside
