"""Turned digits as data sets: rotated ones, six or nine, MNIST6-180 and MNIST6-M (chapter 11, section 5)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...base import Data, Split
from ...transforms import rotate as rotated
from ...transforms.batch import Standardize
from ...transforms.split import divide, hold_out
from .digits import digit_images
from .mnist import read_mnist

if TYPE_CHECKING:
    import os

__all__ = ["mnist6_180", "mnist6_m", "rotated_digits", "rotated_mnist", "six_or_nine"]

Pair = tuple[Tensor, Tensor]


def rotated_digits(
    resolution: int = 16, *, copies: int = 1, validation: int = 144, test_share: float = 0.2, seed: int = 0
) -> Data:
    """Return the bundled digits, each turned by an angle drawn from the whole circle.

    Source: made from the digits bundled with scikit-learn (UCI; extra ``train``). Licence: CC BY 4.0. Split: random
    under a seed; a digit and its copies are all in the same part. Normalisation: zero mean and unit variance over all
    pixels of the training images.

    Args:
        resolution: pixels per side; other than 8 by spectral resampling, before the turn.
        copies: turns of each digit.
        validation: number of training digits held out to choose by; 0 for none.
        test_share: share of the digits held out to report on.
        seed: of the split and the angles.

    >>> data = rotated_digits(copies=2)
    >>> data.train.inputs.shape
    torch.Size([2588, 1, 16, 16])
    """
    x, y, x_test, y_test = digit_images(resolution, test_share=test_share, seed=seed)
    dark = x.min()
    train, held = hold_out(y, validation, seed)
    parts = [(x[train], y[train]), (x[held], y[held]), (x_test, y_test)]
    turned = [
        rotated.rotated(images - dark, labels, copies=copies, seed=seed + i) if len(labels) else (images, labels)
        for i, (images, labels) in enumerate(parts)
    ]
    return _floats("rotated_digits", turned, tuple("0123456789"))


def six_or_nine(resolution: int = 16, *, shares: tuple[float, float, float] = (0.6, 0.2, 0.2), seed: int = 0) -> Data:
    """Return sixes and nines, each as written and turned by 180°: does it read as a six or as a nine?

    A six upside down is a nine. Whoever cannot tell a turn by 180° sees the same under both labels, and is right half
    of the time, exactly: a task for networks that learn how far to respect a symmetry.

    Source: made from the digits bundled with scikit-learn (UCI; extra ``train``). Licence: CC BY 4.0. Split: random
    under a seed; both turns of a digit are in the same part. Normalisation: zero mean and unit variance over all pixels
    of the training images.

    Args:
        resolution: pixels per side; other than 8 by spectral resampling.
        shares: of training, validation and test.
        seed: of the split.

    Returns:
        Inputs (n, 1, resolution, resolution); class 0 reads as six, 1 as nine.

    >>> data = six_or_nine()
    >>> data.classes, data.test.target.float().mean()
    (('six', 'nine'), tensor(0.5000))
    """
    x, y, x_test, y_test = digit_images(resolution, seed=0)
    images, labels = torch.cat([x, x_test]), torch.cat([y, y_test])
    chosen = (labels == 6) | (labels == 9)
    images, nine = images[chosen], (labels[chosen] == 9).long()
    parts = []
    for index in divide(nine, shares, seed):
        some, reads = images[index], nine[index]
        parts.append((torch.cat([some, some.flip((-2, -1))]), torch.cat([reads, 1 - reads])))
    return _floats("six_or_nine", parts, ("six", "nine"))


def rotated_mnist(root: str | os.PathLike[str] | None, *, seed: int = 0) -> Data:
    """Return rotated MNIST: 62,000 MNIST digits, each turned by an angle drawn from the whole circle.

    Source: made from the files that :func:`~kernelfield.data.sets.images.mnist.mnist` reads, as Larochelle et al.
    (2007) made theirs; not their files. Licence: CC BY-SA 3.0. Split: 10,000 to train, 2,000 to choose by and 50,000
    to test, drawn from all 70,000 digits under a seed. Normalisation: zero mean and unit variance over all pixels of
    the training images.

    Args:
        root: folder of MNIST's files.
        seed: of the choice and of the angles.

    Returns:
        Inputs (n, 1, 28, 28), kept as bytes; classes (n,) of ten.
    """
    images, labels, test_images, test_labels = read_mnist(root)
    images, labels = torch.cat([images, test_images]), torch.cat([labels, test_labels])
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator)
    # The shares of the published numbers, so that a small set in the same layout works too.
    counts = [round(len(images) * n / 70_000) for n in (10_000, 2_000, 50_000)]
    order = order[: sum(counts)]
    angles = (torch.rand(len(order), generator=generator) * 2 - 1) * math.pi
    turned = torch.cat(
        [
            rotated.rotate(images[i].float(), a).round().clamp(0, 255).to(torch.uint8)
            for i, a in zip(order.split(2_000), angles.split(2_000), strict=True)
        ]
    )
    x, y = turned.split(counts), labels[order].split(counts)
    return _bytes("rotated_mnist", list(zip(x, y, strict=True)), tuple("0123456789"))


def mnist6_180(root: str | os.PathLike[str] | None, *, margin: float = 0.0, seed: int = 0) -> Data:
    """Return MNIST6-180: MNIST's sixes turned on the circle; six for turns in [-90°, 90°], and else nine.

    Source: made from the files that :func:`~kernelfield.data.sets.images.mnist.mnist` reads. Licence: CC BY-SA 3.0.
    Split: MNIST's own, a tenth of the training sixes held out to choose by. Normalisation: zero mean and unit variance
    over all pixels of the training images.

    Args:
        root: folder of MNIST's files.
        margin: degrees around ±90° without a sample.
        seed: of the turns and of the validation part.
    """
    parts = [
        rotated.mnist6_180(x.float(), y, margin=margin, seed=seed + i) for i, (x, y) in enumerate(_parts(root, seed))
    ]
    return _bytes("mnist6_180", [(x.round().clamp(0, 255).to(torch.uint8), y) for x, y in parts], ("six", "nine"))


def mnist6_m(root: str | os.PathLike[str] | None, *, seed: int = 0) -> Data:
    """Return MNIST6-M: MNIST's sixes and their mirror images; which is it?

    Source: made from the files that :func:`~kernelfield.data.sets.images.mnist.mnist` reads. Licence: CC BY-SA 3.0.
    Split: MNIST's own, a tenth of the training sixes held out to choose by. Normalisation: zero mean and unit variance
    over all pixels of the training images.

    Args:
        root: folder of MNIST's files.
        seed: of the validation part.
    """
    parts = [rotated.mnist6_m(x, y) for x, y in _parts(root, seed)]
    return _bytes("mnist6_m", parts, ("as written", "mirrored"))


def _parts(root: str | os.PathLike[str] | None, seed: int) -> list[Pair]:
    images, labels, test_images, test_labels = read_mnist(root)
    images, labels = images[labels == 6], labels[labels == 6]
    train, held = hold_out(labels, len(labels) // 10, seed)
    return [(images[train], labels[train]), (images[held], labels[held]), (test_images, test_labels)]


def _floats(name: str, parts: list[Pair], classes: tuple[str, ...]) -> Data:
    mean, std = parts[0][0].mean(), parts[0][0].std()
    return _data(name, [Split((x - mean) / std, y) for x, y in parts], classes)


def _bytes(name: str, parts: list[Pair], classes: tuple[str, ...]) -> Data:
    seen = parts[0][0].float() / 255
    prepare = Standardize((float(seen.mean()),), (float(seen.std()),))
    return _data(name, [Split(x, y, prepare=prepare) for x, y in parts], classes)


def _data(name: str, splits: list[Split], classes: tuple[str, ...]) -> Data:
    return Data(
        name=name,
        train=splits[0],
        validation=splits[1] if len(splits[1]) else None,
        test=splits[2],
        in_channels=1,
        out_channels=len(classes),
        dim=2,
        size=tuple(splits[0].inputs.shape[2:]),
        task="classification",
        classes=classes,
    )
