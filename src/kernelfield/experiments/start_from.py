"""Weights of a finished run as the start of another training, on other data or with another number of classes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .run import Run

if TYPE_CHECKING:
    from torch import nn

    from .recipe import Recipe

__all__ = ["find_start", "load_weights", "model_of", "source_of"]

#: options of a loader that decide what the network is given, and are kept when its weights are
_FEATURES = ("rate", "features", "resolution", "gray", "observed", "unit", "points")


def find_start(folder: str | Path, run: Run) -> Path:
    """Return the folder of the run that ``run`` starts from.

    Args:
        folder: a folder, or the name of a run beside ``run``, such as that of the recipe whose weights are fine-tuned.
        run: the run to start.
    """
    beside = run.folder.parent / folder
    for found in (Path(folder), beside):
        if found.is_dir():
            return found
    raise ValueError(f"start_from must be the folder of a run, got {folder}: neither it nor {beside} exists")


def load_weights(network: nn.Module, folder: str | Path) -> list[str]:
    """Copy the weights of a run to a network where names and shapes agree, and return lines that say what was copied.

    A head for another number of classes does not fit and keeps the values it was drawn with.

    Args:
        network: the network to start.
        folder: of the run.
    """
    source = Run(Path(folder)).network().state_dict()
    target = network.state_dict()
    fits = {name: t for name, t in source.items() if name in target and t.shape == target[name].shape}
    learned = [name for name, _ in network.named_parameters()]
    copied = [name for name in learned if name in fits]
    if not copied:
        raise ValueError(
            f"start_from must be a run of the same network, got {folder}: no weights agree in name and shape"
        )
    network.load_state_dict(fits, strict=False)
    lines = [f"start from {folder}: {len(copied)} of {len(learned)} weights"]
    for name in learned:
        if name not in fits:
            here = tuple(target[name].shape)
            there = f"{tuple(source[name].shape)} there" if name in source else "not there"
            lines.append(f"  {name}: {here} here, {there}; it starts afresh")
    return lines


def model_of(folder: str | Path) -> dict[str, Any]:
    """Return section ``model`` of a run's recipe, without the shape of its data."""
    return {key: v for key, v in Run(Path(folder)).recipe().model.items() if key not in ("in_channels", "size", "dim")}


def source_of(folder: str | Path) -> dict[str, Any]:
    """Return the ``name`` of a run's loader, and those of its options that affect the network's input."""
    recipe: Recipe = Run(Path(folder)).recipe()
    return {key: v for key, v in recipe.data.items() if key == "name" or key in _FEATURES}
