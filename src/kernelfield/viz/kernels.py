"""Figures of kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    slice is shown.

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
    figure = Figure(figsize=(2.6 * channels, 1.7 * len(layers)), layout="constrained")
    grid = figure.subplots(len(layers), channels, squeeze=False)
    for row, (name, layer) in zip(grid, layers, strict=True):
        fine = layer.kernel(step, measured=False).flatten(0, 1).cpu()
        for i, axes in enumerate(row):
            axes.set_axis_off()
            if i >= len(fine):
                continue
            if layer.dim == 1:
                _draw_line(axes, fine[i], step, layer.causal)
            else:
                image = fine[i] if layer.dim == 2 else fine[i, fine.shape[1] // 2]
                most = image.abs().max()
                axes.imshow(image.numpy(), cmap="RdBu_r", vmin=-most, vmax=most)
        row[0].set_title(name, fontsize=8, loc="left")
    save_figure(figure, path, dpi=120)


def _draw_line(axes, values: torch.Tensor, step: float, causal: bool) -> None:  # type: ignore[no-untyped-def]
    count = len(values)
    offsets = (torch.arange(count) - (0 if causal else count // 2)) * step
    axes.axhline(0, color="0.85", linewidth=0.8)
    axes.plot(offsets, values, linewidth=1.2, color="C0")
    on_grid = (offsets % 1) == 0
    axes.plot(offsets[on_grid], values[on_grid], ".", markersize=2.5, color="C1")
