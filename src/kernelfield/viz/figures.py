"""Functions that save figures, and figures of single samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .._arguments import checked
from .._files import atomic_write
from .._kinds import ANY, ListOf

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

__all__ = ["plot_samples", "render_figure", "save_figure"]


def save_figure(figure: Any, path: str | os.PathLike[str], dpi: int = 120) -> None:
    """Save a matplotlib figure atomically.

    Args:
        figure: the figure.
        path: file to write; its suffix sets the format; PNG without a suffix.
        dpi: dots per inch.
    """
    # matplotlib adds ".png" to a name without a suffix, so an explicit format keeps the name of the draft.
    with atomic_write(path) as draft:
        render_figure(figure, draft, dpi=dpi, format=draft.suffix[1:] or "png")


def render_figure(figure: Any, file: Any, **options: Any) -> None:
    """Lay out a figure and draw it once; ``savefig`` alone would draw it twice.

    Args:
        figure: the figure.
        file: path or open file to write.
        options: ``dpi`` and ``format`` of ``savefig``.
    """
    if figure.get_layout_engine() is not None:
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine(None)
    figure.savefig(file, **options)


@checked(samples=ListOf(ListOf(ANY, count=2)))
def plot_samples(samples: Sequence[tuple[Tensor, str]], path: str | Path, *, columns: int = 4) -> None:
    """Plot samples with their captions: series as curves, images, and the middle slice of volumes.

    Integers are classes: each class has the same colour in all pictures, and negative ones are left white.

    Args:
        samples: (channels, *space) values, NaN where missing, or (rows, columns, …) classes; and a caption for each.
        path: file to write; its suffix sets the format.
        columns: number of samples per row.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    if not samples:
        raise ValueError("samples must hold at least one sample, got none")
    rows = math.ceil(len(samples) / columns)
    figure = Figure(figsize=(2.6 * columns, 2.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    classes = [values for values, _ in samples if not values.is_floating_point()]
    most = max((int(values.max()) for values in classes), default=0)
    for axes, (values, caption) in zip(grid, samples, strict=False):
        if values.is_floating_point():
            _draw(axes, values.float())
        else:
            _draw_classes(axes, values, most)
        axes.set_title(caption, fontsize=7)
        axes.tick_params(labelsize=6)
    for axes in grid[len(samples) :]:
        axes.set_axis_off()
    save_figure(figure, path, dpi=110)


def _draw_classes(axes: Any, values: Tensor, most: int) -> None:
    while values.dim() > 2:
        values = values[values.shape[0] // 2]
    shown = values.float().masked_fill(values < 0, float("nan")).numpy()
    axes.imshow(shown, cmap="tab10" if most < 10 else "turbo", vmin=0, vmax=max(9, most), interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])


def _draw(axes: Any, values: Tensor) -> None:
    while values.dim() > 3:
        values = values[:, values.shape[1] // 2]
    if values.dim() == 2:
        axes.plot(values[:8].T.numpy(), linewidth=0.9)
        axes.locator_params(nbins=4)
        axes.set_xlabel("step", fontsize=6)
        return
    image = values[:3].movedim(0, -1) if len(values) >= 3 else values[0]
    low, high = (float(v) for v in (image.nan_to_num().min(), image.nan_to_num().max()))
    axes.imshow(((image - low) / (high - low or 1.0)).numpy(), cmap="gray")
    axes.set_xticks([])
    axes.set_yticks([])
