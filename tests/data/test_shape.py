"""Shapes that data sets declare are those of the data that are loaded."""

from __future__ import annotations

from typing import Any

import pytest

from kernelfield.data import data_shape, describe, list_data, load

FEW = {"train": 4, "validation": 2, "test": 2}
LOADED: list[tuple[str, dict[str, Any]]] = [
    ("adding", {"T": 30, **FEW}),
    ("copy_memory", {"T": 30, **FEW}),
    ("chirps", {"length": 128, **FEW}),
    ("transients", {"length": 512, **FEW}),
    ("oscillators", {"length": 40, "asked": 7, **FEW}),
    ("digits", {}),
    ("digits", {"resolution": 16, "sequence": True}),
    ("rotated_digits", {}),
    ("digit_masks", {}),
    ("digit_masks", {"resolution": 17}),
    ("six_or_nine", {}),
    ("shapes", {"resolution": 24, **FEW}),
    ("listops", {"min_length": 20, "max_length": 60, **FEW}),
    ("pathfinder", FEW),
    ("pathfinder", {"sequence": True, **FEW}),
    ("darcy_synthetic", {"resolution": 8, "solve_at": 8, **FEW}),
    ("darcy_synthetic", {"resolution": 8, "solve_at": 8, "coordinates": False, **FEW}),
    ("solids", {"points": 32, **FEW}),
    ("solids", {"points": 32, "normals": False, **FEW}),
    ("random_clouds", {"points": 16, "dim": 2, **FEW}),
]


@pytest.mark.parametrize(("name", "options"), LOADED, ids=lambda value: value if isinstance(value, str) else "")
def test_declared_shape_is_that_of_the_data(name: str, options: dict[str, Any]) -> None:
    shape, data = data_shape(name, **options), load(name, **options)
    assert shape is not None
    declared = (shape.in_channels, shape.out_channels, tuple(shape.size), shape.task, shape.vocabulary)
    assert declared == (data.in_channels, data.out_channels, data.size, data.task, data.vocabulary)
    assert shape.irregular == (data.train.coords is not None)
    assert shape.queries == (0 if data.train.at is None else data.train.at.shape[1])


def test_all_data_sets_except_own_files_declare_a_shape() -> None:
    # Tests of own data sets register some, whose licence nobody knows.
    without = {name for name in list_data() if describe(name).shape is None and describe(name).licence}
    assert without == {
        "arrays",
        "cloud_folder",
        "csv_series",
        "image_folder",
        "text",
        "ts",
        "wav_folder",
    }


@pytest.mark.parametrize(
    ("name", "options", "size", "channels"),
    [
        ("npcifar10", {}, [1000], 96),
        ("lra_image", {}, [1024], 1),
        ("cifar100", {"resolution": 16}, [16, 16], 3),
        ("pmnist", {}, [784], 1),
        ("speech_commands_mfcc", {}, [161], 20),
        ("chair_monitor", {"form": "voxels"}, [32, 32, 32], 1),
        ("physionet2012", {"minutes": 60.0}, [49], 81),
    ],
)
def test_options_change_the_shape(name: str, options: dict[str, Any], size: list[int], channels: int) -> None:
    shape = data_shape(name, **options)
    assert shape is not None
    assert (shape.size, shape.in_channels) == (size, channels)
