"""MNIST from its idx files: images, sequences of pixels, or permuted sequences."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...._arguments import checked
from ...._kinds import SEED, Int
from ....ops import resample
from ...base import Data, Split
from ...io.files import fetch, find, folder, read_bytes
from ...transforms.batch import Standardize
from ...transforms.split import hold_out
from ...transforms.to_sequence import as_sequence, permuted

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from torch import Tensor

__all__ = ["mnist", "read_idx", "read_mnist"]

ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FILES = {
    "train-images-idx3-ubyte": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "md5:d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "md5:9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "md5:ec29112dd5afa0611ce80d1b7f02629c",
}


@checked(permute=SEED | None, validation=Int(0))
def mnist(
    root: str | os.PathLike[str] | None,
    *,
    download: bool = False,
    sequence: bool = False,
    permute: int | None = None,
    resolution: int = 28,
    validation: int = 5_000,
    seed: int = 0,
) -> Data:
    """Return MNIST: handwritten digits, 60,000 for training and 10,000 for testing, 28×28 (LeCun et al., 1998).

    Source: the four idx files of https://ossci-datasets.s3.amazonaws.com/mnist/, gzipped or not, in ``root`` or
    ``root/MNIST/raw``. Licence: CC BY-SA 3.0. Split: the published test set; 5,000 of the training images are held out
    for validation (chapter 3), stratified by class. Normalisation: zero mean and unit variance over all pixels of the
    training images.

    Args:
        root: folder of the files.
        download: whether to download missing files into ``root``, with checksums; needs the extra ``data``.
        sequence: whether to read images row by row, (n, 1, 784): sMNIST.
        permute: seed of a fixed random order of the pixels: pMNIST; None for no permutation.
        resolution: pixels per side; values other than 28 use spectral resampling.
        validation: number of training images held out; 0 for none.
        seed: seed of the validation split.

    Returns:
        Inputs (n, 1, 28, 28) or (n, 1, 784), stored as bytes; classes (n,) of ten.
    """
    if download:
        packed = [(f"{ADDRESS}{name}.gz", checksum) for name, checksum in FILES.items()]
        fetch(root, packed, unless=[f"MNIST/raw/{name}" for name in FILES])
    images, labels, test_images, test_labels = read_mnist(root)
    if resolution != 28:
        images, test_images = _resized(images, resolution), _resized(test_images, resolution)
    seen = images.float() / 255
    prepare = Standardize((float(seen.mean()),), (float(seen.std()),))
    train, held = hold_out(labels, validation, seed)
    known = Split(images, labels, prepare=prepare)
    splits = [known.take(train), known.take(held), Split(test_images, test_labels, prepare=prepare)]
    data = Data.from_splits("mnist", splits, classes=tuple("0123456789"))
    if permute is not None:
        return permuted(data, permute, name="pmnist")
    return as_sequence(data, name="smnist") if sequence else data


def read_mnist(root: str | os.PathLike[str] | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images (n, 1, 28, 28) as bytes and labels (n,) of the training set, then of the test set."""
    where = folder(root, "MNIST", "MNIST/raw", "mnist", "raw")
    read = []
    for part in ("train", "t10k"):
        images = read_idx(find(where, _names(f"{part}-images-idx3-ubyte"), "images"), dims=3)
        path = find(where, _names(f"{part}-labels-idx1-ubyte"), "labels")
        labels = read_idx(path, dims=1)
        if len(labels) != len(images):
            raise ValueError(f"{path} must hold one label for each of {len(images)} images, found {len(labels)}")
        if len(labels) and int(labels.max()) > 9:
            raise ValueError(f"{path} must hold labels of 0 to 9, found {int(labels.max())}")
        read += [images.unsqueeze(1), labels.long()]
    return read[0], read[1], read[2], read[3]


def read_idx(path: Path, dims: int) -> Tensor:
    """Return the bytes of an idx file, gzipped or not, as a tensor of ``dims`` axes."""
    raw = read_bytes(path)
    header = 4 + 4 * dims
    if len(raw) < header or raw[:4] != bytes([0, 0, 8, dims]):
        raise ValueError(
            f"{path} must be an idx file of bytes with {dims} axes (starting with 0 0 8 {dims}), found {len(raw)} "
            f"bytes that start with {' '.join(map(str, raw[:4])) or 'nothing'}"
        )
    shape = struct.unpack(f">{dims}I", raw[4:header])
    expected = header + math.prod(shape)  # Python's integers do not overflow
    if len(raw) != expected:
        raise ValueError(f"{path} must be {expected} bytes long for shape {shape}, found {len(raw)}")
    return torch.from_numpy(np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape).copy())


def _names(name: str) -> list[str]:
    # Some packages write a dot before idx.
    return [name, f"{name}.gz", name.replace("-idx", ".idx"), f"{name.replace('-idx', '.idx')}.gz"]


def _resized(images: Tensor, resolution: int) -> Tensor:
    parts = [resample(part.float(), (resolution, resolution)) for part in images.split(4096)]
    return torch.cat([part.round().clamp(0, 255).to(torch.uint8) for part in parts])
