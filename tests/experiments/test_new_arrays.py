"""New samples in arrays and tables: read with the exactness, the types and the checks of the training data."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kernelfield.data.base import Batch
from kernelfield.data.labelled import labelled_split
from kernelfield.data.registry import load
from kernelfield.experiments.custom_data import recipe_for_path
from kernelfield.experiments.datasets import recipe_data
from kernelfield.experiments.sample_files import check_samples, prepare_samples, read_file

if TYPE_CHECKING:
    from pathlib import Path

    from kernelfield.data.base import Data
    from kernelfield.experiments.recipe import Recipe

SAMPLES, POINTS = 20, 8
SOURCE = {"name": "arrays"}


def read_samples(path: Path, recipe: Recipe, data: Data) -> Batch:
    return prepare_samples(read_file(path, recipe, data), data)


def write(path: Path, **further: np.ndarray) -> Path:
    """Write arrays with random inputs of two classes."""
    inputs = np.random.default_rng(0).normal(size=(SAMPLES, 1, POINTS))
    np.savez(path, inputs=inputs, target=np.arange(SAMPLES) % 2, **further)
    return path


def times(start: float = 0.0, factor: float = 1.0) -> np.ndarray:
    gaps = np.random.default_rng(1).uniform(0.5, 1.5, (SAMPLES, POINTS, 1))
    return start + factor * gaps.cumsum(axis=1)


@pytest.fixture
def irregular(tmp_path: Path) -> tuple[Recipe, Data]:
    recipe = recipe_for_path(write(tmp_path / "train.npz", coords=times()))
    return recipe, recipe_data(recipe)


@pytest.mark.parametrize("start", [-50.0, 0.0, 5000.0])
def test_a_kernel_spans_the_coordinates_wherever_they_begin(start: float, tmp_path: Path) -> None:
    extent = float((times()[:, -1] - times()[:, 0]).max())
    assert load("arrays", write(tmp_path / "x.npz", coords=times(start))).size == (int(np.ceil(extent)) + 1,)
    coords = times(start)
    coords[:, -1] += 1000
    seen = np.arange(POINTS) < POINTS - 1
    path = write(tmp_path / "masked.npz", coords=coords, mask=np.broadcast_to(seen, (SAMPLES, POINTS)))
    assert load("arrays", path).size[0] <= extent + 1


def test_coordinates_that_float32_rounds_are_refused(irregular: tuple[Recipe, Data], tmp_path: Path) -> None:
    path = write(tmp_path / "dates.npz", coords=times(1.7e9))
    with pytest.raises(ValueError, match="coords"):
        load("arrays", path)
    with pytest.raises(ValueError, match="coords"):
        read_samples(path, *irregular)
    with pytest.raises(ValueError, match="coords"):
        labelled_split(irregular[1], path, SOURCE)
    whole = write(tmp_path / "steps.npz", coords=np.arange(POINTS)[None, :, None] + np.full((SAMPLES, 1, 1), 10**6))
    assert read_samples(whole, *irregular).coords.dtype == torch.float32


def test_coordinates_in_another_unit_are_announced(irregular: tuple[Recipe, Data], tmp_path: Path) -> None:
    path = write(tmp_path / "milliseconds.npz", coords=times(factor=1000))
    for read in (lambda: read_samples(path, *irregular), lambda: labelled_split(irregular[1], path, SOURCE)):
        with pytest.warns(UserWarning, match=r"coords of .*milliseconds\.npz"):
            read()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        labelled_split(irregular[1], write(tmp_path / "same.npz", coords=times(5)), SOURCE)


def test_a_test_on_points_needs_coordinates(irregular: tuple[Recipe, Data], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="coords"):
        labelled_split(irregular[1], write(tmp_path / "grid.npz"), SOURCE)


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, float])
def test_masks_of_a_test_may_be_numbers(kind: type, tmp_path: Path) -> None:
    data = load("arrays", write(tmp_path / "x.npz"))
    seen = np.broadcast_to(np.arange(POINTS) < 6, (SAMPLES, POINTS))
    found = labelled_split(data, write(tmp_path / "new.npz", mask=seen.astype(kind)), SOURCE)
    assert found.mask.dtype == torch.bool
    assert torch.equal(found.mask, torch.from_numpy(seen.copy()))


def test_clouds_far_from_their_origin_are_centred_before_they_are_rounded(tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    for name, flat in (("ball", 1.0), ("disc", 0.05)):
        (tmp_path / "clouds" / name).mkdir(parents=True)
        for i in range(8):
            np.save(tmp_path / "clouds" / name / f"{i}.npy", source.normal(size=(50, 3)) * [1, 1, flat])
    recipe = recipe_for_path(tmp_path / "clouds", {"points": 16})
    cloud = np.load(tmp_path / "clouds" / "disc" / "3.npy")
    found = []
    for origin in (0.0, 5e6):  # of a survey, in metres
        np.savez(tmp_path / "new.npz", coords=cloud[None] + origin)
        found.append(read_samples(tmp_path / "new.npz", recipe, recipe_data(recipe)).coords)
    torch.testing.assert_close(*found, atol=1e-5, rtol=0)


@pytest.mark.parametrize("label", ["n/a", "inf", "1e39", "1_000"])
def test_labels_of_a_test_that_are_no_numbers_are_named(label: str, tmp_path: Path) -> None:
    rows = [f"{i / 7},{i},{i % 3}" for i in range(20)]
    (tmp_path / "x.csv").write_text("\n".join(["label,t0,t1", *rows]))
    source = {"name": "csv_series", "task": "regression"}
    data = load("csv_series", tmp_path / "x.csv", task="regression")
    (tmp_path / "new.csv").write_text(f"label,t0,t1\n1.5,0,1\n{label},1,2\n")
    with pytest.raises(ValueError, match=r"new\.csv, line 3: .* label"):
        labelled_split(data, tmp_path / "new.csv", source)


def test_masks_that_hide_a_sample_or_have_another_shape_are_refused(tmp_path: Path) -> None:
    recipe = recipe_for_path(write(tmp_path / "x.npz"))
    data = recipe_data(recipe)
    seen = np.arange(SAMPLES)[:, None] > np.zeros(POINTS)
    with pytest.raises(ValueError, match="sample 0"):
        read_samples(write(tmp_path / "new.npz", mask=seen), recipe, data)
    with pytest.raises(ValueError, match="mask of inputs"):
        check_samples(Batch(torch.zeros(2, 1, POINTS), mask=torch.ones(2, 5, dtype=torch.bool)), recipe, data, "inputs")


def test_arrays_of_another_size_are_announced_in_a_test(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 1, 8, 8)), np.arange(20) % 2
    np.savez(tmp_path / "x.npz", x=x, y=y)
    np.savez(tmp_path / "large.npz", x=x.repeat(2, axis=2).repeat(2, axis=3), y=y)
    with pytest.warns(UserWarning, match=r"samples of .*large\.npz have size 16×16"):
        labelled_split(load("arrays", tmp_path / "x.npz"), tmp_path / "large.npz", SOURCE)


def test_samples_of_a_run_on_points_need_coordinates(irregular: tuple[Recipe, Data]) -> None:
    values = torch.zeros(2, 1, POINTS)
    for coords in (None, torch.zeros(2, POINTS - 1, 1)):
        with pytest.raises(ValueError, match="coords of inputs"):
            check_samples(Batch(values, coords=coords), *irregular, "inputs")
