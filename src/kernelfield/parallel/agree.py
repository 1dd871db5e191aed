"""Checks of inputs across processes before any exchange: if one raises an error, all do, and none waits forever."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .slabs import space_axis

if TYPE_CHECKING:
    from .slabs import Slabs

__all__ = ["agree_on_input", "agree_on_slab"]

#: largest number of axes of a tensor that are compared
_MAX_AXES = 8

#: properties that processes compare, in order
_NAMES = ("error", "axes", "dtype", "batch", "channels", "height", "depth", "training", "grad", "step", "random")
_RULES = {
    "axes": "x must have the same number of axes on all processes",
    "dtype": "x must have the same dtype on all processes",
    "batch": "x must have the same batch size on all processes",
    "channels": "x must have the same number of channels on all processes",
    "height": "x must have the same second axis of space on all processes",
    "depth": "x must have the same third axis of space on all processes",
    "training": "the mode, training or evaluation, must be the same on all processes",
    "grad": "torch.is_grad_enabled() must be the same on all processes",
    "step": "step must be the same on all processes",
    "random": "the random state must be the same on all processes of a context group; call torch.manual_seed(seed)",
}
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)


def agree_on_input(network: nn.Module, x: Any, sampling: dict[str, Any], slabs: Slabs) -> None:
    """Check the slab ``x`` of every process and set ``slabs.lengths``; if the check fails on one process, raise on all.

    Inputs of the processes of a context group may differ only in the length of their slabs. In training, all processes
    of the mesh must have equal batch sizes.
    """
    error = _error(x, sampling, slabs)
    length, facts = (0, [1] + [0] * (len(_NAMES) - 1)) if error else _facts(network, x, sampling)
    rows = _all_gather([*facts, length], slabs.group, slabs)
    problem = _difference(rows)
    if network.training and slabs.data_group is not None:
        batches = _all_gather([int(problem is not None), facts[_NAMES.index("batch")]], slabs.data_group, slabs)
        if problem is None and any(row[0] for row in batches):
            problem = "another context group was given a wrong input; see the error of its processes"
        elif problem is None and len({row[1] for row in batches}) > 1:
            problem = f"{_RULES['batch']}, got {[row[1] for row in batches]} along the axis 'data' of the mesh"
    if error is not None:
        raise error
    if problem is not None:
        raise ValueError(problem)
    slabs.lengths = tuple(row[-1] for row in rows)


def agree_on_slab(x: Tensor, axis: int, slabs: Slabs) -> None:
    """Check that slabs differ along ``axis`` alone and set ``slabs.lengths``; raise on all processes or on none."""
    wrong = axis >= x.dim()
    rest = [n for i, n in enumerate(x.shape) if i != axis]
    facts = [int(wrong), x.dim(), *rest[:_MAX_AXES], *[0] * (_MAX_AXES - len(rest))]
    rows = _all_gather([*facts, 0 if wrong else x.shape[axis]], slabs.group, slabs)
    if wrong:
        raise ValueError(f"axis must be below the {x.dim()} axes of x, got {axis}")
    if any(row[:-1] != rows[0][:-1] for row in rows):
        raise ValueError(f"x must have the same shape on all processes except along axis {axis}, got {tuple(x.shape)}")
    slabs.lengths = tuple(row[-1] for row in rows)


def _error(x: Any, sampling: dict[str, Any], slabs: Slabs) -> Exception | None:
    """Return the error in the input of this process, or None."""
    if not isinstance(x, Tensor):
        return TypeError(f"x must be a torch.Tensor, got {type(x).__name__}")
    if x.dim() < 2 or x.dtype not in _DTYPES:
        return ValueError(f"x must be (batch, channels, *space) or (batch, length) tokens, got {tuple(x.shape)}")
    for name in ("coords", "at"):
        if sampling.get(name) is not None:
            return ValueError(f"{name} must be None for a network that is split over processes, got a tensor")
    if x.shape[space_axis(x)] == 0:
        return ValueError(
            f"x must have at least one sample on each of the {slabs.size} processes, got {tuple(x.shape)}"
        )
    return None


def _facts(network: nn.Module, x: Tensor, sampling: dict[str, Any]) -> tuple[int, list[int]]:
    axis = space_axis(x)
    rest = [*x.shape[axis + 1 :], 0, 0][:2]
    channels = x.shape[1] if axis == 2 else 0
    step = zlib.crc32(repr(sampling.get("step", 1.0)).encode())
    drawn = zlib.crc32(_random_state(x.device).numpy().tobytes()) if network.training else 0
    facts = [0, x.dim(), _DTYPES.index(x.dtype), len(x), channels, *rest, int(network.training)]
    return x.shape[axis], [*facts, int(torch.is_grad_enabled()), step, drawn]


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _all_gather(numbers: list[int], group: Any, slabs: Slabs) -> list[list[int]]:
    own = torch.tensor(numbers, device=slabs.mesh.device_type)
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, own, group=group)
    return torch.stack(rows).tolist()


def _difference(rows: list[list[int]]) -> str | None:
    """Return a message about the first difference between the processes of a context group, or None."""
    wrong = [rank for rank, row in enumerate(rows) if row[0]]
    if wrong:
        return f"process {wrong[0]} of the context group was given a wrong input; see its own error"
    for i, name in enumerate(_NAMES):
        values = [row[i] for row in rows]
        if len(set(values)) > 1:
            got = f", got {values}" if name in ("axes", "batch", "channels", "height", "depth") else ""
            return f"{_RULES[name]} of a context group{got}" if name != "random" else _RULES[name]
    return None
