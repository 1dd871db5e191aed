"""Figures of learned subsets of a group, and of predictions for rotated inputs (chapter 11)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked
from .._kinds import Int
from .._object_kinds import TensorOf
from ..groups import SO2, Bernoulli, Distribution, Independent, Interval, warp
from .figures import save_figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor, nn

__all__ = [
    "draw_subset_history",
    "plot_prediction_under_rotation",
    "plot_subset_history",
    "plot_subsets",
    "predictions_under_rotation",
    "subset_history",
]


@checked()
def plot_subsets(model: nn.Module, path: str | Path) -> None:
    """Plot the learned distribution p(u) of every layer on the circle and save the figure.

    The identity points up. An interval of rotations is a wedge around it. Discrete elements are bars with their
    probability as height. The probability of reflections is written below.

    Args:
        model: a module with learned distributions.
        path: file to write; its suffix sets the format.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    found = [m for m in model.modules() if isinstance(m, (Interval, Bernoulli, Independent))]
    inside = {id(part) for m in found if isinstance(m, Independent) for part in m.parts}
    layers = [m for m in found if id(m) not in inside]
    if not layers:
        raise ValueError(f"model must contain a learned distribution, got {type(model).__name__} with none")
    figure = Figure(figsize=(1.9 * len(layers), 2.3), layout="constrained")
    grid = figure.subplots(1, len(layers), subplot_kw={"projection": "polar"}, squeeze=False)[0]
    for i, (axes, distribution) in enumerate(zip(grid, layers, strict=True), start=1):
        axes.set_theta_zero_location("N")
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        axes.set_xticks([0, math.pi / 2, math.pi, 3 * math.pi / 2], ["0°", "90°", "180°", "270°"], fontsize=6)
        _draw(axes, distribution)
        axes.set_title(f"layer {i}", fontsize=8)
    save_figure(figure, path, dpi=120)


def subset_history(history: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Return the columns of a run's ``masks.csv`` that belong to learned subsets of a group.

    >>> subset_history([{"epoch": 1.0, "blocks.0.mask": 0.1, "last.distribution": 0.5}])
    [{'epoch': 1.0, 'last.distribution': 0.5}]
    """
    kept = [{n: v for n, v in row.items() if n == "epoch" or "distribution" in n.split(".")} for row in history]
    return kept if any(len(row) > 1 for row in kept) else []


def plot_subset_history(history: Sequence[dict[str, float]], path: str | Path) -> None:
    """Plot the learned subset of every layer over training and save the figure (chapter 11).

    There is one panel per layer. For an interval of rotations the line shows its share of the circle, for a discrete
    element the probability of keeping it.

    Args:
        history: rows of a run's ``masks.csv``, with a column "epoch".
        path: file to write; its suffix sets the format.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    layers = _layers_of(subset_history(history))
    if not layers:
        raise ValueError("history must have columns of learned distributions, got none")
    figure = Figure(figsize=(1.9 * len(layers), 2.2), layout="constrained")
    draw_subset_history(figure, history)
    save_figure(figure, path, dpi=120)


def draw_subset_history(figure: Any, history: Sequence[dict[str, float]]) -> None:
    """Draw :func:`plot_subset_history` into a figure."""
    rows = subset_history(history)
    layers = _layers_of(rows)
    epochs = [row["epoch"] for row in rows]
    grid = figure.subplots(1, len(layers), squeeze=False, sharey=True)[0]
    for axes, (layer, names) in zip(grid, layers.items(), strict=True):
        for name in names:
            last = name.rpartition(".")[2]
            label = f"element {last}" if last.isdigit() and "parts" not in name.split(".")[-2:-1] else "rotations"
            axes.plot(epochs, [row.get(name, float("nan")) for row in rows], label=label)
        axes.set_title(layer, fontsize=7)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("epoch", fontsize=7)
        axes.grid(alpha=0.3)
        if len(names) > 1:
            axes.legend(frameon=False, fontsize=5)


def _layers_of(rows: Sequence[dict[str, float]]) -> dict[str, list[str]]:
    """Return the columns of each layer, by its name."""
    layers: dict[str, list[str]] = {}
    for name in dict.fromkeys(n for row in rows for n in row if n != "epoch"):
        layers.setdefault(name.split("distribution")[0].rstrip(".") or "input", []).append(name)
    return layers


@torch.no_grad()
@checked(image=TensorOf("float", "channels, rows, columns", empty=False))
def predictions_under_rotation(model: nn.Module, image: Tensor, *, turns: int = 72) -> tuple[Tensor, Tensor]:
    """Return class probabilities of an image rotated by ``turns`` angles around the circle.

    Args:
        model: a classifier of images, run in evaluation mode.
        image: (channels, rows, columns) image.
        turns: number of angles.

    Returns:
        (turns,) angles in radians and (turns, classes) probabilities.
    """
    angles = torch.arange(turns, dtype=image.dtype, device=image.device) * (2 * math.pi / turns)
    training = model.training
    model.eval()
    try:
        probabilities = model(warp(image, SO2().matrix(angles[:, None]))).softmax(dim=-1)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"image must fit the model, got shape {tuple(image.shape)}: {error}") from error
    finally:
        model.train(training)
    return angles, probabilities


@checked(image=TensorOf("float", "channels, rows, columns", empty=False), label=Int(0))
def plot_prediction_under_rotation(
    model: nn.Module, image: Tensor, path: str | Path, *, label: int = 0, turns: int = 72
) -> None:
    """Plot the probability of ``label`` for the image rotated around the circle, and save the figure.

    Args:
        model: a classifier of images.
        image: (channels, rows, columns) image.
        path: file to write; its suffix sets the format.
        label: class whose probability to plot.
        turns: number of angles.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    angles, probabilities = predictions_under_rotation(model, image, turns=turns)
    if label >= probabilities.shape[1]:
        raise ValueError(f"label must be one of the {probabilities.shape[1]} classes of the model, got {label}")
    around = torch.cat([angles, angles[:1]]).cpu()
    values = torch.cat([probabilities[:, label], probabilities[:1, label]]).cpu()
    figure = Figure(figsize=(3.2, 3.2), layout="constrained")
    axes: Any = figure.add_subplot(projection="polar")
    axes.set_theta_zero_location("N")
    axes.set_ylim(0, 1)
    axes.plot(around.tolist(), values.tolist(), color="C0")
    axes.fill(around.tolist(), values.tolist(), color="C0", alpha=0.25)
    axes.set_title(f"probability of class {label} as the input rotates", fontsize=8)
    save_figure(figure, path, dpi=120)


def _draw(axes: Any, distribution: Distribution) -> None:
    if isinstance(distribution, Independent):
        for part in distribution.parts:
            if isinstance(part, Distribution):
                _draw(axes, part)
        return
    if isinstance(distribution, Interval):
        half = math.pi * float(distribution.limits().detach())
        axes.bar(0, 1, width=2 * half, color="C0", alpha=0.5)
        return
    if isinstance(distribution, Bernoulli):
        probabilities = distribution.probabilities().detach().cpu()
        if distribution.group.order == 2:
            axes.set_xlabel(f"mirror {probabilities[1]:.0%}", fontsize=7)
            return
        angles = distribution.group.log(distribution.group.elements()).squeeze(-1)
        axes.bar(angles.tolist(), probabilities.tolist(), width=math.pi / len(angles), color="C0", alpha=0.5)
