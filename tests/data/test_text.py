"""Text, character by character."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield.data.sets.text.characters import END, ptb, text
from kernelfield.data.sets.text.reviews import imdb

if TYPE_CHECKING:
    from pathlib import Path

    from kernelfield.data import Split


def letters(split: Split, classes: tuple[str, ...]) -> tuple[str, str]:
    batch = split.batch(slice(None))
    assert batch.inputs.dtype == batch.target.dtype == torch.long
    seen = torch.ones_like(batch.inputs, dtype=torch.bool) if batch.mask is None else batch.mask
    read = ["".join(classes[i] for i in ids[seen].tolist()) for ids in (batch.inputs, batch.target)]
    return read[0], read[1]


def test_ptb_of_characters(tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        (tmp_path / f"ptb.char.{part}.txt").write_text(" a b _ c \n d a _ b \n")
    data = ptb(tmp_path, length=3)
    assert data.classes == (END, "_", "a", "b", "c", "d")
    assert data.vocabulary == data.out_channels == 6
    assert data.task == "language"
    whole = f"ab_c{END}da_b{END}"
    given, following = letters(data.test, data.classes)
    assert given == whole.removesuffix(END)
    assert following == whole[1:]
    assert data.train.inputs.shape == (3, 3)  # nine pairs, whole pieces
    assert data.train.mask is None


def test_ptb_of_plain_lines(tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        (tmp_path / f"ptb.{part}.txt").write_text(" no <unk> here \n on it \n")
    data = ptb(tmp_path, length=4)
    given, following = letters(data.validation, data.classes)
    assert following == f"o <unk> here{END}on it{END}"
    assert given[0] == "n"
    assert data.validation.mask.sum() == len("no <unk> here") + 1 + len("on it")
    assert data.train.inputs.shape == (4, 4)


def test_own_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("abcdefghi\n" * 100, encoding="utf-8")
    data = text(path, length=16)
    assert data.name == "mine"
    assert data.train.inputs.shape == (56, 16)
    assert data.train.inputs.dtype == torch.uint8
    assert data.test.mask.sum() == 49
    batch = data.train.batch(slice(0, 2))
    assert torch.equal(batch.inputs.flatten()[1:], batch.target.flatten()[:-1])


def test_text_of_many_characters(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("".join(chr(0x4E00 + i) for i in range(500)), encoding="utf-8")
    data = text(path, length=10)
    assert data.vocabulary == 501
    assert data.train.batch(slice(0, 1)).inputs.dtype == torch.long


def test_broken_text(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\broot must"):
        text(tmp_path)
    path = tmp_path / "mine.txt"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"mine.txt .*found nothing"):
        text(path)
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ValueError, match=r"mine.txt must"):
        text(path)
    path.write_text("short")
    with pytest.raises(ValueError, match=r"\blength must"):
        text(path, length=100)
    (tmp_path / "ptb.char.train.txt").write_text("a bc d")
    with pytest.raises(ValueError, match=r"ptb.char.train.txt, line 1: .*found 'bc'"):
        ptb(tmp_path)
    (tmp_path / "ptb.char.train.txt").write_text("a b c d\n" * 200)
    with pytest.raises(ValueError, match=r"ptb.valid.txt"):
        ptb(tmp_path)


def test_reviews(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for kind, words in (("neg", "bad"), ("pos", "very good")):
            folder = tmp_path / "aclImdb" / part / kind
            folder.mkdir(parents=True)
            for i in range(3):
                (folder / f"{i}_7.txt").write_text(words)
    data = imdb(tmp_path, length=6, validation=2)
    assert (len(data.train), data.validation is not None, len(data.test)) == (4, True, 6)
    assert (data.vocabulary, data.size, data.classes) == (256, (6,), ("neg", "pos"))
    batch = data.test.batch(slice(None))
    assert batch.mask is not None
    assert [bytes(row[seen].tolist()) for row, seen in zip(batch.inputs, batch.mask, strict=True)] == [
        *[b"bad"] * 3,
        *[b"very g"] * 3,
    ]
    assert batch.target.tolist() == [0, 0, 0, 1, 1, 1]
    values = imdb(tmp_path, length=6, form="values")
    assert values.vocabulary is None
    batch = values.test.batch(slice(None))
    assert batch.mask is None
    assert batch.inputs.shape == (6, 1, 6)
    assert batch.inputs[0, 0].tolist() == [0.0, 0.0, 0.0, *map(float, b"bad")]
    with pytest.raises(ValueError, match=r"\bform must"):
        imdb(tmp_path, form="bytes")
    (tmp_path / "aclImdb" / "test" / "pos" / "1_7.txt").write_text("")
    with pytest.raises(ValueError, match=r"1_7.txt .*found an empty file"):
        imdb(tmp_path)
    for path in (tmp_path / "aclImdb" / "train" / "neg").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"train/neg .*found none"):
        imdb(tmp_path)
