"""Checkpoints: tensors as safetensors and values as JSON. Writing is atomic; reading runs no code."""

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
    "gather",
    "latest_checkpoint",
    "load_network",
    "optimizer_tensors",
    "read_checkpoint",
    "restore_optimizer",
    "shard",
    "to_host",
    "write_checkpoint",
]

TENSORS, VALUES = "tensors.safetensors", "values.json"
FORMAT = 1


def gather(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return sharded tensors in full and other values unchanged. Every process must call this."""
    return {key: t.full_tensor() if hasattr(t, "full_tensor") else t for key, t in tensors.items()}


def shard(tensors: dict[str, Tensor], like: dict[str, Any]) -> dict[str, Tensor]:
    """Return each tensor sharded over processes in the same way as the one of its name in ``like``."""
    sharded = {key for key, t in like.items() if hasattr(t, "full_tensor")}
    return {key: _distribute(t, like[key]) if key in sharded else t for key, t in tensors.items()}


def _distribute(tensor: Tensor, like: Any) -> Tensor:
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


class CheckpointMismatch(ValueError):  # noqa: N818
    """A checkpoint does not belong to the network that should load it."""


def write_checkpoint(folder: Path, name: str, tensors: dict[str, Tensor], values: dict[str, Any]) -> Path:
    """Write a checkpoint and return its folder, ``folder/name``.

    The files are written to a temporary folder, which is then renamed. A process that is killed leaves earlier
    checkpoints intact and no partial one.

    Args:
        folder: folder of all checkpoints.
        name: name of this checkpoint.
        tensors: tensors by name; they are copied to the CPU.
        values: values that JSON can hold.
    """
    from safetensors.torch import save_file  # noqa: PLC0415

    final, draft = folder / name, folder / f".{name}.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    save_file(to_host(tensors), draft / TENSORS)
    (draft / VALUES).write_text(json.dumps({"format": FORMAT, **values}, indent=1))
    for path in (draft / TENSORS, draft / VALUES, draft):
        _flush(path)
    shutil.rmtree(final, ignore_errors=True)
    draft.replace(final)
    _flush(folder)
    return final


def to_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors on the CPU, none of which share memory.

    GPU tensors are concatenated and copied at once. Separate copies would each wait for the device.

    >>> weight = torch.eye(2)
    >>> to_host({"a": weight, "tied": weight})["tied"]
    tensor([[1., 0.],
            [0., 1.]])
    """
    # safetensors refuses tensors that share memory, such as tied embeddings: clone each.
    host = {key: t.detach().contiguous().clone() for key, t in tensors.items() if t.device.type == "cpu"}
    others = {key: t.detach() for key, t in tensors.items() if key not in host}
    for kind in {(t.device, t.dtype) for t in others.values()}:
        host |= _copied_together({key: t for key, t in others.items() if (t.device, t.dtype) == kind})
    return {key: host[key] for key in tensors}


def _copied_together(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors of one device and dtype to the CPU at once."""
    flat = torch.cat([t.reshape(-1) for t in tensors.values()]).cpu()
    parts = flat.split([t.numel() for t in tensors.values()])
    return {key: part.clone().view(t.shape) for (key, t), part in zip(tensors.items(), parts, strict=True)}


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a checkpoint, on the CPU, and its values."""
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
    """Return the checkpoint ``kind-N`` with the largest step N; None if there is none."""
    found = [p for p in folder.glob(f"{kind}-*") if (p / TENSORS).exists() and (p / VALUES).exists()]
    return max(found, key=_step, default=None)


def remove_checkpoints(folder: Path, kind: str, *, keep: int = 0, above: int | None = None) -> None:
    """Remove all but the last ``keep`` checkpoints of a kind, or all after step ``above``; and all partial ones."""
    found = sorted(folder.glob(f"{kind}-*"), key=_step)
    gone = [p for p in found if _step(p) > above] if above is not None else found[: len(found) - keep]
    for path in (*gone, *folder.glob(f".{kind}-*")):
        shutil.rmtree(path, ignore_errors=True)


def describe_difference(have: dict[str, Tensor], want: dict[str, Tensor], most: int = 8) -> str:
    """Return the differences between the tensors of a checkpoint and of a network, one per line; "" if there are none.

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
        raise CheckpointMismatch(f"the checkpoint at {where} does not fit the network:\n{difference}")
    network.load_state_dict(shard(have, want))


def optimizer_tensors(network: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the state of an optimiser, tensors and plain values, by parameter name."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for name, parameter in network.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            target = tensors if isinstance(value, torch.Tensor) else values
            target[f"optimizer.{key}.{name}"] = value
    return gather(tensors), values


def restore_optimizer(
    network: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], values: dict[str, Any]
) -> None:
    """Load a state by parameter name into an optimiser, with each tensor on the device the optimiser expects."""
    parameters = dict(network.named_parameters())
    for full, value in (*tensors.items(), *values.items()):
        _, key, name = full.split(".", 2)
        if name not in parameters:
            raise CheckpointMismatch(f"the checkpoint has {key} of {name} in its optimiser, not in the network")
        parameter = parameters[name]
        # Adam keeps its step count on the CPU unless it is fused or capturable; all else is on the weights' device.
        on_device = optimizer.defaults.get("fused") or optimizer.defaults.get("capturable")
        moves = isinstance(value, torch.Tensor) and (value.dim() > 0 or on_device)
        there = value.to(parameter.device) if moves else value
        if moves and there.shape == parameter.shape and hasattr(parameter, "full_tensor"):
            there = _distribute(there, parameter)
        optimizer.state[parameter][key] = there


def _step(path: Path) -> int:
    digits = path.name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1


def _flush(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
