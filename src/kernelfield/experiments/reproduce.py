"""Training of rows of the published tables, and their results."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._checks import check_int
from .._files import write_bytes
from .combine import combine_results, pool_progress
from .loop import TrainingInterrupted
from .metrics import main_metric
from .recipe import find_recipe, list_recipes, with_settings
from .run_files import read_json, to_json, write_json
from .seeds import seed_recipes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning.fabric import Fabric

    from .jobs import Job
    from .loop import Progress
    from .recipe import Recipe
    from .run import Run
    from .side_by_side import Outcome

__all__ = ["FAILURES", "Row", "outcome_result", "recipes_of", "reproduce", "reproduce_rows"]


def recipes_of(what: str) -> list[str]:
    """Return the names of the recipes of a chapter, of a pattern, or of a single name.

    >>> "ch03-smnist-ccnn-4-140" in recipes_of("3")
    True
    >>> recipes_of("ch03-smnist-ccnn-4-140")
    ['ch03-smnist-ccnn-4-140']
    """
    if what.isdigit():
        names = [n for n in list_recipes() if n.startswith(f"ch{int(what):02d}-")]
        if not names:
            chapters = sorted({int(n[2:4]) for n in list_recipes() if re.match(r"ch\d\d-", n)})
            raise ValueError(f"chapter must be one with recipes ({', '.join(map(str, chapters))}), got {what}")
        return names
    names = list_recipes(what)
    return names or [find_recipe(what).name]


@dataclass(frozen=True)
class Row:
    """A row of a table: a recipe and its settings.

    Args:
        recipe: name of the recipe.
        settings: values to replace in the recipe; the result records them.
        seeds: number of seeds to average over.
        folds: values to average over, of ``data.fold`` in a cross-validation or of ``data.image`` for photographs.
        note: differences from the publication; the result records them.
        options: further arguments of :func:`~.fitting.fit`, such as ``folder``.
    """

    recipe: str
    settings: tuple[str, ...] = ()
    seeds: int = 1
    folds: tuple[int, ...] = ()
    note: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.folds and check_int("seeds", self.seeds) > 1:
            raise ValueError(f"seeds must be 1 with folds, got {self.seeds}")

    def resolved(self) -> Recipe:
        """Return the recipe with the settings of the row."""
        return with_settings(find_recipe(self.recipe), list(self.settings))

    @property
    def several(self) -> str:
        """The kind of runs that the result averages: seeds, folds or photographs."""
        if not self.folds:
            return "seeds"
        return "photographs" if find_recipe(self.recipe).data["name"] == "photograph" else "folds"

    def folder(self, runs: Path) -> Path:
        """Return the folder of the row, which is a run or holds a run for each seed or fold."""
        return runs / self.resolved().name

    def jobs(self, runs: Path, on_progress: Callable[[Progress], None] | None = None) -> dict[int, Job]:
        """Return the trainings of the row, by seed or fold."""
        from .jobs import Job  # noqa: PLC0415

        recipe = self.resolved()
        folder = runs / recipe.name
        if self.folds:
            part = "image" if self.several == "photographs" else "fold"
            each = {fold: with_settings(recipe, [f"data.{part}={fold}"]) for fold in self.folds}
            folders = {fold: folder / f"{part}-{fold}" for fold in each}
        else:
            each = seed_recipes(recipe, self.seeds)
            folders = {seed: folder if self.seeds == 1 else folder / f"seed-{seed}" for seed in each}
        quiet = {"report": False} if len(each) > 1 else {}
        callbacks = pool_progress(len(each), on_progress)
        return {
            key: Job(one, folders[key], {**quiet, **self.options, "on_progress": callback})
            for (key, one), callback in zip(each.items(), callbacks, strict=True)
        }


def reproduce(
    name: str,
    results: str | Path = "results",
    runs: str | Path = "runs",
    *,
    settings: list[str] | None = None,
    note: str = "",
    folds: Sequence[int] = (),
    seeds: int = 1,
    synthetic: bool = False,
    fabric: Fabric | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Run a recipe and write its result, or its failure, to ``results/name.json``.

    A finished result is never lost. If a run fails, an earlier finished result stays; the failure is only returned, and
    its key ``kept`` names the file that stays. A new finished result replaces the old one, which moves to
    ``results/former/``; the key ``former`` of the returned result names that file.

    Args:
        name: name of the recipe.
        results: folder of all results.
        runs: folder of runs; an interrupted run continues.
        settings: values to replace in the recipe; the result records them.
        note: differences from the publication; the result records them.
        folds: values of ``data.fold`` in a cross-validation, or of ``data.image`` for photographs; each has a run, and
            the result is their mean.
        seeds: number of seeds to train side by side; the result is their mean.
        synthetic: whether to train on synthetic data, to try the command; run and result go to the folders
            ``synthetic`` in ``runs`` and ``results``.
        fabric: device; see :func:`~.fitting.make_fabric`.
        on_progress: called regularly.
        options: further arguments of :func:`~.fitting.fit`.
    """
    row = Row(name, tuple(settings or ()), seeds, tuple(folds), note, {**options, "synthetic": synthetic})
    subfolder = "synthetic" if synthetic else ""
    at_once = 1 if folds else None
    found = reproduce_rows(
        [row],
        Path(results) / subfolder,
        Path(runs) / subfolder,
        fabric=fabric,
        at_once=at_once,
        on_progress=None if on_progress is None else lambda _, now: on_progress(now),
    )
    return found[0]


def reproduce_rows(
    rows: Sequence[Row],
    results: str | Path = "results",
    runs: str | Path = "runs",
    *,
    fabric: Fabric | None = None,
    at_once: int | None = None,
    on_progress: Callable[[Row, Progress], None] | None = None,
    on_result: Callable[[Row, dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Run several rows side by side; write the result of each as soon as its last seed or fold ends.

    An interrupted row has the status "interrupted" and is not written.

    Args:
        rows: the rows to run.
        results: folder of results, one JSON file per row.
        runs: folder of runs.
        fabric: device; see :func:`~.fitting.make_fabric`.
        at_once: number of trainings that run at the same time; by default all.
        on_progress: called with a row and its progress over all its seeds or folds. An exception in it ends the
            training.
        on_result: called with each row and its result as soon as it is written.
    """
    from .jobs import check_jobs, fit_many  # noqa: PLC0415
    from .side_by_side import Outcome  # noqa: PLC0415

    target = Path(results)
    target.mkdir(parents=True, exist_ok=True)  # an error here comes before the training, and so does a damaged result
    for path in {target / f"{row.resolved().name}.json" for row in rows}:
        if path.exists():
            read_json(path)
    found: list[dict[str, Any]] = [{} for _ in rows]
    jobs: list[tuple[int, int, Job]] = []
    ended: dict[int, dict[int, dict[str, Any]]] = {index: {} for index in range(len(rows))}
    for index, row in enumerate(rows):
        own = row.jobs(Path(runs), None if on_progress is None else partial(on_progress, row))
        try:
            check_jobs(list(own.values()))
        except FAILURES as error:  # on other data than its runs
            failed: Outcome[Run] = Outcome(error=error)
            found[index] = _combined(row, {key: outcome_result(job.recipe, failed) for key, job in own.items()}, target)
            if on_result is not None:
                on_result(row, found[index])
            continue
        jobs += [(index, key, job) for key, job in own.items()]
    wanted = Counter(index for index, _, _ in jobs)

    def end(number: int, outcome: Outcome[Run]) -> None:
        index, key, job = jobs[number]
        row = rows[index]
        ended[index][key] = outcome_result(job.recipe, outcome)
        if len(ended[index]) < wanted[index]:
            return
        found[index] = _combined(row, ended[index], target)
        if on_result is not None:
            on_result(row, found[index])

    for outcome in fit_many([job for _, _, job in jobs], fabric=fabric, at_once=at_once, on_end=end):
        if outcome.error is not None and not isinstance(outcome.error, (*FAILURES, TrainingInterrupted)):
            raise outcome.error
    return found


def _combined(row: Row, each: dict[int, dict[str, Any]], target: Path) -> dict[str, Any]:
    """Return the result of a row from the results of its runs, and write it unless the row was interrupted."""
    each = dict(sorted(each.items()))
    result = combine_results(each, row.several) if len(each) > 1 else next(iter(each.values()))
    result["settings"] = list(row.settings)
    result["notes"] = "; ".join(part for part in (result.get("notes", ""), row.note) if part)
    if result["status"] == "interrupted":
        return result
    return result | _write(result, target / f"{result['recipe']}.json")


def _write(result: dict[str, Any], path: Path) -> dict[str, str]:
    """Write a result, unless it failed and a finished one exists; return the path of an earlier result, if any."""
    before = read_json(path) if path.exists() else {}
    replaced = {}
    if before.get("status") == "done":
        if result["status"] != "done":
            return {"kept": str(path)}
        if _without_notes(before) != _without_notes(json.loads(to_json(result))):
            replaced["former"] = str(_archive(path))
    write_json(path, result)
    return replaced


def _without_notes(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without its notes, which may change while the run stays the same."""
    return {key: value for key, value in result.items() if key != "notes"}


def _archive(path: Path) -> Path:
    """Copy a result to the folder ``former`` next to it, with the next free number in its name; return the copy."""
    folder = path.parent / "former"
    folder.mkdir(exist_ok=True)
    copies = (folder / f"{path.stem}-{n}.json" for n in itertools.count(1))
    copy = next(copy for copy in copies if not copy.exists())
    write_bytes(copy, path.read_bytes())  # a copy, so that the result itself exists at any time
    return copy


#: errors of a training that become the result of its row
FAILURES = (RuntimeError, ValueError, OSError)


def outcome_result(recipe: Recipe, outcome: Outcome[Run]) -> dict[str, Any]:
    """Return the result of a run, or its failure."""
    if outcome.error is None:
        return outcome.get().result()
    return {
        "status": "interrupted" if isinstance(outcome.error, TrainingInterrupted) else "failed",
        "recipe": recipe.name,
        "title": recipe.title,
        "chapter": recipe.chapter,
        "metric": recipe.metric or main_metric(recipe.shape.task),
        "published": recipe.published,
        "error": str(outcome.error),
        "machine": {"torch": torch.__version__},
    }
