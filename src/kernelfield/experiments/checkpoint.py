"""Checkpoints: tensors as safetensors, values as JSON, and checksums. Writes are atomic; reading runs no code."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._files import flush
from ..data.io.files import open_file, read_bytes, read_lines

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "CheckpointMismatch",
    "check_weights",
    "describe_difference",
    "gather",
    "latest_checkpoint",
    "load_network",
    "optimizer_tensors",
    "read_checkpoint",
    "remove_checkpoints",
    "restore_optimizer",
    "restore_replaced",
    "shard",
    "to_host",
    "write_checkpoint",
]

TENSORS, VALUES = "tensors.safetensors", "values.json"
#: file of the checksums of both, in the format of ``sha256sum``
CHECKSUMS = "sha256.txt"
#: version of the format; version 1 had no checksums
FORMAT = 2
#: ending of the name of a checkpoint while a new one of the same name replaces it
_REPLACED = ".replaced"


def gather(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return sharded tensors in full and other values unchanged. Every process must call this."""
    return {key: t.full_tensor() if hasattr(t, "full_tensor") else t for key, t in tensors.items()}


def shard(tensors: dict[str, Tensor], like: dict[str, Any]) -> dict[str, Tensor]:
    """Return each tensor sharded over processes like the tensor of the same name in ``like``."""
    sharded = {key for key, t in like.items() if hasattr(t, "full_tensor")}
    return {key: _distribute(t, like[key]) if key in sharded else t for key, t in tensors.items()}


def _distribute(tensor: Tensor, like: Any) -> Tensor:
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


class CheckpointMismatch(ValueError):  # noqa: N818
    """A checkpoint does not belong to the network that should load it."""


def write_checkpoint(folder: Path, name: str, tensors: dict[str, Tensor], values: dict[str, Any]) -> Path:
    """Write a checkpoint and return its folder, ``folder/name``.

    The files are written to a temporary folder, which is then renamed. If the process is killed or the disk is full,
    earlier checkpoints stay intact and no partial one remains.

    Args:
        folder: folder of all checkpoints.
        name: name of this checkpoint.
        tensors: tensors by name; they are copied to the CPU.
        values: values that JSON can hold.
    """
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.torch import save_file  # noqa: PLC0415

    final, draft = folder / name, folder / f".{name}.{secrets.token_hex(6)}"
    folder.mkdir(parents=True, exist_ok=True)
    draft.mkdir()
    try:
        try:
            save_file(to_host(tensors), draft / TENSORS)
        except SafetensorError as error:
            raise OSError(f"the checkpoint at {final} cannot be written: {error}") from error
        (draft / VALUES).write_text(json.dumps({"format": FORMAT, **values}, indent=1), encoding="utf-8")
        sums = [f"{_digest(draft / file)}  {file}\n" for file in (TENSORS, VALUES)]
        (draft / CHECKSUMS).write_text("".join(sums), encoding="utf-8")
        for path in (draft / TENSORS, draft / VALUES, draft / CHECKSUMS, draft):
            flush(path)
        if final.exists():
            final.replace(folder / f".{name}{_REPLACED}")
        draft.replace(final)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    flush(folder)
    shutil.rmtree(folder / f".{name}{_REPLACED}", ignore_errors=True)
    return final


def restore_replaced(folder: Path) -> None:
    """Move back the checkpoint that a killed process was about to replace, and remove its partial files."""
    for path in folder.glob(f".*{_REPLACED}"):
        final = folder / path.name.removeprefix(".").removesuffix(_REPLACED)
        if final.exists():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.replace(final)
    for path in folder.glob(".*"):
        shutil.rmtree(path, ignore_errors=True)


def to_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors on the CPU that share no memory.

    GPU tensors are concatenated and copied at once, because each separate copy would wait for the device.

    >>> weight = torch.eye(2)
    >>> to_host({"a": weight, "tied": weight})["tied"]
    tensor([[1., 0.],
            [0., 1.]])
    """
    # safetensors refuses tensors that share memory, such as tied embeddings, so each tensor is cloned.
    host = {key: t.detach().contiguous().clone() for key, t in tensors.items() if t.device.type == "cpu"}
    others = {key: t.detach() for key, t in tensors.items() if key not in host}
    for kind in {(t.device, t.dtype) for t in others.values()}:
        host |= _copied_together({key: t for key, t in others.items() if (t.device, t.dtype) == kind})
    return {key: host[key] for key in tensors}


def _copied_together(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors of the same device and dtype to the CPU at once."""
    flat = torch.cat([t.reshape(-1) for t in tensors.values()]).cpu()
    parts = flat.split([t.numel() for t in tensors.values()])
    return {key: part.clone().view(t.shape) for (key, t), part in zip(tensors.items(), parts, strict=True)}


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a checkpoint, on the CPU, and its values; a ValueError names a damaged file."""
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.torch import load_file  # noqa: PLC0415

    try:
        checked = _check_sums(path)
        values = json.loads(read_bytes(path / VALUES))
        with open_file(path / TENSORS):  # refuses a pipe
            pass
        tensors = load_file(path / TENSORS)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no checkpoint at {path}: {Path(error.filename or '').name} is missing") from error
    except (SafetensorError, RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"the checkpoint at {path} is damaged: {error}") from error
    form = values.get("format") if isinstance(values, dict) else None
    if form not in (1, FORMAT):
        raise ValueError(f"the checkpoint at {path} has format {form}, but this version reads only 1 and {FORMAT}")
    if form == FORMAT and not checked:
        raise ValueError(f"the checkpoint at {path} is damaged: {CHECKSUMS} is missing")
    return tensors, values


def _check_sums(path: Path) -> bool:
    """Compare the files of a checkpoint with their checksums; return whether the checkpoint has checksums."""
    if not (path / CHECKSUMS).exists():
        return False
    lines = [line.split() for line in read_lines(path / CHECKSUMS)]
    if [line[1:] for line in lines] != [[TENSORS], [VALUES]]:
        raise ValueError(f"{path / CHECKSUMS} is damaged: it must list {TENSORS} and {VALUES}")
    for expected, name in lines:
        if _digest(path / name) != expected:
            raise ValueError(f"{path / name} is damaged: it does not match its checksum in {CHECKSUMS}")
    return True


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open_file(path) as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def latest_checkpoint(folder: Path, kind: str = "step") -> Path | None:
    """Return the checkpoint ``kind-N`` with the largest step N; None if there is none."""
    found = [p for p in folder.glob(f"{kind}-*") if (p / TENSORS).exists() and (p / VALUES).exists()]
    return max(found, key=_step, default=None)


def remove_checkpoints(folder: Path, kind: str, *, keep: int = 0, above: int | None = None) -> None:
    """Remove all but the last ``keep`` checkpoints of a kind, or all after step ``above``, and all partial ones."""
    found = sorted(folder.glob(f"{kind}-*"), key=_step)
    removed = [p for p in found if _step(p) > above] if above is not None else found[: len(found) - keep]
    for path in removed:
        # Rename the folder first: if the process is killed here, no partial checkpoint has a valid name.
        path.replace(folder / f".{path.name}.{secrets.token_hex(6)}")
    for path in folder.glob(f".{kind}-*"):
        shutil.rmtree(path, ignore_errors=True)


def describe_difference(have: dict[str, Tensor], want: dict[str, Tensor], most: int = 8) -> str:
    """Return the differences between the tensors of a checkpoint and of a network, one per line; "" if there are none.

    >>> one = torch.zeros(1)
    >>> print(describe_difference({"a": torch.zeros(2), "b": one}, {"a": torch.zeros(3), "c": one}))
      a: (2,) in the checkpoint, (3,) in the network
      b: only in the checkpoint
      c: only in the network
    """
    lines = []
    for name in sorted({*have, *want}):
        if name not in want:
            lines.append(f"  {name}: only in the checkpoint")
        elif name not in have:
            lines.append(f"  {name}: only in the network")
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
    check_weights(have, where)
    network.load_state_dict(shard(have, want))


def check_weights(tensors: dict[str, Tensor], where: object) -> None:
    """Raise a ValueError if a tensor holds a value that is infinite or NaN.

    >>> check_weights({"bias": torch.tensor([0.0, float("nan")])}, "runs/a")
    Traceback (most recent call last):
    ValueError: the checkpoint at runs/a must hold finite weights, found NaN or infinity in bias
    """
    wrong = [name for name, t in tensors.items() if t.is_floating_point() and not bool(torch.isfinite(t).all())]
    if wrong:
        shown = ", ".join(wrong[:4]) + (", …" if len(wrong) > 4 else "")
        raise ValueError(f"the checkpoint at {where} must hold finite weights, found NaN or infinity in {shown}")


def optimizer_tensors(network: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the plain values of an optimiser's state, by parameter name."""
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
    """Load a state by parameter name into an optimiser, with each tensor on the device that the optimiser expects."""
    parameters = dict(network.named_parameters())
    for full, value in (*tensors.items(), *values.items()):
        _, key, name = full.split(".", 2)
        if name not in parameters:
            raise CheckpointMismatch(
                f"the checkpoint has {key} of {name} in its optimiser, but the network has no {name}"
            )
        parameter = parameters[name]
        # Adam keeps its step count on the CPU unless it is fused or capturable; other tensors are with the weights.
        on_device = optimizer.defaults.get("fused") or optimizer.defaults.get("capturable")
        moves = isinstance(value, torch.Tensor) and (value.dim() > 0 or on_device)
        there = value.to(parameter.device) if moves else value
        if moves and there.shape == parameter.shape and hasattr(parameter, "full_tensor"):
            there = _distribute(there, parameter)
        optimizer.state[parameter][key] = there


def _step(path: Path) -> int:
    digits = path.name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1
