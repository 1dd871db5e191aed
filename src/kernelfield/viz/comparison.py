"""A page that compares several runs: a table of scores and settings, and their curves."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from .._files import write_text
from .report import embedded_figure, page, section

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["write_comparison"]


#: metrics per epoch of each seed of a run
Curves = list[list[dict[str, float]]]


def write_comparison(
    path: Path, title: str, rows: Sequence[Sequence[str]], curves: dict[str, Curves], metrics: Sequence[str]
) -> Path:
    """Write a self-contained HTML page and return its path.

    Args:
        path: file to write; its folder must exist.
        title: heading of the page.
        rows: cells of the table; the first row is the header.
        curves: metrics per epoch by name of the run.
        metrics: metrics whose validation scores to plot.
    """
    head, *body = rows
    lines = ["".join(f"<th>{html.escape(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in body]
    table = "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
    parts = [f"<h1>{html.escape(title)}</h1>\n", section("Runs", table)]
    names = [name for name in ("train_loss", *(f"val_{metric}" for metric in metrics)) if _is_drawn(name, curves)]
    if names:
        parts.append(section("Curves", embedded_figure(lambda figure: _draw(figure, names, curves))))
    return write_text(path, page(title, parts))


def _is_drawn(name: str, curves: dict[str, Curves]) -> bool:
    return any(name in row for seeds in curves.values() for curve in seeds for row in curve)


def _draw(figure: Any, names: list[str], curves: dict[str, Curves]) -> None:
    """Plot each quantity against the epoch; seeds of one run share a colour."""
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for number, (run, seeds) in enumerate(curves.items()):
            for index, curve in enumerate(seeds):
                pairs = [(row["epoch"], row[name]) for row in curve if name in row]
                if pairs:
                    label = run if index == 0 else None
                    axes.plot(*zip(*pairs, strict=True), label=label, color=f"C{number % 10}", alpha=0.8)
        if name == "train_loss":
            axes.set_yscale("log")
        axes.set_title(name.replace("_", " "))
        axes.set_xlabel("epoch")
        axes.legend(frameon=False, fontsize=8)
        axes.grid(alpha=0.3)
