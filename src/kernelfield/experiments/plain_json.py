"""Standard JSON with a checksum, in which all numbers are finite."""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from .._atomic import write_text
from ..data.io.files import decoding, read_bytes

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_json", "to_json", "write_json"]

#: key of the checksum over all other values
CHECKSUM = "sha256"


def to_json(value: Any, indent: int | None = None) -> str:
    """Return ``value`` as JSON, with null for numbers that are infinite or NaN.

    Args:
        value: nested mappings and lists of plain values.
        indent: of nested values; everything is on one line if not given.

    >>> to_json({"auc": float("nan"), "accuracy": 0.5})
    '{"auc": null, "accuracy": 0.5}'
    """
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def write_json(path: Path, value: dict[str, Any], indent: int | None = 2) -> Path:
    """Write a mapping as JSON, atomically and with a checksum, and return the path.

    Args:
        path: file to write.
        value: as of :func:`to_json`; its keys are texts.
        indent: of nested values.
    """
    plain = json.loads(to_json(value))
    return write_text(path, to_json({**plain, CHECKSUM: _digest(plain)}, indent) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file, compared with its checksum if it has one.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "result.json"
    >>> read_json(write_json(path, {"accuracy": 0.5}))
    {'accuracy': 0.5}
    >>> _ = path.write_text(path.read_text().replace("0.5", "0.7"))
    >>> read_json(path)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: ...result.json is damaged: its content does not match its checksum
    """
    with decoding(path, "a whole JSON file"):
        value = json.loads(read_bytes(path), parse_constant=_refuse_constant)
        if not isinstance(value, dict):
            raise ValueError(f"{path} must hold a JSON object, found {type(value).__name__}")  # noqa: TRY004
        expected = value.pop(CHECKSUM, None)
        if expected is not None and expected != _digest(value):
            raise ValueError(f"{path} is damaged: its content does not match its checksum")
    return value


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"the number {name}")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
