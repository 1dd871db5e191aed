"""Checkpoints: tensors as safetensors, the rest as JSON; written at once or not at all, read without running code."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "CheckpointMismatch",
    "describe_difference",
    "latest_checkpoint",
    "load_network",
    "optimizer_tensors",
    "read_checkpoint",
    "restore_optimizer",
    "shared_like",
    "whole",
    "write_checkpoint",
]

TENSORS, VALUES = "tensors.safetensors", "values.json"
FORMAT = 1


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor of which processes hold a share each as a whole; all of them must ask."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shared_like(tensor: Tensor, other: Any) -> Tensor:
    """Return ``tensor`` divided among processes as ``other`` is."""
    if not hasattr(other, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415

    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)


class CheckpointMismatch(ValueError):  # noqa: N818
    """A checkpoint was made by another network than the one that should take it up."""


def write_checkpoint(folder: Path, name: str, tensors: dict[str, Tensor], values: dict[str, Any]) -> Path:
    """Write a checkpoint and return its folder, ``folder/name``.

    It is written beside its place and renamed, so that whoever is killed meanwhile leaves the former ones as they were
    and no half of a new one.

    Args:
        folder: of all checkpoints.
        name: of this one.
        tensors: by name; copied to the CPU.
        values: anything JSON holds.
    """
    from safetensors.torch import save_file  # noqa: PLC0415

    final, draft = folder / name, folder / f".{name}.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    # A clone of each: tensors that share memory, such as a tied embedding, are stored once per name.
    host = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    save_file(host, draft / TENSORS)
    (draft / VALUES).write_text(json.dumps({"format": FORMAT, **values}, indent=1))
    for path in (draft / TENSORS, draft / VALUES, draft):
        _flush(path)
    shutil.rmtree(final, ignore_errors=True)
    draft.replace(final)
    _flush(folder)
    return final


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors, on the CPU, and the values of a checkpoint."""
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.torch import load_file  # noqa: PLC0415

    try:
        values = json.loads((path / VALUES).read_text())
        tensors = load_file(path / TENSORS)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no checkpoint at {path}: {Path(error.filename or '').name} is missing") from error
    except (ValueError, SafetensorError) as error:
        raise ValueError(f"the checkpoint at {path} cannot be read: {error}") from error
    if values.get("format") != FORMAT:
        raise ValueError(f"the checkpoint at {path} has format {values.get('format')}, this version reads {FORMAT}")
    return tensors, values


def latest_checkpoint(folder: Path, kind: str = "step") -> Path | None:
    """Return the checkpoint of the highest step, of names ``kind-step``; None if there is none."""
    found = [p for p in folder.glob(f"{kind}-*") if (p / TENSORS).exists() and (p / VALUES).exists()]
    return max(found, key=_step, default=None)


def remove_checkpoints(folder: Path, kind: str, *, keep: int = 0, above: int | None = None) -> None:
    """Remove all but the last ``keep`` checkpoints of a kind, or all above a step; and what was never finished."""
    found = sorted(folder.glob(f"{kind}-*"), key=_step)
    gone = [p for p in found if _step(p) > above] if above is not None else found[: len(found) - keep]
    for path in (*gone, *folder.glob(f".{kind}-*")):
        shutil.rmtree(path, ignore_errors=True)


def describe_difference(have: dict[str, Tensor], want: dict[str, Tensor], most: int = 8) -> str:
    """Return what differs between the tensors of a checkpoint and those of a network, one line each; "" if nothing.

    >>> one = torch.zeros(1)
    >>> print(describe_difference({"a": torch.zeros(2), "b": one}, {"a": torch.zeros(3), "c": one}))
      a: (2,) in the checkpoint, (3,) in the network
      b: in the checkpoint alone
      c: in the network alone
    """
    lines = []
    for name in sorted({*have, *want}):
        if name not in want:
            lines.append(f"  {name}: in the checkpoint alone")
        elif name not in have:
            lines.append(f"  {name}: in the network alone")
        elif have[name].shape != want[name].shape:
            lines.append(
                f"  {name}: {tuple(have[name].shape)} in the checkpoint, {tuple(want[name].shape)} in the network"
            )
    rest = len(lines) - most
    return "\n".join(lines[:most] + ([f"  and {rest} more"] if rest > 0 else []))


def load_network(network: nn.Module, tensors: dict[str, Tensor], where: object, prefix: str = "network.") -> None:
    """Load the tensors named ``prefix…`` into a network, or raise :class:`CheckpointMismatch` with the difference."""
    have = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    want = network.state_dict()
    difference = describe_difference(have, want)
    if difference:
        raise CheckpointMismatch(f"the checkpoint at {where} is of another network:\n{difference}")
    network.load_state_dict({name: shared_like(value, want[name]) for name, value in have.items()})


def optimizer_tensors(network: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the state of an optimiser by the names of the parameters: tensors, and plain values."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for name, parameter in network.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            target = tensors if isinstance(value, torch.Tensor) else values
            target[f"optimizer.{key}.{name}"] = whole(value) if isinstance(value, torch.Tensor) else value
    return tensors, values


def restore_optimizer(
    network: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], values: dict[str, Any]
) -> None:
    """Put a state by names back into an optimiser, each tensor where the optimiser would have it."""
    parameters = dict(network.named_parameters())
    for full, value in (*tensors.items(), *values.items()):
        _, key, name = full.split(".", 2)
        if name not in parameters:
            raise CheckpointMismatch(f"the checkpoint holds the optimiser's {key} of {name}, which is no parameter")
        parameter = parameters[name]
        # Adam counts its steps on the CPU unless it is fused or captured; all else lies where the weights do.
        on_device = optimizer.defaults.get("fused") or optimizer.defaults.get("capturable")
        moves = isinstance(value, torch.Tensor) and (value.dim() > 0 or on_device)
        there = value.to(parameter.device) if moves else value
        if moves and there.shape == parameter.shape:
            there = shared_like(there, parameter)
        optimizer.state[parameter][key] = there


def _step(path: Path) -> int:
    digits = path.name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1


def _flush(path: Path) -> None:
    """Have the system write what it holds back."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
