"""The task Retrieval of the Long Range Arena: pairs of papers, byte by byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ...._arguments import checked
from ...base import Data, Split
from ...io.files import find, folder, read_lines
from ...transforms.batch import AsTokens

if TYPE_CHECKING:
    import os
    from pathlib import Path

__all__ = ["retrieval"]

FILES = {part: f"new_aan_pairs.{part}.tsv" for part in ("train", "eval", "test")}
CLASSES = ("unrelated", "cited")


@checked()
def retrieval(root: str | os.PathLike[str] | None, *, length: int = 4000) -> Data:
    """Return pairs of papers as bytes, to classify: does one cite the other?

    Source: the Long Range Arena (Tay et al., 2021), https://github.com/google-research/long-range-arena, files
    ``new_aan_pairs.train.tsv``, ``.eval.tsv`` and ``.test.tsv`` of its archive ``lra_release``, from the ACL Anthology
    Network (Radev et al., 2013), in ``root`` or ``root/lra_release/lra_release/tsv_data``. The archive is large and has
    no checksum, so nothing is downloaded. Licence: none is stated. Split: the published one, 147,086 pairs for
    training, 18,090 for validation and 17,437 for testing. Normalisation: none.

    Args:
        root: folder of the files.
        length: bytes per paper; longer papers are cut off, shorter ones padded with zeros and masked.

    Returns:
        Token ids (n, 2 · length) of two papers, one after the other, stored as bytes, with a mask; classes (n,).
    """
    where = folder(root, "the pairs of papers", "lra_release/lra_release/tsv_data", "tsv_data")
    splits = [_read(find(where, [name], "pairs of papers"), length) for name in FILES.values()]
    return Data.from_splits("lra_retrieval", splits, size=(2 * length,), classes=CLASSES, vocabulary=256)


def _read(path: Path, length: int) -> Split:
    """Return the pairs of a file; a line has a label, two names and two texts, separated by tabs."""
    lines = read_lines(path)
    if not lines:
        raise ValueError(f"{path} must hold pairs of papers, found an empty file")
    tokens, labels = np.zeros((len(lines), 2, length), dtype=np.uint8), []
    sizes = np.zeros((len(lines), 2), dtype=np.int64)
    for i, line in enumerate(lines):
        cells = line.split("\t")
        if len(cells) != 5 or cells[0] not in ("0.0", "1.0", "0", "1"):
            raise ValueError(
                f"{path}, line {i + 1}: expected a label 0.0 or 1.0, two names and two texts, separated by tabs; "
                f"found {len(cells)} cells, the first {cells[0][:20]!r}"
            )
        labels.append(int(float(cells[0])))
        for j, text in enumerate(cells[3:]):
            raw = _text(text).encode("utf-8")[:length]
            tokens[i, j, : len(raw)] = np.frombuffer(raw, dtype=np.uint8)
            sizes[i, j] = len(raw)
    mask = torch.arange(length) < torch.from_numpy(sizes)[..., None]
    return Split(torch.from_numpy(tokens).flatten(1), torch.tensor(labels), mask=mask.flatten(1), prepare=AsTokens())


def _text(cell: str) -> str:
    """Return a text without the quotes, ``"b'…'"``, that the published files put around it."""
    cell = cell.removeprefix('"').removesuffix('"')
    return cell[2:-1] if cell[:2] in ("b'", 'b"') and cell[-1:] == cell[1] else cell
