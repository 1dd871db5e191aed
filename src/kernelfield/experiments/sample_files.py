"""Samples from files, read and prepared like the test samples of a run."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional as F

from ..data.base import Batch
from ..data.io.arrays import as_coords, finite_array, read_array, read_arrays
from ..data.preprocessing import compare_values, in_stored_range, prepare_samples
from ..data.sets.arrays import check_mask, named_arrays, other_arrays
from ..data.sets.audio import sound_folder as sound
from ..data.sets.clouds import cloud_folder as clouds
from ..data.sets.images import image_folder as folders
from ..data.transforms.series_checks import compare_coords
from .datasets import sampling_rate

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from ..data.base import Data
    from ..data.sets.series.long_table import QueryTimes
    from .recipe import Recipe

__all__ = ["check_samples", "prepare_samples", "read_file", "stored_shape", "with_queries"]

#: endings of tables of series
TABLES = (".csv", ".ts", ".tsv", ".parquet", ".arff")
#: endings of files with samples
ENDINGS = (".npy", ".npz", *TABLES, ".off", ".ply", *folders.ENDINGS, *sound.ENDINGS)


def read_file(
    path: Path,
    recipe: Recipe,
    data: Data | None,
    at: QueryTimes | None = None,
    asked: list[Any] | None = None,
    step: float | tuple[float, ...] | None = 1.0,
) -> Batch:
    r"""Return the raw samples in a file, before their preparation.

    Args:
        path: a .npy array (samples, channels, \*space) or a single sample; an .npz file with such ``inputs`` and,
            optionally, ``coords`` (samples, points, dim) in training steps and ``mask``; a .csv table of one series,
            with a row per step and a column per channel, or of several series in the format of
            :func:`~kernelfield.data.sets.series.csv_series.csv_series`, with or without labels; a .ts, .tsv or .arff
            file; an image; a sound; or a point cloud. NaN is a missing value.
        recipe: recipe of the run.
        data: data of the run, or its metadata; None if the samples are prepared already.
        at: times at which to predict, in the unit of the file for series, otherwise in training steps.
        asked: list to which the id and the query times of each sample are appended, if ``at`` is given.
        step: sampling step in training steps; None for that of the times in the file, or else of the run's data.
    """
    if not path.exists():
        raise FileNotFoundError(f"file must be an existing file, got {path}")
    shape = recipe.shape
    wanted = stored_shape(recipe, data)
    batch = _read(path, recipe, data, wanted, at, asked)
    if not len(batch):
        raise ValueError(f"file must hold at least one sample, found none in {path.name}")
    batch = batch if step is None else replace(batch, step=step)
    if at is not None and batch.at is None:
        batch = with_queries(batch, at, len(shape.size), asked)
    if shape.irregular and batch.coords is None:
        raise ValueError(
            "file must hold the coordinates of its samples, since the run is on irregular times or points: a .csv "
            f"with columns id, time, channel and value, a .ts file with time stamps, or an .npz with inputs "
            f"(n, {wanted[0]}, points), coords (n, points, {len(shape.size)}) in training steps and, optionally, mask "
            f"(n, points); got {path.name}"
        )
    return check_samples(batch, recipe, data, f"file {path.name}")


def with_queries(batch: Batch, at: QueryTimes, dim: int, asked: list[Any] | None = None) -> Batch:
    """Return samples with query coordinates, in training steps.

    Args:
        batch: the samples.
        at: (queries,) or (queries, dim) coordinates for all samples, or (n, queries, dim) for each sample.
        dim: number of axes.
        asked: list to which an empty id and the coordinates of each sample are appended.
    """
    if at.common is None:
        raise ValueError(
            "at must be the same coordinates for all samples, got times by id, which need a table of series"
        )
    places = at.common[:, None] if at.common.ndim == 1 else at.common
    if places.shape[-1] != dim or places.ndim > 3 or (places.ndim == 3 and len(places) != len(batch)):
        raise ValueError(f"at must have shape (queries, {dim}) or ({len(batch)}, queries, {dim}), got {places.shape}")
    each = np.broadcast_to(places, (len(batch), *places.shape[-2:]))
    if asked is not None:
        asked += [("", row[:, 0] if dim == 1 else row) for row in each]
    return replace(batch, at=torch.tensor(each, dtype=torch.float32))


def stored_shape(recipe: Recipe, data: Data | None) -> tuple[Any, ...]:
    """Return the shape of a stored sample: channels, then an int or "points" for each axis."""
    shape = recipe.shape
    if shape.vocabulary is not None:
        return tuple(shape.size)
    if data is not None:  # the preparation may change the number of channels
        return tuple(data.test.inputs.shape[1:])
    return (shape.in_channels, *(["points"] if shape.irregular else shape.size))


def check_samples(batch: Batch, recipe: Recipe, data: Data | None, where: str) -> Batch:
    """Return samples on the scale of the run; raise a ValueError unless they have its channels, axes and scale."""
    tokens, wanted, inputs = recipe.shape.vocabulary is not None, stored_shape(recipe, data), batch.inputs
    if inputs.dim() != len(wanted) + 1 or (not tokens and inputs.shape[1] != wanted[0]):
        raise ValueError(
            f"{where} must hold samples of shape ({', '.join(map(str, wanted))}), got {tuple(inputs.shape[1:])}"
        )
    if recipe.shape.vocabulary is not None:
        return replace(batch, inputs=_token_ids(inputs, recipe.shape.vocabulary, where))
    places, space = batch.coords, (len(inputs), *inputs.shape[2:])
    # With query times, which count training steps, samples may lie on the grid of these steps.
    if recipe.shape.irregular and not recipe.shape.queries and places is None:
        raise ValueError(f"coords of {where} must be given, since the run is on irregular times or points; got None")
    if places is not None and places.shape[:2] != space:
        raise ValueError(f"coords of {where} must have shape {(*space, 'dim')}, got {tuple(places.shape)}")
    if data is None:
        return batch
    batch = replace(batch, inputs=in_stored_range(inputs, data, where, ", like the data of the run"))
    if recipe.data["name"] == "wav_folder" and inputs.shape[-1] != wanted[-1]:
        batch = _of_length(batch, wanted[-1], sampling_rate(recipe), where)
    space = (len(batch.inputs), *batch.inputs.shape[2:])  # sounds may have become longer
    if batch.mask is not None and batch.mask.shape != space:
        raise ValueError(f"mask of {where} must have shape {space}, got {tuple(batch.mask.shape)}")
    compare_values(batch, data, where)
    seen = batch.inputs.isfinite().any(dim=1)
    seen = (seen if batch.mask is None else seen & batch.mask.bool()).flatten(1).any(dim=1)
    if batch.inputs.shape[1] and not bool(seen.all()):
        raise ValueError(
            f"{where} must hold at least one value in each sample, got none in sample {int(seen.int().argmin())}"
        )
    return batch


def _of_length(batch: Batch, length: int, rate: float | None, where: str) -> Batch:
    """Return sounds padded on both sides or cut off, as those of files are; at another sampling step, unchanged."""
    count = batch.inputs.shape[-1]
    adapted = batch.step in (1, (1,))
    done = "" if not adapted else ", so they are padded with silence" if count < length else ", the rest is cut off"
    warnings.warn(
        f"{where} has {count} samples per sound, and those of the run {length}{done}; arrays must have its rate, "
        f"{rate:g} Hz",
        stacklevel=4,
    )
    before = (length - count) // 2 if count < length else 0
    return replace(batch, inputs=F.pad(batch.inputs, (before, length - count - before))) if adapted else batch


def _token_ids(inputs: Tensor, vocabulary: int, where: str) -> Tensor:
    """Return token ids as integers; raise a ValueError unless they are whole numbers below ``vocabulary``."""
    wrong = (inputs < 0) | (inputs >= vocabulary) | (inputs != inputs.round() if inputs.is_floating_point() else False)
    if bool(wrong.any()) or inputs.dtype == torch.bool:
        found = inputs[wrong][0].item() if bool(wrong.any()) else "bool"
        raise ValueError(f"{where} must hold token ids from 0 to {vocabulary - 1}, got {found}")
    return inputs.long()


def _read(
    path: Path, recipe: Recipe, data: Data | None, wanted: tuple[Any, ...], at: QueryTimes | None, asked: Any
) -> Batch:
    suffix = path.suffix.lower()
    if suffix in clouds.ENDINGS and recipe.data["name"] == "cloud_folder" and data is not None:
        assert data.test.coords is not None  # clouds have coordinates
        coords = clouds.read_clouds([path], data.test.coords.shape[1], recipe.data.get("seed", 0))
        return Batch(coords.new_zeros(1, 0, coords.shape[1]), coords=coords)
    if suffix in (".npy", ".npz"):
        batch = _read_arrays(path, wanted, str(recipe.data.get("nonfinite", "refuse")))
        batch = _as_clouds(batch, recipe, data) if recipe.data["name"] == "cloud_folder" else batch
        if batch.coords is None:
            return batch
        # Clouds are centred before they are rounded: coordinates of a survey are far from their origin.
        batch = replace(batch, coords=torch.from_numpy(as_coords(batch.coords.numpy(), str(path))))
        if data is not None:
            compare_coords(batch, data, str(path))
        return batch
    if suffix in TABLES:
        return _read_series(path, recipe, data, at, asked)
    if suffix in folders.ENDINGS:
        if data is None:
            raise ValueError(f"raw must be False for images, whose bytes are not normalised, got {path.name}")
        if len(wanted) != 3:
            raise ValueError(f"file must hold a sequence for this network, got the image {path.name}")
        image = folders.read_image(path, (wanted[1], wanted[2]), data.levels)
        array = folders.grayed(image) if wanted[0] == 1 else image
        return Batch(torch.from_numpy(np.moveaxis(array, -1, 0).copy()).unsqueeze(0))
    if suffix in sound.ENDINGS:
        if recipe.data["name"] != "wav_folder" or data is None:
            raise ValueError(f"file must not be a sound unless the run is on a folder of sounds, got {path.name}")
        options = {key: value for key, value in recipe.data.items() if key == "rate"}
        return Batch(sound.read_clips([path], length=wanted[1], announce=True, **options))
    raise ValueError(f"file must end in one of {', '.join(ENDINGS)} and fit the data of the run, got {path.name}")


def _as_clouds(batch: Batch, recipe: Recipe, data: Data | None) -> Batch:
    """Return clouds of any unit, order and number of points as those of a folder are read."""
    if data is None or data.test.coords is None or batch.coords is None:
        return batch
    count, seed = data.test.coords.shape[1], recipe.data.get("seed", 0)
    seen = torch.ones(batch.coords.shape[:2], dtype=torch.bool) if batch.mask is None else batch.mask
    if not bool(seen.any(dim=1).all()):
        raise ValueError("mask must be True for at least one point of each cloud, got a cloud without points")
    drawn = [clouds.draw_points(points[kept], count, seed) for points, kept in zip(batch.coords, seen, strict=True)]
    return Batch(batch.inputs.new_zeros(len(drawn), 0, count), coords=torch.stack(drawn))


def _read_arrays(path: Path, wanted: tuple[Any, ...], nonfinite: str) -> Batch:
    """Return the arrays of a .npy or an .npz file; a single sample becomes a batch of one."""
    plain = path.suffix.lower() == ".npy"
    found = {"inputs": read_array(path)} if plain else read_arrays(path)
    arrays = named_arrays(found)
    for name in ("target", "group"):  # ignored, as those of a table are
        arrays.pop(name, None)
    if "mask" in arrays:
        check_mask(arrays["mask"], path)
    held = {name: _tensor(array, path, name, nonfinite) for name, array in arrays.items()}
    if plain:
        return Batch(_samples(held["inputs"], wanted))
    if other_arrays(found) or ("inputs" not in held and (wanted[0] or "coords" not in held)):
        names = ", ".join(found) or "nothing"
        raise ValueError(f"{path} must hold inputs (or x) and, optionally, coords and mask, found {names}")
    coords, mask = held.get("coords"), held.get("mask")
    if coords is not None:
        coords = _at_least_one_sample(coords, 2)
    # Points may have coordinates but no values.
    inputs = held.get("inputs", None if coords is None else coords.new_zeros(len(coords), 0, coords.shape[1]))
    assert inputs is not None
    inputs = _samples(inputs, wanted)
    mask = None if mask is None else _at_least_one_sample(mask.bool(), inputs.dim() - 2)
    space = tuple(inputs.shape[2:])
    if coords is not None and (coords.dim() != 3 or coords.shape[:2] != (len(inputs), *space)):
        raise ValueError(
            f"coords of {path} must have shape ({len(inputs)}, {', '.join(map(str, space))}, dim), "
            f"got {tuple(coords.shape)}"
        )
    if mask is not None and tuple(mask.shape) != (len(inputs), *space):
        raise ValueError(f"mask of {path} must have shape {(len(inputs), *space)}, got {tuple(mask.shape)}")
    return Batch(inputs, coords=None if coords is None else coords.double(), mask=mask)


def _read_series(path: Path, recipe: Recipe, data: Data | None, at: QueryTimes | None, asked: Any) -> Batch:
    from ..data.sets.series.csv_series import csv_samples  # noqa: PLC0415
    from ..data.sets.series.step_table import read_steps  # noqa: PLC0415
    from ..data.sets.series.ts_archive import read_archive  # noqa: PLC0415
    from ..data.transforms.series import samples_like  # noqa: PLC0415

    nonfinite = str(recipe.data.get("nonfinite", "refuse"))
    of_series = data is not None and data.dim == 1 and data.test.inputs.dim() == 3
    if path.suffix.lower() in (".ts", ".arff") or (path.suffix.lower() == ".tsv" and recipe.data["name"] == "ts"):
        if data is None or not of_series:
            raise ValueError(
                f"file must not be a .ts file unless the run is on series and --raw is off, got {path.name}"
            )
        return samples_like(data, read_archive(path, nonfinite)[0])
    if data is not None and of_series:
        timed = at if data.unit is not None else None
        label, group = str(recipe.data.get("label", "label")), recipe.data.get("group")
        found = csv_samples(path, data, label, nonfinite, timed, asked, group)
        if found is not None:
            return found
    channels = () if data is None else data.channels
    return Batch(torch.from_numpy(read_steps(path, nonfinite, channels)).unsqueeze(0))


def _tensor(array: np.ndarray, path: Path, name: str, nonfinite: str) -> Tensor:
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{path} must hold numbers, found {array.dtype}")
    array = finite_array(array, path, name, nonfinite)
    if name == "coords" and not np.isfinite(array).all():
        raise ValueError(f"{path} must hold finite coords, found NaN")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)  # torch does not support all operations for other integers
    return torch.from_numpy(np.ascontiguousarray(array))


def _samples(inputs: Tensor, wanted: tuple[Any, ...]) -> Tensor:
    """Return an array as several samples; samples without an axis of channels get one channel."""
    axes = len(wanted)
    if wanted[0] == 1 and axes > 1 and inputs.dim() == axes and inputs.shape[0] != 1:
        return inputs.unsqueeze(1)
    if wanted[0] == 1 and axes > 1 and inputs.dim() == axes - 1:
        inputs = inputs.unsqueeze(0)
    return _at_least_one_sample(inputs, axes)


def _at_least_one_sample(tensor: Tensor, axes: int) -> Tensor:
    return tensor.unsqueeze(0) if tensor.dim() == axes else tensor
