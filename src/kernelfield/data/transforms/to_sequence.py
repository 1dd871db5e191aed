"""Other forms of a set of images: sequences of pixels, permuted ones, rows in noise (chapters 2, 3 and 5)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._checks import check_choice, check_int

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..base import Batch, Data, Split

__all__ = ["NoisePadding", "as_sequence", "map_splits", "noise_padded", "permuted"]


def map_splits(data: Data, change: Callable[[Split], Split], **fields: object) -> Data:
    """Return the data with each split changed, and other ``fields`` of it."""
    held = None if data.validation is None else change(data.validation)
    changed = {"train": change(data.train), "validation": held, "test": change(data.test), **fields}
    return replace(data, **changed)  # type: ignore[arg-type]


def as_sequence(data: Data, name: str | None = None) -> Data:
    """Return images read row by row: (n, channels, rows, columns) to (n, channels, rows · columns).

    >>> from kernelfield.data.sets.synthetic.shapes import shapes
    >>> as_sequence(shapes(8, train=4)).size
    (64,)
    """
    _check_images(data)
    size = data.size[0] * data.size[1]
    return map_splits(
        data, lambda s: replace(s, inputs=s.inputs.flatten(2)), name=name or data.name, dim=1, size=(size,)
    )


def permuted(data: Data, seed: int = 0, name: str | None = None) -> Data:
    """Return sequences of pixels in another order, random but the same for all samples and under the same seed.

    >>> from kernelfield.data.sets.synthetic.shapes import shapes
    >>> plain, mixed = as_sequence(shapes(8, train=4)), permuted(shapes(8, train=4), seed=1)
    >>> same = plain.train.inputs.sort().values == mixed.train.inputs.sort().values
    >>> bool(same.all()), torch.equal(plain.train.inputs, mixed.train.inputs)
    (True, False)
    """
    if data.dim == 2:
        data = as_sequence(data)
    order = torch.randperm(data.size[0], generator=torch.Generator().manual_seed(seed))
    return map_splits(data, lambda s: replace(s, inputs=s.inputs.index_select(2, order)), name=name or data.name)


def noise_padded(
    data: Data, length: int = 1_000, *, noise: str = "fresh", seed: int = 0, name: str | None = None
) -> Data:
    """Return images as sequences of rows, followed by noise (chapter 5, appendix; Chang et al., 2019).

    A row of c channels and w columns is one step of c · w channels; standard normal noise fills up to ``length`` steps.
    It is made on the device, a batch at a time, for the padded images would be thirty times as large.

    Args:
        data: images.
        length: of the sequences.
        noise: "fresh" draws anew for every sample in training, and the same for every batch otherwise; "shared" draws
            once, for all samples alike.
        seed: of the noise that is drawn once.
        name: of the new data.

    >>> from kernelfield.data.sets.synthetic.shapes import shapes
    >>> data = noise_padded(shapes(8, train=4), 100)
    >>> data.in_channels, data.train.batch(slice(0, 2)).inputs.shape
    (8, torch.Size([2, 8, 100]))
    """
    _check_images(data)
    rows, columns = data.size
    check_int("length", length, least=rows)

    def change(split: Split) -> Split:
        return replace(split, prepare=NoisePadding(split.prepare, length, noise, seed))

    channels = data.in_channels * columns
    return map_splits(data, change, name=name or data.name, in_channels=channels, dim=1, size=(length,))


@dataclass(frozen=True)
class NoisePadding:
    """Prepare images as rows followed by noise, after whatever prepared them before."""

    before: Callable[[Batch, bool], Batch] | None
    length: int
    noise: str = "fresh"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("noise", self.noise, ("fresh", "shared"))

    def __call__(self, batch: Batch, training: bool) -> Batch:
        if self.before is not None:
            batch = self.before(batch, training)
        rows = batch.inputs.movedim(2, -1).flatten(1, 2)  # (n, channels · columns, rows)
        return replace(batch, inputs=torch.cat([rows, self.draw(rows, training)], dim=-1))

    def draw(self, rows: Tensor, training: bool) -> Tensor:
        """Return (n, channels · columns, length - rows) noise."""
        n = 1 if self.noise == "shared" else len(rows)
        shape = (n, rows.shape[1], self.length - rows.shape[2])
        generator = None
        if self.noise == "shared" or not training:
            generator = torch.Generator(rows.device).manual_seed(self.seed)
        drawn = torch.randn(shape, generator=generator, device=rows.device, dtype=rows.dtype)
        return drawn.expand(len(rows), -1, -1)


def _check_images(data: Data) -> None:
    if data.dim != 2:
        raise ValueError(f"data must be images, dim 2, got {data.name} of dim {data.dim}")
