"""Predict the samples in a file, read and prepared as the test samples of the run are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.base import Batch
from ..data.io.arrays import finite_array, read_array, read_arrays
from .evaluation import check_outputs
from .finished_run import run_data
from .run import Run, make_task

if TYPE_CHECKING:
    from torch import Tensor

    from ..data.base import Data
    from .recipe import Recipe

__all__ = ["predict_file", "read_samples"]


@torch.no_grad()
def predict_file(
    run: str | Path, path: str | Path, *, step: float = 1.0, raw: bool = False, folder: str | None = None
) -> list[dict[str, Any]]:
    """Return a prediction for each sample in a file: a class and its probability, or values.

    Args:
        run: folder of the run.
        path: arrays (.npy, .npz), series (.csv, .ts), an image or a sound; see :func:`read_samples`.
        step: sampling step of the input in training steps.
        raw: take the input as it is; otherwise it is prepared as the test samples are, which needs the data.
        folder: of the data's files.
    """
    opened = Run(Path(run))
    recipe = opened.recipe()
    network = opened.network(recipe)
    data = None if raw else run_data(opened, recipe, folder)
    batch = read_samples(Path(path), recipe, data, step)
    classes: tuple[str, ...] = () if data is None else data.classes
    scale = batch.scale
    if raw and recipe.data.get("standardize"):  # outputs are in the unit of the targets all the same
        scale = run_data(opened, recipe, folder).test.batch(slice(0, 1)).scale
    outputs = check_outputs(make_task(recipe, network).eval()(batch))
    task = recipe.shape.task
    if task == "classification":
        shares, index = outputs.softmax(dim=1).max(dim=1)
        names = classes or tuple(map(str, range(outputs.shape[1])))
        pairs = zip(index.tolist(), shares.tolist(), strict=True)
        return [{"class": names[i], "probability": round(p, 6)} for i, p in pairs]
    if task == "multilabel":
        return [{"probabilities": row} for row in outputs.sigmoid().tolist()]
    if task in ("segmentation", "language"):
        return [{"classes": row} for row in outputs.argmax(dim=1).tolist()]
    return [{"values": row} for row in (outputs if scale is None else scale.undo(outputs)).tolist()]


def read_samples(path: Path, recipe: Recipe, data: Data | None, step: float = 1.0) -> Batch:
    r"""Return the samples in a file as a batch for the network of a run.

    Args:
        path: a .npy array (samples, channels, \*space), or one sample of it; an .npz file of such ``inputs`` and
            perhaps ``coords`` (samples, points, dim) in training steps and ``mask``; a .csv table of one series, rows
            are steps and columns channels, or of several as
            :func:`~kernelfield.data.sets.series.csv_series.csv_series` reads them, with labels or without; a .ts file;
            an image; or a sound. NaN is a missing value.
        recipe: of the run.
        data: of the run; None to take the samples as prepared already.
        step: sampling step in training steps.
    """
    if not path.exists():
        raise FileNotFoundError(f"file must exist, got {path}")
    shape = recipe.shape
    # Before their preparation samples may have other channels than the network is given.
    wanted: tuple[Any, ...] = (shape.in_channels, *(["points"] if shape.irregular else shape.size))
    if shape.vocabulary is not None:
        wanted = tuple(shape.size)
    elif data is not None:
        wanted = tuple(data.test.inputs.shape[1:])
    batch = _read(path, recipe, data, wanted)
    if shape.irregular and batch.coords is None:
        raise ValueError(
            f"file must say where its samples lie, for the run is on irregular times or points: a .csv of columns id, "
            f"time, channel and value, a .ts file with time stamps, or an .npz of inputs (n, {wanted[0]}, points), "
            f"coords (n, points, {len(shape.size)}) in training steps and perhaps mask (n, points); got {path.name}"
        )
    inputs = batch.inputs if shape.vocabulary is not None else batch.inputs.float()
    if inputs.dim() != len(wanted) + 1 or (shape.vocabulary is None and inputs.shape[1] != wanted[0]):
        raise ValueError(
            f"file must hold samples of shape ({', '.join(map(str, wanted))}), got {tuple(inputs.shape[1:])}"
        )
    batch = replace(batch, inputs=inputs, step=step)
    return _prepared(batch, data)


def _prepared(batch: Batch, data: Data | None) -> Batch:
    """Return the batch as the network takes it: what is missing masked, the rest as the data's test samples."""
    missing = batch.inputs.isnan()
    gaps = bool(missing.any())
    if batch.mask is None and batch.inputs.dim() > 2:
        # Points may have no values beside their place; they were seen then.
        unseen = missing.all(dim=1) if missing.shape[1] else missing.any(dim=1)
        if bool(unseen.any()) or (data is not None and data.test.mask is not None):
            batch = replace(batch, mask=~unseen)
    if data is not None and data.test.prepare is not None:
        batch = data.test.prepare(batch, False)
    # A preparation that knows of no gaps leaves them; zero is then the mean.
    return replace(batch, inputs=torch.where(batch.inputs.isnan(), 0.0, batch.inputs)) if gaps else batch


def _read(path: Path, recipe: Recipe, data: Data | None, wanted: tuple[Any, ...]) -> Batch:
    from ..data.sets.audio import sound_folder as sound  # noqa: PLC0415
    from ..data.sets.images import image_folder as folders  # noqa: PLC0415

    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        return _read_arrays(path, wanted, str(recipe.data.get("nonfinite", "refuse")))
    if suffix in (".csv", ".ts"):
        return _read_series(path, recipe, data)
    if suffix in folders.ENDINGS:
        if len(wanted) != 3:
            raise ValueError(f"file must hold a sequence for this network, got the image {path.name}")
        image = folders.read_image(path, (wanted[1], wanted[2]))
        array = folders.grayed(image) if wanted[0] == 1 else image
        return Batch(torch.from_numpy(np.moveaxis(array, -1, 0).copy()).unsqueeze(0))
    if suffix in sound.ENDINGS:
        if recipe.data["name"] != "wav_folder" or data is None:
            raise ValueError(f"file must be a sound only for a run on a folder of sounds, got {path.name}")
        options = {key: value for key, value in recipe.data.items() if key == "rate"}
        return Batch(sound.read_clips([path], length=wanted[1], **options))
    raise ValueError(f"file must end in .npy, .npz, .csv, .ts or the suffix of an image or a sound, got {path.name}")


def _read_arrays(path: Path, wanted: tuple[Any, ...], nonfinite: str) -> Batch:
    """Return the arrays of a .npy or an .npz file, one sample as a batch of one."""
    plain = path.suffix.lower() == ".npy"
    arrays = {"inputs": read_array(path)} if plain else read_arrays(path)
    held = {name: _tensor(array, path, name, nonfinite) for name, array in arrays.items()}
    if plain:
        return Batch(_samples(held["inputs"], wanted))
    unknown = sorted(set(held) - {"inputs", "coords", "mask"})
    if unknown or ("inputs" not in held and (wanted[0] or "coords" not in held)):
        found = ", ".join(held) or "nothing"
        raise ValueError(f"{path} must hold inputs and perhaps coords and mask, found {found}")
    coords, mask = held.get("coords"), held.get("mask")
    if coords is not None:
        coords = _one_as_many(coords.float(), 2)
    # Points that have a place and no values beside it.
    inputs = held.get("inputs", None if coords is None else coords.new_zeros(len(coords), 0, coords.shape[1]))
    assert inputs is not None
    inputs = _samples(inputs, wanted)
    mask = None if mask is None else _one_as_many(mask.bool(), inputs.dim() - 2)
    space = tuple(inputs.shape[2:])
    if coords is not None and (coords.dim() != 3 or coords.shape[:2] != (len(inputs), *space)):
        raise ValueError(
            f"coords of {path} must have shape ({len(inputs)}, {', '.join(map(str, space))}, dim), "
            f"got {tuple(coords.shape)}"
        )
    if mask is not None and tuple(mask.shape) != (len(inputs), *space):
        raise ValueError(f"mask of {path} must have shape {(len(inputs), *space)}, got {tuple(mask.shape)}")
    return Batch(inputs, coords=coords, mask=mask)


def _read_series(path: Path, recipe: Recipe, data: Data | None) -> Batch:
    from ..data.sets.series.csv_series import csv_samples, read_steps  # noqa: PLC0415
    from ..data.sets.series.ts_archive import read_ts  # noqa: PLC0415
    from ..data.transforms.series import samples_like  # noqa: PLC0415

    nonfinite = str(recipe.data.get("nonfinite", "refuse"))
    of_series = data is not None and data.dim == 1 and data.test.inputs.dim() == 3
    if path.suffix.lower() == ".ts":
        if data is None or not of_series:
            raise ValueError(f"file must be a .ts file only for a run on series and without --raw, got {path.name}")
        return samples_like(data, read_ts(path, nonfinite)[0])
    if data is not None and of_series:
        found = csv_samples(path, data, str(recipe.data.get("label", "label")), nonfinite)
        if found is not None:
            return found
    return Batch(torch.from_numpy(read_steps(path, nonfinite)).unsqueeze(0))


def _tensor(array: np.ndarray, path: Path, name: str, nonfinite: str) -> Tensor:
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{path} must hold numbers, found {array.dtype}")
    array = finite_array(array, path, name, nonfinite)
    if name == "coords" and not np.isfinite(array).all():
        raise ValueError(f"{path} must hold finite coords, found NaN")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)  # which torch has all operations for
    return torch.from_numpy(np.ascontiguousarray(array))


def _samples(inputs: Tensor, wanted: tuple[Any, ...]) -> Tensor:
    """Return an array as several samples, of one channel if they have no axis for it."""
    axes = len(wanted)
    if wanted[0] == 1 and axes > 1 and inputs.dim() == axes and inputs.shape[0] != 1:
        return inputs.unsqueeze(1)
    if wanted[0] == 1 and axes > 1 and inputs.dim() == axes - 1:
        inputs = inputs.unsqueeze(0)
    return _one_as_many(inputs, axes)


def _one_as_many(tensor: Tensor, axes: int) -> Tensor:
    return tensor.unsqueeze(0) if tensor.dim() == axes else tensor
