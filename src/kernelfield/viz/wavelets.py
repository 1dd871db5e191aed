"""Figures of learned wavelets, their spectra, and the equivariance of a network to dilations (chapter 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._kinds import ANY, PATH, Int
from .._object_kinds import TensorOf
from ..layers.group import GroupConv, LiftingConv
from ..ops import resample
from .figures import save_figure
from .observe import observe_layers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["plot_scale_equivariance", "plot_wavelets", "scale_equivariance", "wavelets_of"]


@torch.no_grad()
def wavelets_of(lift: LiftingConv) -> list[Tensor]:
    """Return the kernels of a lifting convolution on dilations, (out_channels, in_channels, points) for each dilation.

    >>> from kernelfield.fields import BSpline
    >>> from kernelfield.groups import Scale
    >>> lift = LiftingConv(1, 4, group=Scale(3), field=BSpline, kernel_size=9)
    >>> [tuple(kernel.shape) for kernel in wavelets_of(lift)]
    [(4, 1, 11), (4, 1, 21), (4, 1, 43)]
    """
    if not lift.group.ordered or lift.group.order is None:
        raise ValueError(f"lift must be a convolution on a finite group of dilations, got one on {lift.group}")
    parameter = next(lift.kernel.parameters())
    elements = lift.group.elements(parameter.dtype, parameter.device)
    stretches = lift.group.stretches()
    return [
        lift.kernel.render(element[None], elements[:1], stretch)[:, :, 0]
        for element, stretch in zip(elements, stretches, strict=True)
    ]


@checked(lifts=ANY, channels=Int(1), path=PATH)
def plot_wavelets(lifts: Mapping[str, LiftingConv], path: str | Path, *, channels: int = 4) -> None:
    """Plot wavelets and their spectra at every dilation, such as before and after training, and save the figure.

    There are two columns per layer: the wavelets at dilation 1, and the magnitudes of their Fourier transforms, with
    one line per dilation.

    Args:
        lifts: lifting convolutions on dilations by label; only the first input channel is plotted.
        path: file to write; its suffix sets the format.
        channels: number of wavelets, those with the most energy in the last layer.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    if not lifts:
        raise ValueError("lifts must hold at least one layer, got none")
    found = {name: wavelets_of(lift) for name, lift in lifts.items()}
    last = next(reversed(found.values()))[0][:, 0]
    shown = last.square().sum(dim=1).topk(min(channels, len(last))).indices.sort().values.tolist()
    figure = Figure(figsize=(4.4 * len(found), 1.3 * len(shown) + 0.4), layout="constrained")
    grid = figure.subplots(len(shown), 2 * len(found), squeeze=False)
    for column, (name, kernels) in enumerate(found.items()):
        grid[0, 2 * column].set_title(f"{name}: wavelets", fontsize=8)
        grid[0, 2 * column + 1].set_title(f"{name}: spectra", fontsize=8)
        length = 2 * max(kernel.shape[-1] for kernel in kernels)
        for row, channel in enumerate(shown):
            first = kernels[0][channel, 0].cpu()
            half = (len(first) - 1) / 2
            grid[row, 2 * column].plot(torch.arange(len(first)) - half, first, color="C0", linewidth=0.9)
            grid[row, 2 * column].axhline(0, color="0.8", linewidth=0.6)
            for i, kernel in enumerate(kernels):
                spectrum = torch.fft.rfft(kernel[channel, 0].cpu(), length).abs()
                frequency = torch.arange(1, len(spectrum)) / length
                grid[row, 2 * column + 1].plot(frequency, spectrum[1:], linewidth=0.7, color=f"C{i % 10}")
            grid[row, 2 * column + 1].set_xscale("log")
            for axes in grid[row, 2 * column : 2 * column + 2]:
                axes.set_yticks([])
                axes.tick_params(labelsize=6)
        grid[-1, 2 * column].set_xlabel("samples", fontsize=7)
        grid[-1, 2 * column + 1].set_xlabel("cycles per sample", fontsize=7)
    save_figure(figure, path, dpi=120)


@torch.no_grad()
def scale_equivariance(model: nn.Module, signal: Tensor) -> dict[str, float]:
    r"""Return the equivariance error of each convolution of a network for a dilation by two.

    .. math:: \frac{\|\Phi[\mathcal{L}_2 f](2t, 2s) - \Phi[f](t, s)\|}{\|\Phi[f](t, s)\|}

    over the dilations that both outputs have, and over the middle half of time, which the zeros beyond the ends of the
    signal reach last. The signal is dilated by zero-padding its spectrum. The remaining error comes from sampled
    kernels and pooling.

    Args:
        model: a network on dilations by powers of two, run in evaluation mode.
        signal: (in_channels, time) signal.

    Returns:
        The relative error by layer name, in the order of the forward pass.
    """
    kinds = (LiftingConv, GroupConv)
    if not any(isinstance(m, kinds) and m.group.ordered for m in model.modules()):
        raise ValueError(f"model must have convolutions on dilations, got {type(model).__name__} with none")
    inputs = (signal[None], resample(signal[None], 2 * signal.shape[-1]))
    # layer(x) would call the hook again.
    found = [observe_layers(model, x, kinds, lambda layer, values: layer.forward(values)) for x in inputs]
    signals = [{name: s.values for name, s in each.items() if s.group.ordered} for each in found]
    errors = {}
    for name, once in signals[0].items():
        twice = signals[1][name]
        common = min(once.shape[2], twice.shape[2]) - 1
        if common < 1 or once.shape[3] < 4:
            continue  # there is nothing to compare with a single dilation or time step
        time = once.shape[3]
        a, b = once[:, :, :common], twice[:, :, 1 : common + 1, : 2 * time : 2]
        middle = slice(time // 4, time - time // 4)
        errors[name] = float((a - b)[..., middle].norm() / a[..., middle].norm().clamp(min=1e-12))
    return errors


@checked(models=ANY, signal=TensorOf("float", "channels, time", empty=False), path=PATH)
def plot_scale_equivariance(models: Mapping[str, nn.Module], signal: Tensor, path: str | Path) -> None:
    """Plot the error of :func:`scale_equivariance` layer by layer, with one line per network, and save the figure.

    Args:
        models: networks on dilations by label.
        signal: (in_channels, time) signal.
        path: file to write; its suffix sets the format.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    if not models:
        raise ValueError("models must hold at least one network, got none")
    figure = Figure(figsize=(4.2, 2.6), layout="constrained")
    axes = figure.subplots()
    for name, model in models.items():
        errors = scale_equivariance(model, signal)
        axes.plot(range(1, len(errors) + 1), list(errors.values()), "o-", markersize=3, label=name)
    axes.set(xlabel="convolution", ylabel="relative error under a dilation by two", ylim=(0, None))
    axes.legend(frameon=False, fontsize=7)
    axes.grid(alpha=0.3)
    save_figure(figure, path, dpi=120)
