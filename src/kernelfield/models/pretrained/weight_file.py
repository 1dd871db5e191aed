"""Weight files: safetensors files with the tensors and a description of a network. Reading one executes no code."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..._files import write_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

__all__ = [
    "ENTRIES",
    "SUFFIX",
    "description_digest",
    "import_safetensors",
    "read_description",
    "read_weight",
    "tensor_digest",
    "write_weight",
]

SUFFIX = ".safetensors"
#: key of the description in the file's metadata
KEY = "kernelfield"
FORMAT = 1
#: entries that every description has, and their types
ENTRIES: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "model": str,
    "arguments": dict,
    "task": str,
    "classes": list,
    "recipe": dict,
    "preprocessing": (dict, type(None)),
    "score": dict,
    "training": dict,
    "version": str,
}


def import_safetensors() -> Any:
    """Return the package ``safetensors`` with its module ``torch``, or raise an error that says how to install it."""
    try:
        import safetensors.torch  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "pretrained weights need safetensors, which is not installed: pip install 'kernelfield[hub]'",
            name="safetensors",
        ) from error
    return safetensors


def write_weight(path: str | Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> Path:
    """Write a weight file atomically and return its path.

    Args:
        path: file to write, NAME.TAG.safetensors.
        tensors: the state of the network by name; they are copied to the CPU.
        description: the entries of ``ENTRIES`` and any others, as JSON values. The function adds a format number and a
            checksum over the description and the tensors.

    >>> import tempfile
    >>> entries = {"name": "a.b", "model": "a", "arguments": {}, "task": "classification", "classes": ["x", "y"],
    ...            "recipe": {}, "preprocessing": None, "score": {}, "training": {}, "version": "0.1.0"}
    >>> path = Path(tempfile.mkdtemp()) / "a.b.safetensors"
    >>> description, tensors = read_weight(write_weight(path, {"bias": torch.zeros(2)}, entries))
    >>> description["classes"], tensors
    (['x', 'y'], {'bias': tensor([0., 0.])})
    """
    path = Path(path)
    held = json.loads(json.dumps({**description, "format": FORMAT}, allow_nan=False))
    _check_entries(held, path.name)
    # safetensors rejects tensors that share memory, such as those of a kernel network that all layers use.
    copies = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    held["sha256"] = description_digest(held, copies)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"format": "pt", KEY: json.dumps(held)}
    return write_bytes(path, import_safetensors().torch.save(copies, metadata))


def read_description(path: str | Path) -> dict[str, Any]:
    """Return the description in a weight file without reading its tensors; the checksum is not compared.

    Args:
        path: a file of :func:`write_weight`.
    """
    with _open(Path(path)) as file:
        return _parse(file.metadata(), Path(path))


def read_weight(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the description and the tensors of a weight file; raise a ValueError if it is damaged.

    Args:
        path: a file of :func:`write_weight`.
    """
    path = Path(path)
    with _open(path) as file:
        description = _parse(file.metadata(), path)
        names = file.keys()
        tensors = {name: file.get_tensor(name) for name in names}
    if description.get("sha256") != description_digest(description, tensors):
        raise ValueError(f"{path.name} is damaged: it does not match its checksum ({path})")
    return description, tensors


def _open(path: Path) -> Any:
    module = import_safetensors()
    if not path.is_file():
        raise FileNotFoundError(f"path must be a weight file, got {path}, which is not a file")
    try:
        return module.safe_open(path, framework="pt")
    except module.SafetensorError as error:
        raise ValueError(f"{path.name} is damaged: {error} ({path})") from error


def _parse(metadata: dict[str, str] | None, path: Path) -> dict[str, Any]:
    text = (metadata or {}).get(KEY)
    if text is None:
        raise ValueError(f"{path.name} must be a weight file of kernelfield, got metadata without {KEY!r} ({path})")
    try:
        description = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged: {error} ({path})") from error
    form = description.get("format") if isinstance(description, dict) else None
    if form != FORMAT:
        raise ValueError(f"{path.name} has format {form!r}, this version reads {FORMAT} ({path})")
    _check_entries(description, path.name)
    return description


def _check_entries(description: dict[str, Any], where: str) -> None:
    for name, kind in ENTRIES.items():
        if name not in description or not isinstance(description[name], kind):
            found = "nothing" if name not in description else type(description[name]).__name__
            nouns = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
            raise ValueError(f"{where}: {name} of the description must be {nouns}, got {found}")


def description_digest(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over the description, without its own checksum, and the tensors in order of their names."""
    plain = {key: value for key, value in description.items() if key != "sha256"}
    return _add_tensors(hashlib.sha256(json.dumps(plain, sort_keys=True).encode()), tensors)


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over the names, shapes and values of tensors."""
    return _add_tensors(hashlib.sha256(), tensors)


def _add_tensors(digest: Any, tensors: Mapping[str, Tensor]) -> str:
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
