r"""Coordinates of regular grids, in units of the training step.

A kernel lives on :math:`[-1, 1]^D`, where 1 is ``size`` training steps away. For an input
with another sampling ``step`` (again in training steps: 0.5 is twice as fine), a layer samples the same kernel at

.. math:: x_k = k \cdot \mathrm{step} / \mathrm{size}, \qquad |k| \cdot \mathrm{step} < \mathrm{size},

so the grid is anchored at offset zero, not at its ends. The samples of a subsampled input keep their positions (chapter
2, appendix "Accounting for spatial displacements"): the grid of ``step=n`` is every n-th point of the grid of
``step=1``, bit for bit, for any ``size`` and ``n``.

``size`` is a reach. At step 1 a causal kernel of size 784 has the 784 lags 0 … 783, and a centred one has the 1,567
offsets -783 … 783: all distances between two samples of an input of length 784.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._arguments import checked
from ._checks import per_axis
from ._kinds import FINITE, POSITIVE, Int, ListOf, PerAxis

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KernelGrid", "box_grid", "kernel_axis", "kernel_grid", "local_grid", "positions", "reach", "signal_grid"]


@checked(step=POSITIVE)
def reach(size: int, step: float = 1.0, limit: int | None = None) -> int:
    """Return the number of offsets 0, step, 2·step, … below ``size``, at most ``limit``.

    Args:
        size: reach of the kernel in training steps.
        step: sampling step in training steps.
        limit: the input's length, which bounds the distance between two samples; may be symbolic.

    >>> reach(32, 1.0), reach(32, 0.4), reach(7, 2.0), reach(784, 1.0, limit=100)
    (32, 80, 4, 100)
    """
    return _reach(size, step, limit)


def _reach(size: int, step: float, limit: int | None) -> int:
    # The tiny allowance keeps 1 / (1/49) at 49, where binary rounding makes it 49.00000000000001.
    count = size / step * (1 - 1e-12)
    # A step that depends on a dynamic length is symbolic: exported programs can store truncation but no ceiling.
    count = math.ceil(count) if isinstance(count, float) else torch.sym_int(count + 1)
    if limit is None:
        return count
    # torch.compile of torch 2.11 fails on a symbolic minimum of two plain numbers.
    return min(count, limit) if type(count) is int and type(limit) is int else torch.sym_min(count, limit)


@checked(step=POSITIVE)
def kernel_axis(
    size: int,
    step: float = 1.0,
    *,
    causal: bool = False,
    limit: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    r"""Return the coordinates of a kernel along one axis.

    Args:
        size: reach in training steps.
        step: sampling step in training steps.
        causal: sample only the lags, offsets of at least zero.
        limit: the input's length; longer offsets are left out. May be symbolic.
        dtype: of the result; torch's default dtype if None.
        device: of the result.

    Returns:
        (2n - 1,) ascending coordinates in (-1, 1), or the (n,) lags in [0, 1) if ``causal``; n is
        :func:`reach`\ ``(size, step, limit)``.

    >>> kernel_axis(4)
    tensor([-0.7500, -0.5000, -0.2500,  0.0000,  0.2500,  0.5000,  0.7500])
    >>> kernel_axis(4, causal=True)
    tensor([0.0000, 0.2500, 0.5000, 0.7500])
    >>> kernel_axis(4, step=2)          # every second point of the same positions
    tensor([-0.5000,  0.0000,  0.5000])
    """
    return _kernel_axis(size, step, causal, limit, dtype, device)


def _kernel_axis(
    size: int,
    step: float,
    causal: bool,
    limit: int | None,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> Tensor:
    n = _reach(size, step, limit)
    index = torch.arange(0 if causal else 1 - n, n, dtype=dtype or _default(), device=device)
    # The order matters: k · step is exact for integer steps, so equal positions of two grids round alike.
    return index * step / size


@checked(step=PerAxis(POSITIVE), limit=ListOf(Int(1)) | None)
def kernel_grid(
    size: int | Sequence[int],
    step: float | Sequence[float] = 1.0,
    *,
    dim: int = 1,
    causal: bool = False,
    limit: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the coordinates at which a kernel is sampled.

    Args:
        size: reach in training steps, one for all axes or one per axis.
        step: sampling step in training steps, one for all axes or one per axis.
        dim: number of spatial dimensions.
        causal: sample only the lags, offsets of at least zero; needs dim 1.
        limit: shape of the input; longer offsets are left out. Axes may be symbolic.
        dtype: of the result; torch's default dtype if None.
        device: of the result.

    Returns:
        (*points, dim) coordinates in (-1, 1)^dim; coordinate d of a point varies along axis d ("ij" order).

    >>> kernel_grid(32, dim=2).shape
    torch.Size([63, 63, 2])
    >>> kernel_grid(32, (0.4, 2), dim=2).shape
    torch.Size([159, 31, 2])
    """
    if causal and dim != 1:
        raise ValueError(f"causal must be False for dim={dim}: only a line has a past, got causal=True")
    sizes, steps = per_axis(size, dim), per_axis(step, dim)
    limits = (None,) * dim if limit is None else tuple(limit)
    if len(limits) != dim:
        raise ValueError(f"limit must have one length per axis for dim={dim}, got {limits}")
    axes = [_kernel_axis(n, s, causal, most, dtype, device) for n, s, most in zip(sizes, steps, limits, strict=True)]
    return _mesh(axes)


@dataclass(frozen=True)
class KernelGrid:
    """The grid of :func:`kernel_grid` as a few numbers, for GPU kernels that compute coordinates themselves.

    Point k of an axis lies at ``(first + k) · step / size``.

    Args:
        first: index of the first offset along each axis, at most 0.
        count: number of offsets along each axis.
        step: sampling step along each axis.
        size: reach of the kernel along each axis.

    >>> grid = KernelGrid.of((4,), (2.0,))
    >>> grid, grid.points
    (KernelGrid(first=(-1,), count=(3,), step=(2.0,), size=(4,)), 3)
    >>> grid.coords().squeeze(-1)
    tensor([-0.5000,  0.0000,  0.5000])
    """

    first: tuple[int, ...]
    count: tuple[int, ...]
    step: tuple[float, ...]
    size: tuple[int, ...]

    @classmethod
    @checked(size=ListOf(Int(1)), step=ListOf(POSITIVE), limit=ListOf(Int(1) | None) | None)
    def of(
        cls,
        size: tuple[int, ...],
        step: tuple[float, ...],
        *,
        causal: bool = False,
        limit: Sequence[int | None] | None = None,
    ) -> KernelGrid:
        """Return the grid for these arguments of :func:`kernel_grid`."""
        limits = (None,) * len(size) if limit is None else limit
        if not len(size) == len(step) == len(limits):
            raise ValueError(f"size, step and limit must have one entry per axis, got {size}, {step} and {limit}")
        reaches = [_reach(n, s, most) for n, s, most in zip(size, step, limits, strict=True)]
        first = tuple(0 if causal else 1 - n for n in reaches)
        return cls(first, tuple(n - a for n, a in zip(reaches, first, strict=True)), step, size)

    @functools.cached_property
    def points(self) -> int:
        """Total number of points."""
        return math.prod(self.count)

    def cut(self, values: Tensor, part: KernelGrid) -> Tensor:
        """Return the values on ``part`` of this grid, from (…, *count) values on all of it.

        >>> grid, part = (KernelGrid.of((n,), (1.0,), limit=(n,)) for n in (4, 2))
        >>> grid.cut(grid.coords().squeeze(-1), part)
        tensor([-0.2500,  0.0000,  0.2500])
        """
        for axis, (begin, first, count) in enumerate(zip(self.first, part.first, part.count, strict=True)):
            values = values.narrow(axis - len(self.count), first - begin, count)
        return values

    def coords(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return the (*count, dim) coordinates."""
        return _mesh(
            [
                torch.arange(a, a + n, dtype=dtype or _default(), device=device) * step / size
                for a, n, step, size in zip(self.first, self.count, self.step, self.size, strict=True)
            ]
        )


@checked()
def local_grid(
    kernel_size: int | Sequence[int],
    *,
    dim: int = 1,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    r"""Return the coordinates of a kernel with a fixed number of points, the outermost at -1 and 1.

    Args:
        kernel_size: number of points, one for all axes or one per axis; a single point lies at 0.
        dim: number of spatial dimensions.
        dtype: of the result; torch's default dtype if None.
        device: of the result.

    Returns:
        (\*kernel_size, dim) coordinates.

    >>> local_grid(3)
    tensor([[-1.],
            [ 0.],
            [ 1.]])
    >>> local_grid((3, 4), dim=2).shape
    torch.Size([3, 4, 2])
    """
    counts = per_axis(kernel_size, dim)
    return _mesh([_closed_axis(n, 1.0, n, dtype, device) if n > 1 else _zero(dtype, device) for n in counts])


@checked(low=PerAxis(FINITE, "shape"), high=PerAxis(FINITE, "shape"))
def box_grid(
    shape: Sequence[int],
    low: float | Sequence[float] = -1.0,
    high: float | Sequence[float] = 1.0,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the nodes of a grid over a box, the outermost on its faces; a single node lies in the middle.

    Args:
        shape: number of nodes along each axis.
        low: lower end of the box, one for all axes or one per axis.
        high: upper end of the box.
        dtype: of the result; torch's default dtype if None.
        device: of the result.

    Returns:
        (*shape, dim) coordinates.

    >>> box_grid([3], 0, 4).squeeze(-1)
    tensor([0., 2., 4.])
    >>> box_grid((9, 9, 9)).shape
    torch.Size([9, 9, 9, 3])
    """
    lows, highs = check_box(low, high, len(shape))
    axes = []
    for n, a, b in zip(shape, lows, highs, strict=True):
        index = torch.arange(n, dtype=dtype or _default(), device=device)
        axes.append(a + index * ((b - a) / (n - 1)) if n > 1 else index + (a + b) / 2)
    return _mesh(axes)


@checked(size=PerAxis(Int(2), "shape"), step=PerAxis(POSITIVE, "shape"))
def signal_grid(
    shape: Sequence[int],
    size: int | Sequence[int],
    step: float | Sequence[float] = 1.0,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the coordinates of a signal's samples, where the training signal of ``size`` samples spans [-1, 1].

    Sample i of an input at sampling ``step`` lies at ``-1 + 2·i·step/(size - 1)``; only an input of the training
    length at the training step has its last sample at 1.

    Args:
        shape: number of samples along each axis; may be symbolic.
        size: number of samples of the training signal, one for all axes or one per axis; at least 2.
        step: sampling step in training steps.
        dtype: of the result; torch's default dtype if None.
        device: of the result.

    Returns:
        (*shape, dim) coordinates.

    >>> signal_grid([5], 5).squeeze(-1)
    tensor([-1.0000, -0.5000,  0.0000,  0.5000,  1.0000])
    >>> signal_grid([2], 5, step=3).squeeze(-1)         # x[::3]: samples 0 and 3
    tensor([-1.0000,  0.5000])
    """
    dim = len(shape)
    sizes, steps = per_axis(size, dim), per_axis(step, dim)
    return _mesh([_closed_axis(count, s, n, dtype, device) for count, s, n in zip(shape, steps, sizes, strict=True)])


@checked(step=PerAxis(POSITIVE, "shape"))
def positions(
    shape: Sequence[int],
    step: float | Sequence[float] = 1.0,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the positions of a grid's samples in training steps: i · step along each axis.

    Layers expect ``coords`` in this unit.

    Args:
        shape: number of samples along each axis.
        step: sampling step in training steps, one for all axes or one per axis.
        dtype: of the result; torch's default dtype if None.
        device: of the result.

    Returns:
        (*shape, dim) positions.

    >>> positions([3], 0.5).squeeze(-1)
    tensor([0.0000, 0.5000, 1.0000])
    """
    steps = per_axis(step, len(shape))
    return _mesh(
        [torch.arange(n, dtype=dtype or _default(), device=device) * s for n, s in zip(shape, steps, strict=True)]
    )


def check_box(
    low: float | Sequence[float], high: float | Sequence[float], dim: int, name: str = "high"
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lower and upper ends of a box, one per axis; raise unless low is below high along every axis.

    >>> check_box(-1, (1, 2), dim=2)
    ((-1.0, -1.0), (1.0, 2.0))
    >>> check_box(1, 1, dim=1)
    Traceback (most recent call last):
    ValueError: high must be above low along all 1 axes, got (1.0,) and (1.0,)
    """
    lows, highs = (tuple(map(float, per_axis(end, dim))) for end in (low, high))
    fits = len(lows) == len(highs) == dim and all(a < b for a, b in zip(lows, highs, strict=True))
    if not fits:
        raise ValueError(f"{name} must be above low along all {dim} axes, got {highs} and {lows}")
    return lows, highs


def _closed_axis(
    count: int, step: float, size: int, dtype: torch.dtype | None, device: torch.device | str | None
) -> Tensor:
    index = torch.arange(count, dtype=dtype or _default(), device=device)
    return (2 * (index * step) - (size - 1)) / (size - 1)


def _zero(dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
    return torch.zeros(1, dtype=dtype or _default(), device=device)


def _mesh(axes: list[Tensor]) -> Tensor:
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)


def _default() -> torch.dtype:
    return torch.get_default_dtype()
