"""Comparison of results with published numbers: lines for one row, a table for a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._arguments import checked
from ..viz.report import PERCENT
from .progress import summary
from .run_files import read_json

__all__ = ["compare", "duration", "result_lines", "results_table", "shown"]

COLUMNS = (
    *("chapter", "experiment", "recipe", "metric", "published", "ours"),
    *("size", "epochs", "seed", "time", "machine", "remarks"),
)


@checked()
def compare(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the published number, ours and the difference for each test of a finished result, in the published unit.

    Args:
        result: result of :func:`~.reproduce.reproduce`.

    >>> found = {"metric": "accuracy", "metrics": {"test": {"accuracy": 0.9055}}, "published": {"accuracy": 90.3}}
    >>> compare(found)
    [{'test': 'test', 'metric': 'accuracy', 'published': 90.3, 'ours': 90.55, 'difference': 0.25}]
    """
    metric, published = result.get("metric", "accuracy"), result.get("published", {})
    rows = []
    for test, values in result.get("metrics", {}).items():
        key = metric if test == "test" else f"{metric} {test}"
        if result.get("deviation") and test == "test":
            # A mean over folds is compared with the published mean over folds, if there is one.
            key = f"{metric} cross-validation" if "folds" in result else key
        theirs, ours = published.get(key), values.get(metric)
        if ours is not None and metric in PERCENT:
            ours = 100 * ours
        known = theirs is not None and ours is not None
        rows.append(
            {
                "test": test,
                "metric": metric,
                "published": theirs,
                "ours": None if ours is None else round(ours, 6),
                "difference": round(ours - theirs, 6) if known else None,
            }
        )
    return rows


@checked()
def result_lines(result: dict[str, Any]) -> list[str]:
    r"""Return the lines to print for a reproduced row: published, ours, the difference, and the cost of the training.

    >>> found = {"status": "done", "metric": "accuracy", "metrics": {"test": {"accuracy": 0.9055}},
    ...          "published": {"accuracy": 90.3}, "parameters": 9263, "epochs": 15, "seconds": 61.2}
    >>> print("\n".join(result_lines(found)))
    test accuracy: published 90.3, ours 90.55, difference +0.25
    parameters 9,263, trained 15 epochs in 61 s
    """
    if result["status"] != "done":
        lines = [f"{result['status']}: {result.get('error', '')}"]
        lines += [f"published {key} {value:g}" for key, value in result.get("published", {}).items()]
    else:
        lines = []
        for row in compare(result):
            theirs, ours = (f"{row[key]:.4g}" if row[key] is not None else "none" for key in ("published", "ours"))
            difference = "" if row["difference"] is None else f", difference {row['difference']:+.4g}"
            lines.append(f"{row['test']} {row['metric']}: published {theirs}, ours {ours}{difference}")
        lines += summary(result)[len(result["metrics"]) :]
    if "kept" in result:
        lines.append(f"{result['kept']} is kept, because it holds a finished result")
    if "former" in result:
        lines.append(f"the previous result is now {result['former']}")
    return lines


@checked()
def results_table(folder: str | Path) -> str:
    """Return the results and failures in a folder as a Markdown table: published, ours, epochs, seed, time, machine.

    Args:
        folder: folder of the JSON files that :func:`reproduce` writes.
    """
    found = [read_json(path) for path in sorted(Path(folder).glob("*.json"))]
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
        # The first line of the error; the JSON file has all of it.
        why = f"failed: {result.get('error', 'unknown').splitlines()[0]}".replace("|", "\\|")
        line = start.format(result.get("title", ""), metric, published.get(metric, ""), "failed")
        return [f"{line} | | | | {machine} | {'; '.join(filter(None, [why, remarks]))} |"]
    rows = []
    spread = result.get("deviation", {})
    for row in compare(result):
        test = row["test"]
        title = result.get("title", "") if test == "test" else f"… {test}"
        ours = shown(metric, metrics[test][metric])
        if spread:
            ours += f" ± {shown(metric, spread[test][metric])}"
        line = start.format(title, metric, "" if row["published"] is None else row["published"], ours)
        if test == "test":
            time = duration(result["seconds"])
            sizes = f"{result['parameters']:,} | {result['epochs']} | {result.get('seed', '')}"
            line += f" {sizes} | {time} | {machine} | {remarks} |"
        else:
            line += " | | | | | |"
        rows.append(line)
    return rows


def shown(metric: str, value: float | None) -> str:
    """Return a score as text: shares in percent, other metrics with four digits."""
    if value is None:
        return "unknown"
    return f"{100 * value:.2f}" if metric in PERCENT else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return a duration as text, in seconds, minutes or hours.

    >>> [duration(seconds) for seconds in (61.2, 600, 9000)]
    ['61 s', '10 min', '2.5 h']
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
