"""Atomic writing of files, and the library's cache folder.

A reader of a file sees either all of the new version or all of the old one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DRAFT", "VARIABLE", "atomic_write", "cache_folder", "flush", "remove_drafts", "write_bytes", "write_text"]

#: environment variable with the path of the cache folder; "0", "off" or an empty value turns the cache off
VARIABLE = "KERNELFIELD_CACHE"
#: prefix of the names of unfinished files
DRAFT = ".draft-"


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[Path]:
    """Yield the path of an empty draft to write; move it to ``path`` when the block ends.

    If the block raises, the draft is removed and ``path`` stays as it was. A symbolic link at ``path`` is replaced, not
    followed.

    Args:
        path: file to write; its folder must exist.
        durable: whether to flush the draft to disk before it is moved, so that the file also survives a power cut.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with atomic_write(path) as draft:
    ...     _ = draft.write_text("all of it")
    >>> path.read_text(), [p.name for p in path.parent.iterdir()]
    ('all of it', ['a.txt'])
    """
    path = Path(path)
    # Libraries choose a format by the suffix, so the draft keeps it. A random name cannot be an existing link.
    draft = path.with_name(f"{DRAFT}{secrets.token_hex(6)}-{path.name}")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield draft
        if durable:
            flush(draft)
        draft.replace(path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(draft)):
            # The error of a full disk names no file.
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise
    if durable:
        flush(path.parent)


def write_text(path: str | os.PathLike[str], text: str, *, durable: bool = True) -> Path:
    """Write text in UTF-8 with :func:`atomic_write` and return the path."""
    return write_bytes(path, text.encode("utf-8"), durable=durable)


def write_bytes(path: str | os.PathLike[str], content: bytes, *, durable: bool = True) -> Path:
    """Write bytes with :func:`atomic_write` and return the path."""
    with atomic_write(path, durable=durable) as draft:
        draft.write_bytes(content)
    return Path(path)


def remove_drafts(folder: Path) -> None:
    """Remove the drafts that a killed process left in a folder."""
    for draft in folder.glob(f"{DRAFT}*"):
        draft.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cache_folder() -> Path | None:
    """Return the library's cache folder, which may not exist yet, or None if the cache is turned off.

    By default it is ``kernelfield`` in ``XDG_CACHE_HOME``, or in ``~/.cache``.

    >>> from unittest import mock
    >>> with mock.patch.dict(os.environ, {VARIABLE: "/tmp/mine"}):
    ...     str(cache_folder())
    '/tmp/mine'
    >>> with mock.patch.dict(os.environ, {VARIABLE: "off"}):
    ...     cache_folder() is None
    True
    """
    chosen = os.environ.get(VARIABLE)
    if chosen is not None and chosen.strip().lower() in ("", "0", "off"):
        return None
    if chosen is not None:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kernelfield"
