"""A recipe for somebody's own data: a folder of images, a table of series."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.registry import load
from .recipe import Recipe, recipe_from

if TYPE_CHECKING:
    from ..data.base import Data

__all__ = ["own_data", "recipe_for", "recipe_for_path"]

#: loaders by the suffix of a file; a folder is one of images
SUFFIXES = {".csv": "csv_series", ".ts": "ts", ".txt": "text"}


def own_data(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the loader for a path and its options: by a file's suffix; a folder holds images."""
    path = Path(path)
    if path.is_dir():
        # The .ts files of the archive, and tables that are divided already, come as several files in a folder.
        files = {"ts": "*.ts", "csv_series": "train.csv"}
        kind = next((kind for kind, pattern in files.items() if any(path.glob(pattern))), "image_folder")
    elif path.suffix.lower() in SUFFIXES:
        kind = SUFFIXES[path.suffix.lower()]
    else:
        known = ", ".join(SUFFIXES)
        raise ValueError(f"data must be a folder of images or a file ending in {known}, got {path}")
    return kind, {"root": str(path)}


def recipe_for(data: Data, name: str, source: dict[str, Any], *, model: str = "", epochs: int = 0) -> Recipe:
    """Return a recipe that a network can be trained by on data nobody has published a recipe for.

    A CCNN with sensible settings: AdamW at 0.01, cosine with warm-up, and about two thousand steps.

    Args:
        data: as loaded.
        name: of the recipe.
        source: name of the loader and its options.
        model: name of the network; a CCNN of the smaller size if empty.
        epochs: passes over the data; by the number of samples if zero.
    """
    samples = len(data.train)
    batch = max(1, min(64, samples // 8))
    length = max(10, min(100, round(2000 * batch / samples))) if epochs == 0 else epochs
    shape: dict[str, Any] = {"in_channels": data.in_channels, "out_channels": data.out_channels}
    shape |= {"size": list(data.size), "task": data.task, "irregular": data.train.coords is not None}
    network: dict[str, Any] = {"name": model or "ccnn_4_140", "dropout": 0.1}
    if not model:
        # Half the width: a few hundred samples are more usual here than fifty thousand.
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


def recipe_for_path(path: str | Path, **options: Any) -> Recipe:
    """Return a recipe for the data at a path; see :func:`own_data` and :func:`recipe_for`."""
    kind, where = own_data(path)
    data = load(kind, **where)
    return recipe_for(data, Path(path).stem, {"name": kind, **where}, **options)
