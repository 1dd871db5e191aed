"""Bearing faults from recordings of an electric motor (chapter 10, section 6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ...._arguments import checked
from ...._kinds import RATE, TEXT, ListOf
from ...base import Data, Split
from ...io.arrays import finite_array
from ...io.files import folder
from ...io.mat import read_mat
from ...transforms.batch import Normalize
from ...transforms.split import hold_out, moments

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

__all__ = ["bearing_faults", "read_recording"]

CLASSES = ("healthy", "faulty")


@checked(variables=ListOf(TEXT, least=0), validation=RATE)
def bearing_faults(
    root: str | os.PathLike[str] | None,
    *,
    variables: Sequence[str] = (),
    channels: int = 6,
    length: int = 300_000,
    validation: float = 0.2,
    seed: int = 0,
) -> Data:
    """Return recordings of motors with healthy and faulty bearings: currents and voltages of three poles.

    Source: MAT files in ``root/train/healthy``, ``root/train/faulty``, ``root/test/healthy`` and ``root/test/faulty``;
    needs scipy, of the extra ``train``. The 246 clips of the chapter, 15 seconds each at 20 kHz, belong to a company
    and are not published. Public recordings in the same layout can replace them, such as those of Case Western Reserve
    University with ``variables=["DE_time", "FE_time"]`` and ``channels=2``. Licence: that of the recordings. Split: the
    folders train and test, which should not share motors; a fifth of the training clips is held out, stratified by
    class. Normalisation: zero mean and unit variance of each channel over the training clips.

    Args:
        root: folder that holds ``train`` and ``test``.
        variables: endings of the names of the variables to read, in the order of their channels; an empty list reads
            all numeric variables of a file.
        channels: number of channels that a file must hold.
        length: number of samples to read from the beginning of each file.
        validation: share of the training clips to hold out; 0 for none.
        seed: seed of the validation split.

    Returns:
        Inputs (n, channels, length); class 0 is healthy, 1 faulty.
    """
    if not 0 <= validation < 1:
        raise ValueError(f"validation must be a share of at least 0 and less than 1, got {validation}")
    where = folder(root, "bearing faults")
    parts = {part: _read_part(where / part, variables, channels, length) for part in ("train", "test")}
    x, y = parts["train"]
    kept, held = hold_out(y, round(validation * len(y)), seed)
    prepare = Normalize(*moments(x[kept]))
    pairs = [(x[kept], y[kept]), (x[held], y[held]), parts["test"]]
    splits = [Split(inputs, target, prepare=prepare) for inputs, target in pairs]
    return Data.from_splits("bearing_faults", splits, classes=CLASSES)


def _read_part(where: Path, variables: Sequence[str], channels: int, length: int) -> tuple[Tensor, Tensor]:
    """Return the clips (n, channels, length) and classes (n,) of the folders of a split."""
    clips, labels = [], []
    for label, name in enumerate(CLASSES):
        inner = where / name
        paths = sorted(inner.glob("*.mat")) if inner.is_dir() else []
        if not paths:
            raise ValueError(f"{where} must hold a folder {name!r} of .mat files, found none")
        clips += [read_recording(path, variables, channels, length) for path in paths]
        labels += [label] * len(paths)
    return torch.from_numpy(np.stack(clips)), torch.tensor(labels)


def read_recording(path: Path, variables: Sequence[str], channels: int, length: int) -> np.ndarray:
    """Return the first ``length`` samples of a recording, (channels, length), as float32.

    A variable is a vector, or a matrix whose longer axis is time.

    Args:
        path: MAT file.
        variables: endings of the names of variables, in the order of their channels; an empty list reads all of them.
        channels: number of channels that the file must hold.
        length: number of samples.
    """
    arrays = {name: value for name, value in read_mat(path).items() if value.ndim == 2 and max(value.shape) > 1}
    chosen = []
    for ending in variables:
        named = [name for name in arrays if name.endswith(ending)]
        if len(named) != 1:
            there = ", ".join(arrays) or "nothing"
            raise ValueError(
                f"{path} must hold one variable whose name ends in {ending!r}, found {len(named)} of {there}"
            )
        chosen.append(arrays[named[0]])
    rows = [a if a.shape[1] >= a.shape[0] else a.T for a in (chosen if variables else arrays.values())]
    shapes = ", ".join(str(a.shape) for a in rows) or "nothing"
    if sum(len(a) for a in rows) != channels:
        raise ValueError(f"{path} must hold {channels} channels, found arrays of {shapes}")
    if any(a.shape[1] < length for a in rows):
        raise ValueError(f"{path} must hold at least {length} samples of each channel, found arrays of {shapes}")
    signal = np.concatenate([a[:, :length] for a in rows])
    values = finite_array(signal.astype(np.float64), path).astype(np.float32)
    if np.isnan(values).any():
        raise ValueError(f"{path} must hold finite numbers, found NaN")
    return values
