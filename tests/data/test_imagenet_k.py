"""ImageNet-k is read from its public batches, and damaged ones are refused by name."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from kernelfield.data import load
from kernelfield.data.registry import data_shape
from kernelfield.data.sets.images.imagenet_k import TRAIN, imagenet_k

if TYPE_CHECKING:
    from pathlib import Path


def batch(count: int, side: int, seed: int, **changes: Any) -> bytes:
    draw = np.random.default_rng(seed)
    content: dict[str, Any] = {
        "data": draw.integers(0, 256, (count, 3 * side**2), dtype=np.uint8),
        "labels": [1 + int(y) for y in draw.integers(0, 1000, count)],
        "mean": np.zeros(3 * side**2),
    }
    return pickle.dumps({**content, **changes})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for side in (8, 16):
        train, test = tmp_path / f"Imagenet{side}_train", tmp_path / f"Imagenet{side}_val"
        train.mkdir()
        test.mkdir()
        for i, name in enumerate(TRAIN):
            (train / name).write_bytes(batch(6, side, i))
        (test / "val_data").write_bytes(batch(9, side, 99))
    return tmp_path


@pytest.mark.parametrize("side", [8, 16])
def test_images_and_labels(root: Path, side: int) -> None:
    data = load("imagenet_k", root, resolution=side, validation=0)
    assert (len(data.train), len(data.test), data.size, data.out_channels) == (60, 9, (side, side), 1000)
    stored = pickle.loads((root / f"Imagenet{side}_val" / "val_data").read_bytes())
    assert data.test.inputs.equal(torch.tensor(stored["data"]).view(9, 3, side, side))
    assert data.test.target.tolist() == [y - 1 for y in stored["labels"]]
    shape = data_shape("imagenet_k", resolution=side)
    assert (shape.in_channels, shape.out_channels, tuple(shape.size)) == (3, 1000, (side, side))


def test_training_images_have_zero_mean_and_unit_variance(root: Path) -> None:
    x = imagenet_k(root, resolution=8, validation=0).train.batch(slice(None)).inputs
    torch.testing.assert_close(x.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std(dim=(0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)


def test_augmented_images_keep_their_shape(root: Path) -> None:
    x = imagenet_k(root, resolution=8, augment=True, validation=0).train.batch(slice(0, 4)).inputs
    assert x.shape == (4, 3, 8, 8)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (batch(6, 16, 0), r"'data', bytes of shape \(n, 192\), found uint8 \(6, 768\)"),
        (batch(6, 8, 0, labels=[0] * 6), "'labels', a list of 6 numbers from 1 to 1000"),
        (batch(6, 8, 0, labels=[1001] * 6), "'labels'"),
        (batch(6, 8, 0, labels=[1] * 5), "'labels', .* found 5 entries"),
        (batch(6, 8, 0)[:-100], "complete pickle|plain data"),
        (pickle.dumps([1, 2]), "a dict"),
    ],
    ids=["another resolution", "label 0", "label 1001", "labels missing", "truncated", "no dict"],
)
def test_damaged_files_are_refused_by_name(root: Path, content: bytes, says: str) -> None:
    path = root / "Imagenet8_train" / TRAIN[3]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{path.name} .*({says})"):
        imagenet_k(root, resolution=8)


def test_a_missing_file_and_a_bad_resolution_are_named(root: Path) -> None:
    (root / "Imagenet16_val" / "val_data").unlink()
    with pytest.raises(ValueError, match="val_data"):
        imagenet_k(root, resolution=16)
    with pytest.raises(ValueError, match=r"resolution .*got 12"):
        imagenet_k(root, resolution=12)
