"""Figures of learned architectures (chapter 6)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .._arguments import checked
from .._container_kinds import DICT
from .._kinds import ListOf
from .figures import save_figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["draw_history", "plot_history"]

#: panels: the quantity of each block, and the title
PANELS = {"kernel": "points of the kernels", "resolution": "resolution", "width": "channels"}


@checked(history=ListOf(DICT))
def plot_history(history: Sequence[dict[str, float]], path: str | Path) -> None:
    """Plot how an architecture changed during training and save the figure.

    Args:
        history: rows as :meth:`kernelfield.DNArch.record` makes them, or as a run's ``masks.csv`` holds them; the first
            column, such as "step" or "epoch", is the horizontal axis.
        path: file to write; its suffix sets the format.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(13, 3), layout="constrained")
    draw_history(figure, history)
    save_figure(figure, path, dpi=110)


def draw_history(figure: Any, history: Sequence[dict[str, float]]) -> None:
    """Plot kernel sizes, resolutions and widths of every block, and the depth and complexity of the network.

    Each block has a colour. Line styles tell spatial axes, and the three widths of a block, apart. Blocks are drawn
    only while they are in use.
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
    last.plot(times, [row["complexity"] for row in history], color="C3", label="complexity, relative")
    last.plot(times, [row["depth"] for row in history], drawstyle="steps-post", color="0.5", label="blocks")
    last.set(title="depth and complexity", xlabel=label, ylim=(0, None))
    last.legend(frameon=False, fontsize=7)
    last.grid(alpha=0.3)
