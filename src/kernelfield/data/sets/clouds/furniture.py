"""Two small data sets of real objects: point clouds of furniture, and voxels of chairs and monitors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...._arguments import checked
from ...._checks import check_int
from ...._kinds import Choice, Int
from ...base import Data, Split
from ...io.arrays import finite_array, read_arrays
from ...transforms.batch import AsFloat
from ...transforms.clouds import ChoosePoints, normalized
from ...transforms.split import class_index, divide

if TYPE_CHECKING:
    import os

    from torch import Tensor

__all__ = ["chair_monitor", "furniture"]

FOLDS = 5


@checked(split=Int(0, FOLDS - 1))
def furniture(
    root: str | os.PathLike[str] | None, *, points: int = 1_024, split: int = 0, voxels: int | None = None
) -> Data:
    """Return 820 clouds of 2,048 points, sampled from meshes of furniture of twelve categories.

    Source: ``furniture_pc2048.npz``, points sampled from models of Sweet Home 3D. Licence: CC0 or CC BY 3.0, depending
    on the model. Split: one of five fixed splits, each with a different fifth of each category for testing and the rest
    for training. Normalisation: the mean of each cloud is at the origin, its farthest coordinate at 1.

    Args:
        root: the file, or its folder.
        points: points per cloud; training draws new ones in every epoch.
        split: number of the split, 0 to 4.
        voxels: number of voxels along each axis; points move to the voxel centres, one point per voxel. None for no
            voxels.

    Returns:
        Positions (n, 3, points) with coords (n, points, 3) in [-1, 1]; classes (n,) of twelve.
    """
    if not 0 <= check_int("split", split, least=0) < FOLDS:
        raise ValueError(f"split must be 0 to {FOLDS - 1}, got {split}")
    file = _file(root, "furniture_pc2048.npz")
    points_stored, category = read_arrays(file, ("points", "category")).values()
    if points_stored.shape[2:] != (3,) or points_stored.dtype.kind != "f" or len(category) != len(points_stored):
        raise ValueError(f"{file} must hold points (n, points, 3) and n categories, found {points_stored.shape}")
    if not np.isfinite(finite_array(points_stored, file, "points")).all():
        raise ValueError(f"{file} must hold finite points, found NaN")
    clouds = normalized(torch.from_numpy(points_stored.astype(np.float32))).half()
    label, classes = class_index([str(name) for name in category])
    fold = _folds(label)
    prepare = ChoosePoints(points, voxels)

    def part(chosen: Tensor) -> Split:
        coords = clouds[chosen]
        return Split(coords.new_zeros(len(coords), 0, coords.shape[1]), label[chosen], coords=coords, prepare=prepare)

    return Data.from_splits(
        "furniture", [part(fold != split), None, part(fold == split)], in_channels=3, size=(2, 2, 2), classes=classes
    )


@checked(form=Choice("points", "voxels"))
def chair_monitor(
    root: str | os.PathLike[str] | None, *, form: str = "points", points: int = 1_024, seed: int = 0
) -> Data:
    """Return the chairs and monitors of ModelNet10 as 32³ voxels: 889 and 465 of them.

    Source: ``modelnet10_chair_monitor_32.npz``, voxels of ModelNet10. Licence: none is stated. Split: 70% for training,
    15% for validation, 15% for testing, stratified by class, with a seed. Normalisation: none for voxels; points are
    the centres of filled voxels; the grid spans [-1, 1].

    Args:
        root: the file, or its folder.
        form: "points" for the centres of filled voxels, "voxels" for the grid.
        points: points per object, drawn from its filled voxels; objects with fewer are padded and masked.
        seed: seed of the split and of the points.

    Returns:
        Positions (n, 3, points) with coords (n, points, 3) and mask, or voxels (n, 1, 32, 32, 32), stored as bytes;
        classes (n,) of two.
    """
    file = _file(root, "modelnet10_chair_monitor_32.npz")
    stored = read_arrays(file, ("chair", "monitor"))
    for name, array in stored.items():
        if array.dtype != np.uint8 or array.shape[1:] != (32**3 // 8,) or len(array) < 2:
            raise ValueError(f"{file} must hold {name}, bytes of shape (n, 4096), found {array.dtype} {array.shape}")
    # The first row of each array is empty.
    solid = [np.unpackbits(array, axis=1).reshape(-1, 32, 32, 32)[1:] for array in stored.values()]
    grid = torch.from_numpy(np.concatenate(solid))
    label = torch.tensor([0] * len(solid[0]) + [1] * len(solid[1]))
    parts = divide(label, seed=seed)
    if form == "voxels":
        splits = [Split(grid[i].unsqueeze(1), label[i], prepare=AsFloat()) for i in parts]
    else:
        coords, mask = _filled(grid, 2 * points, seed)
        none = coords.new_zeros(len(coords), 0, coords.shape[1])
        prepare = ChoosePoints(points)
        splits = [Split(none[i], label[i], coords=coords[i], mask=mask[i], prepare=prepare) for i in parts]
    return Data.from_splits(
        "chair_monitor",
        splits,
        in_channels=3 if form == "points" else 1,
        size=(2, 2, 2) if form == "points" else (32, 32, 32),
        classes=("chair", "monitor"),
    )


def _file(root: str | os.PathLike[str] | None, name: str) -> Path:
    if root is None:
        raise ValueError(f"root must be {name} or its folder, got None")
    path = Path(root).expanduser()
    if not path.exists():
        raise ValueError(f"root must be {name} or its folder, got {path}, which does not exist")
    file = path / name if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"{path} must hold {name}, found no such file")
    return file


def _folds(label: Tensor) -> Tensor:
    """Return the fold of each sample; the samples of a class go to the folds in turn, in a fixed random order."""
    order = torch.randperm(len(label), generator=torch.Generator().manual_seed(0))
    by_class = order[label[order].argsort(stable=True)]
    fold = torch.empty_like(label)
    fold[by_class] = torch.arange(len(label)) % FOLDS
    return fold


def _filled(grid: Tensor, most: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the centres (n, most, 3) of up to ``most`` filled voxels, in a random order, and a mask."""
    side = grid.shape[1]
    score = torch.rand(grid.flatten(1).shape, generator=torch.Generator().manual_seed(seed))
    score = torch.where(grid.flatten(1) > 0, score, 2.0)
    found, index = score.topk(min(most, score.shape[1]), dim=1, largest=False)
    cell = torch.stack([index // (side * side), index // side % side, index % side], dim=-1)
    return (cell + 0.5) * (2 / side) - 1, found < 1
