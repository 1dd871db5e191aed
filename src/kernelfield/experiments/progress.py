"""A progress bar in a terminal, and the lines printed at the end."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .loop import Progress

__all__ = ["progress_bar", "summary"]


@contextmanager
def progress_bar(title: str, *, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Yield a callback for ``on_progress`` of :func:`~.fitting.fit`.

    In a terminal it draws a bar with loss, metrics, throughput and remaining time; elsewhere it shows nothing, since
    the log of the run has it all.

    Args:
        title: in front of the bar.
        quiet: show nothing in a terminal, too.
    """
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    console = Console(file=sys.stderr)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Bars(*columns, console=console) as bars:
        bar = bars.add_task(title, total=None, shown="", left="")
        metrics: dict[str, float] = {}

        def update(now: Progress) -> None:
            metrics.update(now.metrics)
            known = " ".join(f"val {k} {v:.3f}" for k, v in metrics.items() if k != "loss")
            shown = f"loss {now.loss:.3f} {known} {now.rate:,.0f} samples/s"
            left = f"{_clock(now.seconds_left)} left"
            bars.update(bar, completed=now.step, total=now.steps, shown=shown, left=left)

        yield update


def summary(result: dict[str, Any]) -> list[str]:
    r"""Return the lines to print of a finished run: one per test, then its size and time.

    >>> found = {"metric": "accuracy", "metrics": {"test": {"accuracy": 0.97}, "step 2.0": {"accuracy": 0.95}},
    ...          "parameters": 9263, "epochs": 15, "seconds": 61.2}
    >>> print("\n".join(summary(found)))
    test accuracy                          97.0%
    same weights, every second sample      95.0%
    parameters 9,263, trained 15 epochs in 61 s
    """
    metric = result["metric"]
    lines = []
    for name, values in result["metrics"].items():
        value = values[metric]
        shown = f"{value:.1%}" if metric in ("accuracy", "iou") else f"{value:.4g}"
        lines.append(f"{_label(name, metric):<38} {shown}")
    if result.get("synthetic"):
        lines.append("synthetic data: noise of the right shape, so these numbers mean nothing")
    lines.append(f"parameters {result['parameters']:,}, trained {result['epochs']} epochs in {result['seconds']:.0f} s")
    return lines


def _label(name: str, metric: str) -> str:
    kind, _, value = name.partition(" ")
    if name == "test":
        return f"test {metric}"
    if name == "step 2.0":
        return "same weights, every second sample"
    labels = {"step": "at {} times the step", "drop": "with a share of {} missing", "turn": "turned by {} degrees"}
    return labels[kind].format(f"{float(value):g}") if kind in labels and value else name


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
