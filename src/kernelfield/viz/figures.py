"""Saving figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._atomic import write_aside

if TYPE_CHECKING:
    import os

__all__ = ["save_figure"]


def save_figure(figure: Any, path: str | os.PathLike[str], dpi: int = 120) -> None:
    """Save a figure of matplotlib; the file is written aside and moved into place.

    Args:
        figure: the figure.
        path: file to write; its suffix sets the format.
        dpi: dots per inch.
    """
    with write_aside(path) as draft:
        figure.savefig(draft, dpi=dpi)
