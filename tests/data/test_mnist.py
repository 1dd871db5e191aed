"""MNIST and its rotated variants, read from public layouts: valid, truncated and corrupt files."""

from __future__ import annotations

import gzip
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kernelfield.data.sets.images.mnist import mnist
from kernelfield.data.sets.images.rotated_mnist import mnist6_180, mnist6_m, rotated_mnist

if TYPE_CHECKING:
    from pathlib import Path

RNG = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def mnist_root(tmp_path: Path) -> Path:
    for part, n in (("train", 60), ("t10k", 20)):
        images = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        labels = (np.arange(n) % 10).astype(np.uint8)
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels), mtime=0))
    return tmp_path


def test_mnist(mnist_root: Path) -> None:
    data = mnist(mnist_root, validation=10)
    assert (len(data.train), len(data.validation), len(data.test)) == (50, 10, 20)
    assert sorted(data.validation.target.tolist()) == list(range(10))
    x = torch.cat([s.batch(slice(None)).inputs for s in (data.train, data.validation)])
    assert x.shape == (60, 1, 28, 28)
    assert x.mean().abs() < 1e-4
    assert x.std() == pytest.approx(1, abs=1e-3)


def test_mnist_as_sequences(mnist_root: Path) -> None:
    plain = mnist(mnist_root, validation=0)
    row = mnist(mnist_root, validation=0, sequence=True)
    assert torch.equal(row.train.inputs, plain.train.inputs.flatten(2))
    one, same, other = (mnist(mnist_root, validation=0, permute=seed) for seed in (0, 0, 1))
    assert torch.equal(one.test.inputs, same.test.inputs)
    assert not torch.equal(one.test.inputs, other.test.inputs)
    assert torch.equal(one.train.inputs.sort().values, row.train.inputs.sort().values)
    assert one.size == (784,)
    assert mnist(mnist_root, validation=0, resolution=14).size == (14, 14)


def test_mnist_in_the_folders_of_other_tools(mnist_root: Path, tmp_path: Path) -> None:
    inner = tmp_path / "other" / "MNIST" / "raw"
    inner.mkdir(parents=True)
    for path in mnist_root.glob("*ubyte*"):
        path.rename(inner / path.name)
    assert len(mnist(tmp_path / "other", validation=0).train) == 60


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte", b"", "must"),
        ("train-images-idx3-ubyte", b"\x00\x00\x08\x01aaaaaaaaaaaaaaaaaaaaaa", "must"),
        (
            "train-images-idx3-ubyte",
            idx(np.zeros((60, 28, 28), np.uint8))[:-5],
            ".*found 47051",
        ),
        (
            "train-labels-idx1-ubyte.gz",
            gzip.compress(idx(np.zeros(60, np.uint8)), mtime=0)[:-9],
            "must",
        ),
        ("train-labels-idx1-ubyte.gz", b"no gzip", "must"),
        (
            "train-labels-idx1-ubyte.gz",
            gzip.compress(idx(np.zeros(59, np.uint8)), mtime=0),
            ".*found 59",
        ),
        (
            "train-labels-idx1-ubyte.gz",
            gzip.compress(idx(np.full(60, 11, np.uint8)), mtime=0),
            ".*found 11",
        ),
    ],
)
def test_broken_mnist(mnist_root: Path, name: str, content: bytes, message: str) -> None:
    (mnist_root / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} {message}"):
        mnist(mnist_root)


def test_missing_mnist(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("")
    with pytest.raises(ValueError, match=r"found other.txt"):
        mnist(tmp_path)
    with pytest.raises(ValueError, match=r"\broot must"):
        mnist(None)
    with pytest.raises(ValueError, match=r"\broot must .*nowhere"):
        mnist(tmp_path / "nowhere")


def test_validation_larger_than_the_data_is_refused(mnist_root: Path) -> None:
    with pytest.raises(ValueError, match=r"\bvalidation must"):
        mnist(mnist_root, validation=60)


def test_rotated_mnist(mnist_root: Path) -> None:
    data = rotated_mnist(mnist_root)
    assert (len(data.train), len(data.validation), len(data.test)) == (11, 2, 57)  # of 80, as 10, 2 and 50 of 70
    assert data.train.inputs.dtype == torch.uint8
    assert torch.equal(data.train.inputs, rotated_mnist(mnist_root).train.inputs)
    (mnist_root / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(ValueError, match="train-images-idx3-ubyte"):
        rotated_mnist(mnist_root)


def test_rotated_mnist_without_validation(mnist_root: Path) -> None:
    data = rotated_mnist(mnist_root, validation=0)
    assert data.validation is None
    assert (len(data.train), len(data.test)) == (14, 57)  # of 80, as 12 and 50 of 70
    with pytest.raises(ValueError, match=r"\bvalidation must"):
        rotated_mnist(mnist_root, validation=12_000)


def write_amat(path: Path, n: int) -> np.ndarray:
    rows = np.concatenate([RNG.integers(0, 256, (n, 784)) / 255, (np.arange(n) % 10)[:, None]], axis=1)
    np.savetxt(path, rows, fmt="%.6f")
    return rows


def test_rotated_mnist_from_its_published_files(tmp_path: Path) -> None:
    names = [f"mnist_all_rotation_normalized_float_{part}.amat" for part in ("train_valid", "test")]
    rows = write_amat(tmp_path / names[0], 12)
    write_amat(tmp_path / names[1], 5)
    data = rotated_mnist(tmp_path, published=True)
    assert (len(data.train), len(data.validation), len(data.test)) == (10, 2, 5)
    assert np.array_equal(data.validation.inputs.flatten(1).numpy(), np.rint(rows[10:, :784] * 255))
    assert data.train.target.tolist() == list(range(10))
    assert len(rotated_mnist(tmp_path, published=True, validation=0).train) == 12
    for content, message in (("1 2 3\n", ".*found 1 lines of 3"), ("x\n", "785 numbers")):
        (tmp_path / names[1]).write_text(content)
        with pytest.raises(ValueError, match=message):
            rotated_mnist(tmp_path, published=True)
    (tmp_path / names[1]).write_text(" ".join(["nan"] * 785))
    with pytest.raises(ValueError, match=r"rotation_normalized_float_test.amat must"):
        rotated_mnist(tmp_path, published=True)


def test_mnist6(tmp_path: Path) -> None:
    for part, n in (("train", 40), ("t10k", 8)):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx((6 - np.arange(n) % 2).astype(np.uint8)))
    for make in (mnist6_180, mnist6_m):
        data = make(tmp_path)
        assert [len(s) for s in (data.train, data.validation, data.test)] == [36, 4, 8]
        assert data.train.target.float().mean() == 0.5
    data = mnist6_180(tmp_path, turns="half")
    six, nine = (data.test.inputs[data.test.target == label] for label in (0, 1))
    assert torch.equal(nine, six.flip((-2, -1)))
    images = mnist(tmp_path, validation=0).test
    assert torch.equal(six, images.inputs[images.target == 6])
    with pytest.raises(ValueError, match=r"\bmargin must"):
        mnist6_180(tmp_path, turns="half", margin=5)
    with pytest.raises(ValueError, match=r"\bturns must"):
        mnist6_180(tmp_path, turns="whole")
