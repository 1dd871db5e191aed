"""A lock on a folder: two runs must not write to the same one."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where folders are not locked
    fcntl = None  # type: ignore[assignment]

__all__ = ["FolderLock"]


class FolderLock:
    """An exclusive lock on a folder. The system releases it when the process ends, however it ends.

    Args:
        folder: the folder; :meth:`acquire` makes it.

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

    def acquire(self) -> None:
        """Lock the folder, or raise at once if it is locked. A second call does nothing."""
        if self._file is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        file = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise BlockingIOError(f"out must be a folder that no other run is writing to, got {self.folder}") from None
        except OSError:  # a file system without locks
            with contextlib.suppress(OSError):
                os.close(file)
            return
        self._file = file

    def release(self) -> None:
        """Release the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
