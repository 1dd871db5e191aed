"""STL-10 from its binary files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ...._arguments import checked
from ...._kinds import Int
from ...base import Data, Split
from ...io.files import fetch, find, folder, read_lines
from ...transforms.batch import Chain, CropFlip, ResizeRotateCrop, Standardize
from ...transforms.split import hold_out

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from torch import Tensor

__all__ = ["stl10"]

ARCHIVE = (
    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    "md5:91f7769df0f17e558f3565bffb0c7dfb",
)
CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")


@checked(validation=Int(0))
def stl10(
    root: str | os.PathLike[str] | None,
    *,
    download: bool = False,
    augment: bool = False,
    resolution: int = 96,
    validation: int = 500,
    seed: int = 0,
) -> Data:
    """Return STL-10: photographs of ten classes, 5,000 for training and 8,000 for testing, 96×96.

    Source: https://cs.stanford.edu/~acoates/stl10/ (Coates et al., 2011), the binary version, in ``root`` or
    ``root/stl10_binary``; its unlabelled images are not read. Licence: none is stated; the photographs come from
    ImageNet, for research. Split: the published test set; 500 of the training images are held out for validation
    (chapter 3), stratified by class. Normalisation: zero mean and unit variance of each colour over the training
    images.

    Args:
        root: folder of the files.
        download: whether to download missing files (2.6 GB) into ``root``, with a checksum; needs the extra ``data``.
        augment: whether to augment training images. At 96 pixels they are shifted by up to 12 pixels and mirrored; at
            another resolution they are enlarged by 1/16, rotated by up to 15°, cropped at random and mirrored (chapter
            3, at 256).
        resolution: pixels per side; values other than 96 use bilinear interpolation, batch by batch on the device.
        validation: number of training images to hold out; 0 trains on all images.
        seed: seed of the validation split.

    Returns:
        Inputs (n, 3, resolution, resolution), stored as bytes at 96 pixels; classes (n,) of ten.
    """
    if download:
        binaries = "train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin"
        fetch(root, [ARCHIVE], unless=[f"stl10_binary/{name}" for name in binaries], unpack=True)
    where = folder(root, "STL-10", "stl10_binary")
    x, y = _read(where, "train")
    x_test, y_test = _read(where, "test")
    names = where / "class_names.txt"
    classes = tuple(read_lines(names)) if names.is_file() else CLASSES
    if len(classes) != 10:
        raise ValueError(f"{names} must hold 10 lines, found {len(classes)}")
    colours = [x[:, c].float() / 255 for c in range(3)]
    normal = Standardize(tuple(float(c.mean()) for c in colours), tuple(float(c.std()) for c in colours))
    train, held = hold_out(y, validation, seed)
    plain, augmented = normal, Chain((CropFlip(12), normal))
    if resolution != 96:
        resize = ResizeRotateCrop(resolution, resolution, augment=False)
        plain = Chain((resize, normal))  # type: ignore[assignment]
        augmented = Chain((ResizeRotateCrop(resolution, round(resolution * 17 / 16)), normal))
    splits = [
        Split(x[train], y[train], prepare=augmented if augment else plain),
        Split(x[held], y[held], prepare=plain),
        Split(x_test, y_test, prepare=plain),
    ]
    return Data.from_splits("stl10", splits, size=(resolution, resolution), classes=classes)


def _read(where: Path, part: str) -> tuple[Tensor, Tensor]:
    path = find(where, [f"{part}_X.bin"], "images")
    raw = np.fromfile(path, dtype=np.uint8)
    if not raw.size or raw.size % 27_648:
        raise ValueError(f"{path} must hold a multiple of 27648 bytes, one image each, found {raw.size} bytes")
    # The files store images column by column.
    images = torch.from_numpy(raw.reshape(-1, 3, 96, 96)).transpose(2, 3).contiguous()
    path = find(where, [f"{part}_y.bin"], "labels")
    labels = np.fromfile(path, dtype=np.uint8)
    if len(labels) != len(images):
        raise ValueError(f"{path} must hold one label for each of {len(images)} images, found {len(labels)}")
    if not ((labels >= 1) & (labels <= 10)).all():
        raise ValueError(f"{path} must hold labels of 1 to 10, found {labels.min()} to {labels.max()}")
    return images, torch.from_numpy(labels).long() - 1
