"""Training of one recipe with several seeds, side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._arguments import checked
from .combine import combine_results, pool_progress
from .comparison import compare_samples
from .fitting import make_fabric
from .jobs import Job, check_jobs, fit_many
from .recipe import Recipe, find_recipe, with_settings
from .run import Run, fresh_folder
from .run_files import write_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.fabric import Fabric

    from .loop import Progress

__all__ = ["fit_seeds", "seed_recipes"]


@checked()
def seed_recipes(recipe: Recipe, seeds: int) -> dict[int, Recipe]:
    """Return copies of a recipe with its own seed and the next ``seeds - 1`` seeds.

    >>> list(seed_recipes(find_recipe("digits"), 3))
    [0, 1, 2]
    """
    first = recipe.training.seed
    return {seed: replace(recipe, training=replace(recipe.training, seed=seed)) for seed in range(first, first + seeds)}


def fit_seeds(
    recipe: Recipe | str | Path,
    out: str | Path | None = None,
    *,
    seeds: int = 3,
    settings: list[str] | dict[str, Any] | None = None,
    fabric: Fabric | None = None,
    at_once: int | None = None,
    report: bool = True,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Run:
    """Train a recipe with several seeds side by side, and return the run that holds them.

    Each seed has its own run in ``out/seed-N``, with the same result as alone. ``out/result.json`` holds the mean, the
    standard deviation and the result of every seed; ``out/report.html`` shows them. Interrupted runs continue.

    Args:
        recipe: a recipe, its name, or its file.
        out: folder; by default a new one under runs/.
        seeds: number of seeds; the first one is that of the recipe.
        settings: values to replace in the recipe, as ``a.b=c``.
        fabric: device; see :func:`~.fitting.make_fabric`.
        at_once: number of trainings that run at the same time; by default all.
        report: whether to write reports.
        on_progress: called with the progress of all seeds together.
        options: further arguments of :func:`~.fitting.fit`.
    """
    recipe = recipe if isinstance(recipe, Recipe) else find_recipe(recipe)
    recipe = with_settings(recipe, settings or [])
    fabric = make_fabric() if fabric is None else fabric
    folder = fresh_folder(Path("runs") / recipe.name) if out is None else Path(out)
    folder = Path(fabric.broadcast(str(folder)))  # processes must agree on a new folder
    if Run(folder).exists:
        raise ValueError(f"out must not be the folder of a single run, got {folder}")
    each = seed_recipes(recipe, seeds)
    _check_folder(folder, recipe, leads=fabric.global_rank == 0)
    callbacks = pool_progress(len(each), on_progress)
    jobs = [
        Job(one, folder / f"seed-{seed}", {**options, "report": report, "on_progress": callback})
        for (seed, one), callback in zip(each.items(), callbacks, strict=True)
    ]
    check_jobs(jobs)
    outcomes = fit_many(jobs, fabric=fabric, at_once=at_once)
    runs = {seed: outcome.get() for seed, outcome in zip(each, outcomes, strict=True)}
    run = Run(folder)
    if fabric.global_rank != 0:
        return run
    compare_samples({path.folder.name: path for path in runs.values()})
    result = combine_results({seed: r.result() for seed, r in runs.items()}, "seeds")
    write_json(run.folder / "result.json", result)
    if report:
        from ..viz.seeds_report import write_seeds_report  # noqa: PLC0415

        write_seeds_report(folder, result, {seed: r.read_rows("metrics.csv") for seed, r in runs.items()})
    return run


def _check_folder(folder: Path, recipe: Recipe, *, leads: bool) -> None:
    """Raise a ValueError if the folder holds seeds of another recipe; move the result of a shorter training.

    Args:
        folder: the folder of all seeds.
        recipe: recipe of the training.
        leads: whether this is the first process, which moves the file.
    """
    for path in sorted(folder.glob("seed-*/recipe.yaml")):
        other = Run(path.parent)
        before = other.recipe().training
        one = replace(recipe, training=replace(recipe.training, seed=before.seed))
        other.check(one, synthetic=other.synthetic)
        result = Run(folder).path("result.json")
        if leads and other.extended_by(one) and result.exists():
            result.replace(folder / f"result-after-{before.epochs}-epochs.json")
