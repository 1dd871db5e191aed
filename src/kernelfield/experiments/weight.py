"""Weight files from finished runs and checkpoints, and the test score of a weight."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked
from .._kinds import STRING, TEXT, Int
from .._object_kinds import Instance
from .._version import __version__
from ..data.metadata import metadata
from ..models.pretrained import create_from_weight, describe_weight, find_weight, write_weight
from ..models.pretrained.weight_file import SUFFIX
from .checkpoint import latest_checkpoint, load_network, read_checkpoint
from .datasets import describe_input, recipe_data
from .evaluation import evaluate
from .recipe import Recipe, find_recipe, recipe_from, with_settings
from .run import Run, make_network, make_task, network_arguments
from .run_files import read_json, to_json
from .start_from import is_weight

if TYPE_CHECKING:
    from torch import nn

    from ..data.base import Data

__all__ = ["CHECKED", "Trained", "make_weight", "read_trained", "score_network", "weight_recipe", "weight_score"]

#: number of test samples for the second, quick score of a weight
CHECKED = 500


@dataclass(frozen=True)
class Trained:
    """A trained network with its recipe and result.

    Args:
        recipe: recipe with all settings and the seed of this network.
        network: the network, in evaluation mode.
        step: number of training steps.
        result: result of the run, as in ``results/``; empty if there is none.
    """

    recipe: Recipe
    network: nn.Module
    step: int
    result: dict[str, Any]


@checked(recipe=TEXT | None)
def read_trained(path: str | Path, *, result: str | Path | None = None, recipe: str | None = None) -> Trained:
    """Return the network of a finished run, of a folder of checkpoints or of one checkpoint.

    Args:
        path: folder of a run; a checkpoint; or a folder with ``checkpoints/``, whose best one is used.
        result: JSON file of the result, with the settings and, for several seeds, the numbers of each. The folder
            ``seed-N`` gives the seed. A run has its own result.
        recipe: name of the recipe, if it differs from the one that the checkpoint names.
    """
    path = Path(path)
    run = Run(path)
    found = read_json(Path(result)) if result is not None else run.result() if run.finished else {}
    checkpoint = path
    if not (path / "values.json").exists():
        folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        kind = run.recipe().training.select if run.exists else "best"
        latest = latest_checkpoint(folder, kind) or latest_checkpoint(folder, "best") or latest_checkpoint(folder)
        if latest is None:
            raise FileNotFoundError(f"path must be a run or a checkpoint, got {path} without one")
        checkpoint = latest
    tensors, values = read_checkpoint(checkpoint)
    step = int(values.get("state", {}).get("step", 0))
    if run.exists:
        chosen = run.recipe()
    else:
        seed = next((int(p.removeprefix("seed-")) for p in checkpoint.parts if p.startswith("seed-")), 0)
        chosen = with_settings(find_recipe(recipe or values["recipe"]), list(found.get("settings", [])))
        chosen = replace(chosen, training=replace(chosen.training, seed=seed))
        found = _of_seed(found, seed)
    # Without validation data there is no best epoch: best_step is 0, and the last step counts.
    wanted = found.get("best_step") or found.get("steps")
    if wanted is not None and found.get("selected", "best") == "best" and wanted != step:
        raise ValueError(
            f"path must hold the checkpoint of the result, at step {wanted}, got {checkpoint} at step {step}"
        )
    network = make_network(chosen)
    averaged = {"network." + k.removeprefix("average."): t for k, t in tensors.items() if k.startswith("average.")}
    load_network(network, tensors | averaged, checkpoint)
    return Trained(chosen, network.eval(), step, found)


def _of_seed(result: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the result of one seed of several."""
    one = result.get("seeds", {}).get(str(seed))
    if one is None:
        seeds = result.get("seed", seed)
        if result and seeds != seed:
            raise ValueError(f"result must have seed {seed}, like the checkpoint, got {seeds}")
        return result
    return {**result, **one, "seed": seed}


@checked(
    trained=Instance("kernelfield.experiments.weight.Trained"),
    name=TEXT,
    folder=TEXT | None,
    samples=Int(1),
    notes=STRING,
)
def make_weight(
    trained: Trained,
    name: str,
    out: str | Path,
    *,
    folder: str | None = None,
    samples: int = CHECKED,
    default: bool = False,
    notes: str = "",
) -> Path:
    """Write the weight file of a trained network and return its path.

    The score is that of the run's result or, without a result, that on all test samples. The file also stores the score
    on the first ``samples`` test samples.

    Args:
        trained: the network.
        name: MODEL.TAG; the model must be that of the recipe.
        out: folder of weight files.
        folder: folder of the data's files.
        samples: number of test samples of the quick check.
        default: whether the model's name alone stands for this weight.
        notes: remarks about this weight.
    """
    recipe, result = trained.recipe, trained.result
    model, dot, tag = name.partition(".")
    if model != recipe.model["name"] or not dot or not tag or "/" in tag:
        raise ValueError(f"name must be {recipe.model['name']}.TAG, the model of the recipe, got {name!r}")
    data = recipe_data(recipe, folder=folder)
    metric = make_task(recipe, trained.network, data).metric
    first = min(samples, len(data.test))
    score: dict[str, Any] = {"metric": metric, "split": "test", "samples": len(data.test)}
    recorded = result.get("metrics", {}).get("test", {}).get(metric)
    score["value"] = score_network(trained.network, recipe, data)[metric] if recorded is None else recorded
    score["first"] = {"samples": first, "value": score_network(trained.network, recipe, data, first)[metric]}
    machine = result.get("machine", {})
    description = {
        "name": name,
        "title": recipe.title,
        "chapter": recipe.chapter,
        "notes": notes,
        "default": default,
        "model": model,
        "arguments": network_arguments(recipe),
        "parameters": sum(p.numel() for p in trained.network.parameters()),
        **describe_input(recipe, metadata(data)),
        "classes": list(data.classes),
        "recipe": _portable(recipe).to_dict(),
        "score": score,
        "training": {
            "seed": recipe.training.seed,
            "epochs": result.get("epochs", recipe.training.epochs),
            "steps": trained.step,
            "seconds": result.get("seconds"),
            "device": machine.get("device", "unknown"),
            "torch": machine.get("torch", torch.__version__),
            "date": machine.get("date", ""),
        },
        "version": __version__,
    }
    path = Path(out) / f"{name}{SUFFIX}"
    return write_weight(path, trained.network.state_dict(), json.loads(to_json(description)))


def _portable(recipe: Recipe) -> Recipe:
    """Return a recipe without the folder of the run that the training started from, which others do not have."""
    if is_weight(recipe.training.start_from):
        return recipe
    return replace(recipe, training=replace(recipe.training, start_from="", freeze=False))


@checked(samples=Int(1) | None)
def score_network(network: nn.Module, recipe: Recipe, data: Data, samples: int | None = None) -> dict[str, float]:
    """Return the metrics of a network on the first test samples, or on all.

    Args:
        network: the network.
        recipe: recipe with the task and the metric.
        data: data with the test split.
        samples: number of test samples; None for all.
    """
    split = data.test if samples is None else data.test.take(torch.arange(min(samples, len(data.test))))
    task = make_task(recipe, network, data)
    return evaluate(task, split, min(recipe.training.eval_batch or recipe.training.batch, 100)).compute()


@checked(name=TEXT)
def weight_recipe(name: str) -> Recipe:
    """Return the recipe of the training of a weight.

    Args:
        name: name of the weight, MODEL.TAG.
    """
    return recipe_from(describe_weight(name)["recipe"], name)


@checked(name=TEXT, folder=TEXT | None, samples=Int(1) | None)
def weight_score(name: str, *, folder: str | None = None, samples: int | None = CHECKED) -> tuple[float, float]:
    """Return the measured and the recorded score of a weight.

    Args:
        name: name of the weight, MODEL.TAG.
        folder: folder of the data's files.
        samples: number of test samples, by default that of the quick check; None for all.
    """
    description = describe_weight(name)
    score = description["score"]
    if samples is not None:
        samples = score["first"]["samples"]
    recipe = weight_recipe(name)
    network = create_from_weight(find_weight(name).name.removesuffix(SUFFIX)).eval()
    found = score_network(network, recipe, recipe_data(recipe, folder=folder), samples)[score["metric"]]
    return found, score["value"] if samples is None else score["first"]["value"]
