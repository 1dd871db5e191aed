"""Pixels of more than 8 bits: their range over a set of images, and the value that stands for white."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["DARK", "WHITE", "check_black", "check_upper_bytes", "is_deep", "pixel_levels", "to_bytes"]

#: value of white pixels of 16 bits
WHITE = 65535
#: values of white pixels of 8, 10, 12, 14 and 16 bits
_WHITES = (255, 1023, 4095, 16383, WHITE)
#: tag of a TIFF image that tells whether 0 is white
_PHOTOMETRIC = 262
#: an image whose pixels reach at most this share of white may hold fewer bits than others
DARK = 1 / 16


def check_black(image: Any, path: Path) -> None:
    """Raise a ValueError for a TIFF image of more than 8 bits in which 0 is white, which Pillow does not invert."""
    if is_deep(image) and getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == 0:
        raise ValueError(f"{path} must be an image in which 0 is black, found one in which 0 is white")


def is_deep(image: Any) -> bool:
    """Return whether an open image has integer or float pixels of more than 8 bits."""
    return str(image.mode).startswith(("I", "F"))


def pixel_levels(ranges: Sequence[tuple[Path, int, int]], white: int | None = None) -> tuple[int, ...]:
    """Return the least pixel, the largest pixel and the value of white; an empty tuple without images.

    Scanners and cameras store 10, 12 or 14 bits in images of 16. White is the largest value of the fewest of 8, 10, 12,
    14 or 16 bits that hold all pixels.

    Args:
        ranges: path, least and largest pixel of each image of more than 8 bits.
        white: value of white, if known.

    >>> from pathlib import Path
    >>> pixel_levels([(Path("a.png"), 12, 3871), (Path("b.png"), 0, 2950)])
    (0, 3871, 4095)
    """
    if not ranges:
        return ()
    least, most = min(low for _, low, _ in ranges), max(high for _, _, high in ranges)
    if white is not None and most > white:
        path = next(path for path, _, high in ranges if high > white)
        raise ValueError(f"white must be at least the largest pixel, {most}, got {white} for {path}")
    chosen = white or next((level for level in _WHITES if most <= level), WHITE)
    dark = [(path, high) for path, _, high in ranges if 0 < high <= chosen * DARK]
    if dark:
        warnings.warn(
            f"{len(dark)} of {len(ranges)} images with pixels of more than 8 bits are almost black: {dark[0][0]} "
            f"reaches {dark[0][1]} of {chosen}; all images must have the same number of bits",
            stacklevel=3,
        )
    return least, most, chosen


def to_bytes(pixels: np.ndarray, path: Path, levels: Sequence[int] = (), *, announce: bool = True) -> np.ndarray:
    """Return pixels of more than 8 bits as bytes; one scale for all images keeps their brightness comparable.

    Args:
        pixels: integers, or floats from 0 to 1.
        path: file of the image, for errors.
        levels: least pixel, largest pixel and white of the training images; see :func:`pixel_levels`. By default white
            is 65535.
        announce: whether to warn of an image that is almost black on this scale.
    """
    white = levels[2] if levels else WHITE
    top, kind = (1, "floats") if pixels.dtype.kind == "f" else (white, "integers")
    wide = pixels.astype(np.float64)
    if not ((wide >= 0) & (wide <= top)).all():
        like = ", like the images of the training" if levels and kind == "integers" else ""
        raise ValueError(f"{path} must hold {kind} from 0 to {top}{like}, found {wide.min():g} to {wide.max():g}")
    if announce and kind == "integers" and 0 < wide.max() <= white * DARK:
        others = f"; images of the training reach {levels[1]}" if levels else ""
        warnings.warn(
            f"{path} is almost black: its pixels reach {wide.max():g}, and {white} is white{others}", stacklevel=3
        )
    return (wide / top * 255).astype(np.uint8)


def check_upper_bytes(pixels: np.ndarray, path: Path) -> None:
    """Raise a ValueError for a colour image of 16 bits whose pixels use few of them.

    Pillow reads the upper 8 of these bits only, so an image of 12 bits would be black.

    Args:
        pixels: colours that Pillow has read, as bytes.
        path: file of the image, for errors.
    """
    if pixels.max() <= 255 * DARK:
        raise ValueError(
            f"{path} must use all bits of its colours, since the upper 8 of 16 are read, found values up to "
            f"{256 * int(pixels.max()) + 255} of {WHITE}; store colours in 8 bits"
        )
