"""Custom arrays in an ``.npz`` file, for classification, regression, or predictions at each position."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..._arguments import checked
from ..._kinds import Choice
from ..base import Data, Split, TargetScale
from ..io.arrays import announce_channels, as_coords, check_channels_first, check_precision, finite_array, read_arrays
from ..io.cells import NONFINITE
from ..io.pairs import split_files
from ..transforms.batch import Chain, Normalize, ScaleTarget
from ..transforms.fill_values import compare_fill_values
from ..transforms.group_split import divide_parts
from ..transforms.series_checks import check_standardize
from ..transforms.split import check_trained, class_index, moments

if TYPE_CHECKING:
    import os

    from torch import Tensor

__all__ = ["array_target", "arrays", "check_mask", "named_arrays", "other_arrays", "read_array_file"]

TASKS = ("auto", "classification", "multilabel", "regression", "dense-regression", "segmentation")
#: largest number of different whole numbers that look like classes
_MANY_CLASSES = 64
#: names of each array, the preferred one first
NAMES = {
    "inputs": ("inputs", "x", "X"),
    "target": ("target", "y", "Y", "labels"),
    "coords": ("coords",),
    "mask": ("mask",),
    "group": ("group", "groups"),
}


@checked(task=Choice(*TASKS), nonfinite=Choice(*NONFINITE))
def arrays(
    root: str | os.PathLike[str] | None,
    *,
    task: str = "auto",
    standardize: bool = False,
    shares: tuple[float, float, float] = (0.7, 0.15, 0.15),
    seed: int = 0,
    nonfinite: str = "refuse",
) -> Data:
    r"""Return the samples of an ``.npz`` file: ``inputs`` (n, channels, \*space) and ``target``.

    Source: your own file; the two arrays may also be named ``x`` and ``y``. The arrays ``coords`` (n, points, dim), in
    training steps, and ``mask`` are optional. NaN is a missing input. Licence: that of your data. Split: at random,
    stratified by class; samples with the same name in the optional array ``group`` (n,), such as a patient, stay in one
    part; or the files ``train.npz``, ``test.npz`` and, if it exists, ``validation.npz`` of one folder.
    Normalisation: zero mean and unit variance of each channel over the training samples.

    Args:
        root: the file.
        task: "classification" for (n,) or (n, 1) integers or names, "multilabel" for (n, out) zeros and ones,
            "regression" for (n,) or (n, out) values, "segmentation" for (n, \*space) or (n, 1, \*space) classes,
            "dense-regression" for (n, out, \*space) or (n, \*space) values; "auto" chooses by the shape and
            the type of the target.
        standardize: whether to normalise regression targets to zero mean and unit variance over the training samples;
            metrics and predictions keep the original unit.
        shares: shares of training, validation and test data, for one file.
        seed: seed of the split.
        nonfinite: "refuse" raises an error for a value that is infinite or too large for float32; "missing" counts it
            as missing.

    Returns:
        Inputs (n, channels, \*space) and targets as above.
    """
    if root is None or not Path(root).is_file():
        raise ValueError(f"root must be an .npz file of inputs and target, got {root}")
    paths = split_files(Path(root))
    parts = [read_array_file(path, nonfinite) for path in paths]
    stored = {name: _joined([part.get(name) for part in parts], name, paths) for name in NAMES}
    inputs, given = stored["inputs"], stored["target"]
    check_precision(inputs, f"{paths[0]}, array inputs,")
    if stored["coords"] is None:
        announce_channels(inputs.shape, f"{paths[0]}: array inputs")
    if task == "auto":
        task = _task(given, inputs.shape[2:])
        _announce_labels(given, task, paths[0])
    target, classes, out = array_target(given, task, inputs.shape, paths[0])
    if len(classes) == 1:
        raise ValueError(f"{paths[0]} must hold at least two classes, found only {classes[0]!r}")
    if task in ("regression", "dense-regression"):
        check_precision(given.reshape(target.shape), f"{paths[0]}, array target,")
    counts = [len(part["inputs"]) for part in parts]
    labels = target if task == "classification" else torch.zeros(len(target))
    groups = None if stored["group"] is None else [str(name) for name in stored["group"].tolist()]
    index = divide_parts(labels, counts, shares, seed, groups=groups)
    if task == "classification" and len(paths) > 1:
        check_trained(target, index, classes, str(paths[0]))
    # Bytes and 16-bit integers stay integers: a run then knows the scale of its inputs, and refuses those of another.
    small = inputs.dtype in (np.uint8, np.int16)
    values = torch.from_numpy(np.ascontiguousarray(inputs, dtype=None if small else np.float32))
    mask = None if stored["mask"] is None else torch.from_numpy(stored["mask"].astype(bool))
    compare_fill_values(_seen(values.float(), mask), (), str(paths[0]))
    unseen = values.isnan().all(dim=1)
    if bool(unseen.any()):
        mask = ~unseen if mask is None else mask & ~unseen
    prepare: Normalize | Chain = Normalize(*moments(_seen(values.float(), mask)[index[0]]))
    check_standardize(standardize, task, str(paths[0]))
    if standardize:
        known = _seen(target, mask) if task == "dense-regression" else target
        prepare = Chain((prepare, ScaleTarget(TargetScale.of(known[index[0]]))))
    coords = None if stored["coords"] is None else torch.from_numpy(as_coords(stored["coords"], str(paths[0])))
    every = Split(values, target, coords=coords, mask=mask, prepare=prepare)
    size = tuple(inputs.shape[2:]) if coords is None else _extent(coords, mask)
    splits = [every.take(i) for i in index]
    return Data.from_splits(paths[0].stem, splits, task, out_channels=out, size=size, classes=classes)


def _extent(coords: Tensor, mask: Tensor | None) -> tuple[int, ...]:
    """Return the training steps that the longest sample spans along each axis, wherever it begins.

    A kernel sees differences of coordinates only, which may all be negative or start at a large number.
    """
    unseen = torch.zeros_like(coords, dtype=torch.bool) if mask is None else ~mask.unsqueeze(2)
    low = coords.masked_fill(unseen, torch.inf).amin(dim=1)
    high = coords.masked_fill(unseen, -torch.inf).amax(dim=1)
    return tuple(max(2, math.ceil(float(n)) + 1) for n in (high - low).amax(dim=0))


def _seen(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return (n, channels, *space) values with NaN where the mask is False; statistics leave them out."""
    return values if mask is None else values.masked_fill(~mask.unsqueeze(1), torch.nan)


def named_arrays(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return ``inputs``, ``target``, ``coords``, ``mask`` and ``group`` among the arrays of a file; see ``NAMES``."""
    return {name: found[key] for name, keys in NAMES.items() for key in reversed(keys) if key in found}


def other_arrays(found: dict[str, np.ndarray]) -> list[str]:
    """Return the names of the arrays that :func:`named_arrays` leaves out."""
    used = {next((key for key in keys if key in found), "") for keys in NAMES.values()}
    return [name for name in found if name not in used]


def read_array_file(path: Path, nonfinite: str = "refuse") -> dict[str, np.ndarray]:
    """Return the arrays of an ``.npz`` file by the names in ``NAMES``; check shapes."""
    found = read_arrays(path)
    others = other_arrays(found)
    if others:
        warnings.warn(f"{path}: arrays {', '.join(others[:6])} are not read", stacklevel=3)
    stored = named_arrays(found)
    for name in ("inputs", "target"):
        if name not in stored:
            raise ValueError(f"{path} must hold inputs and target (or x and y), found {', '.join(found) or 'nothing'}")
    for name, array in stored.items():
        if len(array) != len(stored["inputs"]):
            raise ValueError(
                f"{path} must hold {len(stored['inputs'])} samples in {name}, like inputs, got {len(array)}"
            )
        if name not in ("target", "group") and array.dtype.kind not in "biuf":
            raise ValueError(f"{path} must hold numbers in {name}, found {array.dtype}")
        if name == "group":
            _check_groups(array, path)
            continue
        stored[name] = finite_array(array, path, name, nonfinite if name == "inputs" else "refuse")
    shape = stored["inputs"].shape
    if len(shape) < 3 or not len(stored["inputs"]):
        raise ValueError(f"{path} must hold inputs of shape (n, channels, …), found {shape}; n and channels may be 1")
    if "coords" not in stored:
        check_channels_first(shape, f"{path}, array inputs,")
    if stored["target"].ndim == 2 and stored["target"].shape[1] == 1 and shape[2:] != (1,):
        stored["target"] = stored["target"][:, 0]
    space, points = stored["inputs"].shape[2:], stored.get("coords")
    if points is not None and (points.ndim != 3 or points.shape[1:2] != space or not np.isfinite(points).all()):
        raise ValueError(f"{path} must hold finite coords of shape (n, {space[0]}, dim), found {points.shape}")
    if "mask" in stored and stored["mask"].shape[1:] != space:
        raise ValueError(f"{path} must hold a mask of shape (n, {space}), found {stored['mask'].shape}")
    if "mask" in stored:
        check_mask(stored["mask"], path)
    _check_seen(stored["inputs"], stored.get("mask"), path)
    return stored


def _check_groups(groups: np.ndarray, path: Path) -> None:
    """Raise a ValueError unless there is a name or a whole number for each sample."""
    whole = groups.dtype.kind in "biuUS" or (groups.dtype.kind == "f" and bool((groups == np.round(groups)).all()))
    if groups.ndim != 1 or not whole:
        raise ValueError(
            f"{path} must hold a name or a whole number for each sample in group, found {groups.dtype} "
            f"of shape {groups.shape}"
        )


def check_mask(mask: np.ndarray, path: Path) -> None:
    """Raise a ValueError if a mask holds other values than True and False, or 1 and 0."""
    wrong = ~((mask == 0) | (mask == 1))
    if wrong.any():
        raise ValueError(f"{path} must hold a mask of zeros and ones, found {mask[wrong][0]}")


def _check_seen(inputs: np.ndarray, mask: np.ndarray | None, path: Path) -> None:
    """Raise a ValueError for a sample without a value; warn of empty channels and of partly observed positions."""
    if not inputs.size:  # points may have coordinates but no values
        return
    seen = ~np.isnan(inputs) if inputs.dtype.kind == "f" else np.ones(inputs.shape, dtype=bool)
    if mask is not None:
        seen &= mask.astype(bool)[:, None]
    empty = ~seen.any(axis=tuple(range(1, seen.ndim)))
    if empty.any():
        raise ValueError(f"{path} must hold at least one value in each sample, found none in sample {empty.argmax()}")
    unseen = ~seen.any(axis=(0, *range(2, seen.ndim)))
    if unseen.any():
        warnings.warn(f"{path}: channel {unseen.argmax()} of inputs holds no value", stacklevel=3)
    known = seen[:, ~unseen]
    partly = int((known.any(axis=1) & ~known.all(axis=1)).sum())
    if partly:
        warnings.warn(
            f"{path}: {partly:,} positions have values in some channels only; a missing value counts as the mean of "
            "its channel. A table of measurements also tells the network which channels were observed",
            stacklevel=3,
        )


def _joined(parts: list[Any], name: str, paths: list[Path]) -> Any:
    if all(part is None for part in parts):
        return None
    for path, part in zip(paths, parts, strict=True):
        if part is None or part.shape[1:] != parts[0].shape[1:]:
            found = "none" if part is None else part.shape[1:]
            raise ValueError(f"{path} must hold {name} of shape {parts[0].shape[1:]}, like {paths[0]}, found {found}")
        if (part.dtype.kind == "f") != (parts[0].dtype.kind == "f"):
            raise ValueError(
                f"{path} must hold {name} of type {parts[0].dtype}, like {paths[0]}, found {part.dtype}; integers and "
                "floats usually differ in scale"
            )
    return np.concatenate(parts)


def _task(target: np.ndarray, space: tuple[int, ...]) -> str:
    """Return the task that fits the shape and the type of the target."""
    discrete = target.dtype.kind in "biuUS"
    if target.ndim == 1:
        return "classification" if discrete else "regression"
    if target.shape[1:] == space:
        return "segmentation" if discrete else "dense-regression"
    if target.shape[2:] == space:
        return "dense-regression"
    return "multilabel" if discrete and bool(((target == 0) | (target == 1)).all()) else "regression"


def _announce_labels(target: np.ndarray, task: str, path: Path) -> None:
    """Warn of a regression at each position whose values look like classes."""
    if task != "dense-regression" or target.dtype.kind not in "biu":
        return
    values = np.unique(target)
    if len(values) <= _MANY_CLASSES:
        space = ", ".join(map(str, target.shape[2:]))
        warnings.warn(
            f"{path}: the target of shape {target.shape} holds only {len(values)} whole numbers, which count as values "
            f"of a regression. For classes, store shape ({len(target)}, {space}), or set task to 'segmentation' if "
            "there is one channel",
            stacklevel=3,
        )


def array_target(
    target: np.ndarray, task: str, inputs: tuple[int, ...], path: Path, classes: tuple[str, ...] | None = None
) -> tuple[Tensor, tuple[str, ...], int]:
    """Return a target as a tensor, the names of the classes, and the number of predictions.

    Args:
        target: the array of the file.
        task: the task.
        inputs: shape of the inputs.
        path: file of the target, for errors.
        classes: names of the classes, if known already.
    """
    n, space = inputs[0], tuple(inputs[2:])
    if task == "segmentation" and target.shape == (n, 1, *space):
        target = target[:, 0]
    if task in ("classification", "segmentation"):
        if target.shape != ((n,) if task == "classification" else (n, *space)):
            raise ValueError(f"{path} must hold a target of shape {(n, *space)} for {task}, found {target.shape}")
        names = [_class_name(v, task, path) for v in np.unique(target)]
        known = class_index(names)[1] if classes is None else classes
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise ValueError(f"{path} must hold classes {', '.join(known[:8])}, found {unknown[0]}")
        place = np.array([known.index(name) for name in names])
        index = place[np.unique(target, return_inverse=True)[1].reshape(target.shape)]
        return torch.from_numpy(index.astype(np.int64)), known, len(known)
    if target.dtype.kind not in "biuf" or not np.isfinite(target).all():
        found = "NaN or infinity" if target.dtype.kind == "f" else str(target.dtype)
        raise ValueError(f"{path} must hold finite numbers in target for {task}, found {found}")
    if task == "multilabel" and not ((target >= 0) & (target <= 1)).all():
        raise ValueError(
            f"{path} must hold a target of zeros and ones for {task}, found {target.min():g} to {target.max():g}"
        )
    values = torch.from_numpy(np.ascontiguousarray(target, dtype=np.float32))
    if task == "dense-regression" and tuple(values.shape[1:]) == space:
        values = values.unsqueeze(1)
    if task != "dense-regression":
        values = values.reshape(n, -1)
    elif tuple(values.shape[2:]) != space:
        raise ValueError(f"{path} must hold a target of shape (n, out, {space}) for {task}, found {target.shape}")
    return values, (), values.shape[1]


def _class_name(value: Any, task: str, path: Path) -> str:
    """Return the name of a class: a text, or a whole number of any type."""
    if isinstance(value, (bytes, str)):
        try:
            name = value.decode("utf-8") if isinstance(value, bytes) else str(value)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} must hold names in UTF-8 in target, found {value!r}") from error
        if name.strip().lower() in ("", "?", "nan"):
            raise ValueError(f"{path} must hold a label for each sample in target, found {name!r}, a missing value")
        return name.strip()
    if not np.isfinite(value) or int(value) != value:
        raise ValueError(f"{path} must hold whole numbers or names in target for {task}, found {value}")
    return str(int(value))
