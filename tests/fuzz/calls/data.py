"""Data sets and transforms."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kernelfield import create_model, data
from kernelfield.data import registry
from kernelfield.data.base import TargetScale
from kernelfield.data.sets.images import digits
from kernelfield.data.sets.physics import darcy
from kernelfield.data.transforms import batch, log_mel, mfcc, resize, rotate, split
from kernelfield.data.transforms.augment_series import AugmentSeries, augment_series

from ..formats import FORMATS
from .call import Call

if TYPE_CHECKING:
    from collections.abc import Callable

#: an empty folder: a loader looks at its arguments before it looks for files
_EMPTY = tempfile.TemporaryDirectory()
#: files that loaders of one's own data read
_FILES = tempfile.TemporaryDirectory()
_FEW = {"train": 4, "validation": 2, "test": 2}


def _split() -> data.Split:
    return data.Split(torch.randn(6, 1, 16), torch.arange(6) % 2)


def _images() -> data.Data:
    part = data.Split(torch.rand(4, 1, 6, 6), torch.arange(4) % 2)
    return data.Data.from_splits("drawn", [part, None, part], classes=("a", "b"))


def _series() -> data.Data:
    return data.Data.from_splits("drawn", [_split(), None, _split()], classes=("a", "b"))


def _use(found: data.Data) -> Any:
    return found.train.batch(slice(0, 2), training=True).inputs.float()


def _loaders() -> list[Call]:
    """Return a call of every registered data set: a small one of its kind, or one of a folder without its files."""
    calls = []
    for name in data.list_data():
        make = registry._ENTRIES[name].make
        options = dict(_SMALL.get(name, {}))
        takes = data.describe(name)
        if takes.root == "a folder or file":
            options.setdefault("root", _EMPTY.name)
        missing = options.get("root") == _EMPTY.name or name in ("arrays", "csv_series")  # or targets of another task
        calls.append(
            Call(
                f"data.load {name}",
                make,
                lambda options=options: dict(options),
                _use,
                # Nothing is downloaded in a test.
                unchecked=frozenset(["download"]),
                ends_with=(ValueError, FileNotFoundError) if missing else (),
            )
        )
    return calls


def _file(name: str, folder: str = "") -> str:
    """Write a valid file of a format and return its path."""
    content = FORMATS[name].content
    path = Path(_FILES.name) / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)


def _classes(name: str, count: int = 6) -> str:
    """Write a folder of files for each of two classes and return its path."""
    root = Path(_FILES.name) / f"folder of {Path(name).suffix[1:]}"
    content = FORMATS[name].content
    for kind in ("one", "two"):
        (root / kind).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            (root / kind / f"{i}{Path(name).suffix}").write_bytes(content)
    return str(root)


def _arrays() -> str:
    path = Path(_FILES.name) / "arrays.npz"
    source = np.random.default_rng(0)
    np.savez(path, inputs=source.normal(size=(20, 2, 8)).astype(np.float32), target=np.arange(20) % 2)
    return str(path)


def _text() -> str:
    path = Path(_FILES.name) / "text.txt"
    path.write_text("a text of some length, with letters and blanks. " * 20)
    return str(path)


_SMALL: dict[str, dict[str, Any]] = {
    "adding": {"T": 8, **_FEW},
    "arrays": {"root": _arrays()},
    "chirps": {"length": 128, **_FEW},
    "copy_memory": {"T": 8, **_FEW},
    "csv_series": {"root": _file("wide.csv")},
    "darcy_synthetic": {"resolution": 4, "solve_at": 8, **_FEW},
    "digit_masks": {"resolution": 8, "validation": 10},
    "digits": {"validation": 10},
    "image_folder": {"root": _classes("image.png")},
    "listops": {"min_length": 5, "max_length": 30, "max_depth": 3, "max_args": 4, **_FEW},
    "oscillators": {"length": 8, "seen": 5, "asked": 4, **_FEW},
    "pathfinder": {"resolution": 16, **_FEW},
    "random_clouds": {"points": 8, **_FEW},
    "rotated_digits": {"resolution": 8, "validation": 10},
    "shapes": {"resolution": 8, **_FEW},
    "six_or_nine": {"resolution": 8},
    "solids": {"points": 16, **_FEW},
    "text": {"root": _text(), "length": 16},
    "transients": {"length": 512, **_FEW},
    "wav_folder": {"root": _classes("mono.wav"), "rate": 4_000},
}


def _register(name: str, make: Callable[..., data.Data], summary: str) -> None:
    before = dict(registry._ENTRIES)
    try:
        data.register(name, make, summary)
    finally:
        registry._ENTRIES.clear()
        registry._ENTRIES.update(before)


_IMAGES = {"images": torch.rand(8, 1, 6, 6), "labels": torch.tensor([6] * 8)}

CALLS = [
    *_loaders(),
    Call("data.load", data.load, lambda: {"name": "chirps"}, _use),
    Call("data.register", _register, lambda: {"name": "fuzzed", "make": data.load, "summary": "A data set of tests."}),
    Call("data.list_data", data.list_data, lambda: {"pattern": "*mnist"}),
    Call(
        "data.preprocessing",
        data.preprocessing,
        lambda: {"model": create_model("ckcnn_copy.copy_100", pretrained=True)},
        lambda found: found(torch.zeros(1, 1, 120)),
    ),
    Call("data.describe", data.describe, lambda: {"name": "mnist"}),
    Call("data.data_shape", data.data_shape, lambda: {"name": "mnist"}),
    Call("data.Batch", data.Batch, lambda: {"inputs": torch.randn(2, 1, 8), "target": torch.zeros(2)}, len),
    Call(
        "data.Split",
        data.Split,
        lambda: {"inputs": torch.randn(4, 1, 8), "target": torch.zeros(4)},
        lambda found: found.batch(slice(0, 2)).inputs,
    ),
    Call(
        "data.Data",
        data.Data,
        lambda: {
            "name": "drawn",
            "train": _split(),
            "validation": None,
            "test": _split(),
            "in_channels": 1,
            "out_channels": 2,
            "dim": 1,
            "size": (16,),
            "task": "classification",
        },
        _use,
    ),
    Call("data.DataShape", data.DataShape, lambda: {"in_channels": 1, "out_channels": 2, "size": [8]}),
    Call("data.base.TargetScale", TargetScale, lambda: {"mean": (0.0,), "std": (1.0,)}),
    Call("data.drop_split", data.drop_split, lambda: {"split": _split(), "share": 0.3}, lambda s: s.inputs),
    Call("data.drop_samples", data.drop_samples, lambda: {"data": _series(), "share": 0.3}, _use),
    Call("data.as_sequence", data.as_sequence, lambda: {"data": _images()}, _use),
    Call("data.permuted", data.permuted, lambda: {"data": _images()}, _use),
    Call("data.noise_padded", data.noise_padded, lambda: {"data": _images(), "length": 12}, _use),
    Call(
        "data.transforms.AugmentSeries",
        AugmentSeries,
        dict,
        lambda f: f(data.Batch(torch.randn(2, 1, 20)), True).inputs,
    ),
    Call("data.transforms.augment_series", augment_series, lambda: {"data": _series()}, _use),
    Call("data.transforms.Standardize", batch.Standardize, lambda: {"mean": (0.5,), "std": (0.2,)}),
    Call("data.transforms.CropFlip", batch.CropFlip, dict),
    Call("data.transforms.Chain", batch.Chain, lambda: {"steps": (batch.CropFlip(),)}),
    Call(
        "data.transforms.LogMel",
        log_mel.LogMel,
        lambda: {"window": 64, "rate": 4_000, "mels": 8},
        lambda f: f(data.Batch(torch.randn(2, 1, 400)), True).inputs,
    ),
    Call("data.transforms.mfcc", mfcc.mfcc, lambda: {"audio": torch.randn(2, 800), "coefficients": 5}),
    Call("data.transforms.resize", resize.resize, lambda: {"x": torch.rand(2, 1, 8, 8), "size": (4, 4)}),
    Call("data.transforms.rotate", rotate.rotate, lambda: {"images": torch.rand(2, 1, 6, 6), "angles": torch.rand(2)}),
    Call("data.transforms.rotated", rotate.rotated, lambda: dict(_IMAGES)),
    Call("data.transforms.mnist6_180", rotate.mnist6_180, lambda: dict(_IMAGES)),
    Call("data.transforms.mnist6_m", rotate.mnist6_m, lambda: dict(_IMAGES)),
    Call("data.transforms.divide", split.divide, lambda: {"labels": torch.arange(20) % 2}),
    Call("data.transforms.hold_out", split.hold_out, lambda: {"labels": torch.arange(20) % 2, "count": 4}),
    Call("data.transforms.moments", split.moments, lambda: {"values": torch.randn(4, 2, 8)}),
    Call("data.sets.digit_images", digits.digit_images, dict),
    Call("data.sets.permeability", darcy.permeability, lambda: {"count": 2, "resolution": 8}),
    Call("data.sets.TransposeFlow", darcy.TransposeFlow, dict),
    Call("data.sets.solve_darcy", darcy.solve_darcy, lambda: {"a": 1 + torch.rand(2, 6, 6)}),
]
