"""The figure of an efficiency card, with one panel per axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .figures import save_figure

if TYPE_CHECKING:
    import os

__all__ = ["plot_card"]


def plot_card(card: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Plot the parameters, time, accuracy by share of the data, and learned sizes of a card.

    Args:
        card: result of ``kernelfield.experiments.card.measure_card``.
        path: file to write.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(11, 2.8), layout="constrained")
    parameters, compute, data, design = figure.subplots(1, 4)
    kinds = {name: card["parameters"][name] for name in ("kernels", "masks", "symmetry", "other")}
    shown = {name: count for name, count in kinds.items() if count}
    parameters.bar(list(shown), list(shown.values()), color="C0")
    parameters.set_title(f"{card['parameters']['total']:,} parameters")
    times = {"one": card["compute"]["single"]["seconds"], "in a batch": card["compute"]["batch"]["seconds"]}
    compute.bar(list(times), [1e3 * seconds for seconds in times.values()], color="C1")
    compute.set_title("milliseconds per sample")
    data.plot([100 * p["share"] for p in card["data"]], [p["score"] for p in card["data"]], "o-", color="C2")
    data.set_xscale("log")
    data.set_title(card["metric"])
    data.set_xlabel("% of the training data")
    learned = card["design"]["learned"]
    for number, (name, (before, after)) in enumerate(list(learned.items())[:10]):
        design.plot([before, after], [number, number], "o-", color="C3")
        design.annotate(name, (after, number), fontsize=6, xytext=(4, 0), textcoords="offset points", va="center")
    design.set_yticks([])
    design.set_title("learned sizes" if learned else "no learned sizes")
    save_figure(figure, path)
