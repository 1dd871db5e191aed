"""Images as sequences: pixel by pixel, permuted, or row by row followed by noise (chapters 2, 3 and 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._arguments import checked
from ..._checks import check_choice, check_int
from ..._kinds import TEXT, Choice
from .batch import augments

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..base import Batch, Data, Split

__all__ = ["Flatten", "NoisePadding", "as_sequence", "map_splits", "noise_padded", "permuted", "pixel_order"]


def map_splits(data: Data, change: Callable[[Split], Split], **fields: object) -> Data:
    """Return the data with ``change`` applied to each split and other ``fields`` replaced."""
    validation = None if data.validation is None else change(data.validation)
    changed = {"train": change(data.train), "validation": validation, "test": change(data.test), **fields}
    return replace(data, **changed)  # type: ignore[arg-type]


@checked(name=TEXT | None)
def as_sequence(data: Data, name: str | None = None) -> Data:
    """Return images read row by row: (n, channels, rows, columns) to (n, channels, rows · columns).

    An augmented split keeps its images; each batch becomes sequences after its augmentation.

    >>> from kernelfield.data.sets.synthetic.shapes import shapes
    >>> as_sequence(shapes(8, train=4)).size
    (64,)
    """
    _check_images(data)
    return _flattened(data, None, name)


def _flattened(data: Data, order: Tensor | None, name: str | None) -> Data:
    if data.train.coords is not None:
        raise ValueError(f"data must be on a grid, got {data.name} at points")

    def change(split: Split) -> Split:
        if augments(split.prepare):
            return replace(split, prepare=Flatten(split.prepare, order))
        return replace(split, inputs=_in_order(split.inputs.flatten(2), order), mask=_flat_mask(split.mask, order))

    return map_splits(data, change, name=name or data.name, dim=1, size=(math.prod(data.size),))


def _in_order(positions: Tensor, order: Tensor | None) -> Tensor:
    """Return (…, positions) values in another order of the positions, if there is one."""
    return positions if order is None else positions.index_select(-1, order.to(positions.device))


def _flat_mask(mask: Tensor | None, order: Tensor | None) -> Tensor | None:
    return None if mask is None else _in_order(mask.flatten(1), order)


@dataclass(frozen=True, eq=False)
class Flatten:
    """Turn prepared images into sequences of pixels.

    Args:
        before: transform of the images.
        order: (rows · columns,) order of the pixels; row by row if not given.
    """

    before: Callable[[Batch, bool], Batch] | None
    order: Tensor | None = None
    # One copy per device.
    _by_device: dict[torch.device, Tensor] = field(default_factory=dict, repr=False)

    @property
    def augments(self) -> bool:
        """Whether training samples differ from call to call."""
        return augments(self.before)

    def __call__(self, batch: Batch, training: bool) -> Batch:
        if self.before is not None:
            batch = self.before(batch, training)
        flat, order = batch.inputs.flatten(2), None
        if self.order is not None:
            order = self._by_device.setdefault(flat.device, self.order.to(flat.device))
        return replace(batch, inputs=_in_order(flat, order), mask=_flat_mask(batch.mask, order))

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_by_device": {}}


@checked(name=TEXT | None)
def permuted(data: Data, seed: int = 0, name: str | None = None) -> Data:
    """Return sequences of pixels in one random order for all samples.

    Args:
        data: images, or sequences of their pixels.
        seed: seed of the order.
        name: name of the new data.

    >>> from kernelfield.data.sets.synthetic.shapes import shapes
    >>> plain, mixed = as_sequence(shapes(8, train=4)), permuted(shapes(8, train=4), seed=1)
    >>> same = plain.train.inputs.sort().values == mixed.train.inputs.sort().values
    >>> bool(same.all()), torch.equal(plain.train.inputs, mixed.train.inputs)
    (True, False)
    """
    return _flattened(data, pixel_order(math.prod(data.size), seed), name)


def pixel_order(count: int, seed: int) -> Tensor:
    """Return the random order of ``count`` pixels that belongs to a seed."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


@checked(noise=Choice("fresh", "shared"), name=TEXT | None)
def noise_padded(
    data: Data, length: int = 1_000, *, noise: str = "fresh", seed: int = 0, name: str | None = None
) -> Data:
    """Return images as sequences of rows, followed by noise (chapter 5, appendix; Chang et al., 2019).

    A row of c channels and w columns is one step of c · w channels. Standard normal noise fills the sequence up to
    ``length`` steps. It is drawn on the device for each batch, because stored padded images would be thirty times as
    large.

    Args:
        data: images.
        length: length of the sequences.
        noise: "fresh" draws new noise for every sample in training, and the same noise for every batch in evaluation;
            "shared" is one fixed noise for all samples, as in the published code.
        seed: seed of the noise for evaluation, or of the shared noise.
        name: name of the new data.

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
    """Turn prepared images into sequences of rows, followed by noise; see :func:`noise_padded`."""

    before: Callable[[Batch, bool], Batch] | None
    length: int
    noise: str = "fresh"
    seed: int = 0
    # One copy of the shared noise per device.
    _by_device: dict[torch.device, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_choice("noise", self.noise, ("fresh", "shared"))

    @property
    def augments(self) -> bool:
        """Whether training samples differ from call to call."""
        return self.noise == "fresh" or augments(self.before)

    def __call__(self, batch: Batch, training: bool) -> Batch:
        if self.before is not None:
            batch = self.before(batch, training)
        rows = batch.inputs.movedim(2, -1).flatten(1, 2)  # (n, channels · columns, rows)
        return replace(batch, inputs=torch.cat([rows, self.draw(rows, training)], dim=-1))

    def draw(self, rows: Tensor, training: bool) -> Tensor:
        """Return (n, channels · columns, length - rows) noise."""
        shape = (len(rows), rows.shape[1], self.length - rows.shape[2])
        if self.noise == "shared":
            return self._shared((1, *shape[1:]), rows.device).to(rows.dtype).expand(shape)
        generator = None if training else torch.Generator(rows.device).manual_seed(self.seed)
        return torch.randn(shape, generator=generator, device=rows.device, dtype=rows.dtype)

    def _shared(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Return the noise of all samples, drawn on the CPU so that it does not depend on the device."""
        known = self._by_device.get(device)
        if known is None or known.shape != shape:
            known = torch.randn(shape, generator=torch.Generator().manual_seed(self.seed)).to(device)
            self._by_device[device] = known
        return known

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_by_device": {}}


def _check_images(data: Data) -> None:
    if data.dim != 2:
        raise ValueError(f"data must be images (dim 2), got {data.name} of dim {data.dim}")
