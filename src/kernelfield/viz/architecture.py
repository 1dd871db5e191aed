"""Figures of learned architectures (chapter 6)."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._arguments import checked
from .._kinds import ListOf
from .._object_kinds import DICT
from .figures import save_figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["architecture_table", "draw_history", "plot_history", "read_last_row"]

#: panels by quantity of a block, with their titles
PANELS = {"kernel": "points of the kernels", "resolution": "resolution", "width": "channels"}


@checked(rows=DICT)
def architecture_table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Return a Markdown table of learned architectures, one line per network and block.

    Chapter 6, tables "Found architectures".

    Args:
        rows: last row of each history, by name of the network; see :func:`plot_history` and :func:`read_last_row`.

    >>> row = {"complexity": 1.02, "depth": 1.0, "block1.kernel.0": 9.0, "block1.kernel.1": 7.0}
    >>> row |= {"block1.resolution.0": 16.0, "block1.resolution.1": 12.0}
    >>> row |= {f"block1.width.{part}": 8.0 for part in ("read", "middle", "written")}
    >>> print(architecture_table({"CIFAR10": row}).splitlines()[-1])
    | CIFAR10 | 1.02 | 1 of 1 | 9×7 | 16×12 | 8, 8, 8 |
    """
    lines = ["| network | complexity | block | kernel | resolution | widths |", "|---|---:|---|---|---|---|"]
    for name, row in rows.items():
        depth = round(row["depth"])
        for block in range(1, depth + 1):
            sizes = {kind: _sizes(row, f"block{block}.{kind}") for kind in ("kernel", "resolution", "width")}
            kernel, resolution = ("×".join(sizes[kind]) for kind in ("kernel", "resolution"))
            first = f"| {name} | {row['complexity']:.2f} " if block == 1 else "| | "
            lines.append(f"{first}| {block} of {depth} | {kernel} | {resolution} | {', '.join(sizes['width'])} |")
    return "\n".join(lines)


def _sizes(row: Mapping[str, float], prefix: str) -> list[str]:
    return [str(round(value)) for name, value in row.items() if name.startswith(f"{prefix}.")]


@checked()
def read_last_row(path: str | Path) -> dict[str, float]:
    """Return the last row of a run's ``masks.csv``, for :func:`architecture_table`, without empty cells."""
    rows = list(csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines()))
    if not rows or "depth" not in rows[-1]:
        raise ValueError(
            f"{path} must hold the sizes of a learned architecture, with a column 'depth', found no such column"
        )
    return {name: float(value) for name, value in rows[-1].items() if value not in ("", None)}


@checked(history=ListOf(DICT))
def plot_history(history: Sequence[dict[str, float]], path: str | Path) -> None:
    """Plot the changes of an architecture during training and save the figure.

    Args:
        history: rows of :meth:`kernelfield.DNArch.record` or of a run's ``masks.csv``; the first column, such as "step"
            or "epoch", is the horizontal axis.
        path: file to write; its suffix sets the format.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(13, 3), layout="constrained")
    draw_history(figure, history)
    save_figure(figure, path, dpi=110)


def draw_history(figure: Any, history: Sequence[dict[str, float]]) -> None:
    """Plot kernel sizes, resolutions and widths of every block, and the depth and complexity of the network.

    Each block has a colour. Line styles distinguish spatial axes and the three widths of a block. Blocks are drawn only
    while they are in use.
    """
    if not history:
        raise ValueError("history must have rows, got none")
    label = next(iter(history[0]))
    times = [row[label] for row in history]
    names = list(dict.fromkeys(name for row in history for name in row))
    *panels, last = figure.subplots(1, 4)
    for axes, (kind, title) in zip(panels, PANELS.items(), strict=True):
        for name in names:
            found = re.fullmatch(rf"block(\d+)\.{kind}\.(\w+)", name)
            if found is None:
                continue
            block, part = int(found[1]), found[2]
            style = {"0": "-", "1": "--", "2": ":", "read": "-", "middle": "--", "written": ":"}[part]
            values = [row.get(name, float("nan")) for row in history]
            shown = f"block {block}" if style == "-" else None
            axes.plot(times, values, style, color=f"C{(block - 1) % 10}", linewidth=1.2, label=shown)
        axes.set(title=title, xlabel=label, ylim=(0, None))
        axes.grid(alpha=0.3)
    panels[0].legend(frameon=False, fontsize=7, ncols=2)
    last.plot(times, [row["complexity"] for row in history], color="C3", label="relative complexity")
    last.plot(times, [row["depth"] for row in history], drawstyle="steps-post", color="0.5", label="blocks")
    last.set(title="depth and complexity", xlabel=label, ylim=(0, None))
    last.legend(frameon=False, fontsize=7)
    last.grid(alpha=0.3)
