"""Split signals, on a mesh of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

import kernelfield as kf
from kernelfield import parallel

from .call import Call

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def _mesh() -> DeviceMesh:
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return parallel.make_mesh(1)


def _make_mesh(context: int, *, device_type: str = "cpu") -> DeviceMesh:
    _mesh()
    return parallel.make_mesh(context, device_type=device_type)


def _net() -> kf.CKCNN:
    return kf.CKCNN(1, 3, size=8, channels=4, blocks=1, hidden=4)


CALLS = [
    Call("parallel.make_mesh", _make_mesh, lambda: {"context": 1}),
    Call("parallel.scatter", parallel.scatter, lambda: {"x": torch.randn(2, 3, 8), "mesh": _mesh()}),
    Call("parallel.gather", parallel.gather, lambda: {"x": torch.randn(2, 3, 8), "mesh": _mesh()}),
    Call(
        "parallel.shard",
        parallel.shard,
        lambda: {"network": _net(), "mesh": _mesh()},
        lambda net: net(torch.randn(2, 1, 8)),
        unchecked=frozenset(["pointwise"]),
    ),
    Call(
        "parallel.plan_conv",
        parallel.plan_conv,
        lambda: {"lengths": (4, 4), "points": 3, "in_channels": 2, "out_channels": 2, "depthwise": True},
    ),
]
