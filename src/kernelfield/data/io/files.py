"""Files of a data set: finding, reading, and downloading them with a checksum."""

from __future__ import annotations

import gzip
import importlib
import shutil
import tarfile
import zlib
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

__all__ = ["MISSING", "fetch", "find", "folder", "number", "read_bytes", "read_lines", "time_of", "untar"]

#: lower-case signs of a missing value
MISSING = ("", "?", "nan", "na", "null", "none")


def folder(root: str | os.PathLike[str] | None, name: str, *inside: str) -> Path:
    """Return the first of ``root / inside`` that is a folder, or ``root`` itself.

    Args:
        root: folder given by the user.
        name: name of the data set, for errors.
        inside: where in ``root`` the files may lie, as other tools put them; "a/b" for a folder in a folder.
    """
    if root is None:
        raise ValueError(f"root must be the folder that holds {name}, got None")
    path = Path(root).expanduser()
    if not path.is_dir():
        raise ValueError(f"root must be the folder that holds {name}, got {path}, which is no folder")
    return next((path / sub for sub in inside if (path / sub).is_dir()), path)


def find(where: Path, names: Sequence[str], what: str) -> Path:
    """Return the first file of ``names`` in ``where``; if there is none, name what is there in the error."""
    for name in names:
        if (where / name).is_file():
            return where / name
    there = sorted(p.name for p in where.iterdir())
    shown = ", ".join(there[:8]) + (", …" if len(there) > 8 else "") if there else "nothing"
    raise ValueError(f"{where} must hold {what} ({' or '.join(names)}), found {shown}")


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, decompressed if its name ends in ``.gz``."""
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a whole gzip file, found a broken one: {error}") from error


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file in UTF-8."""
    try:
        return read_bytes(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8, found bytes that are not: {error}") from error


def number(text: str, path: Path, line: int, what: str) -> float:
    """Return ``text`` as a number; NaN for the usual signs of a missing value."""
    text = text.strip()
    if text.lower() in MISSING:
        return float("nan")
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{path}, line {line}: expected a number for {what}, found {text!r}") from None


def time_of(text: str, path: Path, line: int) -> float:
    """Return a time: a number, or the seconds of a date such as 2007-01-31 or 2007-01-31 12:00:00."""
    try:
        date = datetime.fromisoformat(text.strip())
    except ValueError:
        return number(text, path, line, "a time")
    return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()


def fetch(
    root: str | os.PathLike[str] | None,
    files: Iterable[tuple[str, str]],
    *,
    unless: Sequence[str] = (),
    unpack: bool = False,
) -> None:
    """Download files into ``root`` with pooch, unless they are there already with the right checksum.

    Args:
        root: folder to put them in, made if it does not exist.
        files: address and checksum ("md5:…" or "sha256:…") of each file.
        unless: files in ``root``; nothing is downloaded if all of them exist.
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
    """Unpack the files of a tar archive into ``where``, without links; files outside of it are refused."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                target = (where / member.name).resolve()
                content = tar.extractfile(member) if member.isfile() else None
                if content is None:
                    continue
                if not target.is_relative_to(where.resolve()):
                    raise ValueError(f"{archive} must hold files of its own folder, found {member.name!r}")
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as file:
                    shutil.copyfileobj(content, file)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise ValueError(f"{archive} must be a whole tar archive, found a broken one: {error}") from error
