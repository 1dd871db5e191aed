"""Scalograms: responses of a lifting layer over time and scale (chapter 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .._arguments import checked
from .._object_kinds import Instance, MappingOf, TensorOf
from .figures import save_figure

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from ..layers.group import LiftingConv

__all__ = ["plot_scalograms"]


@torch.no_grad()
@checked(lifts=MappingOf(Instance("kernelfield.layers.LiftingConv")), signal=TensorOf("float", "in_channels, time"))
def plot_scalograms(lifts: dict[str, LiftingConv], signal: Tensor, path: str | Path, *, channels: int = 3) -> None:
    """Plot a signal and its scalogram for each layer, and save the figure.

    Args:
        lifts: layers by label, such as "before" and "after" training.
        signal: (in_channels, time) signal.
        path: file to write; its suffix sets the format.
        channels: number of wavelets to plot, those with the largest response in the last layer.
    """
    if not lifts:
        raise ValueError("lifts must hold at least one layer, got none")
    for name, lift in lifts.items():
        wanted = next(lift.parameters())
        if len(signal) != lift.in_channels or signal.dtype != wanted.dtype or signal.device != wanted.device:
            what = f"{lift.in_channels} channels of {wanted.dtype} on {wanted.device}, like layer {name!r}"
            got = f"{len(signal)} of {signal.dtype} on {signal.device}"
            raise ValueError(f"signal must have {what}, got {got}")
    from matplotlib.figure import Figure  # noqa: PLC0415

    found = {name: lift.as_wavelet_transform().scalogram(signal[None])[0] for name, lift in lifts.items()}
    last = next(reversed(found.values()))
    shown = last.sum(dim=(1, 2)).topk(min(channels, len(last))).indices.sort().values
    figure = Figure(figsize=(2.6 * len(shown) + 0.4, 1.3 + 1.5 * len(found)), layout="constrained")
    grid = figure.subplots(1 + len(found), len(shown), sharex=True, squeeze=False)
    for column, channel in enumerate(shown.tolist()):
        grid[0, column].plot(signal[0].cpu(), color="C0", linewidth=0.6)
        grid[0, column].set_title(f"wavelet {channel}", fontsize=8)
        grid[0, column].set_yticks([])
        for row, (name, values) in enumerate(found.items(), start=1):
            axes = grid[row, column]
            axes.imshow(values[channel].sqrt().cpu().numpy(), aspect="auto", origin="lower", interpolation="nearest")
            axes.set_yticks([])
            if column == 0:
                axes.set_ylabel(f"{name}\nscale →", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("time", fontsize=8)
        axes.tick_params(labelsize=6)
    save_figure(figure, path, dpi=120)
