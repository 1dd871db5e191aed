"""Recipes for data of one's own: a folder of images or sounds, a table of series, a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.registry import describe
from ..data.sets.audio import sound_folder as sound
from ..data.sets.images import image_folder as folders
from .datasets import load_source
from .recipe import Recipe, recipe_from
from .yaml_text import parse_value

if TYPE_CHECKING:
    from ..data.base import Data

__all__ = ["data_settings", "own_data", "recipe_for", "recipe_for_path"]

#: loaders by the suffix of a file
SUFFIXES = {".csv": "csv_series", ".ts": "ts", ".txt": "text"}


def own_data(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the loader for a path, and its options: by the suffix of a file, by the contents of a folder.

    The path is stored as an absolute one, so that the recipe names the same data from any folder.
    """
    path = Path(path).expanduser().resolve()
    if path.is_dir():
        # Problems of the .ts archive, and tables with a fixed split, are several files in a folder.
        files = {"ts": "*.ts", "csv_series": "train.csv"}
        kind = next((kind for kind, pattern in files.items() if any(path.glob(pattern))), "") or _inside(path)
    elif path.suffix.lower() in SUFFIXES:
        kind = SUFFIXES[path.suffix.lower()]
    else:
        known = ", ".join(SUFFIXES)
        raise ValueError(f"data must be a folder of images or sounds or a file ending in {known}, got {path}")
    return kind, {"root": str(path)}


def _inside(path: Path) -> str:
    """Return the loader of images or, for a folder of sounds without images, of sounds."""
    sounds = False
    for inner in path.rglob("*"):
        if inner.suffix.lower() in folders.ENDINGS:
            return "image_folder"
        sounds = sounds or inner.suffix.lower() in sound.ENDINGS
    return "wav_folder" if sounds else "image_folder"


def recipe_for(data: Data, name: str, source: dict[str, Any], *, model: str = "", epochs: int = 0) -> Recipe:
    """Return a recipe for data without a published one.

    By default it trains a CCNN with AdamW at 0.01 and a cosine with warm-up, for about two thousand steps.

    Args:
        data: as loaded.
        name: of the recipe.
        source: name of the loader and its options.
        model: name of the network; CCNN_4,140 with half its channels if empty.
        epochs: passes over the data; by the number of samples if zero.
    """
    samples = len(data.train)
    batch = max(1, min(64, samples // 8))
    length = max(10, min(100, round(2000 * batch / samples))) if epochs == 0 else epochs
    shape: dict[str, Any] = {"in_channels": data.in_channels, "out_channels": data.out_channels}
    shape |= {"size": list(data.size), "task": data.task, "irregular": data.train.coords is not None}
    network: dict[str, Any] = {"name": model or "ccnn_4_140", "dropout": 0.1}
    if not model:
        # Half the width, since a few hundred samples are more usual here than fifty thousand.
        network |= {"channels": 70}
    if data.task in ("dense-regression", "segmentation", "language"):
        network["readout"] = "dense"
    if data.vocabulary is not None:
        shape["vocabulary"] = data.vocabulary
        network["in_channels"] = 32
    mapping = {
        "name": name,
        "title": f"{name}: own data",
        "data": source,
        "shape": shape,
        "model": network,
        "optimizer": {"lr": 0.01, "weight_decay": 1e-4, "mask_lr": 0.1},
        "schedule": {"name": "cosine", "warmup": max(1, length // 20)},
        "training": {"epochs": length, "batch": batch, "clip": 1.0},
        "test": {} if data.train.coords is not None or data.vocabulary is not None else {"step": [2.0]},
    }
    return recipe_from(mapping, name)


def data_settings(settings: list[str]) -> dict[str, Any]:
    """Return the options of the loader among settings ``a.b=c`` of a recipe, by name.

    >>> data_settings(["training.epochs=3", "data.label=target", "data.shares=[0.8, 0.1, 0.1]"])
    {'label': 'target', 'shares': [0.8, 0.1, 0.1]}
    """
    pairs = [setting.partition("=") for setting in settings]
    return {
        key.strip().removeprefix("data."): parse_value(value)
        for key, equals, value in pairs
        if equals and key.strip().startswith("data.")
    }


def recipe_for_path(path: str | Path, source: dict[str, Any] | None = None, **options: Any) -> Recipe:
    """Return a recipe for the data at a path; see :func:`own_data` and :func:`recipe_for`.

    Args:
        path: the file or folder.
        source: options of the loader, or another loader's ``name``.
        options: of :func:`recipe_for`.
    """
    if source is not None and "name" in source:
        kind, where = str(source["name"]), {"root": str(Path(path).expanduser().resolve())}
    else:
        kind, where = own_data(path)
    chosen = {"name": kind, **where, **(source or {})}
    name = Path(path).resolve().stem
    data = load_source(chosen, f"data {name!r}")
    if data.task == "regression" and "standardize" in describe(chosen["name"]).options:
        # The default of the loader leaves targets in their own unit.
        chosen.setdefault("standardize", True)
    return recipe_for(data, name, chosen, **options)
