"""Functions that find, open and read the files of a data set within limits, and download them with a checksum.

The limits bound the memory that an unpacked file may take, and the length and depth of a recipe. Every limit has an
environment variable that raises it.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import importlib
import io
import os
import re
import shutil
import stat
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..._files import atomic_write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "MAX_BYTES",
    "VARIABLE",
    "check_size",
    "decoding",
    "fetch",
    "find",
    "find_visible",
    "folder",
    "is_hidden",
    "max_bytes",
    "max_recipe_bytes",
    "max_recipe_depth",
    "open_file",
    "read_bytes",
    "read_lines",
    "read_table",
    "untar",
]

#: environment variable that replaces the default memory limit
VARIABLE = "KERNELFIELD_MAX_BYTES"
#: default memory limit: 4 GiB
MAX_BYTES = 4 * 2**30
#: limits of recipes: environment variables and defaults
RECIPE_BYTES, RECIPE_DEPTH = ("KERNELFIELD_MAX_RECIPE_BYTES", 2**20), ("KERNELFIELD_MAX_RECIPE_DEPTH", 12)
#: deeper nesting would exhaust Python's stack
DEEPEST = 200
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

_CHUNK = 2**20


def folder(root: str | os.PathLike[str] | None, name: str, *inside: str) -> Path:
    """Return the first of ``root / inside`` that is a folder, or ``root`` itself.

    Args:
        root: folder given by the user.
        name: name of the data set, for errors.
        inside: subfolders of ``root`` in which other tools put the files, such as "a/b".
    """
    if root is None:
        raise ValueError(f"root must be the folder that holds {name}, got None")
    path = Path(root).expanduser()
    if not path.is_dir():
        raise ValueError(f"root must be the folder that holds {name}, got {path}, which is not a folder")
    return next((path / sub for sub in inside if (path / sub).is_dir()), path)


def find(where: Path, names: Sequence[str], what: str) -> Path:
    """Return the first of ``names`` that exists in ``where``; the error lists the files found instead."""
    for name in names:
        if (where / name).is_file():
            return where / name
    there = sorted(p.name for p in where.iterdir())
    shown = ", ".join(there[:8]) + (", …" if len(there) > 8 else "") if there else "nothing"
    raise ValueError(f"{where} must hold {what} ({' or '.join(names)}), found {shown}")


def find_visible(where: Path, endings: Sequence[str] | None = None) -> list[Path]:
    """Return the files in a folder and its folders whose names end in one of ``endings``, by default all, sorted.

    Hidden files and folders are skipped: copies of editors (``.ipynb_checkpoints``) and of archives (``__MACOSX``)
    would otherwise count as samples, or as a class.
    """
    found = (path for path in where.rglob("*") if endings is None or path.suffix.lower() in endings)
    shown = (path for path in found if not any(map(is_hidden, path.relative_to(where).parts)))
    return sorted(path for path in shown if path.is_file())


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name is hidden."""
    return name.startswith(".") or name == "__MACOSX"


class _File(io.BufferedReader):
    """An open file. A read allocates at most the bytes that are left in the file, whatever a header declares."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _CHUNK:
            size = min(size, max(0, os.fstat(self.fileno()).st_size - self.tell()))
        return super().read(size)


@contextlib.contextmanager
def open_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a regular file for reading bytes.

    A pipe or a device is refused at once, since reading it may never end.

    >>> with open_file("/dev/zero") as file:
    ...     pass
    Traceback (most recent call last):
    ValueError: /dev/zero must be a regular file, found a device
    """
    # Opened without waiting: a pipe that nobody writes to would block here.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
        raise ValueError(f"{path} must be a regular file, found {kinds.get(stat.S_IFMT(mode), 'a device')}")
    with _File(io.FileIO(handle)) as file:
        yield file


@contextlib.contextmanager
def decoding(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Turn any error of a decoder into a ValueError that names the file.

    Damaged bytes make decoders fail in many ways. Errors that already name the file, a missing module and a lack of
    memory pass unchanged.

    Args:
        path: the file.
        what: description of a valid file, such as "a complete image".

    >>> with decoding("a.png", "a complete image"):
    ...     raise IndexError("no such row")
    Traceback (most recent call last):
    ValueError: a.png must be a complete image, but is damaged: no such row
    """
    try:
        yield
    except (ModuleNotFoundError, MemoryError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path} must be {what}, but is damaged: {reason}") from error


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file, decompressed if its name ends in ``.gz``."""
    with open_file(path) as file:
        if path.suffix != ".gz":
            return file.read()
        stored, whole = os.fstat(file.fileno()).st_size, io.BytesIO()
        with decoding(path, "a complete gzip file"), gzip.GzipFile(fileobj=file) as packed:
            while part := packed.read(_CHUNK):
                whole.write(part)
                check_size(path, whole.tell(), stored)
        return whole.getvalue()


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 text file; a line ends in a line feed, a carriage return, or both."""
    try:
        whole = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8 text: {error}") from error
    lines = whole.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def read_table(path: Path, delimiter: str = ",") -> list[list[str]]:
    """Return the rows of a CSV file; an empty line is an empty row.

    A quotation mark that opens a cell must close it too. Otherwise the cell would swallow the lines up to the next one.
    """
    rows = csv.reader([f"{line}\n" for line in read_lines(path)], delimiter=delimiter, strict=True)
    try:
        return list(rows)
    except csv.Error as error:
        raise ValueError(f"{path}, up to line {rows.line_num}: expected cells of a table: {error}") from error


def fetch(
    root: str | os.PathLike[str] | None,
    files: Iterable[tuple[str, str]],
    *,
    unless: Sequence[str] = (),
    unpack: bool = False,
) -> None:
    """Download files into ``root`` with pooch, unless they are there already with the right checksum.

    Args:
        root: folder for the files, created if it does not exist.
        files: address and checksum ("md5:…" or "sha256:…") of each file.
        unless: names of files in ``root``; if all of them exist, nothing is downloaded.
        unpack: whether they are tar archives to unpack into ``root``.
    """
    if root is None:
        raise ValueError("root must be the folder to download to, got None")
    path = Path(root).expanduser()
    if unless and all((path / name).exists() for name in unless):
        return
    try:
        pooch: Any = importlib.import_module("pooch")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("download=True needs pooch: pip install 'kernelfield[data]'", name="pooch") from error
    path.mkdir(parents=True, exist_ok=True)
    for address, checksum in files:
        name = address.rsplit("/", 1)[-1]
        pooch.retrieve(address, known_hash=checksum, fname=name, path=path)
        if unpack:
            untar(path / name, path)


def untar(archive: Path, where: Path) -> None:
    """Unpack the files of a tar archive into ``where``; skip links, and refuse paths outside that folder.

    Each file is written to a draft and moved into place, so a full disk leaves no partial file.
    """
    with open_file(archive) as source, _open_tar(archive, source) as tar:
        while (member := _next_member(archive, tar)) is not None:
            if not member.isfile():
                continue
            target = (where / member.name).resolve()
            if not target.is_relative_to(where.resolve()):
                raise ValueError(f"{archive} must hold files inside its own folder only, found {member.name!r}")
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(target) as draft, draft.open("wb") as file, decoding(archive, "a complete tar archive"):
                content = tar.extractfile(member)
                assert content is not None  # only regular files get here
                shutil.copyfileobj(content, file)


def _open_tar(archive: Path, source: BinaryIO) -> tarfile.TarFile:
    with decoding(archive, "a complete tar archive"):
        return tarfile.open(fileobj=source)


def _next_member(archive: Path, tar: tarfile.TarFile) -> tarfile.TarInfo | None:
    with decoding(archive, "a complete tar archive"):
        return tar.next()


def max_bytes() -> int:
    """Return the number of bytes that one file may unpack to: 4 GiB, or ``KERNELFIELD_MAX_BYTES``, such as ``16G``.

    >>> max_bytes() == MAX_BYTES or VARIABLE in os.environ
    True
    """
    return _bytes(VARIABLE, MAX_BYTES)


def max_recipe_bytes() -> int:
    """Return the largest size of a recipe file in bytes: 1 MiB, or ``KERNELFIELD_MAX_RECIPE_BYTES``."""
    return _bytes(*RECIPE_BYTES)


def max_recipe_depth() -> int:
    """Return the deepest nesting of a recipe: 12 levels, or ``KERNELFIELD_MAX_RECIPE_DEPTH``, at most 200."""
    name, default = RECIPE_DEPTH
    text = os.environ.get(name, str(default)).strip()
    if not re.fullmatch("[0-9]{1,3}", text) or not 1 <= int(text) <= DEEPEST:
        raise ValueError(f"{name} must be an int from 1 to {DEEPEST}, got {text!r}")
    return int(text)


def _bytes(variable: str, default: int) -> int:
    """Return the value of an environment variable that is a number of bytes."""
    text = os.environ.get(variable)
    if text is None:
        return default
    found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", text.strip().upper())
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{variable} must be a number of bytes such as 500M or 16G, got {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def check_size(path: str | Path, needed: int, stored: int = 0) -> None:
    """Raise a ValueError if the data that a file declares exceed the memory limit.

    A file that is larger than the limit may take as many bytes in memory as on disk.

    Args:
        path: the file, and perhaps the line, for the error.
        needed: bytes in memory.
        stored: bytes of the file.
    """
    limit = max_bytes()
    if needed > max(limit, stored):
        raise ValueError(
            f"{path} must take at most {limit:,} bytes in memory, got {needed:,}; set {VARIABLE} to allow more"
        )
