"""Rotated and mirrored digits (chapter 11, section 5): rotated MNIST, MNIST6-180 and MNIST6-M from any digits.

These functions take labels (n,) and images (n, channels, rows, columns) with a background of zero: MNIST, or
:func:`kernelfield.data.sets.images.digits.digit_images` minus its smallest value.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ..._arguments import checked
from ..._kinds import NOT_NEGATIVE, Int
from ..._object_kinds import TensorOf
from ...groups import SO2, warp

__all__ = ["half_turned_sixes", "mnist6_180", "mnist6_m", "rotate", "rotated", "sixes"]

_IMAGES = TensorOf("float", "n, channels, rows, columns") | TensorOf("int", "n, channels, rows, columns")


@checked(images=TensorOf("float", "n, channels, rows, columns"), angles=TensorOf("float", "n"))
def rotate(images: Tensor, angles: Tensor) -> Tensor:
    """Rotate each image by its own angle in radians, counterclockwise: bilinear, with zeros beyond the edge.

    >>> x = torch.randn(3, 1, 5, 5)
    >>> quarter = rotate(x, torch.full((3,), math.pi / 2))
    >>> torch.allclose(quarter, torch.rot90(x, 1, (-2, -1)), atol=1e-5)
    True
    """
    if angles.shape != images.shape[:1]:
        raise ValueError(f"angles must have shape ({len(images)},), one per image, got {tuple(angles.shape)}")
    matrices = SO2().matrix(angles.to(images)[:, None])
    return torch.vmap(lambda image, matrix: warp(image, matrix[None])[0])(images, matrices)


@checked(images=_IMAGES, labels=TensorOf("int", "n"))
def rotated(images: Tensor, labels: Tensor, *, copies: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return ``copies`` of every image, rotated by uniform random angles, and their labels.

    >>> x, y = rotated(torch.randn(4, 1, 8, 8), torch.arange(4), copies=2)
    >>> x.shape, y.tolist()
    (torch.Size([8, 1, 8, 8]), [0, 1, 2, 3, 0, 1, 2, 3])
    """
    generator = torch.Generator().manual_seed(seed)
    angles = (torch.rand(copies * len(images), generator=generator) * 2 - 1) * math.pi
    return rotate(images.repeat(copies, 1, 1, 1), angles), labels.repeat(copies)


@checked(images=_IMAGES, labels=TensorOf("int", "n"), margin=NOT_NEGATIVE)
def mnist6_180(
    images: Tensor, labels: Tensor, *, copies: int = 1, margin: float = 0.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return rotated sixes, labelled 0 (six) for angles in [-90°, 90°] and 1 (nine) otherwise.

    Each six appears ``copies`` times at a uniform random angle and at the opposite angle. Both labels are equally
    frequent, so a network that cannot tell them apart is right exactly half of the time.

    Args:
        images: (n, channels, rows, columns) images, background zero.
        labels: (n,) digits.
        copies: number of pairs per six.
        margin: no sample lies within this many degrees of ±90°: handwriting is slanted, so the label is unclear there.
        seed: seed of the angles.

    Returns:
        (2 · copies · sixes, channels, rows, columns) images and their labels.

    >>> x, y = mnist6_180(torch.randn(9, 1, 8, 8), torch.tensor([6, 1, 6, 6, 2, 3, 4, 5, 0]), copies=2)
    >>> x.shape, y.sum()
    (torch.Size([12, 1, 8, 8]), tensor(6))
    """
    if not 0 <= margin < 90:
        raise ValueError(f"margin must lie between 0 and 90 degrees, got {margin}")
    chosen = sixes(images, labels).repeat(copies, 1, 1, 1)
    generator = torch.Generator().manual_seed(seed)
    reach = math.radians(90 - margin)
    angles = (torch.rand(len(chosen), generator=generator) * 2 - 1) * reach
    upright = rotate(chosen, angles)
    # A rotation by 180° is exact on the grid, so no trace of the interpolation tells the two labels apart.
    return _two_classes(upright, upright.flip((-2, -1)))


@checked(images=_IMAGES, labels=TensorOf("int", "n"))
def half_turned_sixes(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return upright sixes and sixes rotated by exactly 180°, labelled 0 and 1: MNIST6-180 of the published code.

    >>> x, y = half_turned_sixes(torch.randn(3, 1, 8, 8), torch.tensor([6, 1, 6]))
    >>> y.tolist(), torch.equal(x[2], x[0].flip((-2, -1)))
    ([0, 0, 1, 1], True)
    """
    chosen = sixes(images, labels)
    return _two_classes(chosen, chosen.flip((-2, -1)))


@checked(images=_IMAGES, labels=TensorOf("int", "n"))
def mnist6_m(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return sixes and their horizontal mirror images, labelled 0 and 1.

    >>> x, y = mnist6_m(torch.randn(3, 1, 8, 8), torch.tensor([6, 1, 6]))
    >>> y.tolist()
    [0, 0, 1, 1]
    """
    chosen = sixes(images, labels)
    return _two_classes(chosen, chosen.flip(-1))


@checked(images=_IMAGES, labels=TensorOf("int", "n"), pad=Int(0))
def sixes(images: Tensor, labels: Tensor, *, pad: int = 0) -> Tensor:
    """Return the images of the digit six, with ``pad`` pixels of background on each side."""
    if len(images) != len(labels) or images.dim() != 4:
        raise ValueError(
            "images must have shape (n, channels, rows, columns) with one label each, "
            f"got {tuple(images.shape)} and {tuple(labels.shape)}"
        )
    return F.pad(images[labels == 6], (pad,) * 4)


def _two_classes(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    labels = torch.cat([torch.zeros(len(first)), torch.ones(len(second))]).long()
    return torch.cat([first, second]), labels
