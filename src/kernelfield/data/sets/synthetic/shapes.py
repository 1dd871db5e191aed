"""Synthetic shapes: circles, squares, triangles and others, at any resolution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...._arguments import checked
from ...._kinds import Int
from ...base import Data, Split
from ...transforms.batch import Standardize

__all__ = ["shapes"]

CLASSES = ("circle", "square", "triangle", "cross", "ring", "star")


@checked(validation=Int(0))
def shapes(resolution: int = 32, *, train: int = 2_000, validation: int = 500, test: int = 500, seed: int = 0) -> Data:
    """Return images of one shape each, with random position, size, angle, brightness and background.

    A shape is a region of the unit square, and the value of a pixel is the share of its area that the shape covers. The
    same seed at another resolution gives the same shapes on another grid.

    Source: generated. Licence: none needed. Split: the given numbers of images, drawn with one seed. Normalisation:
    zero mean and unit variance over the training images.

    Args:
        resolution: pixels per side.
        train: number of training images.
        validation: number of validation images; 0 for none.
        test: number of test images.
        seed: seed of all samples.

    Returns:
        Inputs (n, 1, resolution, resolution), stored as bytes; classes (n,) of six.

    >>> data = shapes(16, train=10)
    >>> data.train.inputs.shape, data.classes[:3]
    (torch.Size([10, 1, 16, 16]), ('circle', 'square', 'triangle'))
    """
    count = train, validation, test
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(len(CLASSES), (sum(count),), generator=generator)
    drawn = torch.rand(6, len(label), generator=generator)
    images = torch.cat([_render(y, p.T, resolution) for y, p in zip(label.split(256), drawn.T.split(256), strict=True)])
    seen = images[:train].float() / 255
    prepare = Standardize((float(seen.mean()),), (float(seen.std()),))
    splits = Split(images, label, prepare=prepare).cut(count)
    return Data.from_splits("shapes", splits, classes=CLASSES)


def _render(label: Tensor, drawn: Tensor, resolution: int) -> Tensor:
    """Return (n, 1, resolution, resolution) bytes of shapes, from ``drawn`` (6, n) random numbers in [0, 1)."""
    size = 0.15 + 0.12 * drawn[0]
    row, column = (0.32 + 0.36 * drawn[1:3]).view(2, -1, 1, 1)
    turn = 2 * math.pi * drawn[3]
    # Four points per pixel and axis give the coverage in steps of a sixteenth.
    fine = (torch.arange(4 * resolution) + 0.5) / (4 * resolution)
    v, u = fine.view(1, -1, 1) - row, fine.view(1, 1, -1) - column
    cos, sin = torch.cos(turn).view(-1, 1, 1), torch.sin(turn).view(-1, 1, 1)
    u, v = (cos * u + sin * v) / size.view(-1, 1, 1), (cos * v - sin * u) / size.view(-1, 1, 1)
    inside = torch.zeros(u.shape)
    for kind, name in enumerate(CLASSES):
        chosen = label == kind
        inside[chosen] = _inside(name, u[chosen], v[chosen]).float()
    covered = torch.nn.functional.avg_pool2d(inside.unsqueeze(1), 4)
    background = 0.4 * drawn[4].view(-1, 1, 1, 1)
    ink = 0.6 + 0.4 * drawn[5].view(-1, 1, 1, 1)
    return (255 * (background + (ink - background) * covered)).round().to(torch.uint8)


def _inside(name: str, u: Tensor, v: Tensor) -> Tensor:
    """Return whether (u, v) lies in the shape, whose radius is about 1."""
    radius = torch.hypot(u, v)
    if name == "circle":
        return radius < 1
    if name == "ring":
        return (radius < 1.1) & (radius > 0.65)
    if name == "square":
        return (u.abs() < 0.886) & (v.abs() < 0.886)
    if name == "cross":
        return ((u.abs() < 0.35) & (v.abs() < 1.1)) | ((v.abs() < 0.35) & (u.abs() < 1.1))
    angle = torch.atan2(v, u)
    if name == "triangle":
        sector = torch.remainder(angle, 2 * math.pi / 3) - math.pi / 3
        return radius * torch.cos(sector) < 0.68
    # A five-pointed star: between its points the radius falls linearly with the angle.
    sector = (torch.remainder(angle, 2 * math.pi / 5) - math.pi / 5).abs() / (math.pi / 5)
    return radius < 0.5 + 0.75 * sector
