"""A page about one training with several seeds: mean and standard deviation, each seed, and their curves."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from .._arguments import checked
from .._files import write_text
from .._kinds import ANY
from .report import embedded_figure, heading, number_table, page, section, shown_score

__all__ = ["write_seeds_report"]


@checked(rows=ANY)
def write_seeds_report(folder: str | Path, result: dict[str, Any], rows: dict[int, list[dict[str, float]]]) -> Path:
    """Write ``report.html`` and return its path.

    Args:
        folder: folder that holds one folder ``seed-N`` per seed.
        result: result of :func:`~kernelfield.experiments.combine.combine_results`.
        rows: metrics per epoch of each seed.
    """
    folder = Path(folder)
    metric = result["metric"]
    parts = [heading(result), number_table(result), section("Seeds", _seed_table(folder, result, metric))]
    if any(rows.values()):
        parts.append(section("Curves", embedded_figure(lambda figure: _curves(figure, rows, metric))))
    return write_text(folder / "report.html", page(str(result.get("recipe", "run")), parts))


def _seed_table(folder: Path, result: dict[str, Any], metric: str) -> str:
    tests = list(result["metrics"])
    lines = ["".join(f"<th>{html.escape(name)}</th>" for name in ("seed", *tests, "last epoch"))]
    for seed, one in result["seeds"].items():
        report = f"seed-{seed}/report.html"
        name = f'<a href="{report}">{seed}</a>' if (folder / report).exists() else seed
        values = [one["metrics"][test][metric] for test in tests] + [one["last"]["test"][metric]]
        lines.append(f"<td>{name}</td>" + "".join(f"<td>{shown_score(metric, value)}</td>" for value in values))
    spread = result["deviation"]
    cells = [
        f"{shown_score(metric, result['metrics'][t][metric])} ± {shown_score(metric, spread[t][metric])}" for t in tests
    ]
    cells.append(shown_score(metric, result["last"]["test"][metric]))
    lines.append("<th>mean</th>" + "".join(f"<th>{cell}</th>" for cell in cells))
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _curves(figure: Any, rows: dict[int, list[dict[str, float]]], metric: str) -> None:
    names = [n for n in ("train_loss", f"val_{metric}") if any(n in row for each in rows.values() for row in each)]
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for seed, each in rows.items():
            pairs = [(row["epoch"], row[name]) for row in each if name in row]
            if pairs:
                axes.plot(*zip(*pairs, strict=True), label=f"seed {seed}")
        axes.set_title(name.replace("_", " "))
        axes.set_xlabel("epoch")
        axes.legend(frameon=False)
        axes.grid(alpha=0.3)
