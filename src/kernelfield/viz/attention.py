"""Figures of attention maps on a group, drawn over the input (chapters 8 and 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._kinds import FINITE, STRING, TEXT, ListOf
from .._object_kinds import TensorOf
from ..layers.group import (
    AttentiveGroupConv,
    AttentiveLiftingConv,
    GroupSelfAttention,
    GroupSignal,
    LiftingSelfAttention,
)
from .figures import save_figure
from .observe import observe_layers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..groups import Group

__all__ = [
    "attention_maps",
    "has_maps",
    "orientations",
    "picture",
    "plot_attention",
    "plot_equivariance",
    "plot_sample",
]

LAYERS = (AttentiveGroupConv, AttentiveLiftingConv, GroupSelfAttention, LiftingSelfAttention)


@torch.no_grad()
@checked(x=TensorOf("float", "batch, channels, *space"))
def attention_maps(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    r"""Return the attention maps of all layers that have them.

    For self-attention, a map is the attention that each position receives, averaged over heads. For attentive
    convolutions, it is :math:`\alpha^+`, averaged over input and output channels.

    Args:
        model: a network with layers of chapters 8 or 9, run in evaluation mode.
        x: (batch, channels, \*space) input.

    Returns:
        (batch, group, \*space) maps by layer name, in the order of the forward pass.
    """

    def maps_of(layer: Any, values: GroupSignal | Tensor) -> Tensor:
        maps = layer.maps(values)
        return maps.mean(dim=1) if isinstance(layer, (GroupSelfAttention, LiftingSelfAttention)) else maps

    return observe_layers(model, x, LAYERS, maps_of)


@checked(maps=TensorOf("float", "batch, group, rows, columns"))
def orientations(group: Group, maps: Tensor) -> Tensor:
    """Return the mean direction of a map at each position: (batch, group, rows, columns) to (batch, 2, rows, columns).

    Each element contributes an upward arrow, rotated by the element, with the value of its map as length. The sum is an
    arrow (row, column) that rotates with the input.

    >>> from kernelfield.groups import Cyclic
    >>> maps = torch.zeros(1, 4, 1, 1)
    >>> maps[:, 1] = 1.0
    >>> orientations(Cyclic(4), maps).flatten().long()  # up, rotated by 90 degrees, is left
    tensor([ 0, -1])
    """
    if maps.shape[1] != group.order:
        raise ValueError(f"maps must have one entry per element of the group, {group.order}, got {maps.shape[1]}")
    up = torch.tensor([-1.0, 0.0], dtype=maps.dtype, device=maps.device)
    arrows = group.act_on(group.elements(maps.dtype, maps.device), up)
    return torch.einsum("bhyx,hd->bdyx", maps, arrows)


@checked(
    image=TensorOf("float", "channels, rows, columns"),
    maps=TensorOf("float", "group, map_rows, map_columns"),
    title=STRING,
)
def plot_attention(image: Tensor, maps: Tensor, group: Group, path: str | Path, *, title: str = "") -> None:
    r"""Plot the mean map over an image, with an arrow for the orientation at each position.

    Args:
        image: (channels, rows, columns) image.
        maps: (group, rows, columns) maps, possibly on a coarser grid.
        group: a group of rotations, with or without mirroring.
        path: file to write; its suffix sets the format.
        title: title of the figure.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(3.2, 3.4), layout="constrained")
    _draw(figure.subplots(), image, maps, group, title)
    save_figure(figure, path, dpi=120)


@checked(
    image=TensorOf("float", "channels, rows, columns"), elements=ListOf(ListOf(FINITE)), layers=ListOf(TEXT) | None
)
def plot_equivariance(
    model: nn.Module,
    image: Tensor,
    group: Group,
    path: str | Path,
    *,
    elements: Sequence[Sequence[float]] = ((0.0,), (1.0,), (2.0,), (3.0,)),
    layers: Sequence[str] | None = None,
) -> float:
    r"""Plot the maps of an image and of its rotated copies, one row per layer, and measure their equivariance.

    Args:
        model: a network with attention.
        image: (channels, rows, columns) image.
        group: the group to which the network is equivariant.
        path: file to write; its suffix sets the format.
        elements: transformations to apply; by default rotations by 90°, which are exact on a grid.
        layers: names of the layers to plot; by default all.

    Returns:
        The largest difference between the map of a transformed image and the transformed map, relative to the largest
        entry.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    chosen = [torch.tensor(element, dtype=torch.float64) for element in elements]
    batch = torch.cat([group.act(element, image[None]) for element in chosen])
    found = attention_maps(model, batch)
    if not found:
        raise ValueError(f"model must have layers with attention maps, got {type(model).__name__} with none")
    names = list(found) if layers is None else list(layers)
    figure = Figure(figsize=(2.2 * len(chosen), 2.3 * len(names)), layout="constrained")
    grid = figure.subplots(len(names), len(chosen), squeeze=False)
    worst = 0.0
    for row, name in zip(grid, names, strict=True):
        maps = found[name]
        first = group.act(group.inverse(chosen[0]), maps[:1].unsqueeze(1))
        for axes, element, picture, own in zip(row, chosen, batch, maps, strict=True):
            wanted = group.act(element, first)[0, 0]
            worst = max(worst, float((own - wanted).abs().max() / maps.abs().max()))
            _draw(axes, picture, own, group, name if element is chosen[0] else "")
    save_figure(figure, path, dpi=120)
    return worst


@checked()
def has_maps(model: nn.Module) -> bool:
    """Return whether a model has layers with attention maps."""
    return any(isinstance(m, LAYERS) for m in model.modules())


@checked(inputs=TensorOf())
def plot_sample(model: nn.Module, inputs: Tensor, path: str | Path) -> bool:
    """Plot the maps of the first input (batch, channels, rows, columns) and of its rotated copies.

    Returns:
        Whether a figure was written: the model needs attention maps, and the images must be square.
    """
    layers = [m for m in model.modules() if isinstance(m, LAYERS)]
    if not layers or inputs.dim() != 4 or inputs.shape[-1] != inputs.shape[-2] or layers[0].group.dim != 2:
        return False
    group = layers[0].group
    # At most four elements, with an action that is exact on the grid.
    group_elements = group.elements(torch.float64)
    signed = (group.matrix(group_elements) - group.matrix(group_elements).round()).abs().flatten(1).amax(dim=1) < 1e-6
    plot_equivariance(model, inputs[0].float().cpu(), group, path, elements=group_elements[signed][:4].tolist())
    return True


def picture(image: Tensor) -> Any:
    """Return an image (channels, rows, columns) for matplotlib: in colour for three channels, otherwise in grey.

    >>> picture(torch.rand(3, 8, 8)).shape, picture(torch.rand(1, 8, 8)).shape
    ((8, 8, 3), (8, 8))
    """
    if len(image) != 3:
        return image.mean(dim=0).cpu().numpy()
    # Images are standardised, so the range of each channel is mapped to [0, 1].
    low, high = image.amin(dim=(1, 2), keepdim=True), image.amax(dim=(1, 2), keepdim=True)
    return ((image - low) / (high - low).clamp(min=1e-12)).movedim(0, -1).cpu().numpy()


def _draw(axes: Any, image: Tensor, maps: Tensor, group: Group, title: str) -> None:
    image, maps = image.float(), maps.float()
    rows, columns = image.shape[-2:]
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    axes.imshow(picture(image), cmap="gray", extent=extent)
    total = maps.mean(dim=0).cpu()
    total = (total - total.min()) / (total.max() - total.min()).clamp(min=1e-12)
    axes.imshow(total.numpy(), cmap="magma", alpha=0.6, extent=extent)
    arrow = orientations(group, maps[None])[0].cpu()
    count, width = total.shape
    down = (torch.arange(count) + 0.5) * rows / count - 0.5
    along = (torch.arange(width) + 0.5) * columns / width - 0.5
    # Rows of an image grow downwards, but quiver's second coordinate grows upwards.
    axes.quiver(
        along.numpy(), down.numpy(), arrow[1].numpy(), -arrow[0].numpy(), color="white", width=0.006, pivot="mid"
    )
    axes.set_axis_off()
    if title:
        axes.set_title(title, fontsize=7)
