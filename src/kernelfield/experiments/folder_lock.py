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

_NAME = ".lock"


class FolderLock:
    """An exclusive lock on a folder. The system releases it when the process ends, however it ends.

    Args:
        folder: the folder; :meth:`acquire` makes it, and :meth:`release` removes what was made if it is still empty.

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
        #: folders that were made for the lock, the innermost first
        self._made: list[Path] = []

    def acquire(self) -> None:
        """Lock the folder, or raise at once if it is locked. A second call does nothing."""
        while self._file is None:
            missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
            self.folder.mkdir(parents=True, exist_ok=True)
            self._made = missing or self._made
            try:
                # A link in place of the lock is not followed.
                file = os.open(self.folder / _NAME, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
            except FileNotFoundError:
                continue  # another process has just removed the folder that it had made
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
        """Release the lock; remove the folder if nothing but the lock was ever written to it."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            if self._made and [path.name for path in self.folder.iterdir()] == [_NAME]:
                (self.folder / _NAME).unlink()
                for path in self._made:
                    path.rmdir()  # raises if it is not empty
        os.close(self._file)
        self._file = None

    def _is_in_place(self, file: int) -> bool:
        """Whether the locked file still is the one of the folder: another process may have removed it."""
        try:
            return os.path.samestat(os.fstat(file), (self.folder / _NAME).lstat())
        except FileNotFoundError:
            return False

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
