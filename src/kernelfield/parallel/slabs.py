"""Device meshes, and the slabs of the first axis of space, one for each process of the context group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .._arguments import checked
from .._kinds import Choice, Int
from .._object_kinds import Instance

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AXES", "MESH", "Slabs", "check_mesh", "make_mesh", "space_axis", "split_length"]

#: names of the axes of a mesh
AXES = ("data", "context")
MESH = Instance("torch.distributed.device_mesh.DeviceMesh")


def split_length(length: int, parts: int) -> tuple[int, ...]:
    """Return the lengths of ``parts`` consecutive pieces of an axis; the first ones may be longer by one.

    >>> split_length(10, 4)
    (3, 3, 2, 2)
    """
    least, longer = divmod(length, parts)
    return (least + 1,) * longer + (least,) * (parts - longer)


def space_axis(x: Tensor) -> int:
    """Return the first axis of space: 1 for masks and tokens, which have no channels, and 2 for signals.

    >>> import torch
    >>> space_axis(torch.zeros(2, 3, 8)), space_axis(torch.zeros(2, 8, dtype=torch.bool))
    (2, 1)
    """
    return 2 if x.is_floating_point() and x.dim() > 2 else 1


@checked(context=Int(1), device_type=Choice("cpu", "cuda"))
def make_mesh(context: int, *, device_type: str = "cpu") -> DeviceMesh:
    """Return a mesh of all processes with the axes "data" and "context".

    Consecutive processes share a sample, so they should be close to each other, on one machine if possible.

    Args:
        context: number of processes that share a sample; it must divide the number of processes.
        device_type: "cpu" or "cuda".

    >>> make_mesh(context=4)                                               # of 8 processes  # doctest: +SKIP
    DeviceMesh((data=2, context=4), 'cpu', stride=(4, 1))
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "make_mesh needs a process group: start the program with torchrun and call "
            "torch.distributed.init_process_group() first"
        )
    world = dist.get_world_size()
    if world % context:
        raise ValueError(f"context must divide the number of processes, {world}, got {context}")
    return init_device_mesh(device_type, (world // context, context), mesh_dim_names=AXES)


def check_mesh(mesh: DeviceMesh) -> None:
    """Raise if a mesh has no axis "context", or axes that are neither "data" nor "context"."""
    names = mesh.mesh_dim_names or ()
    if "context" not in names or not set(names) <= set(AXES):
        raise ValueError(f"mesh must have the axes 'data' and 'context', or 'context' alone, got {names or 'no names'}")


class Slabs:
    """The slabs of a network's signals, and the processes that hold them.

    Args:
        mesh: mesh with an axis "context", and perhaps an axis "data".

    Attributes:
        lengths: number of samples of each process along the first axis of space; set by each forward pass.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        check_mesh(mesh)
        self.mesh = mesh
        self.group: Any = mesh.get_group("context")
        self.rank, self.size = mesh.get_local_rank("context"), mesh["context"].size()
        self.data_group: Any = None
        if "data" in (mesh.mesh_dim_names or ()) and mesh["data"].size() > 1:
            self.data_group = mesh.get_group("data")
        self.lengths: tuple[int, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Slabs:
        return self  # process groups cannot be copied

    @property
    def groups(self) -> tuple[Any, ...]:
        """The process groups whose successive sums give the sum over all processes of the mesh."""
        return (self.group,) if self.data_group is None else (self.group, self.data_group)

    @property
    def total(self) -> int:
        """Length of the whole axis."""
        return sum(self.lengths)

    @property
    def start(self) -> int:
        """Position of the first sample of this process."""
        return sum(self.lengths[: self.rank])

    def check(self, x: Tensor) -> None:
        """Raise if ``x`` (batch, channels, *space) is not the slab of this process."""
        if not self.lengths or x.shape[2] != self.lengths[self.rank]:
            wanted = f", with {self.lengths[self.rank]} samples along its first axis of space" if self.lengths else ""
            raise ValueError(
                f"x must be the slab of this process{wanted}, got {tuple(x.shape)}; call the network that was sharded, "
                "not a layer of it"
            )
