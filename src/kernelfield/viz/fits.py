"""Figures of fields fitted to known functions (chapters 2 and 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked
from .._kinds import PATH, POSITIVE, SEED, Int
from .._object_kinds import DICT, MappingOf, TensorOf
from ..fields import fit_field
from .figures import save_figure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from ..fields import Field

__all__ = ["plot_bandwidth", "plot_curve_fits", "targets_of_chapter_2"]


@checked(errors=MappingOf(), path=PATH, kernels=MappingOf() | None)
def plot_bandwidth(
    errors: Mapping[str, Mapping[float, float]],
    path: str | Path,
    *,
    kernels: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> None:
    """Plot the errors of fields fitted to Gabor filters by frequency, and the fitted images; save the figure.

    Chapter 5, figure "Final MSE after fitting each model to Gabor filters of different frequencies".

    Args:
        errors: mean squared error by field and by frequency.
        path: file to write; its suffix sets the format.
        kernels: (rows, columns) images by field and by target, to plot next to the errors; "target" may be one of the
            fields.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    if not errors:
        raise ValueError("errors must hold at least one field, got none")
    kernels = kernels or {}
    figure = Figure(figsize=(4.5 + 1.2 * max((len(k) for k in kernels.values()), default=0), 4), layout="constrained")
    left: Any = figure
    if kernels:
        halves: Any = figure.subfigures(1, 2, width_ratios=(4.5, 1.2 * max(len(k) for k in kernels.values())))
        left, right = halves
        names = list(dict.fromkeys(target for images in kernels.values() for target in images))
        grid = right.subplots(len(kernels), len(names), squeeze=False)
        for row, (field, images) in zip(grid, kernels.items(), strict=True):
            for axes, name in zip(row, names, strict=True):
                axes.set(xticks=[], yticks=[])
                if name in images:
                    axes.imshow(images[name].detach().cpu().numpy(), cmap="gray")
            row[0].set_ylabel(field, fontsize=7)
        for axes, name in zip(grid[0], names, strict=True):
            axes.set_title(name, fontsize=7)
    axes = left.subplots()
    for field, values in errors.items():
        axes.loglog(list(values), list(values.values()), "o-", label=field)
    axes.set(xlabel="frequency of the Gabor filter, cycles per unit", ylabel="mean squared error")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=7)
    save_figure(figure, path)


@checked(points=Int(2), seed=SEED)
def targets_of_chapter_2(points: int = 100, seed: int = 0) -> dict[str, Tensor]:
    """Return a Gaussian, steps, sawtooths and noise, (points,) each, at positions from -1 to 1.

    Chapter 2, appendix "Kernel fitting": smooth, discontinuous, periodic and random functions.

    >>> {name: tuple(values.shape) for name, values in targets_of_chapter_2(50).items()}
    {'gaussian': (50,), 'steps': (50,), 'sawtooth': (50,), 'noise': (50,)}
    """
    t = torch.linspace(-1, 1, points)
    generator = torch.Generator().manual_seed(seed)
    return {
        "gaussian": torch.exp(-0.5 * (t / 0.2).square()),
        "steps": torch.where((2 * (t + 1)).floor() % 2 == 0, -1.0, 1.0),
        "sawtooth": 2 * ((1.5 * (t + 1)) % 1) - 1,
        "noise": torch.rand(points, generator=generator) * 2 - 1,
    }


@checked(fields=DICT, path=PATH, targets=MappingOf(TensorOf("float", "points")) | None, lr=POSITIVE, fine=Int(1))
def plot_curve_fits(
    fields: Mapping[str, Callable[..., Field]],
    path: str | Path,
    *,
    targets: Mapping[str, Tensor] | None = None,
    steps: int = 500,
    lr: float = 1e-3,
    fine: int = 8,
) -> dict[str, dict[str, float]]:
    """Fit fields to functions of one coordinate, plot both, and return the mean squared errors.

    Chapter 2, figure "Approximation quality of kernel networks": ReLU, leaky ReLU, Swish and sine networks.

    Args:
        fields: functions that make a field from ``(dim, channels)``, by name; one row each.
        path: file to write; its suffix sets the format.
        targets: (points,) values at positions from -1 to 1, by name; one column each. By default those of
            :func:`targets_of_chapter_2`.
        steps: steps of Adam for each fit.
        lr: learning rate.
        fine: number of positions to plot per fitted position, to show the field between them.

    Returns:
        The error of each field on each target.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    targets = targets_of_chapter_2() if targets is None else targets
    if not fields or not targets:
        raise ValueError(f"fields and targets must not be empty, got {len(fields)} and {len(targets)}")
    figure = Figure(figsize=(2.6 * len(targets), 1.8 * len(fields)), layout="constrained")
    grid = figure.subplots(len(fields), len(targets), squeeze=False, sharex=True)
    errors: dict[str, dict[str, float]] = {}
    for row, (name, make) in zip(grid, fields.items(), strict=True):
        errors[name] = {}
        for axes, (what, target) in zip(row, targets.items(), strict=True):
            field, t = make(1, 1), torch.linspace(-1, 1, len(target))
            fit_field(field, t[:, None], target[:, None], steps=steps, lr=lr)
            errors[name][what] = _draw_fit(axes, field, t, target, fine)
            axes.set_title(f"{what}, error {errors[name][what]:.1e}", fontsize=7)
        row[0].set_ylabel(name, fontsize=8)
    save_figure(figure, path)
    return errors


@torch.no_grad()
def _draw_fit(axes: Any, field: Field, t: Tensor, target: Tensor, fine: int) -> float:
    between = torch.linspace(-1, 1, fine * (len(t) - 1) + 1)
    axes.plot(t, target, ".", color="0.6", markersize=2)
    axes.plot(between, field(between[:, None])[:, 0], linewidth=1)
    axes.tick_params(labelsize=6)
    return float((field(t[:, None])[:, 0] - target).square().mean())
