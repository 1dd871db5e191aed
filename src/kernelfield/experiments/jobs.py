"""Several trainings side by side on one device, which share their data."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from .checkpoint import latest_checkpoint
from .datasets import recipe_data
from .finished_run import check_same_data
from .fitting import data_at_hand, fit, make_fabric
from .loop import TrainingInterrupted, resident
from .run import Run
from .side_by_side import side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

    import torch
    from lightning.fabric import Fabric

    from ..data.base import Data
    from .recipe import Recipe
    from .side_by_side import Outcome

__all__ = ["Job", "check_jobs", "fit_many"]


@dataclass(frozen=True)
class Job:
    """A training for :func:`fit_many`.

    Args:
        recipe: the recipe to train.
        out: folder of the run.
        options: further arguments of :func:`fit`.
    """

    recipe: Recipe
    out: Path
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """A text that identifies the data of the job."""
        where = {key: self.options.get(key) for key in ("folder", "download", "synthetic")}
        shape = self.recipe.to_dict()["shape"]
        batch = self.recipe.training.batch if where["synthetic"] else None  # the size of synthetic data depends on it
        return json.dumps([self.recipe.data, shape, where, batch], sort_keys=True, default=str)


def fit_many(
    jobs: Sequence[Job],
    *,
    fabric: Fabric | None = None,
    at_once: int | None = None,
    on_end: Callable[[int, Outcome[Run]], None] | None = None,
) -> list[Outcome[Run]]:
    """Train several recipes side by side on one device; each gets the same result as alone.

    Jobs with the same data share one copy of it. With several processes, jobs run one after the other.

    Args:
        jobs: the trainings, each with its own folder.
        fabric: device and processes; see :func:`~.fitting.make_fabric`.
        at_once: number of jobs that run at the same time; by default all.
        on_end: called with the position and the outcome of each job as soon as it ends.
    """
    fabric = make_fabric() if fabric is None else fabric
    folders = Counter(str(job.out) for job in jobs)
    twice = [folder for folder, count in folders.items() if count > 1]
    if twice:
        raise ValueError(f"out must be a different folder for each job, got {', '.join(twice)} twice")
    shared = _SharedData(jobs, fabric.device)

    def begin(job: Job) -> Generator[None, None, Run]:
        should_stop = job.options.get("should_stop")
        try:
            if should_stop is not None and should_stop():
                raise TrainingInterrupted(f"training {job.recipe.name!r} was stopped before it started")
            data = job.options.get("data") or shared.load(job)
            return (yield from fit.steps(job.recipe, job.out, **{**job.options, "data": data, "fabric": fabric}))
        finally:
            shared.release(job)

    trainings = [lambda job=job: begin(job) for job in jobs]
    return side_by_side(trainings, fabric.device, 1 if fabric.world_size > 1 else at_once, on_end)


def check_jobs(jobs: Sequence[Job]) -> None:
    """Raise a ValueError, before the first training, if a job would continue or return a run on other data.

    Without this check, the other jobs would train on the new data, beside results on the former.

    Args:
        jobs: the trainings, as for :func:`fit_many`.
    """
    loaded: dict[str, Data | None] = {}
    for job in jobs:
        run = Run(job.out)
        if run.finished or latest_checkpoint(run.checkpoints) is not None:
            where = {key: job.options[key] for key in ("folder", "download") if key in job.options}
            if job.source not in loaded:
                load = partial(recipe_data, job.recipe, **where)
                loaded[job.source] = job.options.get("data") or data_at_hand(run, job.recipe, load)
            if (data := loaded[job.source]) is not None:
                check_same_data(run, data, "choose another folder")


class _SharedData:
    """Data sets that several jobs share on the device, as long as a job needs them."""

    def __init__(self, jobs: Sequence[Job], device: torch.device) -> None:
        self.device = device
        self.users = Counter(job.source for job in jobs)
        self.loaded: dict[str, Data] = {}

    def load(self, job: Job) -> Data | None:
        """Return the data of a job; None for a finished run that is not compared with its data."""
        run = Run(job.out)
        return data_at_hand(run, job.recipe, partial(self._load, job)) if run.finished else self._load(job)

    def _load(self, job: Job) -> Data:
        if job.source not in self.loaded:
            where = {key: job.options[key] for key in ("folder", "download", "synthetic") if key in job.options}
            data = recipe_data(job.recipe, **where)
            validation = None if data.validation is None else resident(data.validation, self.device)
            self.loaded[job.source] = replace(data, train=resident(data.train, self.device), validation=validation)
        return self.loaded[job.source]

    def release(self, job: Job) -> None:
        self.users[job.source] -= 1
        if not self.users[job.source]:
            self.loaded.pop(job.source, None)
