"""A run: the folder of one training, with its recipe, log, metrics, checkpoints and result."""

from __future__ import annotations

import csv
import datetime as dt
import hashlib
import math
import os
import platform
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked, takes_argument
from .._checks import check_choice
from .._files import remove_drafts, write_text
from ..data.io.files import decoding, read_lines
from ..models import create_model
from ..models.registry import configuration
from .causality import check_language_model
from .checkpoint import latest_checkpoint, load_network, read_checkpoint
from .datasets import describe_input
from .effects import effective
from .recipe import Recipe, read_recipe
from .recipe_files import recipe_text
from .run_files import read_json
from .settings import SELECT

if TYPE_CHECKING:
    from torch import nn

    from ..data.base import Data
    from .task import Task

__all__ = ["Run", "fresh_folder", "machine", "make_network", "make_task", "network_arguments", "several_runs"]

#: file that marks a run on synthetic data
SYNTHETIC = "synthetic.txt"
#: files that a report includes if they exist
PICTURES = ("confusion.json", "heard.json", "kernels.png", "attention.png", "worst.png", "card.png")
#: start of the last line of a run's recipe, a comment with the checksum of all lines above it
_CHECKSUM = "# sha256 "


@checked()
def make_network(recipe: Recipe, data: Data | None = None) -> nn.Module:
    """Return the network of a recipe for the shape of its data, initialised with its seed.

    >>> from kernelfield.experiments.recipe import find_recipe
    >>> sum(p.numel() for p in make_network(find_recipe("digits")).parameters())
    9263
    """
    arguments = network_arguments(recipe, data)
    torch.manual_seed(recipe.training.seed)
    try:
        return create_model(recipe.model["name"], **arguments)
    except TypeError as error:
        raise ValueError(f"model of recipe {recipe.name!r}: {error}") from error


def several_runs(folder: Path) -> str:
    """Return a hint for an error message if a folder holds the runs of several seeds or of a sweep; "" otherwise."""
    found = sorted(path.parent for kind in ("seed", "trial") for path in folder.glob(f"{kind}-*/recipe.yaml"))
    return f", which holds several runs; {found[0]} is one of them" if found else ""


def network_arguments(recipe: Recipe, data: Data | None = None) -> dict[str, Any]:
    """Return the arguments of a recipe's network for the shape of its data."""
    configuration(recipe.model["name"], argument="model.name")  # raises if there is no such network
    shape = recipe.shape
    size = tuple(shape.size) if data is None else tuple(data.size)
    options = {key: tuple(v) if isinstance(v, list) else v for key, v in recipe.model.items() if key != "name"}
    given: dict[str, Any] = {"in_channels": shape.in_channels, "out_channels": shape.out_channels}
    given |= {"dim": len(size), "size": size if len(set(size)) > 1 else size[0]}
    if shape.vocabulary is not None:
        given["vocabulary"] = shape.vocabulary
    return {**_accepted(recipe.model["name"], given), **options}


@checked()
def make_task(recipe: Recipe, network: nn.Module, data: Data | None = None) -> Task:
    """Return the task of a recipe for a network; raise a ValueError for a language model that is not causal.

    Settings for parts that the network does not have are left out; see :mod:`~kernelfield.experiments.effects`.
    """
    from .task import Task  # noqa: PLC0415  # needs Lightning

    if recipe.shape.task == "language":
        check_language_model(network, recipe.shape.vocabulary or recipe.shape.out_channels, recipe.shape.size[0])
    try:
        recipe = effective(recipe, network, data)
        return Task(
            network,
            recipe.shape.task,
            out_channels=recipe.shape.out_channels,
            optimizer=recipe.optimizer,
            schedule=recipe.schedule,
            regularizers=recipe.regularizers,
            label_smoothing=recipe.training.label_smoothing,
            metric=recipe.metric,
            parts=() if data is None else data.parts,
        )
    except TypeError as error:
        raise ValueError(f"recipe {recipe.name!r}: {error}") from error


@dataclass(frozen=True)
class Run:
    """The folder of a training.

    It holds ``recipe.yaml`` with all settings, ``log.txt``, ``metrics.csv`` (a row per evaluated epoch), ``masks.csv``
    (mask widths over time), ``checkpoints/``, and, when it is finished, ``result.json``, ``kernels.png`` and
    ``report.html``; a run on synthetic data has ``synthetic.txt``.

    Args:
        folder: path of the folder.
    """

    folder: Path

    @property
    def checkpoints(self) -> Path:
        """Return the folder of checkpoints."""
        return self.folder / "checkpoints"

    @property
    def finished(self) -> bool:
        """Whether the training is finished."""
        return self.exists and self._result().get("status") == "done"

    @property
    def exists(self) -> bool:
        """Whether there is a run in the folder."""
        return (self.folder / "recipe.yaml").exists()

    @property
    def synthetic(self) -> bool:
        """Whether the run is on synthetic data."""
        return (self.folder / SYNTHETIC).exists() or bool(self._result().get("synthetic", False))

    def path(self, name: str) -> Path:
        """Return the path of a file or folder of the run; raise a ValueError if a link leads out of the run."""
        path, real = self.folder / name, (self.folder / name).resolve()
        if not real.is_relative_to(self.folder.resolve()):
            raise ValueError(f"{path} must lie in the run, found a symbolic link to {real}")
        return path

    def recipe(self) -> Recipe:
        """Return the recipe with all settings."""
        if not self.exists:
            raise FileNotFoundError(
                f"run must be a folder with a recipe.yaml in it, got {self.folder}"
                f"{several_runs(self.folder) if self.folder.exists() else ', which does not exist'}"
            )
        path = self.path("recipe.yaml")
        text, mark, expected = recipe_text(path).rpartition(_CHECKSUM)
        if mark and expected.strip() != _digest(text):
            raise ValueError(f"{path} is damaged: it does not match the checksum in its last line")
        # The file holds every setting, also those that nobody gave.
        return replace(read_recipe(path), given=frozenset())

    def result(self) -> dict[str, Any]:
        """Return the result of the training; a metric that is null in the file is NaN."""
        path = self.path("result.json")
        if not path.exists():
            found = "whose training has not ended" if self.exists else "without a recipe.yaml and a result.json"
            raise FileNotFoundError(f"run must be the folder of a finished run, got {self.folder}, {found}")
        result = read_json(path)
        for kind in ("metrics", "chosen", "best", "last"):
            scores = result.get(kind)
            for metrics in scores.values() if isinstance(scores, dict) else ():
                if isinstance(metrics, dict):
                    metrics.update({name: math.nan for name, value in metrics.items() if value is None})
        return result

    def _result(self) -> dict[str, Any]:
        return self.result() if (self.folder / "result.json").exists() else {}

    def check(self, recipe: Recipe, *, synthetic: bool = False) -> None:
        """Raise a ValueError unless the folder is empty or holds a run of the same recipe and data.

        Args:
            recipe: recipe of the training.
            synthetic: whether the training is on synthetic data, which must not continue a run on real data.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"out must be a folder, new or existing, got the file {self.folder}")
        if not self.exists:
            own = [
                name
                for name in ("result.json", "report.html", "data.json", "sweep.json")
                if (self.folder / name).exists()
            ]
            if own:
                raise ValueError(
                    f"out must be a new folder or that of a run, got {self.folder}, which holds {own[0]} without a "
                    "recipe.yaml"
                )
            return
        theirs, ours = self.recipe().to_dict(), recipe.to_dict()
        changed = [key for key in ours if ours[key] != theirs[key] and key not in ("title", "notes")]
        if changed and not self.extended_by(recipe):
            what = "; ".join(f"{key}: {_difference(theirs[key], ours[key])}" for key in changed)
            raise ValueError(f"{self.folder} holds a run of another recipe ({what}); choose another folder")
        if changed:
            self._check_early_stop()
        if self.synthetic != synthetic:
            kinds = {True: "synthetic data", False: "real data"}
            raise ValueError(
                f"{self.folder} holds a run on {kinds[self.synthetic]}, which a run on {kinds[synthetic]} cannot "
                "continue; choose another folder, or remove this one"
            )

    def _check_early_stop(self) -> None:
        """Raise a ValueError if the training has stopped early: with more epochs, it would stop again at once."""
        training, result = self.recipe().training, self._result()
        if training.patience is not None and result.get("epochs", training.epochs) < training.epochs:
            raise ValueError(
                f"training.epochs must be {training.epochs} for {self.folder}, which stopped after {result['epochs']} "
                f"epochs because of training.patience={training.patience}; start a new run, perhaps with start_from"
            )

    def extended_by(self, recipe: Recipe) -> bool:
        """Return whether a recipe differs from that of the run only by more epochs; the run can then continue.

        The warm-up and milestones may differ too, since fewer epochs may have shortened them.
        """
        if not self.exists:
            return False
        theirs = self.recipe()
        same = replace(recipe, training=replace(recipe.training, epochs=theirs.training.epochs))
        if recipe.schedule.name == theirs.schedule.name:
            before = theirs.schedule
            schedule = replace(recipe.schedule, warmup=before.warmup, milestones=before.milestones)
            same = replace(same, schedule=schedule)
        same = replace(same, title=theirs.title, notes=theirs.notes)
        return recipe.training.epochs > theirs.training.epochs and same.to_dict() == theirs.to_dict()

    def begin(self, recipe: Recipe, *, synthetic: bool = False) -> None:
        """Create the folder and write the recipe; :meth:`check` a run that exists."""
        self.check(recipe, synthetic=synthetic)
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.extended_by(recipe) and self.path("result.json").exists():
            # Moved before the recipe is written: a run of more epochs is not finished.
            epochs = self.recipe().training.epochs
            self.path("result.json").replace(self.folder / f"result-after-{epochs}-epochs.json")
        remove_drafts(self.folder)
        for name in ("checkpoints", "logs", "log.txt", *PICTURES):
            self.path(name)  # raises if a link leads out of the run
        if synthetic:  # before the recipe, which marks the folder as a run
            self.write(SYNTHETIC, "This run is on synthetic data of the recipe's shape: its numbers are not results.\n")
        text = recipe.to_yaml()
        self.write("recipe.yaml", f"{text}{_CHECKSUM}{_digest(text)}\n")

    def write(self, name: str, text: str, *, durable: bool = True) -> Path:
        """Write a file of the run atomically; see :func:`~kernelfield._files.atomic_write`."""
        return write_text(self.folder / name, text, durable=durable)

    def write_rows(self, name: str, rows: list[dict[str, float]]) -> None:
        """Write rows as CSV; the columns are those of all rows, in the order of their first appearance."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        lines = [",".join(columns)]
        for row in rows:
            values = [row.get(key) for key in columns]
            whole = [value is not None and float(value).is_integer() and abs(value) < 1e15 for value in values]
            cells = [
                "" if value is None else str(int(value)) if exact else f"{value:.8g}"
                for value, exact in zip(values, whole, strict=True)
            ]
            lines.append(",".join(cells))
        self.write(name, "\n".join(lines) + "\n", durable=False)

    def read_rows(self, name: str) -> list[dict[str, float]]:
        """Return the rows of a CSV file of the run; an empty list if there is no such file."""
        path = self.path(name)
        if not path.exists():
            return []
        with decoding(path, "a table of numbers"):
            rows = csv.DictReader(read_lines(path))
            return [{key: float(v) for key, v in row.items() if v} for row in rows]

    def log(self, line: str) -> None:
        """Add a line to the log, with the time."""
        now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
        with self.path("log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{now} {line}\n")

    def network(self, recipe: Recipe | None = None, select: str | None = None, *, announce: bool = False) -> nn.Module:
        """Return the trained network in evaluation mode, with the description of its input that ``data.json`` stores.

        Args:
            recipe: recipe of the run, if it has been read already.
            select: weights to use: "best" by validation, "last", or "average" of the last epochs; by default
                ``training.select`` of the recipe. If there is no best epoch, or no average yet, the last epoch.
            announce: whether to warn if the run is not finished, or has no weights of the given ``select``.
        """
        recipe = self.recipe() if recipe is None else recipe
        network = make_network(recipe)
        kind = check_choice("select", select or recipe.training.select, SELECT)
        folder = self.path("checkpoints")
        chosen = latest_checkpoint(folder, kind if kind != "last" else "step")
        path = chosen or latest_checkpoint(folder)
        if path is None:
            raise FileNotFoundError(f"run must hold a checkpoint, got {self.folder} without one")
        if announce and not self.finished:
            what = f"run {self.folder} is not finished, because it has no result.json"
            warnings.warn(f"{what}; its weights are those of checkpoint {path.name}", stacklevel=3)
        elif announce and select is not None and chosen is None:
            what = f"run {self.folder} has no {kind!r} weights"
            warnings.warn(f"{what}; those of its last epoch are used, checkpoint {path.name}", stacklevel=3)
        tensors, _ = read_checkpoint(path)
        averaged = {"network." + k.removeprefix("average."): t for k, t in tensors.items() if k.startswith("average.")}
        load_network(network, tensors | averaged, path)
        if self.path("data.json").exists():
            stored = {key: v for key, v in read_json(self.path("data.json")).items() if key != "samples"}
            # Set through vars, because nn.Module declares its attributes to be tensors and modules.
            vars(network)["pretrained_config"] = describe_input(recipe, stored)
        return network.eval()


def fresh_folder(folder: Path) -> Path:
    """Return ``folder``, or the first of folder-2, folder-3, … that does not exist."""
    candidate, n = folder, 1
    while candidate.exists():
        n += 1
        candidate = folder.with_name(f"{folder.name}-{n}")
    return candidate


def machine(device: torch.device) -> dict[str, Any]:
    """Return the device, versions and date of a training."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
    }


def processor_name(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model name of the processor on Linux, otherwise its architecture."""
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _accepted(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``given`` that the named network takes; networks on groups have no dim and no size."""
    chosen = configuration(name)
    # The data do not replace arguments that the name of the network fixes, such as the size of point clouds.
    fixed = {key for key in ("in_channels", "size", "dim", "vocabulary") if key in chosen.arguments}
    return {key: value for key, value in given.items() if key not in fixed and takes_argument(chosen.build, key)}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        return ", ".join(f"{key} {old.get(key)!r} in the folder, {new.get(key)!r} in this recipe" for key in keys)
    return f"{old!r} in the folder, {new!r} in this recipe"
