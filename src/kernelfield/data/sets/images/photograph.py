"""One photograph, to fit with a field (chapter 5, appendix)."""

from __future__ import annotations

from dataclasses import dataclass
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


@checked(image=Int(0), repeat=Int(1), pixels=Int(1) | None)
def photograph(
    root: str | os.PathLike[str] | None, *, image: int = 0, repeat: int = 100, pixels: int | None = None
) -> Data:
    """Return a photograph as a function from positions to colours.

    Source: any folder of images; chapter 5 uses the 24 photographs of the Kodak set, 768×512, from
    https://r0k.us/graphics/kodak/. Licence: the Kodak set is free to use. Split: none; all three splits hold the same
    photograph. A photograph in portrait format is rotated by 90°, so all photographs of the Kodak set have the same
    shape.
    Normalisation: positions from -1 to 1 along each axis, colours from 0 to 1. Reading images needs pillow, which comes
    with the extra ``train``.

    Args:
        root: folder of images, or one of them.
        image: number of the image in the folder, in the order of names.
        repeat: number of repetitions of the photograph in an epoch.
        pixels: number of pixels to draw in each training step; by default all pixels, on the grid.

    Returns:
        Inputs (repeat, 2, rows, columns), the positions. Targets (repeat, 3, rows, columns). Drawn pixels have one axis
        instead of two.
    """
    where = folder(root, "a folder of photographs")
    paths = sorted(p for p in where.iterdir() if p.suffix.lower() in ENDINGS)
    if not 0 <= image < len(paths):
        raise ValueError(f"image must be at least 0 and below the {len(paths)} images in {where}, got {image}")
    colours = torch.from_numpy(read_image(paths[image]).copy()).permute(2, 0, 1)
    if colours.shape[1] > colours.shape[2]:
        colours = colours.rot90(1, (1, 2))
    axes = [torch.linspace(-1, 1, n) for n in colours.shape[1:]]
    positions = torch.stack(torch.meshgrid(*axes, indexing="ij"))
    # The memory holds one photograph, however often it is repeated.
    once = Split(positions.unsqueeze(0), colours.unsqueeze(0), prepare=DrawPixels())
    many = Split(
        once.inputs.expand(repeat, -1, -1, -1), once.target.expand(repeat, -1, -1, -1), prepare=DrawPixels(pixels)
    )
    return Data.from_splits("photograph", [many, None, once], "dense-regression", out_channels=3)


@dataclass(frozen=True)
class DrawPixels:
    """Scale colours to [0, 1] and, in training, draw pixels with replacement, the same ones for all samples.

    Args:
        count: number of pixels; by default all pixels, on the grid.
    """

    count: int | None = None

    def __call__(self, batch: Batch, training: bool) -> Batch:
        inputs, colours = batch.inputs, batch.target
        assert colours is not None
        if training and self.count is not None:
            inputs, colours = inputs.flatten(2), colours.flatten(2)
            index = torch.randint(inputs.shape[-1], (self.count,), device=inputs.device)
            inputs, colours = inputs[..., index], colours[..., index]
        return Batch(inputs, colours.float() / 255, step=batch.step)
