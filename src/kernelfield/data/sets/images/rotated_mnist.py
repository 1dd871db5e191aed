"""Rotated digits as data sets: rotated MNIST, six or nine, MNIST6-180 and MNIST6-M (chapter 11, section 5)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...._arguments import checked
from ...._checks import check_int
from ...._kinds import NOT_NEGATIVE, SHARE, Choice, Int
from ...base import Data, Split
from ...io.files import decoding, find, folder, open_file
from ...transforms import rotate as rotated
from ...transforms.batch import Normalize, Standardize
from ...transforms.split import divide, hold_out
from .digits import raw_digits
from .mnist import read_mnist

if TYPE_CHECKING:
    import os

__all__ = ["mnist6_180", "mnist6_m", "rotated_digits", "rotated_mnist", "six_or_nine"]

Pair = tuple[Tensor, Tensor]


@checked(test_share=SHARE, validation=Int(0))
def rotated_digits(
    resolution: int = 16, *, copies: int = 1, validation: int = 144, test_share: float = 0.2, seed: int = 0
) -> Data:
    """Return the digits bundled with scikit-learn, each rotated by a uniform random angle.

    Source: derived from the digits bundled with scikit-learn (UCI; extra ``train``). Licence: CC BY 4.0. Split: at
    random with a seed; all rotated copies of a digit are in the same split. Normalisation: zero mean and unit variance
    over all pixels of the training images.

    Args:
        resolution: pixels per side; values other than 8 use spectral resampling, before the rotation.
        copies: number of rotated copies per digit.
        validation: number of training digits held out for validation; 0 for none.
        test_share: share of the digits in the test set.
        seed: seed of the split and the angles.

    >>> data = rotated_digits(copies=2)
    >>> data.train.inputs.shape
    torch.Size([2588, 1, 16, 16])
    """
    x, y, x_test, y_test, _ = raw_digits(resolution, test_share, seed)
    dark = x.min()  # rotated images are filled with zeros, which must be the darkest value
    train, held = hold_out(y, validation, seed)
    parts = [(x[train], y[train]), (x[held], y[held]), (x_test, y_test)]
    rotated_images = [
        rotated.rotated(images - dark, labels, copies=copies, seed=seed + i) if len(labels) else (images - dark, labels)
        for i, (images, labels) in enumerate(parts)
    ]
    return _floats(
        "rotated_digits", [(images + dark, labels) for images, labels in rotated_images], tuple("0123456789")
    )


@checked()
def six_or_nine(resolution: int = 16, *, shares: tuple[float, float, float] = (0.6, 0.2, 0.2), seed: int = 0) -> Data:
    """Return sixes and nines, upright and rotated by 180°, labelled with the digit that the image shows.

    A six upside down is a nine. A network that is invariant to rotations by 180° cannot tell an image of one class from
    its rotated copy in the other, so it is right exactly half of the time. The task suits networks that learn how far
    to respect a symmetry.

    Source: derived from the digits bundled with scikit-learn (UCI; extra ``train``). Licence: CC BY 4.0. Split: at
    random with a seed; a digit and its rotated copy are in the same split. Normalisation: zero mean and unit variance
    over all pixels of the training images.

    Args:
        resolution: pixels per side; values other than 8 use spectral resampling.
        shares: shares of training, validation and test data.
        seed: seed of the split.

    Returns:
        Inputs (n, 1, resolution, resolution); class 0 is six, 1 is nine.

    >>> data = six_or_nine()
    >>> data.classes, data.test.target.float().mean()
    (('six', 'nine'), tensor(0.5000))
    """
    x, y, x_test, y_test, _ = raw_digits(resolution, 0.2, 0)
    images, labels = torch.cat([x, x_test]), torch.cat([y, y_test])
    chosen = (labels == 6) | (labels == 9)
    images, nine = images[chosen], (labels[chosen] == 9).long()
    parts = []
    for index in divide(nine, shares, seed):
        some, reads = images[index], nine[index]
        parts.append((torch.cat([some, some.flip((-2, -1))]), torch.cat([reads, 1 - reads])))
    return _floats("six_or_nine", parts, ("six", "nine"))


@checked(validation=Int(0, 11_999))
def rotated_mnist(
    root: str | os.PathLike[str] | None, *, validation: int = 2_000, published: bool = False, seed: int = 0
) -> Data:
    """Return rotated MNIST: 12,000 digits for training and 50,000 for testing, each rotated by a uniform random angle.

    Source: derived from the files that :func:`~kernelfield.data.sets.images.mnist.mnist` reads, by the procedure of
    Larochelle et al. (2007); or, with ``published``, their own files. Licence: CC BY-SA 3.0. Split: 2,000 of the 12,000
    training digits are held out for validation; derived digits are drawn from all 70,000 of MNIST.
    Normalisation: zero mean and unit variance over all pixels of the training images.

    Args:
        root: folder of MNIST's files, or of the published ones.
        validation: number of the 12,000 training digits to hold out; 0 trains on all digits.
        published: whether to read ``mnist_all_rotation_normalized_float_train_valid.amat`` and ``…_test.amat``, with
            785 numbers per line: pixels between 0 and 1, and a label. The first 10,000 lines are for training, as
            published.
        seed: seed of the choice of digits and of the angles, unless ``published``.

    Returns:
        Inputs (n, 1, 28, 28), stored as bytes; classes (n,) of ten.
    """
    if not 0 <= check_int("validation", validation, least=0) < 12_000:
        raise ValueError(f"validation must be below the 12000 training digits, got {validation}")
    if published:
        x, y = _read_amat(root, "train_valid")
        held = round(len(x) * validation / 12_000)
        parts = [(x[: len(x) - held], y[: len(x) - held]), (x[len(x) - held :], y[len(x) - held :])]
        return _bytes("rotated_mnist", [*parts, _read_amat(root, "test")], tuple("0123456789"))
    images, labels, test_images, test_labels = read_mnist(root)
    images, labels = torch.cat([images, test_images]), torch.cat([labels, test_labels])
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator)
    # The published sizes as shares, so that a small data set in the same layout works too.
    counts = [round(len(images) * n / 70_000) for n in (12_000 - validation, validation, 50_000)]
    order = order[: sum(counts)]
    angles = (torch.rand(len(order), generator=generator) * 2 - 1) * math.pi
    rotated_images = torch.cat(
        [
            rotated.rotate(images[i].float(), a).round().clamp(0, 255).to(torch.uint8)
            for i, a in zip(order.split(2_000), angles.split(2_000), strict=True)
        ]
    )
    splits = zip(rotated_images.split(counts), labels[order].split(counts), strict=True)
    return _bytes("rotated_mnist", list(splits), tuple("0123456789"))


def _read_amat(root: str | os.PathLike[str] | None, part: str) -> Pair:
    """Return the images (n, 1, 28, 28), as bytes, and the labels (n,) of one of the published files."""
    where = folder(root, "rotated MNIST", "mnist_rotation_new", "mnist_rotation")
    path = find(where, [f"mnist_all_rotation_normalized_float_{part}.amat"], "rotated digits")
    with decoding(path, "a file with 785 numbers per line"), open_file(path) as file:
        rows = np.loadtxt(file, dtype=np.float32, ndmin=2)
    if rows.shape[1:] != (785,) or not len(rows):
        raise ValueError(f"{path} must hold lines of 785 numbers, found {rows.shape[0]} lines of {rows.shape[-1]}")
    pixels, labels = rows[:, :784], rows[:, 784]
    # "not all" rather than "any": NaN compares false.
    if not ((pixels >= 0) & (pixels <= 1)).all() or not np.isin(labels, np.arange(10)).all():
        raise ValueError(f"{path} must hold pixels between 0 and 1 and labels of 0 to 9, found other values")
    images = torch.from_numpy(np.rint(pixels * 255).astype(np.uint8)).view(-1, 1, 28, 28)
    return images, torch.from_numpy(labels.astype(np.int64))


@checked(turns=Choice("circle", "half"), margin=NOT_NEGATIVE)
def mnist6_180(
    root: str | os.PathLike[str] | None, *, turns: str = "circle", margin: float = 0.0, seed: int = 0
) -> Data:
    """Return MNIST6-180: rotated sixes of MNIST, labelled six for angles in [-90°, 90°] and nine otherwise.

    Source: derived from the files that :func:`~kernelfield.data.sets.images.mnist.mnist` reads. Licence: CC BY-SA 3.0.
    Split: MNIST's own, a tenth of the training sixes held out for validation. Normalisation: zero mean and unit
    variance over all pixels of the training images.

    Args:
        root: folder of MNIST's files.
        turns: "circle" rotates by uniform random angles, as chapter 11 describes; "half" takes upright sixes and sixes
            rotated by exactly 180°, as the published code does.
        margin: for "circle", no sample lies within this many degrees of ±90°.
        seed: seed of the angles and of the validation split.
    """
    if turns == "half" and margin:
        raise ValueError(f"margin must be 0 for turns='half', got {margin}")
    parts = []
    for i, (x, y) in enumerate(_parts(root, seed)):
        if turns == "half":
            parts.append(rotated.half_turned_sixes(x, y))
        else:
            rotated_images, reads = rotated.mnist6_180(x.float(), y, margin=margin, seed=seed + i)
            parts.append((rotated_images.round().clamp(0, 255).to(torch.uint8), reads))
    return _bytes("mnist6_180", parts, ("six", "nine"))


@checked()
def mnist6_m(root: str | os.PathLike[str] | None, *, seed: int = 0) -> Data:
    """Return MNIST6-M: sixes of MNIST and their mirror images, as two classes.

    Source: derived from the files that :func:`~kernelfield.data.sets.images.mnist.mnist` reads. Licence: CC BY-SA 3.0.
    Split: MNIST's own, a tenth of the training sixes held out for validation. Normalisation: zero mean and unit
    variance over all pixels of the training images.

    Args:
        root: folder of MNIST's files.
        seed: seed of the validation split.
    """
    parts = [rotated.mnist6_m(x, y) for x, y in _parts(root, seed)]
    return _bytes("mnist6_m", parts, ("as written", "mirrored"))


def _parts(root: str | os.PathLike[str] | None, seed: int) -> list[Pair]:
    images, labels, test_images, test_labels = read_mnist(root)
    images, labels = images[labels == 6], labels[labels == 6]
    train, held = hold_out(labels, len(labels) // 10, seed)
    return [(images[train], labels[train]), (images[held], labels[held]), (test_images, test_labels)]


def _floats(name: str, parts: list[Pair], classes: tuple[str, ...]) -> Data:
    seen = parts[0][0]
    normal = Normalize(seen.mean().view(1, 1, 1, 1), seen.std().view(1, 1, 1, 1))
    return Data.from_splits(name, [Split(x, y, prepare=normal) for x, y in parts], classes=classes)


def _bytes(name: str, parts: list[Pair], classes: tuple[str, ...]) -> Data:
    seen = parts[0][0].float() / 255
    prepare = Standardize((float(seen.mean()),), (float(seen.std()),))
    return Data.from_splits(name, [Split(x, y, prepare=prepare) for x, y in parts], classes=classes)
