"""Cut signals into slabs and join them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._arguments import checked
from .._kinds import Int
from .._object_kinds import TensorOf
from .agree import agree_on_slab
from .collectives import exchange
from .slabs import MESH, Slabs, space_axis, split_length

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["gather", "gather_slabs", "scatter", "scatter_slabs"]


@checked(x=TensorOf("any", "batch, *any"), axis=Int(1) | None, mesh=MESH)
def scatter(x: Tensor, mesh: DeviceMesh, *, axis: int | None = None) -> Tensor:
    r"""Return this process's slab of a tensor that all processes of its context group have.

    Nothing is sent. Every process gets the complete gradient of ``x``, for the mean of the processes' losses.

    Args:
        x: (batch, channels, \*space) signal, (batch, \*space) mask or (batch, length) tokens, the same on each process
            of the context group.
        mesh: mesh with an axis "context"; see :func:`make_mesh`.
        axis: the axis to cut; by default the first axis of space, 2 for signals and 1 for masks and tokens.

    Returns:
        The slab, a contiguous piece of the axis. Slabs differ by at most one in length; longer ones come first.

    >>> scatter(torch.randn(2, 3, 10), make_mesh(context=4)).shape     # on the first process  # doctest: +SKIP
    torch.Size([2, 3, 3])
    """
    return scatter_slabs(x, Slabs(mesh), space_axis(x) if axis is None else axis)


def scatter_slabs(x: Tensor, slabs: Slabs, axis: int) -> Tensor:
    """Return this process's slab, as :func:`scatter` does, for given processes."""
    if axis >= x.dim():
        raise ValueError(f"axis must be below the {x.dim()} axes of x, got {axis}")
    if x.shape[axis] < slabs.size:
        raise ValueError(
            f"x must have at least one sample for each of the {slabs.size} processes along axis {axis}, "
            f"got {tuple(x.shape)}"
        )
    return _Scatter.apply(x, slabs, axis) if x.requires_grad else _own(x, slabs, axis)


@checked(x=TensorOf("any", "batch, *any"), axis=Int(1) | None, mesh=MESH)
def gather(x: Tensor, mesh: DeviceMesh, *, axis: int | None = None) -> Tensor:
    r"""Join the slabs of all processes of the context group; return the whole tensor.

    Args:
        x: the slab of this process; other processes have slabs of the same shape except along ``axis``.
        mesh: mesh with an axis "context"; see :func:`make_mesh`.
        axis: the axis that was cut; by default the first axis of space, as in :func:`scatter`.

    >>> mesh = make_mesh(context=4)                                        # doctest: +SKIP
    >>> torch.equal(gather(scatter(x, mesh), mesh), x)                     # doctest: +SKIP
    True
    """
    slabs = Slabs(mesh)
    axis = space_axis(x) if axis is None else axis
    agree_on_slab(x, axis, slabs)
    return gather_slabs(x, slabs, axis)


def gather_slabs(x: Tensor, slabs: Slabs, axis: int) -> Tensor:
    """Join slabs of known lengths, as :func:`gather` does."""
    if slabs.size == 1:
        return x
    shapes = [(*x.shape[:axis], n, *x.shape[axis + 1 :]) for n in slabs.lengths]
    return torch.cat(list(exchange([x] * slabs.size, shapes, slabs)), dim=axis)


def _own(x: Tensor, slabs: Slabs, axis: int) -> Tensor:
    parts = split_length(x.shape[axis], slabs.size)
    return x.narrow(axis, sum(parts[: slabs.rank]), parts[slabs.rank]).contiguous()


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slabs: Slabs, axis: int) -> Tensor:
        ctx.slabs, ctx.axis = Slabs(slabs.mesh), axis
        ctx.slabs.lengths = split_length(x.shape[axis], slabs.size)
        return _own(x, slabs, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return gather_slabs(grad, ctx.slabs, ctx.axis) / ctx.slabs.size, None, None
