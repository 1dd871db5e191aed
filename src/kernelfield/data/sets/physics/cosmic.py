"""Cosmic: which pixels of an image of space were hit by a cosmic ray? (chapter 6, from NAS-Bench-360)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...._arguments import checked
from ...._kinds import RATE, Int
from ...base import Data, Split
from ...io.arrays import finite_array, read_array
from ...io.files import folder
from ...transforms.batch import Normalize
from ...transforms.split import hold_out

if TYPE_CHECKING:
    import os
    from pathlib import Path

__all__ = ["cosmic"]


@checked(resolution=Int(2), validation=RATE)
def cosmic(
    root: str | os.PathLike[str] | None,
    *,
    resolution: int = 128,
    most: int | None = None,
    validation: float = 0.1,
    seed: int = 0,
) -> Data:
    """Return Cosmic: images of the Hubble telescope's ACS/WFC camera, and the pixels that cosmic rays hit.

    Source: https://zenodo.org/record/3970690 (deepCR; Zhang and Bloom, 2020), the archives deepCR.ACS-WFC.train.tar and
    .test.tar unpacked in ``root``: folders ``npy_train`` and ``npy_test`` of files ``…/filter/proposal/visit/i.npy``.
    Each is an array (3, side, side) of image, hits, and pixels to ignore. The files ``sky.npy`` are not read. Licence:
    CC BY 4.0. Split: the two archives; a tenth of the training files is held out for validation. Normalisation: zero
    mean and unit variance over the training pixels that are not ignored.

    Args:
        root: folder that holds ``npy_train`` and ``npy_test``, directly or in a subfolder.
        resolution: side of the squares into which images are cut; the remainder is not used.
        most: largest number of files to read from each archive.
        validation: share of the training files to hold out; 0 for none.
        seed: seed of the validation split.

    Returns:
        Inputs (n, 1, resolution, resolution), classes (n, resolution, resolution) of two, and a mask of the pixels that
        are not ignored.
    """
    where = folder(root, "Cosmic")
    files = {part: _files(where, part)[:most] for part in ("npy_train", "npy_test")}
    if not 0 <= validation < 1:
        raise ValueError(f"validation must be a share of at least 0 and below 1, got {validation}")
    count = round(validation * len(files["npy_train"]))
    learn, held = hold_out(torch.zeros(len(files["npy_train"])), count, seed)
    parts = {"train": [files["npy_train"][i] for i in learn.tolist()], "test": files["npy_test"]}
    if count:
        parts["validation"] = [files["npy_train"][i] for i in held.tolist()]
    read = {name: _read(paths, resolution) for name, paths in parts.items()}
    image, _, counts = read["train"]
    seen = image[counts.unsqueeze(1)].double()
    mean, std = float(seen.mean()), max(float(seen.std()), 1e-12)
    normal = Normalize(torch.full((1, 1, 1, 1), mean), torch.full((1, 1, 1, 1), std))
    splits = {name: Split(x, y, mask=seen, prepare=normal) for name, (x, y, seen) in read.items()}
    return Data.from_splits(
        "cosmic",
        [splits.get(part) for part in ("train", "validation", "test")],
        "segmentation",
        size=(resolution, resolution),
        classes=("clean", "hit"),
    )


def _files(where: Path, part: str) -> list[Path]:
    folders = sorted(p for p in (where / part, *where.glob(f"*/{part}"), *where.glob(f"*/*/{part}")) if p.is_dir())
    found = sorted(p for p in folders[0].rglob("*.npy") if p.name != "sky.npy") if folders else []
    if not found:
        raise ValueError(f"{where} must hold a folder {part} of .npy files, directly or in a subfolder, found none")
    return found


def _read(paths: list[Path], resolution: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return squares of images (n, 1, side, side), of classes (n, side, side) and of the mask of valid pixels."""
    images: list[Tensor] = []
    hits: list[Tensor] = []
    counts: list[Tensor] = []
    for path in paths:
        array = read_array(path)
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{path} must hold numbers, found {array.dtype}")
        if array.ndim != 3 or array.shape[0] not in (2, 3) or min(array.shape[1:]) < resolution:
            raise ValueError(
                f"{path} must hold an array (3, side, side) with sides of at least {resolution}, found {array.shape}"
            )
        ignored = array[2] if len(array) == 3 else np.zeros_like(array[0])
        # Ignored pixels that are not finite become zero.
        image = np.where((ignored < 0.5) | np.isfinite(array[0]), array[0], np.zeros_like(array[0]))
        if not np.isfinite(finite_array(image, path)).all():
            raise ValueError(f"{path} must hold finite numbers at pixels that are not ignored, found NaN")
        rows, columns = (n // resolution for n in array.shape[1:])
        for values, held in ((image, images), (array[1] > 0.5, hits), (ignored < 0.5, counts)):
            cut = values[: rows * resolution, : columns * resolution].reshape(rows, resolution, columns, resolution)
            held.append(torch.from_numpy(np.ascontiguousarray(cut.swapaxes(1, 2))).flatten(0, 1))
    return torch.cat(images).float().unsqueeze(1), torch.cat(hits).long(), torch.cat(counts).bool()
