"""Sweeps: one recipe with many settings, side by side on one device, resumable.

A sweep writes its trials and their settings to ``sweep.json`` in its folder before it trains them. The same call
continues an interrupted sweep: finished trials are kept, others continue from their last checkpoint, and settings are
not drawn again. A grid tries all combinations. Samplers of Optuna draw each batch of trials from the validation scores
of all earlier batches.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._arguments import checked
from .._kinds import ANY, TEXT, Choice, Int, ListOf
from .._object_kinds import DICT, Instance
from .combine import combine_results
from .comparison import ComparedRun, compare_runs, write_comparison_page
from .fitting import make_fabric
from .jobs import Job, check_jobs, fit_many
from .loop import TrainingInterrupted
from .metrics import is_better, main_metric
from .recipe import Recipe, find_recipe, with_settings
from .recipe_files import parse_value
from .reproduce import FAILURES, outcome_result
from .run_files import read_json, write_json
from .seeds import seed_recipes
from .settings import with_section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lightning.fabric import Fabric

    from .run import Run
    from .side_by_side import Outcome

__all__ = ["SAMPLERS", "Range", "Sweep", "grid", "read_over", "sweep"]

SAMPLERS = ("grid", "tpe", "random")
#: largest number of combinations that are checked before the first training of a sampler
_MOST_CHECKED = 10_000


@dataclass(frozen=True)
class Range:
    """An interval to draw a setting from: ``low:high`` or ``low:high:log``; integers if both ends are integers.

    Args:
        low: smallest value.
        high: largest value.
        log: whether the logarithm of the value is uniform.
    """

    low: float
    high: float
    log: bool = False

    @property
    def integer(self) -> bool:
        """Whether values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


Choices = dict[str, "list[str] | Range"]


@checked(over=ListOf(TEXT))
def read_over(over: Sequence[str]) -> Choices:
    """Read settings to vary: ``a.b=v1,v2`` is a list of values, ``a.b=low:high`` or ``a.b=low:high:log`` a range.

    >>> read_over(["lr=0.001:0.1:log", "model.dropout=0,0.2"])
    {'optimizer.lr': Range(low=0.001, high=0.1, log=True), 'model.dropout': ['0', '0.2']}
    """
    found: Choices = {}
    for text in over:
        key, equals, values = text.partition("=")
        if not equals or not key.strip() or not values.strip():
            raise ValueError(f"--over must have the form a.b=v1,v2 or a.b=low:high, such as lr=0.01,0.03, got {text!r}")
        key = with_section(key.strip())
        if key in found:
            raise ValueError(f"--over must name each setting once, got {key!r} twice")
        chosen = _read_range(text, values) if ":" in values else _split(values)
        twice = [] if isinstance(chosen, Range) else [value for value in chosen if chosen.count(value) > 1]
        if twice:
            raise ValueError(f"--over must name each value once, got {twice[0]!r} twice in {text!r}")
        found[key] = chosen
    return found


def _read_range(text: str, values: str) -> Range:
    ends = [parse_value(part) for part in values.split(":")[:2]]
    rest = values.split(":")[2:]
    numbers = all(isinstance(end, int | float) and not isinstance(end, bool) and math.isfinite(end) for end in ends)
    if not numbers or rest not in ([], ["log"]) or not ends[0] < ends[1] or (rest and ends[0] <= 0):
        raise ValueError(f"--over must have low < high in a.b=low:high, and low > 0 in a.b=low:high:log, got {text!r}")
    return Range(ends[0], ends[1], bool(rest))


def _split(values: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in values:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        depth += (letter in "([{") - (letter in ")]}") if not quote else 0
        if letter == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def grid(over: Choices) -> list[list[str]]:
    """Return all combinations of values, each as a list of settings; the last setting varies fastest.

    >>> grid({"optimizer.lr": ["0.1", "0.2"], "model.dropout": ["0"]})
    [['optimizer.lr=0.1', 'model.dropout=0'], ['optimizer.lr=0.2', 'model.dropout=0']]
    """
    ranges = [key for key, values in over.items() if isinstance(values, Range)]
    if ranges:
        raise ValueError(f"--over must list values for a grid, got a range for {', '.join(ranges)}; see --sampler")
    return list(_combinations(over))


def _combinations(over: Choices) -> Iterator[list[str]]:
    """Return all combinations of values, and of both ends of each range."""
    values = [
        [f"{key}={value}" for value in (choices if isinstance(choices, list) else (choices.low, choices.high))]
        for key, choices in over.items()
    ]
    return map(list, itertools.product(*values))


@dataclass(frozen=True)
class Sweep:
    """The trials of a sweep and their results so far.

    Args:
        folder: its folder; trials are in ``trial-000`` and so on, or in ``trial-000/seed-0`` with several seeds.
        trials: the settings of each trial.
        results: the results of the trials; ``status`` is "done", "failed" or "interrupted".
    """

    folder: Path
    trials: list[list[str]]
    results: list[dict[str, Any]]

    @property
    def finished(self) -> list[int]:
        """Positions of finished trials."""
        return [number for number, result in enumerate(self.results) if result["status"] == "done"]

    def compared(self) -> list[ComparedRun]:
        """Return the finished trials with their settings and curves."""
        if not self.finished:
            return []
        runs = compare_runs([trial_folder(self.folder, number) for number in self.finished])
        settings = [dict(text.split("=", 1) for text in self.trials[number]) for number in self.finished]
        return [ComparedRun(run.name, run.result, one, run.curves) for run, one in zip(runs, settings, strict=True)]


@checked(
    recipe=Instance("kernelfield.experiments.Recipe") | TEXT,
    over=DICT,
    sampler=Choice(*SAMPLERS),
    seeds=Int(1),
    trials=Int(1) | None,
    at_once=Int(1) | None,
    fabric=ANY,
)
def sweep(
    recipe: Recipe | str,
    out: str | Path,
    over: Choices,
    *,
    sampler: str = "grid",
    trials: int | None = None,
    seeds: int = 1,
    at_once: int | None = None,
    fabric: Fabric | None = None,
    on_result: Callable[[int, list[str], dict[str, Any]], None] | None = None,
    **options: Any,
) -> Sweep:
    """Train a recipe with many settings and return the results. Data that differ from those of a trial are refused.

    Args:
        recipe: a recipe or its name.
        out: folder of the sweep; an interrupted one continues.
        over: settings to vary; see :func:`read_over`.
        sampler: "grid" tries all combinations; "tpe" and "random" are samplers of Optuna.
        trials: number of trials to draw; for samplers only.
        seeds: number of seeds per trial; its score is their mean.
        at_once: number of trainings that run side by side, and of trials that a sampler draws at once; by default all
            trials of a grid, and 4 of a sampler.
        fabric: device; see :func:`~.fitting.make_fabric`.
        on_result: called with the position, the settings and the result of each trial as soon as it ends.
        options: further arguments of :func:`~.fitting.fit`.
    """
    recipe = recipe if isinstance(recipe, Recipe) else find_recipe(recipe)
    if (sampler == "grid") != (trials is None):
        raise ValueError(f"trials must be {'None for a grid' if trials else f'given for {sampler!r}'}, got {trials}")
    plan = {
        "recipe": recipe.to_dict(),
        "over": {key: value if isinstance(value, list) else vars(value) for key, value in over.items()},
        "sampler": sampler,
        "seeds": seeds,
    }
    # All settings, or the ends of their ranges, are checked before the first training.
    for point in grid(over) if sampler == "grid" else itertools.islice(_combinations(over), _MOST_CHECKED):
        _check_point(recipe, point)
    folder = Path(out)
    record = _begin(folder, plan)
    fabric = make_fabric() if fabric is None else fabric
    results: dict[int, dict[str, Any]] = {}

    def train(numbers: Sequence[int]) -> None:
        points = [(number, record["trials"][number]) for number in numbers]
        results.update(_train(recipe, folder, points, seeds, fabric, at_once, options, on_result))

    if sampler == "grid":
        record["trials"] = grid(over)
        write_json(folder / "sweep.json", record)
        train(range(len(record["trials"])))
    else:
        from .samplers import Sampler  # noqa: PLC0415

        metric = recipe.metric or main_metric(recipe.shape.task)
        drawn = Sampler(sampler, over, larger=is_better(metric, 1.0, 0.0), seed=recipe.training.seed)
        size = at_once or 4
        for start in range(0, trials or 0, size):
            numbers = range(start, min(start + size, trials or 0))
            missing = numbers.stop - len(record["trials"])
            if missing > 0:
                record["trials"] += drawn.draw(
                    record["trials"], [_score(results[n], metric) for n in range(start)], missing
                )
                write_json(folder / "sweep.json", record)
            train(numbers)
            if any(results[number]["status"] == "interrupted" for number in numbers):
                break
    found = Sweep(folder, record["trials"][: len(results)], [results[number] for number in sorted(results)])
    if found.finished:
        write_comparison_page(folder / "sweep.html", found.compared(), f"Sweep of {recipe.name}")
    return found


def _check_point(recipe: Recipe, settings: list[str]) -> None:
    try:
        with_settings(recipe, settings)
    except ValueError as error:
        raise ValueError(str(error).replace("--set", "--over", 1)) from None


def trial_folder(folder: Path, number: int) -> Path:
    """Return the folder of a trial."""
    return folder / f"trial-{number:03d}"


def _begin(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a sweep, from its folder if it exists; raise a ValueError if that is another sweep's."""
    path = folder / "sweep.json"
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(f"out must be a new folder or that of a sweep, got {folder} with other files")
        folder.mkdir(parents=True, exist_ok=True)
        return {**plan, "trials": []}
    record = read_json(path)
    other = [key for key, value in plan.items() if record.get(key) != value]
    if other:
        raise ValueError(f"out must be the folder of the same sweep, got {folder} with other {', '.join(other)}")
    return {key: value for key, value in record.items() if key != "sha256"}


def _train(
    recipe: Recipe,
    folder: Path,
    points: Sequence[tuple[int, list[str]]],
    seeds: int,
    fabric: Fabric,
    at_once: int | None,
    options: dict[str, Any],
    on_result: Callable[[int, list[str], dict[str, Any]], None] | None,
) -> dict[int, dict[str, Any]]:
    """Train trials side by side and return their results by position."""
    jobs: list[tuple[int, int, Job]] = []
    for number, point in points:
        for seed, one in seed_recipes(with_settings(recipe, point), seeds).items():
            out = trial_folder(folder, number)
            jobs.append(
                (number, seed, Job(one, out if seeds == 1 else out / f"seed-{seed}", {"report": False, **options}))
            )
    check_jobs([job for *_, job in jobs])
    ended: dict[int, dict[int, dict[str, Any]]] = {number: {} for number, _ in points}
    found: dict[int, dict[str, Any]] = {}
    settings = dict(points)

    def end(position: int, outcome: Outcome[Run]) -> None:
        number, seed, job = jobs[position]
        ended[number][seed] = outcome_result(job.recipe, outcome)
        if len(ended[number]) == seeds:
            each = dict(sorted(ended[number].items()))
            found[number] = combine_results(each, "seeds") if seeds > 1 else next(iter(each.values()))
            if seeds > 1 and found[number]["status"] == "done":
                write_json(trial_folder(folder, number) / "result.json", found[number])
            if on_result is not None:
                on_result(number, settings[number], found[number])

    for outcome in fit_many([job for *_, job in jobs], fabric=fabric, at_once=at_once, on_end=end):
        if outcome.error is not None and not isinstance(outcome.error, (*FAILURES, TrainingInterrupted)):
            raise outcome.error
    return found


def _score(result: dict[str, Any], metric: str) -> float | None:
    """Return the validation score of a trial; None if it failed or has a score that is not a number."""
    if result["status"] != "done":
        return None
    scores = result.get("chosen", {}).get("validation") or {}
    if metric not in scores:
        raise ValueError("data.validation must leave validation data for the sampler, got none")
    score = scores[metric]  # null in the file of a result is not a number
    return None if score is None or math.isnan(score) else float(score)
