"""Handwritten digits, bundled with scikit-learn (1,797 images of 8×8; UCI, CC BY 4.0)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...._arguments import checked
from ...._kinds import SHARE, Int
from ....ops import resample
from ...base import Data, Split
from ...transforms.batch import Normalize
from ...transforms.split import hold_out

__all__ = ["digit_images", "digit_sequences", "digits"]


@checked(test_share=SHARE)
def digit_images(resolution: int = 8, *, test_share: float = 0.2, seed: int = 0) -> tuple[Tensor, ...]:
    """Return the digits as images.

    Args:
        resolution: pixels per side; values other than 8 use spectral resampling.
        test_share: share of the digits in the test set.
        seed: seed of the split.

    Returns:
        Training images (n, 1, resolution, resolution) of zero mean and unit variance, their labels (n,), and the test
        images and labels.

    >>> x, y, x_test, y_test = digit_images(16)
    >>> x.shape, y_test.shape
    (torch.Size([1438, 1, 16, 16]), torch.Size([359]))
    """
    *parts, normal = raw_digits(resolution, test_share, seed)
    return normal.values(parts[0]), parts[1], normal.values(parts[2]), parts[3]


def raw_digits(resolution: int, test_share: float, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Normalize]:
    """Return training images with values from 0 to 16, their labels, the same for testing, and the normalisation."""
    from sklearn.datasets import load_digits  # noqa: PLC0415

    raw = load_digits()
    images = torch.from_numpy(raw.images).float().unsqueeze(1)
    labels = torch.from_numpy(raw.target).long()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    images, labels = resample(images[order], (resolution, resolution)), labels[order]
    held = round(len(images) * test_share)
    normal = Normalize(images[held:].mean().view(1, 1, 1, 1), images[held:].std().view(1, 1, 1, 1))
    return images[held:], labels[held:], images[:held], labels[:held], normal


@checked(test_share=SHARE)
def digit_sequences(resolution: int = 8, *, test_share: float = 0.2, seed: int = 0) -> tuple[Tensor, ...]:
    """Return the digits read row by row: like :func:`digit_images`, with inputs (n, 1, resolution²).

    >>> digit_sequences(8)[0].shape
    torch.Size([1438, 1, 64])
    """
    x, y, x_test, y_test = digit_images(resolution, test_share=test_share, seed=seed)
    return x.flatten(2), y, x_test.flatten(2), y_test


@checked(test_share=SHARE, validation=Int(0))
def digits(
    resolution: int = 8,
    *,
    sequence: bool = False,
    validation: int = 144,
    test_share: float = 0.2,
    seed: int = 0,
) -> Data:
    """Return the digits as a data set, as images or read row by row.

    Source: the test set of UCI's "Optical recognition of handwritten digits", bundled with scikit-learn (extra
    ``train``). Licence: CC BY 4.0. Split: at random with a seed. Normalisation: zero mean and unit variance over all
    pixels of the training images.

    Args:
        resolution: pixels per side; values other than 8 use spectral resampling.
        sequence: whether inputs are sequences (n, 1, resolution²) instead of images (n, 1, resolution, resolution).
        validation: number of training digits held out for validation; 0 for none.
        test_share: share of the digits in the test set.
        seed: seed of the split.

    >>> data = digits(16, sequence=True)
    >>> data.size, len(data.train), len(data.validation), len(data.test)
    ((256,), 1294, 144, 359)
    """
    x, y, x_test, y_test, normal = raw_digits(resolution, test_share, seed)
    if sequence:
        x, x_test = x.flatten(2), x_test.flatten(2)
        normal = Normalize(normal.mean.flatten(2), normal.std.flatten(2))
    train, held = hold_out(y, validation, seed)
    known = Split(x, y, prepare=normal)
    splits = [known.take(train), known.take(held), Split(x_test, y_test, prepare=normal)]
    return Data.from_splits("digits", splits, classes=tuple("0123456789"))
