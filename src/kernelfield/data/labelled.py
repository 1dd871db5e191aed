"""Labelled samples from new files, on which to test a trained network; they are read like the training data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked
from .base import Batch, Split
from .io.arrays import as_coords
from .io.pairs import split_files
from .preprocessing import compare_size, compare_values, in_stored_range
from .sets.arrays import array_target, read_array_file
from .sets.audio import sound_folder as sounds
from .sets.clouds import cloud_folder as clouds
from .sets.images import image_folder as images
from .sets.series.csv_series import read_labelled
from .sets.series.ts_archive import read_archive
from .sets.text.characters import text_samples
from .transforms.series import query_targets, samples_like, target_of
from .transforms.series_checks import compare_coords

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from .base import Data
    from .transforms.series import Series

__all__ = ["CUSTOM_LOADERS", "labelled_split"]


@checked()
def labelled_split(data: Data, path: str | Path, source: dict[str, Any]) -> Split:
    """Return all labelled samples of a file or folder as test samples of a data set.

    If a folder or a pair of files has training and test data, only the test data are read.

    Args:
        data: the data set, or its metadata; see :func:`~kernelfield.data.metadata.from_metadata`.
        path: a file or folder that the loader can read.
        source: ``name`` of the loader, one of ``CUSTOM_LOADERS``, and its options.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"data must be an existing file or folder, got {path}")
    return CUSTOM_LOADERS[source["name"]](data, path, source)


def _series(data: Data, path: Path, source: dict[str, Any]) -> Split:
    nonfinite = str(source.get("nonfinite", "refuse"))
    file = _test_file(path, source)
    if source["name"] == "ts":
        series, _, _ = read_archive(file, nonfinite)
    else:
        series = read_labelled(file, data, source)
    batch = samples_like(data, series)
    compare_values(batch, data, str(file))
    if series[0].times is None:  # real times tell the rate
        compare_size(batch, data, str(file), padded=True)
    return _with_target(data, batch, _series_target(data, series, file))


def _test_file(path: Path, source: dict[str, Any]) -> Path:
    """Return the file itself, the test file of a folder, or the test file that belongs to a training file."""
    if path.is_file():
        return split_files(path)[-1]
    problem = source.get("problem") or ""
    found = [p for p in sorted(path.rglob("*")) if p.is_file() and p.stem.lower().endswith("test")]
    found = [p for p in found if p.stem.startswith(problem)]
    if len(found) != 1:
        raise ValueError(
            f"data must be a file, or a folder with one file of test data, got {path} with {len(found)} of them"
        )
    return found[0]


def _series_target(data: Data, series: Sequence[Series], file: Path) -> Tensor:
    if data.task == "dense-regression":
        return query_targets(series)
    if data.task == "regression":
        return torch.tensor([[target_of(s)] for s in series])
    return _known([s.label for s in series], data, file)


def _known(labels: Sequence[str], data: Data, where: Path) -> Tensor:
    unknown = sorted(set(labels) - set(data.classes))
    if unknown:
        raise ValueError(
            f"{where} must hold only the classes of the run, {', '.join(data.classes[:12])}, found {unknown[0]!r}"
        )
    place = {name: i for i, name in enumerate(data.classes)}
    return torch.tensor([place[label] for label in labels], dtype=torch.long)


def _with_target(data: Data, batch: Batch, target: Tensor) -> Split:
    return Split(batch.inputs, target, batch.coords, batch.mask, batch.step, data.test.prepare, batch.at)


def _listed(data: Data, path: Path, endings: tuple[str, ...], what: str) -> tuple[list[Path], Tensor]:
    """Return the files and classes of a folder with one folder per class, perhaps inside a folder "test"."""
    found = images.list_files(images.part_folder(path, images.PARTS[2]) or path, endings, what)
    return [file for _, file in found], _known([name for name, _ in found], data, path)


def _images(data: Data, path: Path, source: dict[str, Any]) -> Split:  # noqa: ARG001
    channels, rows, columns = data.test.inputs.shape[1:]
    files, target = _listed(data, path, images.ENDINGS, "images")
    stored = images.stack_images(files, (rows, columns), channels == 1, data.levels)
    return replace(data.test, inputs=stored, target=target)


def _sounds(data: Data, path: Path, source: dict[str, Any]) -> Split:
    files, target = _listed(data, path, sounds.ENDINGS, "sounds")
    clips = sounds.read_clips(files, source.get("rate", sounds.RATE), data.test.inputs.shape[2], announce=True)
    return replace(data.test, inputs=clips, target=target)


def _clouds(data: Data, path: Path, source: dict[str, Any]) -> Split:
    assert data.test.coords is not None  # clouds have coordinates
    files, target = _listed(data, path, clouds.ENDINGS, "point clouds")
    coords = clouds.read_clouds(files, data.test.coords.shape[1], source.get("seed", 0))
    return replace(data.test, inputs=coords.new_zeros(len(coords), 0, coords.shape[1]), coords=coords, target=target)


def _arrays(data: Data, path: Path, source: dict[str, Any]) -> Split:
    file = _test_file(path, source)
    held = read_array_file(file, str(source.get("nonfinite", "refuse")))
    shape = held["inputs"].shape
    if shape[1] != data.test.inputs.shape[1] or len(shape) != data.test.inputs.dim():
        raise ValueError(f"{file} must hold inputs of shape {tuple(data.test.inputs.shape[1:])}, found {shape[1:]}")
    target, _, out = array_target(held["target"], data.task, shape, file, data.classes or None)
    if out != data.out_channels:
        raise ValueError(f"{file} must hold a target of {data.out_channels} values, found {out}")
    inputs = in_stored_range(torch.from_numpy(held["inputs"]), data, f"{file}, array inputs,")
    mask = torch.from_numpy(held["mask"].astype(bool)) if "mask" in held else None
    coords = torch.from_numpy(as_coords(held["coords"], str(file))) if "coords" in held else None
    if coords is None and data.test.coords is not None:
        raise ValueError(f"{file} must hold coords, since the run is on irregular times or points, found none")
    batch = Batch(inputs, coords=coords, mask=mask)
    compare_values(batch, data, f"{file}, array inputs,")
    compare_size(replace(batch, step=data.test.step), data, str(file))
    compare_coords(batch, data, str(file))
    unseen = inputs.isnan().all(dim=1)
    if data.test.mask is not None or bool(unseen.any()):
        mask = ~unseen if mask is None else mask & ~unseen
    return replace(data.test, inputs=inputs, target=target, coords=coords, mask=mask)


def _text(data: Data, path: Path, source: dict[str, Any]) -> Split:  # noqa: ARG001
    if not path.is_file():
        raise ValueError(f"data must be a text file, like that of the run, got {path}")
    return text_samples(path, data.classes, data.test.inputs.shape[1])


#: readers of labelled samples for the loaders of custom data, by name
CUSTOM_LOADERS: dict[str, Callable[[Data, Path, dict[str, Any]], Split]] = {
    "csv_series": _series,
    "ts": _series,
    "image_folder": _images,
    "wav_folder": _sounds,
    "cloud_folder": _clouds,
    "arrays": _arrays,
    "text": _text,
}
