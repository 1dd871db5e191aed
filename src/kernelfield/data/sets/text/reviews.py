"""The task Text of the Long Range Arena: film reviews, byte by byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ...._arguments import checked
from ...._kinds import Choice, Int
from ...base import Data, Split
from ...io.files import fetch, folder, open_file
from ...transforms.batch import AsFloat, AsTokens, as_values
from ...transforms.split import hold_out

if TYPE_CHECKING:
    import os
    from pathlib import Path

__all__ = ["imdb"]

ARCHIVE = ("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz", "md5:7c2ac02c03563afcf9b574c7e56c153a")
CLASSES = ("neg", "pos")


@checked(form=Choice("tokens", "values"), validation=Int(0))
def imdb(
    root: str | os.PathLike[str] | None,
    *,
    download: bool = False,
    length: int = 4096,
    form: str = "tokens",
    validation: int = 0,
    seed: int = 0,
) -> Data:
    """Return film reviews as bytes, to classify as positive or negative: 25,000 for training and 25,000 for testing.

    Source: https://ai.stanford.edu/~amaas/data/sentiment/ (Maas et al., 2011), folders ``train`` and ``test`` with
    folders ``neg`` and ``pos`` of text files, in ``root`` or ``root/aclImdb``. Licence: none is stated.
    Split: the published one. Normalisation: none.

    Args:
        root: folder of the files.
        download: whether to download missing files into ``root``, with a checksum; needs the extra ``data``.
        length: bytes per review; longer reviews are cut off, shorter ones padded with zeros and masked.
        form: "tokens" gives token ids, for an embedding; "values" gives the ids as numbers in one channel, padded on
            the left and without a mask, as in the published code of chapter 3.
        validation: number of training reviews to hold out; 0 trains on all reviews.
        seed: seed of the validation split.

    Returns:
        Token ids (n, length), stored as bytes, with mask (n, length), or values (n, 1, length); classes (n,): "neg" or
        "pos".
    """
    if download:
        fetch(root, [ARCHIVE], unless=["aclImdb/train/pos", "aclImdb/test/pos"], unpack=True)
    where = folder(root, "the film reviews", "aclImdb")
    tokens, mask, labels = _read(where / "train", length)
    train, held = hold_out(labels, validation, seed)
    splits = [_split(tokens[i], mask[i], labels[i], form) for i in (train, held)]
    splits.append(_split(*_read(where / "test", length), form))
    vocabulary = 256 if form == "tokens" else None
    return Data.from_splits("imdb", splits, size=(length,), classes=CLASSES, vocabulary=vocabulary)


def _split(tokens: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor, form: str) -> Split:
    if form == "values":
        return Split(as_values(tokens, mask), labels, prepare=AsFloat())
    return Split(tokens, labels, mask=mask, prepare=AsTokens())


def _read(where: Path, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return bytes (n, length), a mask that is False at the padding, and classes."""
    paths = [(path, label) for label, name in enumerate(CLASSES) for path in sorted((where / name).glob("*.txt"))]
    for name in CLASSES:
        if not any(path.parent.name == name for path, _ in paths):
            raise ValueError(f"{where / name} must hold reviews as text files, found none")
    tokens = np.zeros((len(paths), length), dtype=np.uint8)
    sizes = np.zeros(len(paths), dtype=np.int64)
    for i, (path, _) in enumerate(paths):
        with open_file(path) as file:
            text = file.read(length)
        if not text:
            raise ValueError(f"{path} must hold a review, found an empty file")
        tokens[i, : len(text)] = np.frombuffer(text, dtype=np.uint8)
        sizes[i] = len(text)
    mask = torch.arange(length) < torch.from_numpy(sizes)[:, None]
    return torch.from_numpy(tokens), mask, torch.tensor([label for _, label in paths])
