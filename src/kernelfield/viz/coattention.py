"""A figure of responses and attention over the elements of a group for transformed inputs (chapter 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._kinds import PATH, TEXT, Int
from .._object_kinds import TensorOf
from ..layers.group import CyclicSelfAttention, GroupSignal
from .attention import picture
from .figures import save_figure
from .observe import choose_layer, observe_layers

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["co_attention", "plot_co_attention"]


@torch.no_grad()
def co_attention(model: nn.Module, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    r"""Return the responses and the attention weights of all layers with co-attention.

    Args:
        model: a network with layers of chapter 7, run in evaluation mode.
        x: (batch, channels, \*space) input.

    Returns:
        (batch, channels, group, \*space) responses and weights by layer name, in the order of the forward pass.
    """

    def weights_of(layer: CyclicSelfAttention, x: GroupSignal | Tensor) -> tuple[Tensor, Tensor]:
        values = x.values if isinstance(x, GroupSignal) else x
        return values, layer.weights(values)

    return observe_layers(model, x, CyclicSelfAttention, weights_of)


@checked(image=TensorOf("float", "channels, rows, columns", empty=False), path=PATH, layer=TEXT | None, channels=Int(1))
def plot_co_attention(
    model: nn.Module, image: Tensor, path: str | Path, *, layer: str | None = None, channels: int = 4
) -> float:
    """Plot responses and attention at one position, for the input transformed by every element of the group.

    There is one row per transformed input and one column per channel. Bars are the responses of a channel at the
    elements, dots their attention weights. In an equivariant network all channels change together: each row is the
    first row, permuted by the element that transformed the input. The position is that of the largest response to the
    first input, and it moves with the input.

    Args:
        model: a network with co-attention on a group that maps the grid to itself.
        image: (channels, rows, columns) square image.
        path: file to write; its suffix sets the format.
        layer: name of the layer in the result of :func:`co_attention`; by default the first.
        channels: number of channels to plot, those with the largest responses.

    Returns:
        The largest difference between the attention of a transformed image and the transformed attention.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    name = choose_layer(model, CyclicSelfAttention, layer)
    group: Any = model.get_submodule(name).group
    elements = group.elements(torch.float64)
    batch = torch.cat([group.act(element, image[None]) for element in elements])
    responses, weights = co_attention(model, batch)[name]
    worst = 0.0
    for element, own in zip(elements, weights, strict=True):
        worst = max(worst, float((own - group.act(element, weights[:1])[0]).abs().max()))
    chosen = responses[0].abs().amax(dim=(1, 2, 3)).topk(min(channels, responses.shape[1])).indices
    marker = torch.zeros(1, 1, *responses.shape[3:], dtype=torch.float64)
    marker.view(-1)[int(responses[0].abs().sum(dim=(0, 1)).argmax())] = 1.0
    figure = Figure(figsize=(1.5 * (1 + len(chosen)), 1.4 * len(elements)), layout="constrained")
    grid = figure.subplots(len(elements), 1 + len(chosen), squeeze=False)
    for row, element, shown, found, own in zip(grid, elements, batch, responses, weights, strict=True):
        at = int(group.act(element, marker).argmax())
        row[0].imshow(picture(shown), cmap="gray")
        row[0].set_axis_off()
        for axes, channel in zip(row[1:], chosen.tolist(), strict=True):
            bars, dots = (t[channel].flatten(1)[:, at].cpu() for t in (found, own))
            axes.bar(range(len(bars)), bars.tolist(), color="0.75")
            axes.axhline(0, color="0.6", linewidth=0.6)
            axes.set_yticks([])
            axes.set_xticks(range(len(bars)))
            axes.tick_params(labelsize=6)
            scale: Any = axes.twinx()
            scale.plot(range(len(dots)), dots.tolist(), "o-", color="C1", markersize=3, linewidth=0.8)
            scale.set_ylim(0, 1.05)
            scale.set_yticks([])
    for axes, channel in zip(grid[0][1:], chosen.tolist(), strict=True):
        axes.set_title(f"channel {channel}", fontsize=7)
    for axes in grid[-1][1:]:
        axes.set_xlabel("element", fontsize=7)
    save_figure(figure, path, dpi=120)
    return worst
