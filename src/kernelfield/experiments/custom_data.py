"""Recipes for custom data: a folder of images, sounds or point clouds, a table of series, arrays, or a text."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import accepted_arguments, checked, takes_argument
from .._kinds import STRING, TEXT, Int, ListOf
from ..data.io.files import find_visible, read_table
from ..data.registry import describe
from ..data.sets.audio import sound_folder as sound
from ..data.sets.clouds import cloud_folder as clouds
from ..data.sets.images import image_folder as folders
from ..models import WaveletNet
from ..models.registry import configuration, options_of
from .datasets import load_source
from .effects import check_effects, effective
from .recipe import Recipe, recipe_from
from .recipe_files import parse_value
from .run import make_network, make_task
from .start_from import conversion_hint, find_start, model_of, source_of

if TYPE_CHECKING:
    from ..data.base import Data

__all__ = ["check_network", "data_settings", "load_path", "own_data", "recipe_for", "recipe_for_path"]

#: number of positions, over all samples and epochs, that a CPU trains on in about a quarter of an hour
POSITIONS = 40_000_000
#: smallest number of validation samples for which the best epoch is selected, and not the last
ENOUGH = 100
#: loaders by the suffix of a file
SUFFIXES = {
    ".csv": "csv_series",
    ".tsv": "csv_series",
    ".parquet": "csv_series",
    ".ts": "ts",
    ".arff": "ts",
    ".npz": "arrays",
    ".txt": "text",
}
#: endings of tables
TABLES = (".csv", ".tsv", ".parquet")
#: loaders of folders, with the suffixes of their files
FOLDERS = {"image_folder": folders.ENDINGS, "wav_folder": sound.ENDINGS, "cloud_folder": clouds.ENDINGS}


@checked()
def own_data(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the loader for a path and its options, from the suffix of a file or the contents of a folder.

    The options hold the absolute path, so the recipe finds the data from any folder.
    """
    path = Path(path).expanduser().resolve()
    suffix = path.suffix.lower()
    if path.is_dir():
        # Problems of the archives, and tables and arrays with a fixed split, consist of several files in a folder.
        files = {"*_TRAIN.*": "ts", "train.csv": "csv_series", "train.parquet": "csv_series", "train.npz": "arrays"}
        found = [kind for pattern, kind in files.items() if any(path.glob(pattern))]
        kind = found[0] if found else "ts" if any(path.glob("*.ts")) else _inside(path)
        path = path / "train.npz" if kind == "arrays" else path
    elif suffix == ".tsv" and not _has_names(path):
        kind = "ts"  # the layout of the UCR archive: a label, then the values
    elif suffix in SUFFIXES:
        kind = SUFFIXES[suffix]
    else:
        known = ", ".join(SUFFIXES)
        raise ValueError(
            f"data must be a folder of images, sounds or point clouds, or a file ending in {known}, got {path}"
        )
    return kind, {"root": str(path)}


def _inside(path: Path) -> str:
    """Return the loader of images, sounds or point clouds that reads most of the files in a folder."""
    counts = {kind: len(find_visible(path, endings)) for kind, endings in FOLDERS.items()}
    tables = find_visible(path, TABLES)
    if tables and not any(counts.values()):
        raise ValueError(
            f"data must be one table, or a folder with train{tables[0].suffix} and test{tables[0].suffix}, got {path} "
            f"with {len(tables)} tables such as {tables[0].name}; join them to one, with a column id"
        )
    return max(counts, key=lambda kind: counts[kind])


def _has_names(path: Path) -> bool:
    """Return whether the first line of a table holds column names: at least two cells are not numbers."""
    first = next(iter(read_table(path, "\t")), [])
    return sum(re.search("[a-df-zA-DF-Z_]", cell) is not None and cell.strip().lower() != "nan" for cell in first) > 1


@checked(name=TEXT, model=STRING, epochs=Int(0), start_from=TEXT | None)
def recipe_for(
    data: Data,
    name: str,
    source: dict[str, Any],
    *,
    model: str = "",
    epochs: int = 0,
    start_from: str | None = None,
) -> Recipe:
    """Return a recipe for data without a published one.

    By default the recipe trains a CCNN, or a small gridified network on point clouds, with AdamW at 0.01 and a cosine
    with warm-up, for about two thousand steps. Without a GPU, large data get fewer epochs, at least ten. The recipe
    holds only arguments that the network takes. With fewer than a hundred validation samples it selects the last epoch,
    since the best validation score of so few samples is often luck. A network that takes the sampling step, on a grid
    and with one target per sample, is also tested at half the resolution.

    Args:
        data: the loaded data.
        name: name of the recipe.
        source: name of the loader and its options.
        model: name of the network; by default CCNN_4,140 with half its channels, or a gridified network for points.
        epochs: passes over the data; 0 chooses a number that fits the number of samples.
        start_from: folder of a run, or a pretrained weight, to fine-tune; without ``model``, the recipe uses its
            network.

    >>> from kernelfield.data import load
    >>> recipe = recipe_for(load("chirps", train=20), "own", {"name": "chirps"}, start_from="w5.transients_small")
    >>> recipe.model["name"], recipe.shape.out_channels, recipe.training.start_from
    ('w5', 5, 'w5.transients_small')
    """
    samples = len(data.train)
    batch = max(2, min(64, samples // 8))  # statistics of one sample say nothing about it
    length = max(10, min(100, round(2000 * batch / samples))) if epochs == 0 else epochs
    if epochs == 0 and not torch.cuda.is_available():
        positions = data.train.inputs.shape[-1] if data.train.coords is not None else math.prod(data.size)
        length = min(length, max(10, POSITIONS // (samples * positions)))
    held = 0 if data.validation is None else len(data.validation)
    shape: dict[str, Any] = {"in_channels": data.in_channels, "out_channels": data.out_channels}
    shape |= {"size": list(data.size), "task": data.task, "irregular": data.train.coords is not None}
    if data.vocabulary is not None:
        shape["vocabulary"] = data.vocabulary
    if data.train.at is not None:
        shape["queries"] = data.train.at.shape[1]
    network = _network(data, model) if model or start_from is None else _trained_network(data, start_from)
    on_grid = tuple(data.size) == tuple(data.train.inputs.shape[2:])  # False if the network reads features of the data
    steps = data.train.coords is None and data.vocabulary is None and on_grid and min(data.size) >= 4
    steps = steps and not _is_dense(data)  # targets at each position do not exist at other steps
    mapping = {
        "name": name,
        "title": f"{name}: custom data",
        "data": source,
        "shape": shape,
        "model": network,
        "optimizer": {"lr": 0.01, "weight_decay": 1e-4, "mask_lr": 0.1},
        "schedule": {"name": "cosine", "warmup": max(1, length // 20)},
        "training": {
            "epochs": length,
            "batch": batch,
            "clip": 1.0,
            "select": "best" if held >= ENOUGH else "last",
            "start_from": start_from or "",
        },
        "test": {"step": [2.0]} if steps and _takes_step(network["name"]) else {},
    }
    return recipe_from(mapping, name)


def _trained_network(data: Data, start_from: str) -> dict[str, Any]:
    """Return section ``model`` of a recipe: the network of a run or a weight, adapted to these data."""
    start, model = find_start(start_from), model_of(start_from)
    there = len(start.recipe().shape.size)
    if there != data.dim:
        raise ValueError(
            f"start_from must be a network for data of dim {data.dim}, got {start_from!r}, which takes dim {there}"
            f"{conversion_hint(start)}"
        )
    try:
        fresh = _network(data, model["name"])
    except ValueError as error:
        raise ValueError(f"start_from must be a network that fits these data, got {start_from!r}: {error}") from error
    changed = {key: v for key, v in fresh.items() if key in ("in_channels", "size", "readout")}
    if model.get("readout") == "dense" and not _is_dense(data):
        changed["readout"] = _plain_readout(model["name"])
    return {**model, **changed}


def _is_dense(data: Data) -> bool:
    """Return whether there is a target at each position."""
    return data.task in ("dense-regression", "segmentation", "language")


def _network(data: Data, model: str) -> dict[str, Any]:
    """Return section ``model`` of a recipe: the name of the network and arguments that it takes."""
    points = data.dim == 3 and data.train.coords is not None
    name = model or ("gridified_modelnet40" if points else "ccnn_4_140")
    fixed = configuration(name, argument="model").arguments
    takes = options_of(name)
    every = accepted_arguments(configuration(name).build) is None
    if fixed.get("dim", data.dim) != data.dim:
        raise ValueError(f"model must take data of dim {data.dim}, got {name!r}, which takes dim {fixed['dim']}")
    wanted: dict[str, Any] = {"dropout": 0.1}
    if not model and points:
        wanted |= {"grid": 6, "channels": 48, "blocks": 2, "kernel_size": 5}
    elif not model:
        # Half the published width: custom data usually have hundreds of samples, not fifty thousand.
        wanted |= {"channels": 70}
    if not model and data.train.at is not None:
        # Query times lie between samples or far after them, so kernels reach both ways and over the whole series.
        wanted |= {"channels": 64, "blocks": 3, "hidden": 16, "stem": "linear", "causal": False, "sigma": None}
    dense, always_dense = _is_dense(data), getattr(configuration(name).build, "always_dense", False)
    if always_dense and not dense:
        raise ValueError(
            f"model must predict one target per sample for task {data.task!r}, got {name!r}, which is dense"
        )
    if not always_dense and dense != (takes.get("readout") == "dense"):
        wanted["readout"] = "dense" if dense else _plain_readout(name)
    if data.vocabulary is not None:
        wanted["in_channels"] = 32
    # If the name of the network fixes a shape, the shape of these data replaces it.
    shape = {"in_channels": data.in_channels, "size": list(data.size) if len(set(data.size)) > 1 else data.size[0]}
    wanted = {**{key: value for key, value in shape.items() if fixed.get(key, value) != value}, **wanted}
    refused = [key for key in ("readout",) if key in wanted and key not in takes and not every]
    if refused:
        raise ValueError(f"model must predict at each position for task {data.task!r}, got {name!r}, which does not")
    return {"name": name, **{key: value for key, value in wanted.items() if key in takes or every}}


def _plain_readout(name: str) -> Any:
    """Return the readout with which a network gives one prediction per sample: the default of its class."""
    default = inspect.signature(configuration(name).build).parameters.get("readout")
    return "mean" if default is None or default.default is default.empty else default.default


def _takes_step(name: str) -> bool:
    """Return whether the forward pass of a network takes the sampling step."""
    forward = getattr(configuration(name).build, "forward", None)
    return forward is None or takes_argument(forward, "step")


def _sound_options(path: Path, model: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return options for sounds: mel bands at the rate of most files, or raw samples for networks of chapter 10.

    Args:
        path: folder of the sounds.
        model: name of the network.
        given: options that are known; the others depend on them.
    """
    rate = given.get("rate") or (sound.usual_rate(path) if path.is_dir() else sound.RATE)
    found: dict[str, Any] = {"rate": rate}
    if model and configuration(model).build is WaveletNet:
        return found | given
    if path.is_dir() and given.get("length") is None:
        found["length"] = sound.usual_length(path, rate)
    if given.get("features", "mel") == "mel":
        found |= {"features": "mel", "augment": True}
    return found | given


@checked()
def check_network(recipe: Recipe, data: Data) -> Recipe:
    """Return the recipe without settings that do nothing; raise a ValueError if its network cannot train on the data.

    The check is one step on two samples. A setting that the user gave and that does nothing is an error too.

    Args:
        recipe: the recipe.
        data: data of the recipe's shape.
    """
    name = recipe.model["name"]
    try:
        with torch.random.fork_rng(devices=()):
            network = make_network(recipe, data)
            task = make_task(recipe, network, data)
            batch = data.train.batch(slice(0, 2), training=True)
            task.training_step(batch).backward()
            task.eval()
            with torch.no_grad():
                task.meter("cpu").update(task(batch), batch)
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        shape = "×".join(map(str, data.size))
        kind = f"{data.task} of {data.in_channels} channel{'s' * (data.in_channels > 1)}, size {shape}"
        kind += ", at points" if data.train.coords is not None else ""
        raise ValueError(f"model must be able to train on these data ({kind}), got {name!r}: {error}") from error
    check_effects(recipe, network, data)
    return effective(recipe, network, data)


@checked(settings=ListOf(TEXT, least=0))
def data_settings(settings: list[str]) -> dict[str, Any]:
    """Return the options of the loader, by name, from settings ``a.b=c`` of a recipe.

    >>> data_settings(["training.epochs=3", "data.label=target", "data.shares=[0.8, 0.1, 0.1]"])
    {'label': 'target', 'shares': [0.8, 0.1, 0.1]}
    """
    pairs = [setting.partition("=") for setting in settings]
    return {
        key.strip().removeprefix("data."): parse_value(value)
        for key, equals, value in pairs
        if equals and key.strip().startswith("data.")
    }


def _compare_target(data: Data, source: dict[str, Any]) -> None:
    """Warn of a target that is constant in training, and of numbers that seem to be values but count as classes."""
    target = data.train.target
    if data.task in ("regression", "dense-regression") and target is not None:
        values = target.double().movedim(1, 0).flatten(1)
        for i, row in enumerate(values):
            seen = row[row.isfinite()]
            if len(seen) > 1 and bool((seen == seen[0]).all()):
                which = f"target {i}" if len(values) > 1 else "the target"
                warnings.warn(f"{which} is {float(seen[0]):g} in all training samples of {data.name}", stacklevel=3)
    splits = (data.train, data.validation, data.test)
    samples = sum(len(split) for split in splits if split is not None)
    numbers = all(re.fullmatch(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?", name) for name in data.classes)
    if data.task == "classification" and "task" not in source and numbers and 2 * len(data.classes) > samples:
        warnings.warn(
            f"the numbers to predict of {data.name} count as {len(data.classes)} classes of {samples} samples; "
            "data.task=regression predicts them as values",
            stacklevel=3,
        )


def recipe_for_path(path: str | Path, source: dict[str, Any] | None = None, **options: Any) -> Recipe:
    """Return a recipe for the data at a path; see :func:`own_data` and :func:`recipe_for`.

    Args:
        path: the file or folder.
        source: options of the loader, or the ``name`` of another loader.
        options: further arguments of :func:`recipe_for`.
    """
    return load_path(path, source, **options)[0]


@checked(start_from=TEXT | None)
def load_path(
    path: str | Path, source: dict[str, Any] | None = None, *, start_from: str | None = None, **options: Any
) -> tuple[Recipe, Data]:
    """Return a recipe for the data at a path, as :func:`recipe_for_path` does, and the data.

    Args:
        path: see :func:`recipe_for_path`.
        source: see :func:`recipe_for_path`.
        start_from: see :func:`recipe_for`; images and sounds are converted to the input of that network.
        options: further arguments of :func:`recipe_for`.
    """
    if source is not None and "name" in source:
        kind, where = str(source["name"]), {"root": str(Path(path).expanduser().resolve())}
    else:
        kind, where = own_data(path)
    chosen = {"name": kind, **where, **(source or {})}
    model = str(options.get("model", ""))
    if start_from is not None:
        chosen = {**source_of(start_from, kind, where["root"]), **chosen}
        model = model or model_of(start_from)["name"]
    if kind == "wav_folder":
        chosen = _sound_options(Path(path).expanduser(), model, chosen)
    name = Path(path).resolve().stem
    data = load_source(chosen, f"data {name!r}")
    takes = set(describe(chosen["name"]).options) - set(chosen)
    if data.task in ("regression", "dense-regression") and "standardize" in takes:
        # By default the loader does not normalise targets.
        chosen["standardize"] = True
        data = load_source(chosen, f"data {name!r}")
    _compare_target(data, chosen)
    # For a pair of files, the loader knows the common name.
    title = data.name if name.lower().endswith("train") else name
    return recipe_for(data, title, chosen, start_from=start_from, **options), data
