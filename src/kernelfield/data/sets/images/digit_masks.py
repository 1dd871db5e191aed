"""Rotated digits on a noisy canvas, to segment: a class for each pixel, which rotates with the image."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ...._arguments import checked
from ...._kinds import NOT_NEGATIVE, Int
from ...base import Data, Split
from ...transforms.batch import Normalize
from ...transforms.rotate import rotate
from ...transforms.split import hold_out
from .digits import raw_digits

__all__ = ["digit_masks"]

#: largest value of a stored digit
WHITE = 16.0
#: least brightness of a pixel that belongs to a digit, as a share of white
INK = 0.25
#: share of the digits in the test set
TEST_SHARE = 0.2
#: random placements of which each canvas takes the one with the greatest distances
TRIES = 8


@checked(resolution=Int(8), digits=Int(1), noise=NOT_NEGATIVE, validation=Int(0))
def digit_masks(
    resolution: int = 32, *, digits: int = 2, noise: float = 0.2, copies: int = 1, validation: int = 144, seed: int = 0
) -> Data:
    r"""Return noisy canvases of rotated digits, and for each pixel the digit it belongs to.

    Each digit is half as wide as the canvas. It is rotated by a uniform random angle and shifted to a random position.
    With :math:`I_i` the brightness of digit i of class :math:`c_i`, the image and the class of pixel p are

    .. math:: x(p) = \max_i I_i(p) + \varepsilon(p), \qquad
        y(p) = c_j \text{ if } I_j(p) = \max_i I_i(p) > \tfrac14, \text{ otherwise background.}

    A canvas rotated by 90° has its target rotated by 90°. Nines are left out: one upside down is a six.

    Source: derived from the digits bundled with scikit-learn (UCI; extra ``train``). Licence: CC BY 4.0. Split: at
    random with a seed; no digit is in two splits. Normalisation: zero mean and unit variance over all pixels of the
    training images.

    Args:
        resolution: pixels per side of the canvas.
        digits: number of digits per canvas.
        noise: standard deviation of the noise; white is 1 and black is 0.
        copies: number of canvases per digit; every digit is the first one of that many canvases.
        validation: number of training digits held out for validation; 0 for none.
        seed: seed of the split, the positions, the angles and the noise.

    Returns:
        Inputs (n, 1, resolution, resolution) and classes (n, resolution, resolution): 0 is the background, and c + 1
        the digit c.

    >>> data = digit_masks()
    >>> data.train.inputs.shape, data.train.target.shape, data.classes[:3]
    (torch.Size([1159, 1, 32, 32]), torch.Size([1159, 32, 32]), ('background', '0', '1'))
    """
    x, y, x_test, y_test, _ = raw_digits(resolution // 2, TEST_SHARE, seed)
    train, held = hold_out(y, validation, seed)
    splits = []
    for i, (images, labels) in enumerate([(x[train], y[train]), (x[held], y[held]), (x_test, y_test)]):
        generator = torch.Generator().manual_seed(3 * seed + i)
        known = labels != 9
        drawn = images[known].clamp(0, WHITE) / WHITE, labels[known]
        splits.append(_canvases(*drawn, resolution, digits, noise, copies, generator))
    seen = splits[0][0]
    normal = Normalize(seen.mean().view(1, 1, 1, 1), seen.std().view(1, 1, 1, 1))
    return Data.from_splits(
        "digit_masks",
        [Split(inputs, target, prepare=normal) for inputs, target in splits],
        "segmentation",
        size=(resolution, resolution),
        classes=("background", *"012345678"),
    )


def _canvases(
    images: Tensor, labels: Tensor, side: int, digits: int, noise: float, copies: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return canvases (n, 1, side, side), a number ``copies`` for each image, and their classes (n, side, side)."""
    n, width = copies * len(images), images.shape[-1]
    if not n:
        return torch.zeros(0, 1, side, side), torch.zeros(0, side, side, dtype=torch.long)
    others = torch.randint(len(images), (n, digits - 1), generator=generator)
    chosen = torch.cat([torch.arange(len(images)).repeat(copies)[:, None], others], dim=1)
    angles = (torch.rand(n, digits, generator=generator) * 2 - 1) * math.pi
    left = (side - width) // 2
    places = _places(n, digits, side - width, generator) - left
    ink = torch.zeros(n, side, side)
    target = torch.zeros(n, side, side, dtype=torch.long)
    for i in range(digits):
        # The digit is rotated in the middle of the canvas, where no corner of it is lost.
        centred = F.pad(images[chosen[:, i]], (left, side - width - left) * 2)
        shifted = _shift(rotate(centred, angles[:, i])[:, 0], places[:, i])
        target = torch.where((shifted > ink) & (shifted > INK), labels[chosen[:, i]].view(-1, 1, 1) + 1, target)
        ink = torch.maximum(ink, shifted)
    return (ink + noise * torch.randn(ink.shape, generator=generator)).unsqueeze(1), target


def _places(n: int, digits: int, room: int, generator: torch.Generator) -> Tensor:
    """Return positions (n, digits, 2) between 0 and ``room``: of a few random placements the least crowded one."""
    tries = torch.randint(room + 1, (n, TRIES, digits, 2), generator=generator)
    distances = torch.cdist(tries.double(), tries.double()) + torch.eye(digits, dtype=torch.double) * 2 * room
    best = distances.flatten(2).amin(dim=2).argmax(dim=1)
    return tries[torch.arange(n), best]


def _shift(images: Tensor, by: Tensor) -> Tensor:
    """Shift each image (n, rows, columns) by its own whole numbers of pixels (n, 2), with zeros beyond the edge."""
    n, rows, columns = images.shape
    padded = F.pad(images, (columns, columns, rows, rows))
    i = torch.arange(rows) + rows - by[:, :1]
    j = torch.arange(columns) + columns - by[:, 1:]
    return padded[torch.arange(n)[:, None, None], i[:, :, None], j[:, None, :]]
