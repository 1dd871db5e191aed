"""Weights to start a training from, on other data or for other classes: those of a run, or pretrained ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..models.pretrained import create_from_weight, describe_weight, find_weight, list_weights
from .recipe import Recipe, recipe_from
from .run import Run

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Start", "find_start", "is_weight", "load_weights", "model_of", "source_of"]

#: options of a loader that decide what the network is given, and are kept when its weights are
_FEATURES = ("rate", "features", "resolution", "gray", "observed", "unit", "points")


@dataclass(frozen=True)
class Start:
    """What a training starts from.

    Args:
        name: folder of a run, or name of a pretrained weight.
        run: the run; None for a pretrained weight.
    """

    name: str
    run: Run | None = None

    def network(self) -> nn.Module:
        """Return the trained network."""
        return create_from_weight(self.name) if self.run is None else self.run.network()

    def recipe(self) -> Recipe:
        """Return the recipe that it was trained by."""
        return recipe_from(describe_weight(self.name)["recipe"], self.name) if self.run is None else self.run.recipe()


def is_weight(name: str | Path) -> bool:
    """Whether a name is that of a pretrained weight, MODEL.TAG, or of a model that has one.

    >>> is_weight("flextcn_2.smnist"), is_weight("flextcn_2"), is_weight("runs/mine")
    (True, True, False)
    """
    return str(name) in {known for full in list_weights() for known in (full, full.partition(".")[0])}


def find_start(name: str | Path, run: Run | None = None) -> Start:
    """Return what a training starts from.

    Args:
        name: folder of a run; the name of a run beside ``run``, such as that of the recipe whose weights are
            fine-tuned; or a pretrained weight, MODEL.TAG.
        run: the run to start.

    >>> find_start("flextcn_2.mnist")
    Traceback (most recent call last):
    ValueError: start_from must be the folder of a run or a pretrained weight, got flextcn_2.mnist: name must be one ...
    """
    beside = [] if run is None else [run.folder.parent / name]
    for folder in (Path(name), *beside):
        if folder.is_dir():
            return Start(str(folder), Run(folder))
    if is_weight(name):
        return Start(str(name))
    where = f"neither it nor {beside[0]} exists" if beside else "there is no such folder"
    try:
        find_weight(str(name))
    except ValueError as error:
        where = str(error) if _looks_like_a_tag(name) else where
    raise ValueError(f"start_from must be the folder of a run or a pretrained weight, got {name}: {where}")


def _looks_like_a_tag(name: str | Path) -> bool:
    return "." in str(name) and "/" not in str(name)


def load_weights(network: nn.Module, start: Start | str | Path) -> list[str]:
    """Copy weights to a network where names and shapes agree, and return lines that say what was copied.

    A head for another number of classes does not fit and keeps the values it was drawn with.

    Args:
        network: the network to start.
        start: the run or the pretrained weight, or its name.
    """
    start = start if isinstance(start, Start) else find_start(start)
    source = start.network().state_dict()
    target = network.state_dict()
    fits = {name: t for name, t in source.items() if name in target and t.shape == target[name].shape}
    learned = [name for name, _ in network.named_parameters()]
    copied = [name for name in learned if name in fits]
    if not copied:
        raise ValueError(
            f"start_from must be a run or a weight of the same network, got {start.name}: no weights agree in name and "
            "shape"
        )
    network.load_state_dict(fits, strict=False)
    lines = [f"start from {start.name}: {len(copied)} of {len(learned)} weights"]
    for name in learned:
        if name not in fits:
            here = tuple(target[name].shape)
            there = f"{tuple(source[name].shape)} there" if name in source else "not there"
            lines.append(f"  {name}: {here} here, {there}; it starts afresh")
    return lines


def model_of(name: str | Path) -> dict[str, Any]:
    """Return section ``model`` of the recipe of a run or a weight, without the shape of its data."""
    model = find_start(name).recipe().model
    return {key: v for key, v in model.items() if key not in ("in_channels", "out_channels", "size", "dim")}


def source_of(name: str | Path) -> dict[str, Any]:
    """Return the options of a loader that decide what the network is given, and the loader's ``name``.

    Args:
        name: of a run or a weight.
    """
    data = find_start(name).recipe().data
    return {key: v for key, v in data.items() if key == "name" or key in _FEATURES}
