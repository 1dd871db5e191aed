"""Files of a run: a lock on its folder, and JSON with a checksum and only finite numbers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from typing import TYPE_CHECKING, Any

from .._files import write_text
from ..data.io.files import decoding, read_bytes

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FolderLock", "read_json", "to_json", "write_json"]


try:
    import fcntl
except ImportError:  # Windows, where folders are not locked
    fcntl = None  # type: ignore[assignment]


#: key of the checksum over all other values
CHECKSUM = "sha256"
_NAME = ".lock"


class FolderLock:
    """An exclusive lock on a folder. The system releases it when the process ends in any way.

    Args:
        folder: the folder; :meth:`acquire` creates it, and :meth:`release` removes a created folder that is still
            empty.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> with FolderLock(folder) as first:
    ...     first.acquire()
    ...     FolderLock(folder).acquire()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    BlockingIOError: out must be a folder that no other run is writing to, got ...
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: int | None = None
        #: folders that were created for the lock, the innermost first
        self._created: list[Path] = []

    def acquire(self) -> None:
        """Lock the folder; raise a BlockingIOError at once if it is locked. A second call does nothing."""
        while self._file is None:
            missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
            self.folder.mkdir(parents=True, exist_ok=True)
            self._created = missing or self._created
            try:
                # Do not follow a link in place of the lock.
                file = os.open(self.folder / _NAME, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
            except FileNotFoundError:
                continue  # another process has just removed the folder that it had created
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                raise BlockingIOError(
                    f"out must be a folder that no other run is writing to, got {self.folder}"
                ) from None
            except OSError:  # a file system without locks
                with contextlib.suppress(OSError):
                    os.close(file)
                return
            if self._is_in_place(file):
                self._file = file
            else:
                os.close(file)

    def release(self) -> None:
        """Release the lock; remove a created folder that holds nothing but the lock."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            if self._created and [path.name for path in self.folder.iterdir()] == [_NAME]:
                (self.folder / _NAME).unlink()
                for path in self._created:
                    path.rmdir()  # raises if it is not empty
        os.close(self._file)
        self._file = None

    def _is_in_place(self, file: int) -> bool:
        """Return whether the locked file is still in the folder; another process may have removed it."""
        try:
            return os.path.samestat(os.fstat(file), (self.folder / _NAME).lstat())
        except FileNotFoundError:
            return False

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def to_json(value: Any, indent: int | None = None) -> str:
    """Return ``value`` as JSON, with null for numbers that are infinite or NaN.

    Args:
        value: nested mappings and lists of plain values.
        indent: indentation of nested values; None writes one line.

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
        value: see :func:`to_json`; its keys must be strings.
        indent: indentation of nested values.
    """
    plain = json.loads(to_json(value))
    return write_text(path, to_json({**plain, CHECKSUM: _digest(plain)}, indent) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file; compare it with its checksum if it has one.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "result.json"
    >>> read_json(write_json(path, {"accuracy": 0.5}))
    {'accuracy': 0.5}
    >>> _ = path.write_text(path.read_text().replace("0.5", "0.7"))
    >>> read_json(path)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: ...result.json is damaged: its content does not match its checksum
    """
    with decoding(path, "a complete JSON file"):
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
    raise ValueError(f"expected finite numbers, found {name}")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
