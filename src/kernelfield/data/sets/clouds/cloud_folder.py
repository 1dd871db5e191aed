"""Custom point clouds: one folder of clouds or meshes per class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ...._arguments import checked
from ...._kinds import TEXT
from ...base import Data, Split
from ...io.arrays import finite_array, read_array
from ...io.files import folder
from ...io.meshes import read_off, sample_mesh
from ...io.ply import read_ply
from ...transforms.batch import Chain
from ...transforms.clouds import ChoosePoints, NormalizePoints, normalized
from ..images.image_folder import list_classes

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

__all__ = ["cloud_folder", "draw_points", "read_clouds"]

ENDINGS = (".off", ".ply", ".npy")


@checked(group=TEXT | None)
def cloud_folder(
    root: str | os.PathLike[str] | None,
    *,
    points: int = 512,
    shares: tuple[float, float, float] = (0.7, 0.15, 0.15),
    seed: int = 0,
    group: str | None = None,
) -> Data:
    """Return the point clouds of a folder with one folder per class: ``root/chair/1.off``, ``root/lamp/7.npy``.

    Source: your own files: meshes or points as ``.off`` or ``.ply``, points (n, 3) as ``.npy``. Points are drawn
    uniformly from the surface of a mesh. Licence: that of your files. Split: the folders ``train``, ``test`` and
    ``val``, as in ``root/train/chair/1.off`` (without ``val``, 15 percent of the training clouds are held out);
    otherwise at random, stratified by class. Normalisation: the mean of each cloud is at the origin, its farthest
    coordinate at 1.

    Args:
        root: the folder.
        points: points per cloud; twice as many are stored, and training draws a new choice in every epoch.
        shares: shares of training, validation and test data, if ``root`` has no folders for them.
        seed: seed of the points and of the split.
        group: regular expression for the part of a file's path that names its group, such as an object; a group stays
            in one part of the data.

    Returns:
        Positions (n, 3, points) with coords (n, points, 3) in [-1, 1]; classes (n,), the names of the folders, sorted.
    """
    where = folder(root, "a folder of point clouds for each class")
    paths, labels, classes, index = list_classes(where, ENDINGS, "point clouds", shares, seed, group)
    coords = read_clouds(paths, 2 * points, seed)
    none = coords.new_zeros(len(coords), 0, coords.shape[1])
    # Files are normalised as they are read; the transform prepares samples from elsewhere.
    prepare = Chain((NormalizePoints(), ChoosePoints(points)))
    splits = [Split(none[i], labels[i], coords=coords[i], prepare=prepare) for i in index]
    return Data.from_splits(where.name, splits, in_channels=3, size=(2, 2, 2), classes=classes)


def read_clouds(paths: Sequence[Path], count: int, seed: int = 0) -> Tensor:
    """Return (n, count, 3) normalised points of all files; the points of a file do not depend on the others."""
    coords = torch.empty(len(paths), count, 3)
    for i, path in enumerate(paths):
        vertices, triangles = _read(path)
        if bool((vertices == vertices[0]).all()):
            raise ValueError(f"{path} must hold two or more different points, found one")
        if len(triangles):
            try:
                found, _ = sample_mesh(vertices, triangles, count, torch.Generator().manual_seed(seed))
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
            coords[i] = normalized(found)
        else:
            coords[i] = draw_points(vertices, count, seed)
    return coords


def draw_points(points: Tensor, count: int, seed: int = 0) -> Tensor:
    """Return (count, 3) normalised points of a cloud; each appears once, at random, before any point is repeated."""
    generator = torch.Generator().manual_seed(seed)
    order = [torch.randperm(len(points), generator=generator) for _ in range(-(-count // len(points)))]
    return normalized(points[torch.cat(order)[:count]]).float()


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """Return points or vertices (n, 3) and triangles (m, 3); points have no triangles.

    Coordinates are float64: float32 would round those of a survey, far from their origin, to half a metre.
    """
    ending = path.suffix.lower()
    if ending != ".npy":
        found = (read_off if ending == ".off" else read_ply)(path, torch.float64)
        if not len(found[0]):
            raise ValueError(f"{path} must hold points, found none")
        return found
    array = read_array(path)
    if array.ndim != 2 or array.shape[1] != 3 or not len(array) or array.dtype.kind not in "iuf":
        raise ValueError(f"{path} must hold points (n, 3), found {array.dtype} {array.shape}")
    if not np.isfinite(finite_array(array, path)).all():
        raise ValueError(f"{path} must hold finite points, found NaN")
    return torch.from_numpy(array.astype(np.float64)), torch.empty(0, 3, dtype=torch.long)
