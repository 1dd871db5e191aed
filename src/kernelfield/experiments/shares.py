"""Accuracy against the share of the training data: one recipe, trained on shares of its data for the same steps.

Shares are nested: a larger one includes the samples of a smaller one, with the same share of each class. Scores
therefore differ only by the amount of data.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked
from .._kinds import Int, Number
from .datasets import recipe_data, take_share
from .finished_run import check_same_data, run_data
from .fitting import make_fabric
from .jobs import Job, fit_many
from .loop import TrainingInterrupted
from .metrics import main_metric
from .recipe import with_settings
from .run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning.fabric import Fabric

    from ..data.base import Data, Split
    from .recipe import Recipe
    from .side_by_side import Outcome

__all__ = ["DATA_SHARES", "measure_shares", "read_shares", "share_recipe", "train_on_shares"]

#: shares of the training data that a card shows, besides all of it
DATA_SHARES = (0.05, 0.1, 0.25, 0.5)
#: number of evaluations of a training with a short budget
EVALUATIONS = 4


@checked(share=Number(0, 1, without_low=True), samples=Int(1), steps=Int(1), evaluations=Int(1) | None)
def share_recipe(recipe: Recipe, share: float, *, samples: int, steps: int, evaluations: int | None = None) -> Recipe:
    """Return a recipe that trains on a share of its data for a number of steps, rounded to full epochs.

    Fewer samples are repeated more often. Warm-up, milestones and patience keep their share of the training, so the
    learning rate of a step is the same for all shares.

    Args:
        recipe: recipe for all data.
        share: share of the training samples.
        samples: number of training samples in this share.
        steps: number of steps.
        evaluations: number of evaluations on validation data; by default about that of the recipe.

    >>> from .recipe import find_recipe
    >>> found = share_recipe(find_recipe("digits"), 0.1, samples=100, steps=160)
    >>> found.data["share"], found.training.epochs, found.training.evaluate_every
    (0.1, 160, 8)
    >>> found.schedule.warmup / found.training.epochs == 0.1  # as in the recipe
    True
    """
    per_epoch = max(1, samples // min(recipe.training.batch, samples))
    epochs = max(1, round(steps / per_epoch))
    often = evaluations or max(1, recipe.training.epochs // recipe.training.evaluate_every)
    every = max(1, epochs // often)
    factor = epochs / recipe.training.epochs
    schedule, patience = recipe.schedule.scaled(factor), recipe.training.patience
    changed = with_settings(
        recipe,
        {
            "data.share": share,
            "training.epochs": epochs,
            "training.evaluate_every": every,
            "training.patience": None if patience is None else max(every, round(patience * factor)),
            "schedule.warmup": schedule.warmup,
            "schedule.patience": schedule.patience,
            "schedule.milestones": schedule.milestones,
        },
    )
    return replace(changed, given=recipe.given)


def train_on_shares(
    run_folder: str | Path,
    shares: Sequence[float] = DATA_SHARES,
    *,
    fabric: Fabric | None = None,
    on_result: Callable[[float, dict[str, Any]], None] | None = None,
    **options: Any,
) -> None:
    """Train a run's recipe on shares of its training data, for the same number of steps; keep finished trainings.

    On a GPU the shares train side by side. Repeating an interrupted call continues it.

    Args:
        run_folder: folder of the run; the trainings go to ``card/share-S`` in it.
        shares: shares of the training data, above 0 and below 1.
        fabric: device; see :func:`~.fitting.make_fabric`.
        on_result: called with each share and the result.
        options: further arguments of :func:`~.fitting.fit`, such as ``folder``.
    """
    run = Run(Path(run_folder))
    recipe, result = run.recipe(), run.result()
    _check_shares(shares, below_one=True)
    data = options.get("data")
    check_same_data(run, run_data(run, recipe, options.get("folder")) if data is None else data, "train a new run")
    recipes = {share: _recipe_of_share(recipe, result, share) for share in shares}
    jobs = [
        Job(one, run.folder / "card" / f"share-{share:g}", {"report": False, **options})
        for share, one in recipes.items()
    ]
    _train(jobs, list(shares), fabric, on_result)


def _recipe_of_share(recipe: Recipe, result: dict[str, Any], share: float) -> Recipe:
    """Return the recipe that trains a finished run on a share of its training data, for the same number of steps."""
    samples = round(result["steps"] / result["epochs"] * result["batch"])
    return share_recipe(recipe, share, samples=max(1, round(share * samples)), steps=result["steps"])


def read_shares(run: Run) -> list[dict[str, float]]:
    """Return the test scores of a run by share of the training data; the run itself has share 1.

    Trainings for another number of steps, of a run that has since continued, are left out with a warning.
    """
    result, recipe = run.result(), run.recipe()
    metric = result["metric"]
    found = [{"share": 1.0, "score": result["metrics"]["test"][metric]}]
    for path in (run.folder / "card").glob("share-*/result.json"):
        part = Run(path.parent)
        if part.finished:
            share = float(path.parent.name.partition("-")[2])
            if part.recipe().training.epochs != _recipe_of_share(recipe, result, share).training.epochs:
                warnings.warn(
                    f"{part.folder} was trained for another number of steps than {run.folder}, so it is left out; "
                    f"remove it, and train on --shares {share:g} again",
                    stacklevel=2,
                )
                continue
            found.append({"share": share, "score": part.result()["metrics"]["test"][metric]})
    return sorted(found, key=lambda point: point["share"])


def measure_shares(
    recipe: Recipe,
    out: str | Path,
    *,
    steps: int,
    shares: Sequence[float] = (*DATA_SHARES, 1.0),
    test_samples: int | None = None,
    fabric: Fabric | None = None,
    folder: str | None = None,
    on_result: Callable[[float, dict[str, Any]], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[dict[str, Any]]:
    """Train a recipe on shares of its data with a budget of steps, and return the test score of each share.

    Repeating an interrupted call continues it.

    Args:
        recipe: recipe to train.
        out: folder; the trainings go to ``share-S`` in it.
        steps: number of steps of each training.
        shares: shares of the training data, above 0 and at most 1.
        test_samples: number of samples to use from the beginning of the validation and test splits; by default all.
        fabric: device; see :func:`~.fitting.make_fabric`.
        folder: folder of the data's files.
        on_result: called with each share and its point as soon as its training ends.
        should_stop: called after every step; if it returns true, the trainings stop with a checkpoint.

    Returns:
        A point for each finished share: share, samples, steps, seconds and score. The steps may end before all samples
            of a large share were used; ``samples`` counts the used ones, and shares with the same samples are one
            training.
    """
    _check_shares(shares)
    data = _first(recipe_data(recipe, folder=folder), test_samples)
    whole = len(data.train)
    recipe = replace(recipe, test={})
    metric = recipe.metric or main_metric(recipe.shape.task)
    # At most the samples that the steps use once.
    seen = {share: min(share, steps * recipe.training.batch / whole) for share in shares}
    kept: dict[float, Data] = {share: take_share(data, part) for share, part in seen.items()}
    alike = {part: [share for share in shares if seen[share] == part] for part in sorted(set(seen.values()))}
    first = [same[0] for same in alike.values()]
    jobs = [
        Job(
            share_recipe(recipe, seen[share], samples=len(kept[share].train), steps=steps, evaluations=EVALUATIONS),
            Path(out) / f"share-{share:g}",
            {"report": False, "data": kept[share], "should_stop": should_stop},
        )
        for share in first
    ]
    points: list[dict[str, Any]] = []

    def end(trained: float, result: dict[str, Any]) -> None:
        for share in alike[seen[trained]]:
            point = {"share": share, "samples": len(kept[share].train), "steps": result["steps"]}
            points.append(point | {"seconds": result["seconds"], "score": result["metrics"]["test"][metric]})
            if on_result is not None:
                on_result(share, points[-1])

    _train(jobs, first, fabric, end)
    return sorted(points, key=lambda point: point["share"])


def _check_shares(shares: Sequence[float], *, below_one: bool = False) -> None:
    for share in shares:
        if not 0 < share <= 1 or (below_one and share == 1):
            raise ValueError(f"shares must be above 0 and {'below' if below_one else 'at most'} 1, got {share}")


def _first(data: Data, samples: int | None) -> Data:
    """Return data with only the first samples of its validation and test splits."""
    if samples is None:
        return data

    def first(split: Split) -> Split:
        return split.take(torch.arange(min(samples, len(split))))

    validation = None if data.validation is None else first(data.validation)
    return replace(data, test=first(data.test), validation=validation)


def _train(
    jobs: list[Job],
    shares: list[float],
    fabric: Fabric | None,
    on_result: Callable[[float, dict[str, Any]], None] | None,
) -> None:
    """Train jobs, side by side on a GPU, and report each as it ends; raise the first error except interruptions."""
    fabric = make_fabric() if fabric is None else fabric

    def end(position: int, outcome: Outcome[Run]) -> None:
        if outcome.error is None and on_result is not None:
            on_result(shares[position], outcome.get().result())

    at_once = None if fabric.device.type == "cuda" else 1
    for outcome in fit_many(jobs, fabric=fabric, at_once=at_once, on_end=end):
        if outcome.error is not None and not isinstance(outcome.error, TrainingInterrupted):
            raise outcome.error
