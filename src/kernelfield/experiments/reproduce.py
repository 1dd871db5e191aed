"""Rows of the thesis's tables, run again, and the table of what came out."""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .plain_json import to_json
from .recipe import FOLDER, find_recipe, list_recipes, read_recipe, with_settings
from .scores import main_metric

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .loop import Progress
    from .recipe import Recipe

__all__ = ["recipes_of", "reproduce", "results_table"]

COLUMNS = (
    *("chapter", "experiment", "recipe", "metric", "published", "ours"),
    *("size", "epochs", "seed", "time", "machine", "remarks"),
)


def recipes_of(what: str) -> list[str]:
    """Return the recipes of a chapter, of a pattern, or the one of a name.

    >>> "ch03-smnist-ccnn-4-140" in recipes_of("3")
    True
    >>> recipes_of("ch03-smnist-ccnn-4-140")
    ['ch03-smnist-ccnn-4-140']
    """
    if what.isdigit():
        names = [n for n in list_recipes() if read_recipe(FOLDER / f"{n}.yaml").chapter == int(what)]
        if not names:
            raise ValueError(f"chapter must be one with recipes, got {what}")
        return names
    names = list_recipes(what)
    return names or [find_recipe(what).name]


def reproduce(
    name: str,
    results: str | Path = "results",
    runs: str | Path = "runs",
    *,
    settings: list[str] | None = None,
    note: str = "",
    folds: Sequence[int] = (),
    made: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Run a recipe and write what came out to ``results/name.json``, its failure if it failed.

    A finished result is never lost: a failure leaves it where it is and is only returned, then with ``kept``, the file
    that stays; another finished result takes its place and it moves to ``results/former/``, which is returned as
    ``former``.

    Args:
        name: of the recipe.
        results: folder of all results.
        runs: folder of runs; an interrupted one is taken up.
        settings: values to replace in the recipe; said in the result.
        note: what differs from the publication, said beside the result.
        made: train on made data, to try things: run and result then go to ``runs/made/`` and ``results/made/``.
        folds: values of ``data.fold``, for a cross-validation: one run for each, and the mean over them.
        on_progress: called now and then.
        options: further arguments of :func:`kernelfield.experiments.fitting`.
    """
    recipe = with_settings(find_recipe(name), settings or [])
    aside = "made" if made else ""
    folder, target = Path(runs) / aside / recipe.name, Path(results) / aside
    target.mkdir(parents=True, exist_ok=True)  # before the work
    options["made"] = made
    if folds:
        quiet = {"report": False, **options}
        each = {
            fold: _run(with_settings(recipe, [f"data.fold={fold}"]), folder / f"fold-{fold}", on_progress, quiet)
            for fold in folds
        }
        result = _over_folds(each)
    else:
        result = _run(recipe, folder, on_progress, options)
    result["settings"] = list(settings or [])
    result["notes"] = "; ".join(part for part in (result.get("notes", ""), note) if part)
    return result | _write(result, target / f"{recipe.name}.json")


def _write(result: dict[str, Any], path: Path) -> dict[str, str]:
    """Write a result, unless it failed and a finished one is there; return where one is that was there before."""
    text = to_json(result, indent=2) + "\n"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    said = {}
    if before.get("status") == "done":
        if result["status"] != "done":
            return {"kept": str(path)}
        if _without_notes(before) != _without_notes(json.loads(text)):
            said["former"] = str(_put_aside(path))
    draft = path.with_name(f".{path.name}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
    return said


def _without_notes(result: dict[str, Any]) -> dict[str, Any]:
    """Return all of a result but what may be said anew of one and the same run."""
    return {key: value for key, value in result.items() if key != "notes"}


def _put_aside(path: Path) -> Path:
    """Copy a result to the folder ``former`` beside it, under its name and a number that is free; return the copy."""
    folder = path.parent / "former"
    folder.mkdir(exist_ok=True)
    copies = (folder / f"{path.stem}-{n}.json" for n in itertools.count(1))
    copy = next(copy for copy in copies if not copy.exists())
    shutil.copyfile(path, copy)  # a copy, so that there is a result in its place at any time
    return copy


def _run(
    recipe: Recipe, folder: Path, on_progress: Callable[[Progress], None] | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Return what training a recipe came to, or how it failed."""
    from .fitting import fit  # noqa: PLC0415

    try:
        return fit(recipe, folder, on_progress=on_progress, **options).result()
    except (RuntimeError, ValueError, OSError) as error:
        return {
            "status": "failed",
            "recipe": recipe.name,
            "title": recipe.title,
            "chapter": recipe.chapter,
            "metric": recipe.metric or main_metric(recipe.shape.task),
            "published": recipe.published,
            "error": str(error),
            "machine": {"torch": torch.__version__},
        }


def _over_folds(each: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of several results as one, with their deviation and what each of them was."""
    failed = next((result for result in each.values() if result["status"] != "done"), None)
    if failed is not None:
        return failed
    results = list(each.values())
    first = results[0]
    metrics: dict[str, dict[str, float]] = {}
    deviation: dict[str, dict[str, float]] = {}
    for test, values in first["metrics"].items():
        rows = {key: [r["metrics"][test][key] for r in results] for key in values}
        metrics[test] = {key: statistics.fmean(row) for key, row in rows.items()}
        deviation[test] = {key: statistics.pstdev(row) for key, row in rows.items()}
    return {
        **first,
        "metrics": metrics,
        "deviation": deviation,
        "seconds": round(sum(r["seconds"] for r in results), 2),
        "folds": {str(fold): result["metrics"] for fold, result in each.items()},
    }


def results_table(folder: str | Path) -> str:
    """Return the results in a folder as a Markdown table: published, ours, epochs, seed, time, machine; failures too.

    Args:
        folder: of JSON files as :func:`reproduce` writes them.
    """
    found = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    found.sort(key=lambda r: (r.get("chapter", 0), r["recipe"]))
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [line for result in found for line in _table_rows(result)]
    return "\n".join(lines) + "\n"


def _table_rows(result: dict[str, Any]) -> list[str]:
    metric = result.get("metric", "accuracy")
    published, metrics = result.get("published", {}), result.get("metrics", {})
    remarks = "; ".join([*result.get("settings", []), *filter(None, [result.get("notes", "")])])
    start = f"| {result.get('chapter') or ''} | {{}} | `{result['recipe']}` | {{}} | {{}} | {{}} |"
    machine = result.get("machine", {}).get("device", "")
    if result.get("status") != "done":
        # The first line of the error; the whole of it is in the JSON.
        why = f"failed: {result.get('error', 'unknown').splitlines()[0]}".replace("|", "\\|")
        line = start.format(result.get("title", ""), metric, published.get(metric, ""), "failed")
        return [f"{line} | | | | {machine} | {'; '.join(filter(None, [why, remarks]))} |"]
    rows = []
    spread = result.get("deviation", {})
    for test, values in metrics.items():
        title = result.get("title", "") if test == "test" else f"… {test}"
        key = metric if test == "test" else f"{metric} {test}"
        ours = _shown(metric, values[metric])
        if spread:  # over folds, the mean of which is compared with a published mean over folds
            ours += f" ± {_shown(metric, spread[test][metric])}"
            key = f"{metric} cross-validation" if test == "test" else key
        line = start.format(title, metric, published.get(key, ""), ours)
        if test == "test":
            time = _time(result["seconds"])
            sizes = f"{result['parameters']:,} | {result['epochs']} | {result.get('seed', '')}"
            line += f" {sizes} | {time} | {machine} | {remarks} |"
        else:
            line += " | | | | | |"
        rows.append(line)
    return rows


def _shown(metric: str, value: float | None) -> str:
    if value is None:
        return "not known"
    return (
        f"{100 * value:.2f}"
        if metric in ("accuracy", "iou", "part_iou", "part_iou_kinds", "auc", "map")
        else f"{value:.4g}"
    )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
