"""Pooling of signals on a group, over windows of space, all of space, or the group."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._arguments import checked
from ..._kinds import Choice, Int
from .signal import SIGNAL, GroupSignal, ValueLayer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GroupPool", "SpatialPool"]


def _pool_rows(pool: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that pools lines as rows of a plane, because torch.export fixes the length in max_pool1d."""

    def pooled(x: Tensor, windows: list[int], strides: list[int], padding: list[int]) -> Tensor:
        rows = x.unsqueeze(2) if x.dim() == 3 else x
        y = pool(rows, (1, *windows), (1, *strides), (0, *padding))
        return y.squeeze(2) if x.dim() == 3 else y

    return pooled


_POOLS: dict[tuple[str, int], Callable[..., Tensor]] = {
    ("max", 1): _pool_rows(F.max_pool2d),
    ("max", 2): F.max_pool2d,
    ("max", 3): F.max_pool3d,
    ("mean", 1): _pool_rows(partial(F.avg_pool2d, count_include_pad=False)),
    ("mean", 2): partial(F.avg_pool2d, count_include_pad=False),
    ("mean", 3): partial(F.avg_pool3d, count_include_pad=False),
}


class SpatialPool(ValueLayer):
    r"""Pooling over windows of space, at each element, by a factor of ``size``.

    Windows lie symmetrically, so a rotated or mirrored input has the same windows. If ``size`` divides the length, the
    windows tile it. A factor of 2 also takes odd lengths, with windows of 3 around every second sample: n samples
    become (n + 1)/2.

    It takes a :class:`GroupSignal` or a tensor, with or without a group axis, and returns the same type.

    Args:
        size: pooling factor and window length.
        kind: "max" or "mean".
        dim: number of spatial axes.
        ragged: whether to accept every length. Windows then tile the signal from its beginning, and the rest is
            dropped; a signal shorter than a window is one window. For groups without rotations or reflections, such as
            dilations of time.

    >>> import torch
    >>> pool = SpatialPool(2)
    >>> pool(torch.randn(2, 3, 4, 8, 8)).shape, pool(torch.randn(2, 3, 4, 7, 7)).shape
    (torch.Size([2, 3, 4, 4, 4]), torch.Size([2, 3, 4, 4, 4]))
    """

    @checked(kind=Choice("max", "mean"), dim=Int(1, 3))
    def __init__(self, size: int = 2, kind: str = "max", *, dim: int = 2, ragged: bool = False) -> None:
        super().__init__()
        self.size, self.kind, self.dim, self.ragged = size, kind, dim, ragged

    def transform(self, x: Tensor) -> Tensor:
        if x.dim() not in (self.dim + 2, self.dim + 3):
            raise ValueError(
                f"x must have shape (batch, channels, group, *space) with {self.dim} spatial axes, got {tuple(x.shape)}"
            )
        # In one dimension the group axis can stay, as the rows of a plane.
        folds = x.dim() == self.dim + 3 and self.dim > 1
        y = _POOLS[self.kind, self.dim](x.flatten(1, 2) if folds else x, *self._windows(x))
        return y.unflatten(1, x.shape[1:3]) if folds else y

    def _windows(self, x: Tensor) -> tuple[list[int], list[int], list[int]]:
        """Return the lengths, strides and paddings of the windows along the axes of space."""
        lengths = x.shape[-self.dim :]
        if self.ragged:
            # A symbolic length is assumed to be at least one window.
            tiles = [min(self.size, length) if type(length) is int else self.size for length in lengths]
            return tiles, tiles, [0] * self.dim
        windows, padding = [], []
        for axis, length in enumerate(lengths):
            tiled = length % self.size == 0
            if not tiled and self.size != 2:
                raise ValueError(
                    f"size must divide the length of each spatial axis, or be 2, got {self.size} for {length} "
                    f"along spatial axis {axis}"
                )
            windows.append(self.size if tiled else 3)
            padding.append(0 if tiled else 1)
        return windows, [self.size] * self.dim, padding

    def extra_repr(self) -> str:
        return f"{self.size}, kind={self.kind!r}"


class GroupPool(nn.Module):
    r"""Pooling over the whole group axis, all of space, or both.

    It takes a :class:`GroupSignal` or a tensor, (batch, channels, group, \*space), and returns a tensor. A signal
    pooled over space alone stays a signal, (batch, channels, group). A signal's gates weight its elements.

    Args:
        kind: "max", "mean" or "sum".
        over: "group", "space" or "all".

    >>> import torch
    >>> x = torch.randn(2, 3, 4, 8, 8)
    >>> [tuple(GroupPool("max", over)(x).shape) for over in ("group", "space", "all")]
    [(2, 3, 8, 8), (2, 3, 4), (2, 3)]
    """

    @checked(kind=Choice("max", "mean", "sum"), over=Choice("group", "space", "all"))
    def __init__(self, kind: str = "max", over: str = "group") -> None:
        super().__init__()
        self.kind, self.over = kind, over

    @checked(x=SIGNAL)
    def forward(self, x: Tensor | GroupSignal) -> Tensor | GroupSignal:
        if not isinstance(x, GroupSignal):
            return self._pool(x)
        if self.over == "space":
            return x.map(self._pool)
        if x.gates is None:
            return self._pool(x.values)
        return self._pool(x.values * x.gates.to(x.dtype).view(-1, *[1] * (x.dim() - 3)), x.present)

    def _pool(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        if x.dim() < (4 if self.over == "space" else 3):
            raise ValueError(f"x must have shape (batch, channels, group, *space), got {tuple(x.shape)}")
        axes = {"group": (2,), "space": tuple(range(3, x.dim())), "all": tuple(range(2, x.dim()))}[self.over]
        if present is not None and self.kind == "max":
            x = x.masked_fill(present == 0, -torch.inf)
        if present is not None and self.kind == "mean":  # absent elements are 0
            x = x * (x.shape[2] / present.sum())
        if self.kind == "max":
            return x.amax(dim=axes)
        return x.mean(dim=axes) if self.kind == "mean" else x.sum(dim=axes)

    def extra_repr(self) -> str:
        return f"{self.kind!r}, over={self.over!r}"
