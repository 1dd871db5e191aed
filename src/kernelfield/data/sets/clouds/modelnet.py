"""ModelNet10 and ModelNet40: point clouds from meshes of objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...._arguments import checked, with_arguments_of
from ...._kinds import RATE, SEED, Int
from ...base import Data, Split
from ...io.files import folder
from ...io.meshes import read_off, sample_mesh
from ...transforms.clouds import ChoosePoints, normalized
from ...transforms.split import class_index, hold_out

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from torch import Tensor

__all__ = ["modelnet10", "modelnet40"]


def _modelnet(
    root: str | os.PathLike[str] | None,
    kinds: int,
    *,
    points: int,
    normals: bool,
    voxels: int | None = None,
    validation_share: float = 0.1,
    seed: int = 0,
) -> Data:
    published = f"ModelNet{kinds}"
    name, where = published.lower(), folder(root, published, published)
    parts = {part: sorted(where.glob(f"*/{part}/*.off")) for part in ("train", "test")}
    found = {path.parts[-3] for paths in parts.values() for path in paths}
    if not parts["train"] or not parts["test"]:
        raise ValueError(f"{where} must hold kind/train/*.off and kind/test/*.off, found {len(found)} kinds")
    if len(found) > kinds:
        raise ValueError(f"{where} must hold at most the {kinds} kinds of {name}, found {len(found)}")
    known = sorted(found)
    drawn = {
        part: _sampled(paths, (8 if voxels else 2) * points, normals, seed + i)
        for i, (part, paths) in enumerate(parts.items())
    }
    label = {part: class_index([path.parts[-3] for path in paths], known)[0] for part, paths in parts.items()}
    train, held = hold_out(label["train"], round(validation_share * len(label["train"])), seed)
    prepare = ChoosePoints(points, voxels)

    by_part = {part: Split(v, label[part], coords=c, prepare=prepare) for part, (c, v) in drawn.items()}
    splits = [by_part["train"].take(train), by_part["train"].take(held), by_part["test"]]
    return Data.from_splits(name, splits, in_channels=6 if normals else 3, size=(2, 2, 2), classes=known)


@checked(voxels=Int() | None, validation_share=RATE, seed=SEED)
@with_arguments_of(_modelnet, without=("root", "kinds"))
def modelnet40(
    root: str | os.PathLike[str] | None, *, points: int = 1_000, normals: bool = True, **options: Any
) -> Data:
    """Return ModelNet40: 12,311 objects of 40 classes, as points drawn uniformly from the surfaces of their meshes.

    Source: https://modelnet.cs.princeton.edu, unpacked: ``root/chair/train/chair_0001.off``, or the same in
    ``root/ModelNet40``. No checksum is published, so nothing is downloaded. Licence: for academic use; the meshes
    belong to their authors. Split: the published one, 9,843 for training and 2,468 for testing; a tenth of the training
    objects is held out for validation, stratified by class. Normalisation: the mean of each cloud is at the origin, its
    farthest coordinate at 1.

    Args:
        root: folder of the classes.
        points: points per cloud; twice as many are stored, for voxels eight times as many, and training draws a new
            choice in every epoch.
        normals: whether to add surface normals, as three more channels.
        options: the keyword arguments below.
        voxels: number of voxels along each axis; points move to the voxel centres, one point per voxel. None for no
            voxels.
        validation_share: share of the training objects held out for validation.
        seed: seed of the points and of the validation split.

    Returns:
        Positions, then normals, (n, 6 or 3, points) with coords (n, points, 3) in [-1, 1]; classes (n,).
    """
    return _modelnet(root, 40, points=points, normals=normals, **options)


@checked(voxels=Int() | None, validation_share=RATE, seed=SEED)
@with_arguments_of(_modelnet, without=("root", "kinds"))
def modelnet10(
    root: str | os.PathLike[str] | None, *, points: int = 512, normals: bool = False, **options: Any
) -> Data:
    """Return ModelNet10: 4,899 objects of ten classes, all upright, as points drawn uniformly from their surfaces.

    Source: that of :func:`modelnet40`, in ``root`` or ``root/ModelNet10``. Licence: that of ModelNet40. Split: the
    published one, 3,991 for training and 908 for testing; a tenth of the training objects is held out for validation,
    stratified by class. Normalisation: that of ModelNet40.

    Args:
        root: folder of the classes.
        points: points per cloud; twice as many are stored, for voxels eight times as many.
        normals: whether to add surface normals, as three more channels.
        options: further arguments of :func:`modelnet40`.

    Returns: Like :func:`modelnet40`.
    """
    return _modelnet(root, 10, points=points, normals=normals, **options)


def _sampled(paths: list[Path], count: int, normals: bool, seed: int) -> tuple[Tensor, Tensor]:
    """Return (n, count, 3) normalised points and (n, 3 or 0, count) normals, in half precision."""
    generator = torch.Generator().manual_seed(seed)
    coords = torch.empty(len(paths), count, 3, dtype=torch.float16)
    values = torch.empty(len(paths), 3 if normals else 0, count, dtype=torch.float16)
    for i, path in enumerate(paths):
        try:
            place, normal = sample_mesh(*read_off(path), count, generator)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        coords[i] = normalized(place)
        if normals:
            values[i] = normal.mT
    return coords, values
