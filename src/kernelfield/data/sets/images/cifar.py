"""CIFAR-10 and CIFAR-100 from their Python batches: images, sequences of pixels, or rows followed by noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...._arguments import checked, with_arguments_of
from ...._kinds import BOOL, POSITIVE, SEED, Choice, Int
from ....ops import resample
from ...base import Data, Split
from ...io.files import fetch, find, folder
from ...io.safe_pickle import read_pickle
from ...transforms.batch import PADDINGS, Chain, Clip, CropFlip, Standardize, StandardizeEach
from ...transforms.split import hold_out
from ...transforms.to_sequence import as_sequence, noise_padded

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

__all__ = ["cifar10", "cifar100", "read_batch"]

ADDRESS = "https://www.cs.toronto.edu/~kriz/"
ARCHIVES = {
    10: (f"{ADDRESS}cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a"),
    100: (f"{ADDRESS}cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85"),
}
FORMS = ("image", "gray", "sequence", "gray-sequence", "noise-padded")


def _build(
    name: str,
    train: Sequence[Tensor],
    test: Sequence[Tensor],
    classes: tuple[str, ...],
    *,
    form: str = "image",
    augment: bool = False,
    padding: str = "zero",
    resolution: int = 32,
    noise: str = "fresh",
    normalize: str = "set",
    limit: float | None = None,
    validation: int = 5_000,
    seed: int = 0,
) -> Data:
    x, x_test = (_resized_or_gray(images, resolution, form.startswith("gray")) for images in (train[0], test[0]))
    normal: Standardize | StandardizeEach | Chain = StandardizeEach()
    if normalize == "set":
        sums = [x[:, c].float().div(255) for c in range(x.shape[1])]
        normal = Standardize(tuple(float(s.mean()) for s in sums), tuple(float(s.std()) for s in sums))
    if limit is not None:
        normal = Chain((normal, Clip(limit)))
    prepare = Chain((CropFlip(max(1, resolution // 8), padding=padding), normal)) if augment else normal
    kept, held = hold_out(train[1], validation, seed)
    splits = [
        Split(x[kept], train[1][kept], prepare=prepare),
        Split(x[held], train[1][held], prepare=normal),
        Split(x_test, test[1], prepare=normal),
    ]
    data = Data.from_splits(name, splits, classes=classes)
    if form == "noise-padded":
        return noise_padded(data, noise=noise, seed=seed, name=f"np{name}")
    return data if form in ("image", "gray") else as_sequence(data, name=f"s{name}")


_KINDS = {
    "form": Choice(*FORMS),
    "augment": BOOL,
    "padding": Choice(*PADDINGS),
    "resolution": Int(),
    "noise": Choice("fresh", "shared"),
    "normalize": Choice("set", "image"),
    "limit": POSITIVE | None,
    "validation": Int(0),
    "seed": SEED,
}


@checked(**_KINDS)
@with_arguments_of(_build, without=("name", "train", "test", "classes"))
def cifar10(root: str | os.PathLike[str] | None, *, download: bool = False, **options: Any) -> Data:
    """Return CIFAR-10: photographs of ten classes, 50,000 for training and 10,000 for testing, 32×32.

    Source: https://www.cs.toronto.edu/~kriz/cifar.html (Krizhevsky, 2009), the Python version, in ``root`` or
    ``root/cifar-10-batches-py``. The files are pickles; they are read without running any code in them. Licence: none
    is stated; free for research, with a citation. Split: the published test set; 5,000 of the training images are held
    out for validation (chapter 3), stratified by class. Normalisation: zero mean and unit variance of each colour over
    the training images.

    Args:
        root: folder of the files.
        download: whether to download missing files into ``root``, with a checksum; needs the extra ``data``.
        options: the keyword arguments below.
        form: "image" (n, 3, 32, 32); "gray" (n, 1, 32, 32); "sequence" (n, 3, 1024), sCIFAR10; "gray-sequence"
            (n, 1, 1024), the task Image of the Long Range Arena; "noise-padded" (n, 96, 1000), rows of 32 pixels and
            968 steps of noise, npCIFAR10.
        augment: whether to shift training images by up to an eighth of their side, 4 of 32 pixels, and to mirror them,
            before they become sequences.
        padding: values beyond the edge of an augmented image, "zero" or "symmetric".
        resolution: pixels per side; values other than 32 use spectral resampling.
        noise: noise of the noise-padded form, "fresh" or "shared"; see
            :func:`kernelfield.data.transforms.to_sequence.noise_padded`.
        normalize: "set" for zero mean and unit variance of each colour over the training images; "image" for that of
            each colour over each image.
        limit: largest absolute value after normalisation; larger ones are clipped (2.3 in chapter 7).
        validation: number of training images to hold out; 0 trains on all images.
        seed: seed of the validation split and of the noise.

    Returns:
        Inputs in the given ``form``, stored as bytes; classes (n,) of ten.
    """
    if download:
        names = *(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"
        fetch(root, [ARCHIVES[10]], unless=[f"cifar-10-batches-py/{name}" for name in names], unpack=True)
    where = folder(root, "CIFAR-10", "cifar-10-batches-py")
    parts = [
        read_batch(find(where, [f"data_batch_{i}"], "a batch of training images"), "labels", 10) for i in range(1, 6)
    ]
    train = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    test = read_batch(find(where, ["test_batch"], "the test images"), "labels", 10)
    classes = _class_names(find(where, ["batches.meta"], "the names of the classes"), "label_names", 10)
    return _build("cifar10", train, test, classes, **options)


@checked(**_KINDS)
@with_arguments_of(cifar10)
def cifar100(root: str | os.PathLike[str] | None, *, download: bool = False, **options: Any) -> Data:
    """Return CIFAR-100: like :func:`cifar10`, with 100 classes, from ``root`` or ``root/cifar-100-python``.

    Source: https://www.cs.toronto.edu/~kriz/cifar.html (Krizhevsky, 2009), the Python version, with its fine classes.
    Licence: none is stated; free for research, with a citation. Split: the published test set; 5,000 of the training
    images are held out for validation, stratified by class. Normalisation: zero mean and unit variance of each colour
    over the training images.

    Args:
        root: folder of the files.
        download: whether to download missing files into ``root``, with a checksum; needs the extra ``data``.
        options: further arguments of :func:`cifar10`.
    """
    if download:
        names = "train", "test", "meta"
        fetch(root, [ARCHIVES[100]], unless=[f"cifar-100-python/{name}" for name in names], unpack=True)
    where = folder(root, "CIFAR-100", "cifar-100-python")
    train = read_batch(find(where, ["train"], "the training images"), "fine_labels", 100)
    test = read_batch(find(where, ["test"], "the test images"), "fine_labels", 100)
    classes = _class_names(find(where, ["meta"], "the names of the classes"), "fine_label_names", 100)
    return _build("cifar100", train, test, classes, **options)


def read_batch(path: Path, key: str, classes: int, *, side: int = 32, first: int = 0) -> tuple[Tensor, Tensor]:
    """Return the images (n, 3, side, side) of one file, as bytes, and its labels (n,), counted from 0.

    Args:
        path: a pickle of ``data`` and labels.
        key: name of the labels.
        classes: number of classes.
        side: pixels per side.
        first: label of the first class in the file.
    """
    batch = _keys(read_pickle(path), path)
    data, labels = batch.get("data"), batch.get(key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3 * side**2,):
        found = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise ValueError(f"{path} must hold 'data', bytes of shape (n, {3 * side**2}), found {found}")
    last = first + classes - 1
    valid = isinstance(labels, list) and all(isinstance(y, int) and first <= y <= last for y in labels)
    if not valid or len(labels) != len(data):  # type: ignore[arg-type]
        raise ValueError(
            f"{path} must hold '{key}', a list of {len(data)} numbers from {first} to {last}, found "
            + (f"{len(labels)} entries" if isinstance(labels, list) else type(labels).__name__)
        )
    return torch.from_numpy(data.reshape(-1, 3, side, side).copy()), torch.tensor(labels, dtype=torch.long) - first


def _keys(batch: Any, path: Path) -> dict[str, Any]:
    if not isinstance(batch, dict):
        raise ValueError(f"{path} must hold a dict, found {type(batch).__name__}")  # noqa: TRY004
    return {k.decode("latin1") if isinstance(k, bytes) else str(k): v for k, v in batch.items()}


def _class_names(path: Path, key: str, count: int) -> tuple[str, ...]:
    names = _keys(read_pickle(path), path).get(key)
    if not isinstance(names, list) or len(names) != count:
        found = f"{len(names)}" if isinstance(names, list) else type(names).__name__
        raise ValueError(f"{path} must hold '{key}', a list of {count} names, found {found}")
    return tuple(n.decode("utf-8") if isinstance(n, bytes) else str(n) for n in names)


def _resized_or_gray(images: Tensor, resolution: int, gray: bool) -> Tensor:
    """Return images as bytes, resized or converted to gray (ITU-R 601 luma)."""
    if not gray and resolution == 32:
        return images
    parts = []
    for part in images.split(4096):
        values = part.float()
        if gray:
            values = (values * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(dim=1, keepdim=True)
        if resolution != 32:
            values = resample(values, (resolution, resolution))
        parts.append(values.round().clamp(0, 255).to(torch.uint8))
    return torch.cat(parts)
