"""One photograph, to be fitted by a field (chapter 5, appendix)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...._arguments import checked
from ...._kinds import Int
from ...base import Batch, Data, Split
from ...io.files import folder
from .image_folder import ENDINGS, read_image

if TYPE_CHECKING:
    import os

__all__ = ["photograph"]


@checked(image=Int(0))
def photograph(root: str | os.PathLike[str] | None, *, image: int = 0, repeat: int = 100) -> Data:
    """Return a photograph as a function to learn: from positions to colours.

    Source: any folder of images; chapter 5 has the 24 photographs of the Kodak set, 768×512, from
    https://r0k.us/graphics/kodak/. Licence: the Kodak set is free to use. Split: none, the same photograph in all
    three. Normalisation: colours from 0 to 1. Reading images needs pillow, which comes with the extra ``train``.

    Args:
        root: folder of images, or one of them.
        image: which of the folder's, in the order of their names.
        repeat: how often the photograph is seen in an epoch.

    Returns:
        Inputs (repeat, 1, rows, columns), all of them zero: all that is given are positions. Targets
        (repeat, 3, rows, columns).
    """
    where = folder(root, "a folder of photographs")
    paths = sorted(p for p in where.iterdir() if p.suffix.lower() in ENDINGS)
    if not 0 <= image < len(paths):
        raise ValueError(f"image must be at least 0 and below the {len(paths)} images in {where}, got {image}")
    colours = torch.from_numpy(read_image(paths[image]).copy()).permute(2, 0, 1)
    space = colours.shape[1:]
    # One photograph in memory, however often it is repeated.
    once = Split(torch.zeros(1, 1, *space), colours.unsqueeze(0), prepare=_to_unit)
    many = Split(once.inputs.expand(repeat, -1, -1, -1), once.target.expand(repeat, -1, -1, -1), prepare=_to_unit)
    return Data.from_splits("photograph", [many, None, once], "dense-regression", out_channels=3)


def _to_unit(batch: Batch, training: bool) -> Batch:  # noqa: ARG001
    assert batch.target is not None
    return Batch(batch.inputs, batch.target.float() / 255, step=batch.step)
