"""ImageNet-k: photographs of ImageNet downsampled to 8, 16, 32 or 64 pixels, from their public batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...._arguments import checked
from ...._kinds import Int
from ...base import Data, Split
from ...io.files import find, folder
from ...transforms.batch import Chain, CropFlip, Standardize
from ...transforms.split import hold_out
from .cifar import read_batch

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from torch import Tensor

__all__ = ["imagenet_k"]

CLASSES = 1000
SIDES = (8, 16, 32, 64)
TRAIN = tuple(f"train_data_batch_{i}" for i in range(1, 11))


@checked(validation=Int(0))
def imagenet_k(
    root: str | os.PathLike[str] | None,
    *,
    resolution: int = 32,
    augment: bool = False,
    validation: int = 10_000,
    seed: int = 0,
) -> Data:
    """Return ImageNet-k: photographs of a thousand classes, 1,281,167 for training and 50,000 for testing.

    Source: https://image-net.org/download-images, "Download downsampled image data" (Chrabaszcz, Loshchilov and Hutter,
    2017), the Python batches, in ``root``, or in ``root/Imagenet{k}_train`` and ``root/Imagenet{k}_val``. The download
    needs an account, so nothing is downloaded. The files are pickles; they are read without running any code in them.
    Licence: ImageNet's terms, for research. Split: the published validation set is the test set; 10,000 of the training
    images are held out for validation, stratified by class. Normalisation: zero mean and unit variance of each colour
    over the training images.

    Args:
        root: folder of the files.
        resolution: pixels per side, 8, 16, 32 or 64; each has its own files.
        augment: whether to shift training images by up to an eighth of their side and to mirror them.
        validation: number of training images to hold out; 0 trains on all images.
        seed: seed of the validation split.

    Returns:
        Inputs (n, 3, k, k), stored as bytes; classes (n,) of a thousand, named by their numbers in the files, "1" to
        "1000".
    """
    if resolution not in SIDES:
        raise ValueError(f"resolution must be one of {', '.join(map(str, SIDES))}, got {resolution!r}")
    where = folder(root, f"ImageNet-{resolution}", f"Imagenet{resolution}_train")
    parts = [_read(where, name, "a batch of training images", resolution) for name in TRAIN]
    images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    where = folder(root, f"ImageNet-{resolution}", f"Imagenet{resolution}_val")
    test = _read(where, "val_data", "the validation images", resolution)
    normal = _standardize(images)
    prepare = Chain((CropFlip(max(1, resolution // 8)), normal)) if augment else normal
    kept, held = hold_out(labels, validation, seed)
    splits = [
        Split(images[kept], labels[kept], prepare=prepare),
        Split(images[held], labels[held], prepare=normal),
        Split(*test, prepare=normal),
    ]
    return Data.from_splits(f"imagenet_{resolution}", splits, classes=tuple(map(str, range(1, CLASSES + 1))))


def _read(where: Path, name: str, what: str, side: int) -> tuple[Tensor, Tensor]:
    # Labels in these files are 1 to 1,000.
    return read_batch(find(where, [name], what), "labels", CLASSES, side=side, first=1)


def _standardize(images: Tensor) -> Standardize:
    """Return the transform to zero mean and unit variance of each colour, computed from counts of the 256 values."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for c in range(images.shape[1]):
        # Counts need little memory; as floats, a million images would take several times the memory of their bytes.
        counts = sum(part[:, c].flatten().bincount(minlength=256) for part in images.split(65_536))
        share = counts / images[:, c].numel()
        mean = float((share * values).sum())
        means.append(mean)
        deviations.append(max(float((share * (values - mean).square()).sum()) ** 0.5, 1e-6))
    return Standardize(tuple(means), tuple(deviations))
