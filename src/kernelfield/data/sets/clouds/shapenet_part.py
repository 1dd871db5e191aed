"""ShapeNet-part: point clouds of objects, with the part of every point as its label."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...._arguments import checked
from ...base import Data, Split
from ...io.files import decoding, find, folder, open_file, read_bytes, read_lines
from ...transforms.clouds import ChoosePoints, normalized

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["PARTS", "part_iou", "shapenet_part"]

#: kinds of objects, and the labels of their parts
PARTS = {
    "airplane": (0, 1, 2, 3),
    "bag": (4, 5),
    "cap": (6, 7),
    "car": (8, 9, 10, 11),
    "chair": (12, 13, 14, 15),
    "earphone": (16, 17, 18),
    "guitar": (19, 20, 21),
    "knife": (22, 23),
    "lamp": (24, 25, 26, 27),
    "laptop": (28, 29),
    "motorbike": (30, 31, 32, 33, 34, 35),
    "mug": (36, 37),
    "pistol": (38, 39, 40),
    "rocket": (41, 42, 43),
    "skateboard": (44, 45, 46),
    "table": (47, 48, 49),
}
IGNORED = -100


@checked()
def shapenet_part(root: str | os.PathLike[str] | None, *, points: int = 2_048, normals: bool = True) -> Data:
    """Return ShapeNet-part: 16,881 objects of 16 kinds with 2 to 6 parts each, 50 parts in all.

    Source: ``shapenetcore_partanno_segmentation_benchmark_v0_normal``, unpacked into ``root``: files such as
    ``02691156/1a04e3eab45ca15dd86060f189eb133.txt`` with position, normal and label on each line, kinds in
    ``synsetoffset2category.txt``, splits in ``train_test_split/``. No checksum is published, so nothing is downloaded.
    Licence: ShapeNet's terms of use, for research. Split: the published one, 12,137 for training, 1,870 for validation,
    2,874 for testing. Normalisation: the mean of each cloud is at the origin, its farthest coordinate at 1.

    Args:
        root: folder of the files.
        points: points per cloud. Training draws a new choice in every epoch; objects with fewer points are
            padded and masked.
        normals: whether to add normals, as three more channels.

    Returns:
        Positions, then normals, (n, 6 or 3, points) with coords (n, points, 3) and mask; labels (n, points) of 50.
    """
    name = "shapenetcore_partanno_segmentation_benchmark_v0_normal"
    where = folder(root, "ShapeNet-part", name)
    lines = read_lines(find(where, ["synsetoffset2category.txt"], "the kinds"))
    if not all(len(line.split()) == 2 for line in lines if line.strip()):
        raise ValueError(f"{where / 'synsetoffset2category.txt'} must hold a kind and its folder on each line")
    kinds = {line.split()[1]: line.split()[0].lower() for line in lines if line.strip()}
    splits = {part: _read_split(where, part, points, normals) for part in ("train", "val", "test")}
    unknown = sorted(set(kinds.values()) - set(PARTS))
    if unknown:
        raise ValueError(f"{where} must name the kinds {', '.join(PARTS)}, found {unknown[0]}")
    return Data.from_splits(
        "shapenet_part",
        [splits[part] for part in ("train", "val", "test")],
        "segmentation",
        in_channels=6 if normals else 3,
        size=(2, 2, 2),
        classes=[f"{kind} {i}" for kind, labels in PARTS.items() for i in range(len(labels))],
        parts=tuple(PARTS.values()),
    )


def _read_split(where: Path, part: str, points: int, normals: bool) -> Split:
    listed = find(where / "train_test_split", [f"shuffled_{part}_file_list.json"], "the splits")
    with decoding(listed, "a JSON list of files"):
        entries = json.loads(read_bytes(listed))
        if not isinstance(entries, list) or not entries or not all(isinstance(entry, str) for entry in entries):
            raise ValueError("it must hold a list of names")
    names = ["/".join(entry.split("/")[1:]) for entry in entries]
    if any(".." in name.split("/") for name in names):
        raise ValueError(f"{listed} must list files inside {where}, found files elsewhere")
    clouds = []
    for name in names:
        path = where / f"{name}.txt"
        if not path.is_file():
            raise ValueError(f"{where} must hold {name}.txt, which {listed.name} lists")
        with decoding(path, "a file with seven numbers per line"), open_file(path) as file:
            table = np.loadtxt(file, dtype=np.float32, ndmin=2)
        if table.shape[1] != 7 or not len(table):
            raise ValueError(
                f"{path} must hold position, normal and label on each line, found {table.shape[1]} numbers"
            )
        # "not all" rather than "any": NaN compares false.
        if not np.isfinite(table).all() or not np.isin(table[:, 6], np.arange(50)).all():
            raise ValueError(f"{path} must hold finite numbers and labels of 0 to 49, found other values")
        clouds.append(torch.from_numpy(table))
    longest = max([points, *map(len, clouds)])
    coords = torch.zeros(len(clouds), longest, 3, dtype=torch.float16)
    values = torch.zeros(len(clouds), 3 if normals else 0, longest, dtype=torch.float16)
    target = torch.full((len(clouds), longest), IGNORED)
    mask = torch.zeros(len(clouds), longest, dtype=torch.bool)
    for i, cloud in enumerate(clouds):
        n = len(cloud)
        # A file lists one part after the other. Tests take the first points, which should come from all parts.
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
        coords[i, :n] = normalized(cloud[:, :3])[order]
        if normals:
            values[i, :, :n] = cloud[order, 3:6].mT
        target[i, :n], mask[i, :n] = cloud[order, 6].long(), True
    return Split(values, target, coords=coords, mask=mask, prepare=ChoosePoints(points))


def part_iou(
    prediction: Tensor, target: Tensor, parts: Sequence[Sequence[int]] = tuple(PARTS.values())
) -> tuple[Tensor, Tensor]:
    """Return the mean intersection over union (IoU) of the parts of each object, and its kind.

    As in the published tables, the target determines the kind, and only the scores of parts of that kind count. The IoU
    of a part that is neither present nor predicted is 1, and that of an object is the mean over the parts of its kind.

    Args:
        prediction: (batch, labels, points) scores.
        target: (batch, points) labels, -100 for padding.
        parts: the labels of each kind's parts; by default those of ShapeNet-part.

    Returns:
        (batch,) IoUs and (batch,) kinds, as indices of ``parts``; -1 for an object without points. The mean of the IoUs
        is the instance average; the mean of the means of each kind is the class average.

    >>> target = torch.tensor([[4, 4, 5, 5]])
    >>> scores = torch.zeros(1, 50, 4)
    >>> scores[0, 4] = torch.tensor([1.0, 1.0, 1.0, -1.0])
    >>> part_iou(scores, target)
    (tensor([0.5833]), tensor([1]))
    """
    labels, device = prediction.shape[1], prediction.device
    # A small table, built on the host once per batch.
    belongs = torch.zeros(len(parts), labels, dtype=torch.bool)
    for row, listed in zip(belongs, parts, strict=True):
        row[list(listed)] = True
    belongs = belongs.to(device)
    seen = target != IGNORED
    first = target.gather(1, seen.long().argmax(dim=1, keepdim=True)).clamp(min=0)
    kind = belongs.long().argmax(dim=0)[first.squeeze(1)]
    own = belongs[kind]  # (batch, labels)
    predicted = prediction.masked_fill(~own.unsqueeze(2), -torch.inf).argmax(dim=1)

    def count(which: Tensor, where: Tensor) -> Tensor:
        empty = torch.zeros(len(target), labels, dtype=torch.long, device=device)
        return empty.scatter_add_(1, which.clamp(min=0), where.long())

    both = count(target, seen & (predicted == target))
    union = count(target, seen) + count(predicted, seen) - both
    ratio = torch.where(union > 0, both / union.clamp(min=1), 1.0)
    iou = (ratio * own).sum(dim=1) / own.sum(dim=1)
    return iou, torch.where(seen.any(dim=1), kind, -1)
