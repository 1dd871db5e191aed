"""Figures of kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..layers import ContinuousConv
from .figures import save_figure

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

__all__ = ["plot_kernels"]


@torch.no_grad()
def plot_kernels(model: nn.Module, path: str | Path, *, step: float = 0.25, channels: int = 4) -> None:
    """Plot the first kernels of every continuous layer and save the figure.

    1D kernels are curves, with dots at the points of the training grid. 2D kernels are images. Of 3D kernels the middle
    slice is shown. Axes count training steps from the kernel's centre.

    Args:
        model: any module.
        path: file to write; its suffix sets the format.
        step: sampling step of the curves and images, in training steps.
        channels: number of kernels per layer.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, ContinuousConv)]
    if not layers:
        raise ValueError(f"model must contain a continuous convolution, got {type(model).__name__} with none")
    figure = Figure(figsize=(2.6 * channels, 2.0 * len(layers)), layout="constrained")
    grid = figure.subplots(len(layers), channels, squeeze=False)
    for row, (name, layer) in zip(grid, layers, strict=True):
        fine = layer.kernel(step, measured=False).flatten(0, 1).cpu()
        for i, axes in enumerate(row):
            if i >= len(fine):
                axes.set_axis_off()
                continue
            axes.tick_params(labelsize=6)
            if layer.dim == 1:
                _draw_line(axes, fine[i], step, layer.causal)
            else:
                image = fine[i] if layer.dim == 2 else fine[i, fine.shape[1] // 2]
                _draw_image(axes, image, step)
        row[0].set_title(name, fontsize=8, loc="left")
    for axes in grid[-1]:
        axes.set_xlabel("offset in training steps", fontsize=6)
    save_figure(figure, path, dpi=120)


def _draw_line(axes: Any, values: torch.Tensor, step: float, causal: bool) -> None:
    count = len(values)
    offsets = (torch.arange(count) - (0 if causal else count // 2)) * step
    axes.axhline(0, color="0.85", linewidth=0.8)
    axes.plot(offsets, values, linewidth=1.2, color="C0")
    on_grid = (offsets % 1) == 0
    axes.plot(offsets[on_grid], values[on_grid], ".", markersize=2.5, color="C1")
    axes.locator_params(nbins=4)


def _draw_image(axes: Any, image: torch.Tensor, step: float) -> None:
    most = float(image.abs().max()) or 1.0
    rows, columns = ((n // 2 + 0.5) * step for n in image.shape)
    extent = (-columns, columns, rows, -rows)
    picture = axes.imshow(image.numpy(), cmap="RdBu_r", vmin=-most, vmax=most, extent=extent)
    axes.figure.colorbar(picture, ax=axes, shrink=0.8).ax.tick_params(labelsize=5)
