"""Figures of a point cloud, its grid and the edges between them (chapter 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked
from .._object_kinds import TensorOf
from ..ops import bilateral_edges
from .figures import save_figure

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from ..layers import Gridify

__all__ = ["plot_gridification"]


@torch.no_grad()
@checked(coords=TensorOf("float", "points, dim"))
def plot_gridification(layer: Gridify, coords: Tensor, path: str | Path, *, few: int = 4) -> None:
    """Plot a cloud, its grid, the edges between them, and the neighbourhoods of a few nodes; save the figure.

    Args:
        layer: 2D or 3D layer with the grid and the number of neighbours.
        coords: (points, dim) coordinates of one cloud.
        path: file to write; its suffix sets the format.
        few: number of nodes in the third panel.
    """
    if len(coords) == 0:
        raise ValueError("coords must have at least one point, got none")
    from matplotlib.figure import Figure  # noqa: PLC0415

    if layer.dim not in (2, 3):
        raise ValueError(f"layer must have dim 2 or 3, got {layer.dim}")
    nodes = layer.nodes(coords.dtype).cpu()
    edges = bilateral_edges(coords.unsqueeze(0).cpu(), layer.grid, layer.neighbors, low=layer.low, high=layer.high)
    source, target = edges.source[edges.valid], edges.target[edges.valid]
    coords = coords.cpu()
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    kind = {"projection": "3d"} if layer.dim == 3 else {}
    panels: list[Any] = [figure.add_subplot(1, 3, i + 1, **kind) for i in range(3)]
    counts = torch.bincount(target, minlength=len(nodes))
    _draw(panels[0], coords, "C0", 6)
    panels[0].set_title(f"a cloud of {len(coords):,} points", fontsize=9)
    _draw(panels[1], coords, "C0", 3)
    _draw(panels[1], nodes, "C1", 8)
    _lines(panels[1], coords[source], nodes[target], alpha=0.12)
    shape = "×".join(map(str, layer.grid))
    panels[1].set_title(f"its grid of {shape} nodes, and {len(source):,} edges (k = {layer.neighbors})", fontsize=9)
    chosen = torch.linspace(0, len(nodes) - 1, few + 2).round().long()[1:-1]
    kept = torch.isin(target, chosen)
    _draw(panels[2], coords, "0.8", 3)
    _draw(panels[2], nodes[chosen], "C1", 30)
    _lines(panels[2], coords[source[kept]], nodes[target[kept]], alpha=0.6)
    mean = float(counts.float().mean())
    panels[2].set_title(f"neighbourhoods of {few} nodes; {mean:.1f} points each on average", fontsize=9)
    for axes in panels:
        if layer.dim == 3:
            axes.view_init(elev=35, azim=-60)
        axes.set_aspect("equal")
        axes.set_axis_off()
    save_figure(figure, path, dpi=110)


def _draw(axes: Any, points: Tensor, colour: str, size: float) -> None:
    axes.scatter(*points.T.tolist(), s=size, c=colour, linewidths=0)


def _lines(axes: Any, begin: Tensor, end: Tensor, alpha: float) -> None:
    from matplotlib.collections import LineCollection  # noqa: PLC0415
    from mpl_toolkits.mplot3d.art3d import Line3DCollection  # noqa: PLC0415

    segments = torch.stack([begin, end], dim=1).tolist()
    make = Line3DCollection if begin.shape[1] == 3 else LineCollection
    axes.add_collection(make(segments, colors="0.35", linewidths=0.5, alpha=alpha))
