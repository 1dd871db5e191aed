"""Synthetic Pathfinder images: does a dashed path join two dots? (Linsley et al., 2018; chapter 3, appendix)."""

from __future__ import annotations

import math

import numpy as np
import torch

from ...._arguments import checked
from ...._kinds import Int
from ...base import Data, Split
from ...transforms.batch import Standardize

__all__ = ["pathfinder"]

#: number of attempts to draw an image before an error says that there is no room
TRIES = 1_000


@checked(resolution=Int(16), distractors=Int(0), validation=Int(0))
def pathfinder(
    resolution: int = 32,
    *,
    sequence: bool = False,
    dashes: int | None = None,
    distractors: int = 3,
    train: int = 3_000,
    validation: int = 500,
    test: int = 500,
    seed: int = 0,
) -> Data:
    """Return images with two dots and dashed paths; class 1 if a path joins the dots, 0 if not.

    Every image has two long paths of ``dashes`` dashes that do not touch, and shorter distractors. The dots lie at the
    ends of one long path, or at one end of each. A network must follow the dashes to tell the two cases apart.

    Source: generated from the description of Linsley et al. (2018), as in the Long Range Arena (32×32; Path-X is
    128×128). These are not the files of the Long Range Arena, so results on the two are not comparable. Licence: none
    needed. Split: the given numbers of images, drawn with one seed; both classes are equally frequent. Normalisation:
    zero mean and unit variance over the training images.

    Args:
        resolution: pixels per side, at least 16.
        sequence: whether inputs are sequences (n, 1, resolution²) instead of images.
        dashes: number of dashes of a long path, each of three pixels and a gap; a distractor has a third as many. The
            default is a fifth of ``resolution``.
        distractors: number of short paths.
        train: number of training images.
        validation: number of validation images; 0 for none.
        test: number of test images.
        seed: seed of all samples.

    Returns:
        Inputs (n, 1, resolution, resolution) or (n, 1, resolution²), stored as bytes; classes (n,) of two.

    >>> data = pathfinder(train=4, validation=0, test=2)
    >>> data.train.inputs.shape, data.train.target.tolist()
    (torch.Size([4, 1, 32, 32]), [0, 1, 0, 1])
    """
    dashes = resolution // 5 if dashes is None else dashes
    count = train, validation, test
    source = np.random.default_rng(seed)
    drawn = [_draw(source, resolution, bool(i % 2), dashes, distractors) for i in range(sum(count))]
    images = torch.from_numpy(np.stack(drawn)).unsqueeze(1)
    if sequence:
        images = images.flatten(2)
    label = torch.arange(len(images)) % 2
    seen = images[:train].float() / 255
    prepare = Standardize((float(seen.mean()),), (float(seen.std()),))
    splits = Split(images, label, prepare=prepare).cut(count)
    return Data.from_splits("pathfinder", splits, classes=("apart", "joined"))


def _draw(source: np.random.Generator, resolution: int, joined: bool, dashes: int, distractors: int) -> np.ndarray:
    """Return one image, (resolution, resolution) bytes."""
    for _ in range(TRIES):
        canvas = _Canvas(source, resolution)
        ends = [canvas.path(dashes) for _ in range(2)]
        if None in ends:
            continue
        for _ in range(distractors):
            canvas.path(max(1, dashes // 3))  # skipped if there is no room
        first, second = (end for end in ends if end is not None)
        canvas.dot(first[0])
        canvas.dot(first[1] if joined else second[0])
        return (255 * canvas.ink).round().astype(np.uint8)
    raise ValueError(f"dashes must leave room for two paths in {resolution}×{resolution} pixels, got {dashes}")


class _Canvas:
    """An image in the unit square, on which no two paths touch."""

    def __init__(self, source: np.random.Generator, resolution: int) -> None:
        centres = (np.arange(resolution) + 0.5) / resolution
        self.source = source
        self.grid = np.stack(np.meshgrid(centres, centres, indexing="ij"), axis=-1)
        self.pixel = 1 / resolution
        self.ink = np.zeros((resolution, resolution))
        self.taken = np.empty((0, 2))  # points along the paths so far

    def distance(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return the distance of every pixel from the segment between a and b."""
        along = b - a
        share = np.clip(((self.grid - a) @ along) / max(float(along @ along), 1e-12), 0, 1)
        return np.linalg.norm(self.grid - a - share[..., None] * along, axis=-1)

    def stroke(self, a: np.ndarray, b: np.ndarray, width: float) -> None:
        ink = np.clip((width - self.distance(a, b)) / self.pixel + 0.5, 0, 1)
        self.ink = np.maximum(self.ink, ink)

    def dot(self, at: np.ndarray) -> None:
        self.stroke(at, at, 1.8 * self.pixel)

    def path(self, dashes: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Draw a bent path of dashes that touches no other; return its ends, or None if there is no room."""
        for _ in range(50):
            points = self.grow(dashes)
            if points is not None:
                for i in range(0, len(points), 4):
                    self.stroke(points[i], points[i + 3], 0.6 * self.pixel)
                self.taken = np.concatenate([self.taken, points])
                return points[0], points[-1]
        return None

    def grow(self, dashes: int) -> np.ndarray | None:
        """Return (4 · dashes, 2) points along a path, dash by dash, or None if it has no room to continue."""
        points = np.empty((0, 2))
        at = self.source.uniform(0.08, 0.92, 2)
        heading = self.source.uniform(0, 2 * math.pi)
        for _ in range(dashes):
            for bend in self.source.uniform(-0.6, 0.6, 6):
                step = self.pixel * np.array([math.sin(heading + bend), math.cos(heading + bend)])
                fresh = at + np.outer(np.arange(4.0), step)  # a dash of three pixels
                if self.free(fresh, points):
                    break
            else:
                return None
            points = np.concatenate([points, fresh])
            at, heading = fresh[-1] + 2.5 * step, heading + bend
        return points

    def free(self, fresh: np.ndarray, own: np.ndarray) -> bool:
        """Return whether points are inside the image and away from other paths and their own dashes before the last."""
        if fresh.min() < 0.06 or fresh.max() > 0.94:
            return False
        others = np.concatenate([self.taken, own[:-4]])
        gaps = fresh[:, None] - others
        return not len(others) or float(np.square(gaps).sum(axis=-1).min()) > (3 * self.pixel) ** 2
