"""Norms, pooling and dropout on signals with a group axis. All of them commute with the action of the group."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._checks import check_bool, check_choice, check_int
from ...ops.fused.folded_norm import folded_batch_norm, is_folded

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GroupBatchNorm", "GroupDropout", "GroupLayerNorm", "GroupPool", "SpatialPool"]


class GroupBatchNorm(nn.BatchNorm1d):
    r"""Batch normalisation over batch, group and space: one mean, variance, scale and shift per channel.

    Args:
        channels: number of channels.
        eps: added to the variance; 2e-5 as in chapter 8.

    >>> import torch
    >>> GroupBatchNorm(3)(torch.randn(2, 3, 4, 5, 5)).shape
    torch.Size([2, 3, 4, 5, 5])
    """

    def __init__(self, channels: int, eps: float = 2e-5) -> None:
        super().__init__(channels, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()  # noqa: SLF001
        if transformed or not is_folded(x) or self.momentum is None:
            return super().forward(x)
        self._check_input_dim(x)
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return folded_batch_norm(
            *(x, self.weight, self.bias, self.running_mean, self.running_var),
            training=self.training,
            momentum=self.momentum,
            eps=self.eps,
        )

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 3:
            raise ValueError(f"x must have shape (batch, channels, group, *space), got {tuple(x.shape)}")


class GroupLayerNorm(nn.Module):
    r"""Normalisation of each channel of each signal over group and space, without parameters (chapter 11).

    Args:
        eps: added to the variance.

    >>> import torch
    >>> y = GroupLayerNorm()(torch.randn(2, 3, 4, 5, 5))
    >>> bool(y.mean(dim=(2, 3, 4)).abs().max() < 1e-6)
    True
    """

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(2)
        return F.layer_norm(flat, flat.shape[2:], eps=self.eps).view_as(x)


class GroupDropout(nn.Module):
    r"""Dropout of whole channels, at all elements and positions alike.

    Args:
        p: probability to drop a channel.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout1d(x.flatten(2), self.p, self.training).view_as(x)


def _rows(pool: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the pooling of lines as one of planes, of each row by itself.

    torch.export fixes the length of what goes through torch's max_pool1d.
    """

    def pooled(x: Tensor, windows: list[int], strides: list[int], padding: list[int]) -> Tensor:
        rows = x.unsqueeze(2) if x.dim() == 3 else x
        y = pool(rows, (1, *windows), (1, *strides), (0, *padding))
        return y.squeeze(2) if x.dim() == 3 else y

    return pooled


_POOLS: dict[tuple[str, int], Callable[..., Tensor]] = {
    ("max", 1): _rows(F.max_pool2d),
    ("max", 2): F.max_pool2d,
    ("max", 3): F.max_pool3d,
    ("mean", 1): _rows(partial(F.avg_pool2d, count_include_pad=False)),
    ("mean", 2): partial(F.avg_pool2d, count_include_pad=False),
    ("mean", 3): partial(F.avg_pool3d, count_include_pad=False),
}


class SpatialPool(nn.Module):
    r"""Pooling over windows of space, each element on its own, by a factor of ``size``.

    Windows must lie symmetrically, or turning the input would part it into other windows. Where ``size`` divides the
    length, they tile it. A factor of 2 takes odd lengths too, with windows of 3 around every second sample: n becomes
    (n + 1)/2.

    Args:
        size: factor, and length of the windows.
        kind: "max" or "mean".
        dim: number of spatial axes.
        ragged: take every length: windows tile it from its beginning, and what is left at its end is dropped; a signal
            shorter than a window is one window. For dilations and translations of time, which mirror nothing.

    >>> import torch
    >>> pool = SpatialPool(2)
    >>> pool(torch.randn(2, 3, 4, 8, 8)).shape, pool(torch.randn(2, 3, 4, 7, 7)).shape
    (torch.Size([2, 3, 4, 4, 4]), torch.Size([2, 3, 4, 4, 4]))
    """

    def __init__(self, size: int = 2, kind: str = "max", *, dim: int = 2, ragged: bool = False) -> None:
        super().__init__()
        self.ragged = check_bool("ragged", ragged)
        self.size, self.kind, self.dim = check_int("size", size), check_choice("kind", kind, ("max", "mean")), dim

    def forward(self, x: Tensor) -> Tensor:
        # On a line the group axis can stay where it is, as the rows of a plane.
        folds = x.dim() == self.dim + 3 and self.dim > 1
        y = _POOLS[self.kind, self.dim](x.flatten(1, 2) if folds else x, *self._windows(x))
        return y.unflatten(1, x.shape[1:3]) if folds else y

    def _windows(self, x: Tensor) -> tuple[list[int], list[int], list[int]]:
        """Return the length of the windows, their distance and the padding along each axis of space."""
        lengths = x.shape[-self.dim :]
        if self.ragged:
            # A length that is only known at run time is taken to be long enough.
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
    r"""Pooling over the whole group axis, all of space, or both, after which nothing of them is left.

    Args:
        kind: "max" or "mean".
        over: "group", "space" or "all".

    >>> import torch
    >>> x = torch.randn(2, 3, 4, 8, 8)
    >>> [tuple(GroupPool("max", over)(x).shape) for over in ("group", "space", "all")]
    [(2, 3, 8, 8), (2, 3, 4), (2, 3)]
    """

    def __init__(self, kind: str = "max", over: str = "group") -> None:
        super().__init__()
        self.kind = check_choice("kind", kind, ("max", "mean"))
        self.over = check_choice("over", over, ("group", "space", "all"))

    def forward(self, x: Tensor, gates: Tensor | None = None) -> Tensor:
        if gates is not None:
            x = x * gates.to(x.dtype).view(-1, *[1] * (x.dim() - 3))
        axes = {"group": (2,), "space": tuple(range(3, x.dim())), "all": tuple(range(2, x.dim()))}[self.over]
        return x.amax(dim=axes) if self.kind == "max" else x.mean(dim=axes)

    def extra_repr(self) -> str:
        return f"{self.kind!r}, over={self.over!r}"
