"""PatchCamelyon from its HDF5 files: patches of lymph nodes, with or without a tumour in the centre."""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...._arguments import checked
from ...base import Data, Split
from ...io.files import check_size, decoding, find, folder, open_file
from ...transforms.batch import Standardize

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from torch import Tensor

__all__ = ["pcam"]

#: rows per read; only these are in memory twice, in the layout of the file and in that of the network
_ROWS = 2048


@checked()
def pcam(root: str | os.PathLike[str] | None, *, samples: int | None = None) -> Data:
    """Return PatchCamelyon: 327,680 patches of lymph nodes, 96×96; is there a tumour in the central 32×32 pixels?

    Source: https://github.com/basveeling/pcam (Veeling et al., 2018; patches of Camelyon16), the files
    ``camelyonpatch_level_2_split_{train,valid,test}_{x,y}.h5`` in ``root`` or ``root/pcam``, unpacked; needs h5py,
    from the extra ``data``. The files are on Zenodo and Google Drive; nothing is downloaded. Licence: CC0. Split: the
    published one, 262,144 for training, 32,768 for validation and 32,768 for testing. Normalisation: zero mean and unit
    variance of each colour over the training images.

    Args:
        root: folder of the files.
        samples: number of samples to read from the beginning of each split; all 9 GB by default.

    Returns:
        Inputs (n, 3, 96, 96), stored as bytes; classes (n,): 0 normal, 1 tumour.
    """
    where = folder(root, "PatchCamelyon", "pcam", "PCAM", "pcamv1")
    most = samples
    # Reading a file may take minutes, so all files are found before the first is read.
    files = {part: (_file(where, part, "x"), _file(where, part, "y")) for part in ("train", "valid", "test")}
    parts = [_read(*files[part], most) for part in ("train", "valid", "test")]
    normal = _normal(parts[0][0])
    splits = [Split(x, y, prepare=normal) for x, y in parts]
    return Data.from_splits("pcam", splits, classes=("normal", "tumour"))


def _file(where: Path, part: str, kind: str) -> Path:
    name = f"camelyonpatch_level_2_split_{part}_{kind}.h5"
    if not (where / name).is_file() and (where / f"{name}.gz").is_file():
        raise ValueError(f"{where} must hold {name}, found {name}.gz: unpack it with gunzip")
    return find(where, [name], "patches" if kind == "x" else "labels")


def _read(images: Path, labels: Path, most: int | None) -> tuple[Tensor, Tensor]:
    x, y = _array(images, "x", (96, 96, 3), most), _array(labels, "y", (1, 1, 1), most)
    if len(x) != len(y):
        raise ValueError(f"{labels} must hold one label for each of {len(x)} patches, found {len(y)}")
    if int(y.max()) > 1:
        raise ValueError(f"{labels} must hold labels of 0 and 1, found {int(y.max())}")
    return x, y.flatten().long()


def _array(path: Path, key: str, shape: tuple[int, ...], most: int | None) -> Tensor:
    """Return the bytes under ``key``, channels first: (n, 3, 96, 96) or (n, 1, 1, 1)."""
    try:
        h5py: Any = importlib.import_module("h5py")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("PatchCamelyon needs h5py: pip install 'kernelfield[data]'", name="h5py") from error
    with open_file(path):  # refuses a pipe
        pass
    with decoding(path, "a complete HDF5 file"), h5py.File(path, "r") as file:
        stored = file.get(key)
        if not isinstance(stored, h5py.Dataset) or stored.dtype != np.uint8 or stored.shape[1:] != shape:
            found = f"{stored.dtype} {stored.shape}" if isinstance(stored, h5py.Dataset) else ", ".join(file)
            size = ", ".join(map(str, shape))
            raise ValueError(f"{path} must hold '{key}', bytes of shape (n, {size}), found {found or 'nothing'}")
        count = len(stored) if most is None else min(most, len(stored))
        if count == 0:
            raise ValueError(f"{path} must hold at least one sample, found none")
        check_size(path, count * math.prod(shape), path.stat().st_size)
        out = torch.empty(count, shape[2], *shape[:2], dtype=torch.uint8)
        for start in range(0, count, _ROWS):
            rows = torch.from_numpy(stored[start : min(start + _ROWS, count)])
            out[start : start + len(rows)] = rows.permute(0, 3, 1, 2)
        return out


def _normal(x: Tensor) -> Standardize:
    """Return the standardisation of each colour, summed over chunks: all pixels as floats would take 29 GB."""
    total, squares, count = torch.zeros(3).double(), torch.zeros(3).double(), 0
    for rows in x.split(_ROWS):
        values = rows.double().div(255).transpose(0, 1).flatten(1)
        total += values.sum(dim=1)
        squares += values.square().sum(dim=1)
        count += values.shape[1]
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=1e-12).sqrt()
    return Standardize(tuple(mean.tolist()), tuple(std.tolist()))
