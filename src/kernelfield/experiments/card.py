"""Efficiency cards: the cost of a trained network on the four axes of chapter 1.

The axes are parameters; compute, as operations, time and energy per sample and for the training; data, as accuracy
against the share of the training data; and design, as settings chosen by hand and sizes learned. All values are
measured on the machine at hand; the card names those that could not be measured.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked
from .._files import write_text
from .._kinds import POSITIVE, TEXT
from ..data.metadata import from_metadata
from ..fields import Field
from ..groups import Distribution
from ..masks import Mask
from ..models.pretrained import create_from_weight, describe_weight
from .bench import points_of
from .card_text import card_text
from .datasets import synthetic_data
from .energy import EnergyMeter
from .evaluation import mask_sizes
from .finished_run import rewrite_report, run_metadata
from .operations import count_operations
from .run import Run, machine, make_network, make_task
from .run_files import write_json
from .shares import read_shares
from .weight import weight_recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..data.base import Batch
    from .recipe import Recipe
    from .task import Task

__all__ = ["card_text", "count_weight_operations", "make_card", "measure_card", "measure_weight_card"]


@checked(seconds=POSITIVE, device=TEXT)
def measure_card(folder: str | Path, *, seconds: float = 2.0, device: str = "cpu") -> dict[str, Any]:
    """Return the card of a finished run as plain values.

    Args:
        folder: folder of the run.
        seconds: duration of each measurement of time and energy, for one sample, a batch and a training step.
        device: device on which to measure.
    """
    run = Run(Path(folder))
    result = run.result()
    if result.get("status") != "done":
        raise ValueError(f"folder must hold a finished run, got {folder} with status {result.get('status')!r}")
    recipe = run.recipe()
    network = run.network(recipe).eval()
    task = make_task(recipe, network, run_metadata(run, recipe))
    metric = result["metric"]
    return {
        "recipe": recipe.name,
        "title": recipe.title,
        "metric": metric,
        "score": result["metrics"]["test"][metric],
        "steps": result["steps"],
        "parameters": _parameters(network),
        "compute": _compute(task, recipe, result, seconds, torch.device(device)),
        "data": read_shares(run),
        "design": _design(recipe, network),
        "trained_on": result["machine"],
        "machine": machine(torch.device(device)),
    }


@checked(name=TEXT, seconds=POSITIVE, device=TEXT)
def measure_weight_card(name: str, *, seconds: float = 2.0, device: str = "cpu") -> dict[str, Any]:
    """Return the card of a pretrained weight as plain values.

    A weight does not store scores on shares of the data; the card of a run has them.

    Args:
        name: name of the weight, MODEL.TAG.
        seconds: duration of each measurement of time and energy, for one sample, a batch and a training step.
        device: device on which to measure.
    """
    description, recipe, network, task = _load(name)
    score, training = description["score"], description["training"]
    result = {"steps": training["steps"], "batch": recipe.training.batch, "seconds": training["seconds"]}
    return {
        "recipe": recipe.name,
        "weight": description["name"],
        "title": f"{description['name']}: {description['title']}",
        "metric": score["metric"],
        "score": score["value"],
        "steps": training["steps"],
        "parameters": _parameters(network),
        "compute": _compute(task, recipe, result, seconds, torch.device(device)),
        "data": [{"share": 1.0, "score": score["value"]}],
        "design": _design(recipe, network),
        "trained_on": {"device": training["device"]},
        "machine": machine(torch.device(device)),
    }


@checked(name=TEXT)
def count_weight_operations(name: str) -> dict[str, int]:
    """Return the operations of a prediction, of a training sample and of the training of a pretrained weight.

    A card has the same numbers. They are those of the methods that the library chooses, and change with these.

    Args:
        name: name of the weight, MODEL.TAG.
    """
    description, recipe, _, task = _load(name)
    work = _Work(task, recipe)
    each = work.training_operations()
    samples = description["training"]["steps"] * recipe.training.batch
    return {"prediction": work.operations(), "training_sample": round(each), "training": round(each * samples)}


def _load(name: str) -> tuple[dict[str, Any], Recipe, nn.Module, Task]:
    """Return the description of a weight, its recipe, its network and its task."""
    description, recipe = describe_weight(name), weight_recipe(name)
    network = create_from_weight(description["name"]).eval()
    return description, recipe, network, make_task(recipe, network, from_metadata(description["preprocessing"]))


def _parameters(network: nn.Module) -> dict[str, int]:
    """Return the number of parameters of kernels, masks, learned symmetries and all other parts."""
    kinds: dict[str, tuple[type[Any], ...]] = {"kernels": (Field,), "masks": (Mask,), "symmetry": (Distribution,)}
    seen: set[int] = set()
    found = {}
    for name, types in kinds.items():
        own = {id(p): p for m in network.modules() if isinstance(m, types) for p in m.parameters()}
        found[name] = sum(p.numel() for key, p in own.items() if key not in seen)
        seen |= set(own)
    total = sum(p.numel() for p in network.parameters())
    size = sum(p.numel() * p.element_size() for p in network.parameters())
    return {"total": total, **found, "other": total - sum(found.values()), "bytes": size}


def _compute(
    task: Task, recipe: Recipe, result: dict[str, Any], seconds: float, device: torch.device
) -> dict[str, Any]:
    """Return operations, time and energy per sample and for the whole training.

    ``step`` is the forward and backward pass of a training batch, per sample. ``training`` has the recorded seconds of
    the training, and in ``seconds_here`` and ``joules_here`` the cost of ``step`` times the number of its samples.
    """
    work = _Work(task, recipe)
    operations, training = work.operations(), work.training_operations()
    work.to(device)
    samples, batch = result["steps"] * result["batch"], recipe.training.batch
    found: dict[str, Any] = {"operations": operations, "training_operations": round(training)}
    works: dict[str, tuple[Callable[[], None], int]] = {
        "single": (lambda: work.forward(work.one), 1),
        "batch": (lambda: work.forward(work.many), batch),
        "step": (lambda: work.step(work.many), batch),
    }
    for name, (call, count) in works.items():
        taken, joules = _timed(call, seconds, device)
        found[name] = {"samples": count, "seconds": taken / count, "joules": None if joules is None else joules / count}
    each = found["step"]
    return found | {
        "training": {
            "samples": samples,
            "seconds": result["seconds"],
            "operations": round(training * samples),
            "seconds_here": each["seconds"] * samples,
            "joules_here": None if each["joules"] is None else each["joules"] * samples,
        }
    }


class _Work:
    """The forward pass of one sample and of a batch, and a training step, on synthetic data."""

    def __init__(self, task: Task, recipe: Recipe) -> None:
        self.task, self.batch = task, recipe.training.batch
        points = points_of(recipe)
        self.one, self.many = (
            synthetic_data(recipe.shape, samples=n, points=points).train.batch(slice(None)) for n in (1, self.batch)
        )

    def to(self, device: torch.device) -> None:
        self.task.to(device)
        self.one, self.many = self.one.to(device), self.many.to(device)

    def forward(self, samples: Batch) -> None:
        with torch.no_grad():
            self.task(samples)

    def step(self, samples: Batch) -> None:
        self.task.train()
        self.task.training_step(samples).backward()
        self.task.zero_grad(set_to_none=True)
        self.task.eval()

    def operations(self) -> int:
        """Return the operations of a prediction."""
        return count_operations(lambda: self.forward(self.one))

    def training_operations(self) -> float:
        """Return the operations of a training step, per sample."""
        return count_operations(lambda: self.step(self.many)) / self.batch


def _timed(work: Callable[[], None], seconds: float, device: torch.device) -> tuple[float, float | None]:
    """Return the median seconds per call and the joules per call; None where the machine reports no energy.

    With one thread on a CPU these are seconds of processor time, which excludes other programs.
    """
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(2):
        work()
    wait()
    times: list[float] = []
    with EnergyMeter(device) as meter:
        begun = time.perf_counter()
        while not times or time.perf_counter() - begun < seconds:
            start = clock()
            work()
            wait()
            times.append(clock() - start)
    return statistics.median(times), None if meter.joules is None else meter.joules / len(times)


def _design(recipe: Recipe, network: nn.Module) -> dict[str, Any]:
    """Return the settings that the recipe sets by hand, and the sizes of its fresh and of the trained network."""
    by_hand = {
        **{f"model.{key}": value for key, value in recipe.model.items() if key != "name"},
        "optimizer.lr": recipe.optimizer.lr,
        "optimizer.weight_decay": recipe.optimizer.weight_decay,
        "schedule.name": recipe.schedule.name,
        "training.epochs": recipe.training.epochs,
        "training.batch": recipe.training.batch,
        **{f"regularizers.{key}": value for key, value in recipe.regularizers.items() if value},
    }
    before, after = mask_sizes(make_network(recipe)), mask_sizes(network)
    sizes = {key: [value, after[key]] for key, value in before.items() if key in after}
    return {"by_hand": by_hand, "learned": {key: pair for key, pair in sizes.items() if pair[0] != pair[1]}}


@checked(seconds=POSITIVE, device=TEXT)
def make_card(source: str | Path, *, out: str | Path | None = None, seconds: float = 2.0, device: str = "cpu") -> Path:
    """Measure a card, write ``card.json``, ``card.png`` and ``card.md``, and return the last one.

    If the folder has a report, it is written again with the card in it.

    Args:
        source: folder of a finished run, or the name of a pretrained weight, MODEL.TAG.
        out: folder to write to; by default that of the run, or ``cards/MODEL.TAG``.
        seconds: duration of each measurement of time and energy, for one sample, a batch and a training step.
        device: device on which to measure.
    """
    from ..viz.card import plot_card  # noqa: PLC0415

    if Path(source).is_dir():
        card, folder = measure_card(source, seconds=seconds, device=device), Path(source)
    elif len(Path(source).parts) > 1:
        raise ValueError(f"source must be the folder of a run or the name of a weight, MODEL.TAG, got {source}")
    else:
        card = measure_weight_card(str(source), seconds=seconds, device=device)
        folder = Path("cards") / card["weight"]
    folder = folder if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "card.json", card)
    plot_card(card, folder / "card.png")
    if (folder / "report.html").exists():
        rewrite_report(folder)
    return write_text(folder / "card.md", card_text(card))
