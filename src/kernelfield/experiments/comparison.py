"""Comparison of runs: a table with one row per run, and their curves."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._arguments import checked
from .._kinds import PATH, ListOf
from ..data.metadata import same_samples
from .metrics import is_better
from .results import shown
from .run import Run
from .run_files import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "ComparedRun",
    "by_validation",
    "check_page",
    "compare_runs",
    "comparison_lines",
    "comparison_table",
    "shown",
    "write_comparison_page",
]

#: keys of a recipe that do not affect the training
_LABELS = ("name", "title", "chapter", "published", "notes")


@dataclass(frozen=True)
class ComparedRun:
    """A run in a comparison.

    Args:
        name: shortest end of its path that identifies it among the runs.
        result: result of the run, or the mean result of several seeds.
        settings: values of its recipe that differ between the compared runs, by ``section.key``.
        curves: metrics per epoch, one list per seed.
    """

    name: str
    result: dict[str, Any]
    settings: dict[str, Any]
    curves: list[list[dict[str, float]]] = field(repr=False)

    @property
    def metric(self) -> str:
        """Name of the main metric of the run."""
        return str(self.result["metric"])

    @property
    def validation(self) -> float | None:
        """Score on validation data, which ranks the runs; None if there is no validation data."""
        found = self.result.get("chosen", {}).get("validation") or {}
        return found.get(self.metric)

    @property
    def test(self) -> float:
        """Score on test data."""
        return float(self.result["metrics"]["test"][self.metric])


@checked(folders=ListOf(PATH))
def compare_runs(folders: Sequence[str | Path]) -> list[ComparedRun]:
    """Return finished runs with their results, the settings in which they differ, and their curves.

    Args:
        folders: folders of runs, or folders that hold several seeds of one recipe.
    """
    paths = [Path(folder) for folder in folders]
    twice = {str(path) for path in paths if sum(path.resolve() == other.resolve() for other in paths) > 1}
    if twice:
        raise ValueError(f"folders must be different runs, got {', '.join(sorted(twice))} twice")
    parts = [_parts(path) for path in paths]
    results = [Run(path).result() for path in paths]
    for path, result in zip(paths, results, strict=True):
        if result.get("status") != "done":
            raise ValueError(f"folders must be finished runs, got {path} with status {result.get('status')!r}")
    recipes = [_flat({k: v for k, v in runs[0].recipe().to_dict().items() if k not in _LABELS}) for runs in parts]
    names = _short_names(paths)
    found = []
    for name, runs, result, recipe in zip(names, parts, results, recipes, strict=True):
        keys = sorted({key for other in recipes for key in (*recipe, *other) if recipe.get(key) != other.get(key)})
        settings = {key: recipe.get(key) for key in keys if key != "training.seed"}
        found.append(ComparedRun(name, result, settings, [run.read_rows("metrics.csv") for run in runs]))
    compare_samples({run.name: runs[0] for run, runs in zip(found, parts, strict=True)})
    return found


def compare_samples(runs: Mapping[str, Run]) -> None:
    """Warn if runs, by name, on the same source have different samples, as after a file was added."""
    known: dict[str, tuple[str, Any]] = {}
    for name, run in runs.items():
        recipe = _flat(run.recipe().to_dict())
        path = run.path("data.json")
        record = read_json(path).get("samples") if path.exists() else None
        if record is None:
            continue
        source = repr(sorted((key, value) for key, value in recipe.items() if key.startswith("data.")))
        first, there = known.setdefault(source, (name, record))
        if not same_samples(record, there):
            warnings.warn(
                f"{first} and {name} have different samples of the same data ({there['test']} and {record['test']} "
                "for testing), so their scores are not comparable",
                stacklevel=3,
            )


def check_page(path: str | Path) -> Path:
    """Return the path of a page to write; raise a ValueError for another kind of file, or for a missing folder."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise ValueError(f"out must be a page, a file that ends in .html, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"out must lie in an existing folder, got {path}")
    if path.name == "report.html" and (path.parent / "recipe.yaml").exists():
        raise ValueError(f"out must not be the report of a run, got {path}")
    return path


def write_comparison_page(path: str | Path, runs: Sequence[ComparedRun], title: str = "Comparison") -> Path:
    """Write an HTML page with the table and the curves of runs; return its path.

    Args:
        path: file to write.
        runs: result of :func:`compare_runs`.
        title: heading of the page.
    """
    from ..viz.comparison import write_comparison  # noqa: PLC0415

    path = check_page(path)
    curves = {run.name: run.curves for run in runs}
    metrics = list(dict.fromkeys(run.metric for run in runs))
    return write_comparison(path, title, comparison_table(runs), curves, metrics)


def comparison_table(runs: Sequence[ComparedRun]) -> list[list[str]]:
    """Return the header and one row of text per run, sorted by validation score, the best first."""
    keys = list(dict.fromkeys(key for run in runs for key in run.settings))
    head = ["run", "validation", "test", "parameters", "epochs", "seconds", *keys]
    return [head, *(_cells(run, keys) for run in by_validation(runs))]


def comparison_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as aligned lines.

    >>> comparison_lines([["run", "test"], ["a", "90.00 %"]])
    ['run  test', 'a    90.00 %']
    """
    head = rows[0]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def by_validation(runs: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Return runs sorted by validation score, the best first; runs without one come last.

    Scores of different metrics are not comparable, so runs with different metrics keep their order.
    """
    if len({run.metric for run in runs}) > 1:
        return list(runs)

    def key(run: ComparedRun) -> tuple[bool, float]:
        score = run.validation
        if score is None or math.isnan(score):
            return True, 0.0
        return False, -score if is_better(run.metric, 1.0, 0.0) else score

    return sorted(runs, key=key)


def _cells(run: ComparedRun, keys: list[str]) -> list[str]:
    result = run.result
    test = shown(run.metric, run.test)
    if "deviation" in result:
        test += f" ± {shown(run.metric, result['deviation']['test'][run.metric])}"
    cells = [run.name, shown(run.metric, run.validation), f"{run.metric} {test}", f"{result['parameters']:,}"]
    cells += [str(result["epochs"]), f"{result['seconds']:.0f}"]
    return cells + [str(run.settings.get(key, "")) for key in keys]


def _parts(folder: Path) -> list[Run]:
    """Return the run in a folder, or the runs of its seeds."""
    if Run(folder).exists:
        return [Run(folder)]
    seeds = sorted(folder.glob("seed-*/recipe.yaml"), key=lambda path: int(path.parent.name.partition("-")[2]))
    if not seeds:
        raise FileNotFoundError(f"folders must be folders of runs, got {folder} without a run")
    return [Run(path.parent) for path in seeds]


def _flat(mapping: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested sections as one level of ``a.b`` keys."""
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _short_names(paths: list[Path]) -> list[str]:
    """Return the shortest ends of paths that are unique."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]
