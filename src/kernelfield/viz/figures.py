"""Saving figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._atomic import write_aside

if TYPE_CHECKING:
    import os

__all__ = ["render_figure", "save_figure"]


def save_figure(figure: Any, path: str | os.PathLike[str], dpi: int = 120) -> None:
    """Save a figure of matplotlib; the file is written aside and moved into place.

    Args:
        figure: the figure.
        path: file to write; its suffix sets the format, PNG without one.
        dpi: dots per inch.
    """
    # matplotlib adds ".png" to a name without a suffix, and would leave the draft itself empty.
    with write_aside(path) as draft:
        render_figure(figure, draft, dpi=dpi, format=draft.suffix[1:] or "png")


def render_figure(figure: Any, file: Any, **options: Any) -> None:
    """Lay a figure out and draw it once; ``savefig`` alone would draw it twice.

    Args:
        figure: the figure.
        file: path or open file to write.
        options: dpi and format, as of ``savefig``.
    """
    if figure.get_layout_engine() is not None:
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine(None)
    figure.savefig(file, **options)
