"""Figures of kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked
from .._kinds import PATH, POSITIVE
from .._object_kinds import Instance, MappingOf
from ..layers import ContinuousConv
from ..layers.penalties import kernel_frequency, nyquist
from .figures import save_figure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import nn

__all__ = ["plot_channel_images", "plot_frequencies", "plot_kernels"]


@torch.no_grad()
@checked(step=POSITIVE)
def plot_kernels(model: nn.Module, path: str | Path, *, step: float = 0.25, channels: int = 4) -> None:
    """Plot the first kernels of every continuous layer and save the figure.

    1D kernels are curves, with dots at the points of the training grid. 2D kernels are images, and 3D kernels show
    their middle slice. Axes count training steps from the kernel's centre.

    Args:
        model: any module.
        path: file to write; its suffix sets the format.
        step: sampling step of the curves and images, in training steps.
        channels: number of kernels per layer.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    layers = _continuous_layers(model)
    figure = Figure(figsize=(2.6 * channels, 2.0 * len(layers)), layout="constrained")
    grid = figure.subplots(len(layers), channels, squeeze=False)
    for row, (name, layer) in zip(grid, layers, strict=True):
        fine = first_kernels(layer, step, channels).cpu()
        for i, axes in enumerate(row):
            if i >= len(fine):
                axes.set_axis_off()
                continue
            axes.tick_params(labelsize=6)
            if layer.dim == 1:
                _draw_line(axes, fine[i], step, layer.causal)
            else:
                _draw_image(axes, fine[i], step)
        row[0].set_title(name, fontsize=8, loc="left")
    for axes in grid[-1]:
        axes.set_xlabel("offset in training steps", fontsize=6)
    save_figure(figure, path, dpi=120)


@torch.no_grad()
def first_kernels(layer: ContinuousConv, step: float, count: int) -> torch.Tensor:
    """Return the first kernels of a layer, (kernels, *points), or their middle slices in 3D; no others are sampled.

    >>> from kernelfield import CKConv
    >>> layer = CKConv(2, 3, size=8)
    >>> torch.allclose(first_kernels(layer, 0.5, 4), layer.kernel(0.5, measured=False).flatten(0, 1)[:4])
    True
    """
    steps = (step,) * layer.dim
    grid = layer.grid(None, steps)
    coords = layer.wide(grid).coords(dtype=layer.reach.dtype, device=layer.reach.device)
    middle = len(coords) // 2
    sliced = layer.dim == 3 and not layer.smooth  # smoothing mixes neighbouring slices
    values = layer.values(coords[middle] if sliced else coords, min(count, layer.field.channels))[..., :count]
    kernels = values.movedim(-1, 0)
    if not sliced:
        kernels = layer.finish(kernels, grid, measured=False)
        kernels = kernels[:, kernels.shape[1] // 2] if layer.dim == 3 else kernels
    return kernels


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


@torch.no_grad()
@checked(models=MappingOf(Instance("torch.nn.Module")), path=PATH, step=POSITIVE)
def plot_frequencies(models: Mapping[str, nn.Module], path: str | Path, *, step: float = 0.5) -> dict[str, list[float]]:
    """Plot the highest frequency of every layer's kernel, and its spectrum, for several networks; save the figure.

    Chapter 5, figure of kernel frequencies with and without L_HF. On the left is the closed form of
    :func:`~kernelfield.layers.kernel_frequency` over the Nyquist frequency of the training grid: above 1, kernels alias
    at a finer grid. On the right is the energy of the sampled kernels, layer by layer, over frequency.

    Args:
        models: networks by name, such as one trained with L_HF and one without.
        path: file to write; its suffix sets the format.
        step: sampling step of the kernels in training steps; 0.5 shows frequencies up to twice that of the training
            grid.

    Returns:
        The highest frequency of each layer over its Nyquist frequency, by network; NaN where it is unknown.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    found = {name: _continuous_layers(model) for name, model in models.items()}
    figure = Figure(figsize=(4 + 3.2 * len(found), 3.2), layout="constrained")
    left, *rest = figure.subplots(1, 1 + len(found), squeeze=False)[0]
    shares = {}
    for (name, layers), axes in zip(found.items(), rest, strict=True):
        highest = [kernel_frequency(layer) for _, layer in layers]
        shares[name] = [
            float("nan") if top is None else float(top) / nyquist(layer)
            for top, (_, layer) in zip(highest, layers, strict=True)
        ]
        left.plot(range(1, len(layers) + 1), shares[name], "o-", label=name)
        spectra = torch.stack([_radial_spectrum(layer, step) for _, layer in layers])
        extent = (0, 1 / step, len(layers) + 0.5, 0.5)
        axes.imshow(spectra.clamp(min=1e-4).log10().numpy(), aspect="auto", extent=extent, cmap="magma")
        axes.axvline(1, color="w", linewidth=0.8, linestyle="--")
        axes.set(title=f"{name}: energy, log₁₀", xlabel="frequency / Nyquist", ylabel="layer")
    left.axhline(1, color="0.5", linewidth=0.8, linestyle="--")
    left.set(xlabel="layer", ylabel="highest frequency / Nyquist", yscale="log")
    left.legend(frameon=False, fontsize=7)
    save_figure(figure, path)
    return shares


def _continuous_layers(model: nn.Module) -> list[tuple[str, ContinuousConv]]:
    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, ContinuousConv)]
    if not layers:
        raise ValueError(f"model must contain a continuous convolution, got {type(model).__name__} with none")
    return layers


def _radial_spectrum(layer: ContinuousConv, step: float, bins: int = 32) -> torch.Tensor:
    """Return the shares (bins,) of a kernel's energy at frequencies from 0 to the Nyquist frequency of ``step``."""
    kernel = layer.kernel(step, measured=False).flatten(0, 1).float().cpu()
    # Zero-padding makes the spectrum of a cropped kernel finer than the bins.
    axes = tuple(range(1, kernel.dim()))
    sizes = [max(2 * bins, n) for n in kernel.shape[1:]]
    energy = torch.fft.fftn(kernel, s=sizes, dim=axes).abs().square().mean(dim=0)
    per_axis = [2 * torch.fft.fftfreq(n).abs() for n in sizes]
    radius = torch.stack(torch.meshgrid(*per_axis, indexing="ij")).square().sum(dim=0).sqrt()
    index = (radius * bins).long().clamp(max=bins - 1).flatten()
    total = torch.zeros(bins).index_add(0, index, energy.flatten())
    return total / total.sum().clamp(min=1e-30)


@torch.no_grad()
@checked(path=PATH, step=POSITIVE)
def plot_channel_images(model: nn.Module, path: str | Path, *, step: float = 1.0) -> None:
    """Plot the 1D kernels of every continuous layer as one image, channels by positions; save the figure.

    Chapter 3, figure of learned kernels: one image per block shows the offsets that its channels use, and how kernels
    change with depth.

    Args:
        model: a network of one spatial dimension.
        path: file to write; its suffix sets the format.
        step: sampling step in training steps.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    layers = _continuous_layers(model)
    for name, layer in layers:
        if layer.dim != 1:
            raise ValueError(f"model must have 1D kernels, got layer {name!r} with dim={layer.dim}")
    figure = Figure(figsize=(7, 1.5 * len(layers)), layout="constrained")
    for axes, (name, layer) in zip(figure.subplots(len(layers), 1, squeeze=False)[:, 0], layers, strict=True):
        kernel = layer.kernel(step, measured=False).flatten(0, 1).cpu()
        most = float(kernel.abs().max()) or 1.0
        begin = 0.0 if layer.causal else -(kernel.shape[1] // 2) * step
        extent = (begin, begin + kernel.shape[1] * step, len(kernel), 0)
        axes.imshow(kernel.numpy(), aspect="auto", cmap="RdBu_r", vmin=-most, vmax=most, extent=extent)
        axes.set_title(name, fontsize=8, loc="left")
        axes.tick_params(labelsize=6)
    axes.set_xlabel("offset in training steps", fontsize=7)
    save_figure(figure, path)
