"""A figure of the attention of given positions, for all elements of the group (chapter 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._kinds import PATH, TEXT, Int, ListOf
from .._object_kinds import TensorOf
from ..layers.group import GroupSelfAttention, GroupSignal, LiftingSelfAttention
from .attention import picture
from .figures import save_figure
from .observe import choose_layer, observe_layers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["attention_of_position", "plot_position_attention"]

LAYERS = (GroupSelfAttention, LiftingSelfAttention)


def attention_of_position(
    layer: LiftingSelfAttention | GroupSelfAttention, x: Tensor | GroupSignal, position: Sequence[int]
) -> Tensor:
    r"""Return the attention weights of one query position to every other, at each output element.

    The weights are the derivative of the layer's attention with respect to a value of one channel. They are summed over
    the elements of the keys and averaged over those of the query.

    Args:
        layer: a self-attention layer, run in evaluation mode.
        x: its input, (batch, channels, \*space) or a signal on the group.
        position: index of the query along each axis of space.

    Returns:
        (batch, heads, group, \*space) weights, which sum to one for each element.

    >>> from kernelfield.groups import Cyclic
    >>> layer = LiftingSelfAttention(1, 4, group=Cyclic(4), heads=2, neighborhood=3).eval()
    >>> weights = attention_of_position(layer, torch.randn(1, 1, 6, 6), (2, 3))
    >>> weights.shape, bool(weights.sum(dim=(-2, -1)).sub(1).abs().max() < 1e-5)
    (torch.Size([1, 2, 4, 6, 6]), True)
    """
    training = layer.training
    try:
        return _weights(layer.eval(), x, position)
    finally:
        layer.train(training)


def _weights(
    layer: LiftingSelfAttention | GroupSelfAttention, x: Tensor | GroupSignal, position: Sequence[int]
) -> Tensor:
    values = x.values if isinstance(x, GroupSignal) else x
    lifted = values.unsqueeze(2) if isinstance(layer, LiftingSelfAttention) else values
    q, k, _ = (part.detach() for part in layer._parts(lifted, None))  # noqa: SLF001
    elements = layer.all_elements
    found = []
    with torch.enable_grad():
        v = torch.zeros(*k.shape[:-1], 1, dtype=k.dtype, device=k.device, requires_grad=True)
        for some, dilation in layer._alike(elements, None):  # noqa: SLF001
            y = layer._grid(q, k, v, some, elements, dilation, 0)  # noqa: SLF001
            index: tuple[Any, ...] = (slice(None), slice(None), *position, 0)
            at = y[index]
            for h in range(at.shape[1]):
                (weights,) = torch.autograd.grad(at[:, h].sum(), v, retain_graph=True)
                found.append(weights.squeeze(-1).sum(dim=1))
    return torch.stack(found, dim=1).unflatten(0, (-1, layer.heads)).detach()


@checked(
    image=TensorOf("float", "channels, rows, columns", empty=False),
    path=PATH,
    positions=ListOf(ListOf(Int(0), count=2)),
    layer=TEXT | None,
)
def plot_position_attention(
    model: nn.Module,
    image: Tensor,
    path: str | Path,
    *,
    positions: Sequence[Sequence[int]] = ((7, 7), (14, 14), (20, 10)),
    layer: str | None = None,
) -> float:
    """Plot the attention of given positions: one row per position, one column per element of the group.

    Args:
        model: a network with self-attention.
        image: (channels, rows, columns) image.
        path: file to write; its suffix sets the format.
        positions: (row, column) of each query, in the map that the layer reads.
        layer: name of the layer; by default the first.

    Returns:
        The largest difference between the sum of a map and one, which is a rounding error.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    name = choose_layer(model, LAYERS, layer)
    chosen: Any = model.get_submodule(name)
    with torch.no_grad():
        read: Any = observe_layers(model, image[None], LAYERS, lambda _, values: values)[name]
    space = read.shape[-2:]
    outside = [p for p in positions if any(i >= n for i, n in zip(p, space, strict=True))]
    if outside:
        raise ValueError(f"positions must lie in the map of {tuple(space)} that {name!r} reads, got {outside[0]}")
    count = chosen.group.order or 1
    figure = Figure(figsize=(1.5 * (1 + count), 1.55 * len(positions)), layout="constrained")
    grid = figure.subplots(len(positions), 1 + count, squeeze=False)
    worst = 0.0
    for row, position in zip(grid, positions, strict=True):
        maps = attention_of_position(chosen, read, position)[0].mean(dim=0)
        worst = max(worst, float((maps.sum(dim=(-2, -1)) - 1).abs().max()))
        scale = [n / m for n, m in zip(image.shape[-2:], space, strict=True)]
        row[0].imshow(picture(image), cmap="gray")
        row[0].plot((position[1] + 0.5) * scale[1] - 0.5, (position[0] + 0.5) * scale[0] - 0.5, "C1o", markersize=4)
        row[0].set_axis_off()
        for h, axes in enumerate(row[1:]):
            axes.imshow(maps[h].cpu().numpy(), cmap="magma")
            axes.plot(position[1], position[0], "C1+", markersize=5)
            axes.set_axis_off()
            if row is grid[0]:
                axes.set_title(f"element {h}", fontsize=7)
    save_figure(figure, path, dpi=120)
    return worst
