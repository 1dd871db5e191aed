"""Figures of the functions that kernels can express (chapter 2) and of networks before training (chapter 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked
from .._kinds import PATH, TEXT, Int
from .._object_kinds import Instance, MappingOf, TensorOf
from ..fields import SIREN
from .figures import save_figure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from ..layers import ContinuousConv


__all__ = ["kernel_families", "plot_between_samples", "plot_families", "plot_output_histograms", "plot_size_accuracy"]


@torch.no_grad()
@checked(length=Int(2), discrete=Int(1))
def kernel_families(length: int = 100, discrete: int = 15, seed: int = 0) -> dict[str, Tensor]:
    r"""Return kernels of four families over the past ``length`` steps, which show how far each can remember.

    .. math:: \psi_\mathrm{rec}(\tau) = \lambda^\tau, \qquad \psi_\mathrm{disc}(\tau) = w_\tau \; [\tau < k], \qquad
        \psi_\mathrm{cont}(\tau) = \mathrm{SIREN}(\tau)

    A linear recurrent unit is a convolution with powers of its largest eigenvalue λ: exponentially decaying or growing
    (chapter 2, section 4.1).

    Args:
        length: number of steps.
        discrete: number of weights of the discrete kernel.
        seed: seed of the weights.

    >>> {name: tuple(values.shape) for name, values in kernel_families(20, discrete=4).items()}
    {'recurrent, λ ≤ 1': (3, 20), 'recurrent, λ ≥ 1': (3, 20), 'discrete': (3, 20), 'continuous': (3, 20)}
    """
    generator = torch.Generator().manual_seed(seed)
    lag = torch.arange(float(length))
    weights = torch.zeros(3, length)
    discrete = min(discrete, length)
    weights[:, :discrete] = torch.rand(3, discrete, generator=generator) * 2 - 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        continuous = SIREN(1, 3, omega_0=20.0)(lag[:, None] / length).T
    return {
        "recurrent, λ ≤ 1": torch.tensor([0.8, 0.95, 1.0])[:, None] ** lag,
        "recurrent, λ ≥ 1": torch.tensor([1.0, 1.02, 1.05])[:, None] ** lag,
        "discrete": weights,
        "continuous": continuous,
    }


@checked(path=PATH)
def plot_families(path: str | Path, **options: Any) -> None:
    """Plot kernels of recurrent units, discrete and continuous kernels over the past; save the figure.

    Chapter 2, figure "Functional family of recurrent units, discrete convolutions and CKConvs".

    Args:
        path: file to write; its suffix sets the format.
        options: arguments of :func:`kernel_families`.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    families = kernel_families(**options)
    figure = Figure(figsize=(3 * len(families), 2.2), layout="constrained")
    for axes, (name, kernels) in zip(figure.subplots(1, len(families)), families.items(), strict=True):
        axes.plot(kernels.T.numpy(), linewidth=1)
        axes.set_title(name, fontsize=8)
        axes.set_xlabel("steps into the past", fontsize=7)
        axes.tick_params(labelsize=6)
    save_figure(figure, path)


@torch.no_grad()
@checked(layer=Instance("kernelfield.layers.ContinuousConv"), path=PATH, fine=Int(1), channel=Int(0), most=Int(2))
def plot_between_samples(
    layer: ContinuousConv, path: str | Path, *, fine: int = 16, channel: int = 0, most: int = 64
) -> tuple[Tensor, Tensor]:
    """Plot a kernel on its training grid and between the samples; save the figure and return both.

    Chapter 2, figure "High-frequency components in Sine continuous kernels": a kernel may look smooth at the samples
    and oscillate between them, which shows when it is used at a higher rate.

    Args:
        layer: a continuous convolution on a line.
        path: file to write; its suffix sets the format.
        fine: number of samples to plot per sample of the training grid.
        channel: index of the kernel.
        most: largest number of training steps to plot, from lag 0 on.

    Returns:
        Values at the training grid, (n,), and on the finer grid, (fine · (n - 1) + 1,).
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    if layer.dim != 1:
        raise ValueError(f"layer must have dim=1, got {layer.dim}")
    if channel >= layer.field.channels:
        raise ValueError(
            f"channel must be below the {layer.field.channels} channels of the layer's field, got {channel}"
        )
    count = min(most, layer.size[0])
    lags = torch.arange(count, dtype=layer.reach.dtype, device=layer.reach.device)
    dense = torch.arange(fine * (count - 1) + 1, dtype=lags.dtype, device=lags.device) / fine
    coarse, between = (layer.values(t[:, None] / layer.size[0])[:, channel].cpu() for t in (lags, dense))
    figure = Figure(figsize=(7, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(dense.cpu(), between, linewidth=0.8, color="C0", label=f"{fine} times the training rate")
    axes.plot(lags.cpu(), coarse, "o-", markersize=3, linewidth=0.8, color="C1", label="training grid")
    axes.set_xlabel("lag in training steps")
    axes.legend(frameon=False, fontsize=7)
    save_figure(figure, path)
    return coarse, between


@torch.no_grad()
@checked(models=MappingOf(Instance("torch.nn.Module")), x=TensorOf("float", empty=False), path=PATH)
def plot_output_histograms(models: Mapping[str, nn.Module], x: Tensor, path: str | Path) -> dict[str, float]:
    """Plot histograms of the predictions of untrained networks for ``x``; save the figure.

    Chapter 3, figure "Histogram of the output of a CCNN with and without our proposed kernel initialization": without
    it, the variance grows or shrinks with each layer.

    Args:
        models: networks by name, such as one with ``gain="start"`` and one with ``gain=None``.
        x: (batch, channels, *space) input, usually white noise.
        path: file to write; its suffix sets the format.

    Returns:
        The standard deviation of each network's predictions.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    if not models:
        raise ValueError("models must hold at least one network, got none")
    figure = Figure(figsize=(3.4 * len(models), 2.6), layout="constrained")
    spread = {}
    for axes, (name, model) in zip(figure.subplots(1, len(models), squeeze=False)[0], models.items(), strict=True):
        values = model(x).flatten().float().cpu()
        spread[name] = float(values.std())
        axes.hist(values.numpy(), bins=50, density=True)
        axes.set_title(f"{name}: deviation {spread[name]:.2g}", fontsize=8)
        axes.set_xlabel("output", fontsize=7)
        axes.tick_params(labelsize=6)
    save_figure(figure, path)
    return spread


@checked(points=MappingOf(), path=PATH, label=TEXT)
def plot_size_accuracy(
    points: Mapping[str, Mapping[float, float]], path: str | Path, *, label: str = "parameters", log: bool = True
) -> None:
    """Plot accuracy against size, one curve per family of networks; save the figure.

    Chapter 3, figures "Parameter count versus performance on ModelNet40" and "samples are either input as sequence or
    with the original image structure", the latter over epochs.

    Args:
        points: accuracy in percent by size (or epoch) and by family.
        path: file to write; its suffix sets the format.
        label: label of the horizontal axis.
        log: whether the horizontal axis is logarithmic.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    if not points:
        raise ValueError("points must hold at least one family, got none")
    figure = Figure(figsize=(4.2, 3), layout="constrained")
    axes = figure.subplots()
    for name, values in points.items():
        sizes = sorted(values)
        axes.plot(sizes, [values[size] for size in sizes], "o-", markersize=4, label=name)
    axes.set(xlabel=label, ylabel="accuracy, percent", xscale="log" if log else "linear")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=7)
    save_figure(figure, path)
