"""Initial weights for a training on other data or classes: those of a run, or pretrained ones."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data.metadata import same_samples, samples_record
from ..data.registry import describe
from ..models.pretrained import create_from_weight, describe_weight, find_weight, list_weights
from .datasets import image_layout, sampling_rate
from .recipe import Recipe, recipe_from
from .run import Run, network_arguments
from .run_files import read_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from ..data.base import Data

__all__ = [
    "Start",
    "check_times",
    "classifier_names",
    "conversion_hint",
    "find_start",
    "freeze_body",
    "is_weight",
    "load_weights",
    "model_of",
    "size_lines",
    "source_lines",
    "source_of",
    "split_lines",
]

#: smallest share of copied weights; below it, the source counts as another network
LEAST_COPIED = 0.1
#: largest number of weights to list by name; the rest is only counted
MOST_LINES = 8
#: options of a loader that determine the network's input; they are kept together with its weights
_FEATURES = ("rate", "features", "resolution", "gray", "observed", "unit", "points", "white")
#: options of a loader that divide the samples; they are kept for the same file or folder
_SPLIT = ("group", "shares", "seed")
#: largest relative difference of two units of time that count as equal
_UNIT_ROUNDING = 1e-6


@dataclass(frozen=True)
class Start:
    """The trained network that a training starts from.

    Args:
        name: folder of a run, or name of a pretrained weight.
        run: the run; None for a pretrained weight.
    """

    name: str
    run: Run | None = None

    def network(self) -> nn.Module:
        """Return the trained network."""
        return create_from_weight(self.name) if self.run is None else self.run.network(announce=True)

    def recipe(self) -> Recipe:
        """Return the recipe of its training."""
        return recipe_from(describe_weight(self.name)["recipe"], self.name) if self.run is None else self.run.recipe()

    def classes(self) -> tuple[str, ...]:
        """Return the names of its classes; an empty tuple if there are none, or if the run does not store them."""
        if self.run is None:
            return tuple(describe_weight(self.name)["classes"])
        return tuple(self.preparation().get("classes", ()))

    def preparation(self) -> dict[str, Any]:
        """Return the metadata of its training data; an empty dictionary if they are not stored."""
        if self.run is None:
            return describe_weight(self.name).get("preprocessing") or {}
        path = self.run.path("data.json")
        return read_json(path) if path.exists() else {}


def is_weight(name: str | Path) -> bool:
    """Return whether a name is that of a pretrained weight, MODEL.TAG, or of a model that has one.

    >>> is_weight("flextcn_2.smnist"), is_weight("flextcn_2"), is_weight("runs/mine")
    (True, True, False)
    """
    return str(name) in {known for full in list_weights() for known in (full, full.partition(".")[0])}


def find_start(name: str | Path, run: Run | None = None) -> Start:
    """Return the trained network that a training starts from.

    Args:
        name: folder of a run; name of a run in the same folder as ``run``, such as that of a recipe to fine-tune; or a
            pretrained weight, MODEL.TAG.
        run: the run that starts.

    >>> find_start("flextcn_2.mnist")
    Traceback (most recent call last):
    ValueError: start_from must be the folder of a run or a pretrained weight, got flextcn_2.mnist: name must be one ...
    """
    beside = [] if run is None else [run.folder.parent / name]
    for folder in (Path(name), *beside):
        if Run(folder).exists:
            return Start(str(folder), Run(folder))
    if is_weight(name):
        return Start(str(name))
    where = f"neither it nor {beside[0]} is a run" if beside else "there is no such folder"
    where = "the folder has no recipe.yaml" if Path(name).is_dir() else where
    try:
        find_weight(str(name))
    except ValueError as error:
        where = str(error) if _looks_like_a_tag(name) else where
    raise ValueError(f"start_from must be the folder of a run or a pretrained weight, got {name}: {where}")


def _looks_like_a_tag(name: str | Path) -> bool:
    return "." in str(name) and "/" not in str(name)


def load_weights(
    network: nn.Module, start: Start | str | Path, *, classes: Sequence[str] = (), freeze: bool = False
) -> list[str]:
    """Copy weights to a network where names and shapes agree, and return lines that describe the copied weights.

    The classifier keeps its initial weights if the number of classes differs, or if their names are known and differ.
    So does the embedding of a network that predicts characters, whose classes are its tokens.

    Args:
        network: the network that starts.
        start: the run or the pretrained weight, or its name.
        classes: names of the classes of the network.
        freeze: whether the copied weights will be frozen; then all weights except those of the classifier must fit.
    """
    start = start if isinstance(start, Start) else find_start(start)
    source = start.network().state_dict()
    target = network.state_dict()
    other = bool(classes) and start.classes() not in ((), tuple(classes))
    classifier = classifier_names(network) if other or freeze else set()
    fits = {name: t for name, t in source.items() if name in target and t.shape == target[name].shape}
    if other:
        fits = {name: t for name, t in fits.items() if name not in classifier | _embeddings(network, len(classes))}
    learned = [name for name, _ in network.named_parameters()]
    copied = [name for name in learned if name in fits]
    if len(copied) < LEAST_COPIED * len(learned):
        raise ValueError(
            f"start_from must be a run or a weight of the same network, got {start.name}: {len(copied)} of "
            f"{len(learned)} weights agree in name and shape"
        )
    lines = [f"start from {start.name}: {len(copied)} of {len(learned)} weights"]
    for name in learned:
        if name not in fits:
            here, there = tuple(target[name].shape), tuple(source[name].shape) if name in source else None
            why = "missing" if there is None else "for other classes" if here == there else f"{there}"
            lines.append(f"  {name}: {here} here, {why} in {start.name}; reinitialised")
            if freeze and name not in classifier:
                raise ValueError(
                    f"freeze must be False if weights outside the classifier do not fit, got{lines[-1][1:]}"
                )
    network.load_state_dict(fits, strict=False)
    more = len(lines) - 1 - MOST_LINES
    return lines if more <= 0 else [*lines[: MOST_LINES + 1], f"  {more} more start afresh"]


def _embeddings(network: nn.Module, classes: int) -> set[str]:
    """Return the names of the weights that embed as many tokens as there are classes."""
    modules = network.named_modules()
    return {
        f"{name}.weight" for name, m in modules if isinstance(m, torch.nn.Embedding) and m.num_embeddings == classes
    }


def classifier_names(network: nn.Module) -> set[str]:
    """Return the names of the parameters that ``reset_classifier`` replaces; an empty set for a network without it.

    >>> from kernelfield import create_model
    >>> sorted(classifier_names(create_model("ccnn_4_140.digits")))
    ['readout.linear.bias', 'readout.linear.weight']
    """
    copied = copy.deepcopy(network)
    before = dict(copied.named_parameters())
    with torch.random.fork_rng(devices=()):
        try:
            copied.reset_classifier(copied.num_classes)  # type: ignore[operator]
        except (AttributeError, TypeError):
            return set()
    after = dict(copied.named_parameters())
    return {name for name, parameter in before.items() if after.get(name) is not parameter}


def freeze_body(network: nn.Module) -> None:
    """Freeze all parameters except those of the classifier.

    Running statistics of batch norms still follow the training data.

    >>> from kernelfield import create_model
    >>> network = create_model("ccnn_4_140.digits", pretrained=True)
    >>> freeze_body(network)
    >>> [name for name, p in network.named_parameters() if p.requires_grad]
    ['readout.linear.weight', 'readout.linear.bias']
    """
    trained = classifier_names(network)
    if not trained:
        raise ValueError(f"freeze must be False for a network without a classifier, got {type(network).__name__}")
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in trained)


def size_lines(start: Start, size: Any) -> list[str]:
    """Return a line about stretched kernels if the weights were trained at another size.

    Args:
        start: the run or the pretrained weight.
        size: size of the network that starts; None for a network without a size.
    """
    there = network_arguments(start.recipe()).get("size")
    if size is None or there is None or there == size:
        return []
    kept = str(list(there) if isinstance(there, tuple) else there)
    line = f"  size: {size} here, {there} in {start.name}; kernels are stretched"
    return [f"{line}. model.size={kept} keeps their size in samples"]


def model_of(name: str | Path) -> dict[str, Any]:
    """Return section ``model`` of the recipe of a run or a weight, without the shape of its data."""
    model = find_start(name).recipe().model
    return {key: v for key, v in model.items() if key not in ("in_channels", "out_channels", "size", "dim")}


def source_of(start: Start | str | Path, loader: str, root: str | None = None) -> dict[str, Any]:
    """Return the options with which a loader gives the input that a trained network reads.

    Images have the network's size and colours, as sequences of pixels if it reads those; sounds have its rate. For the
    loader of its training data, options of the training count, and values that it found in the data, such as the unit
    of time.

    Args:
        start: the run or the pretrained weight, or its name.
        loader: name of the loader.
        root: file or folder of the new training. If it is that of the old one, the options that divide the samples are
            kept too: otherwise training samples of the weights would become test samples.

    >>> source_of("flextcn_2.smnist", "image_folder")
    {'resolution': 28, 'gray': True, 'sequence': True}
    >>> source_of("ccnn_4_140.fsdd", "wav_folder")
    {'rate': 8000, 'features': 'raw', 'length': 8000}
    """
    start = start if isinstance(start, Start) else find_start(start)
    recipe = start.recipe()
    found, data = _input_options(recipe), recipe.data
    if data["name"] == loader:
        there = start.preparation()
        found |= {"unit": there.get("unit"), "white": next(iter(there.get("levels", ())[2:]), None)}
        if there.get("unit") is not None and there.get("stored"):
            found["observed"] = there["in_channels"] > there["stored"]["inputs"]["shape"][0]
        kept = (*_FEATURES, *(_SPLIT if root is not None and data.get("root") == root else ()))
        found |= {key: v for key, v in data.items() if key in kept}
    takes = describe(loader).options
    return {key: v for key, v in found.items() if v is not None and key in takes}


def _input_options(recipe: Recipe) -> dict[str, Any]:
    """Return the options of loaders of images or sounds that give inputs like those of a recipe."""
    shape, rate, layout = recipe.shape, sampling_rate(recipe), image_layout(recipe)
    if shape.irregular or shape.vocabulary is not None or shape.task != "classification":
        return {}
    side = shape.size if layout is None else layout["image"]
    if len(side) == 2 and len(set(side)) == 1 and shape.in_channels in (1, 3):
        found: dict[str, Any] = {"resolution": side[0], "gray": shape.in_channels == 1}
        return found if layout is None else found | {"sequence": True, "permute": layout["permute"]}
    if len(side) == 1 and shape.in_channels == 1 and rate is not None and rate == int(rate):
        return {"rate": int(rate), "features": "raw", "length": side[0]}
    return {}


def conversion_hint(start: Start) -> str:
    """Return the end of an error about data that do not fit a weight: how to convert images and sounds for it."""
    if start.run is not None or not _input_options(start.recipe()):
        return ""
    return f". preprocessing(create_model({start.name!r}, pretrained=True)) converts images and sounds"


def source_lines(start: Start, source: dict[str, Any]) -> list[str]:
    """Return a line about options of the data that were chosen for the trained network.

    Args:
        start: the run or the pretrained weight.
        source: section ``data`` of the recipe.
    """
    if source["name"] == start.recipe().data["name"]:
        return []
    wanted = source_of(start, source["name"])
    same = [f"data.{key}={str(v).lower()}" for key, v in wanted.items() if source.get(key) == v]
    return [f"  input as for {start.name}: {', '.join(same)}"] if same else []


def split_lines(start: Start, recipe: Recipe, data: Data) -> list[str]:
    """Return a line if the same file or folder is now divided in another way than for the weights."""
    then, there = start.preparation().get("samples"), start.recipe().data
    same_place = there.get("name") == recipe.data.get("name") and there.get("root") == recipe.data.get("root")
    if then is None or there.get("root") is None or not same_place or same_samples(then, samples_record(data)):
        return []
    line = f"  samples: {recipe.data['root']} is divided or labelled in another way than for {start.name}"
    return [f"{line}, so test samples may be training samples of its weights; test on other files"]


def check_times(start: Start, data: Data, *, unit_given: bool) -> list[str]:
    """Return lines about another unit of time or other channels; raise a ValueError unless the recipe gives the unit.

    Kernels are functions of time in units of the training step, so another unit stretches them.

    Args:
        start: the run or the pretrained weight.
        data: data of the training that starts.
        unit_given: whether the recipe gives the unit of ``data``.
    """
    there = start.preparation()
    unit, dates, lines = there.get("unit"), there.get("dates"), []
    if unit is not None and data.unit is not None:
        if None not in (dates, data.dates) and dates != data.dates:
            kinds = ("dates", "numbers") if dates else ("numbers", "dates")
            raise ValueError(f"data must have times that are {kinds[0]}, like those of {start.name}, got {kinds[1]}")
        if abs(data.unit - unit) > _UNIT_ROUNDING * unit:
            if not unit_given:
                raise ValueError(
                    f"data.unit must be {unit:g}, the time of one training step in start_from {start.name}, got "
                    f"{data.unit:g}, the median gap of these data"
                )
            lines.append(
                f"  unit: {data.unit:g} here, {unit:g} in {start.name}; correct only if the times differ in unit too"
            )
    channels = tuple(there.get("channels", ()))
    if channels and data.channels and channels != data.channels:
        lines.append(f"  channels: {', '.join(data.channels)} here, {', '.join(channels)} in {start.name}")
    return lines
