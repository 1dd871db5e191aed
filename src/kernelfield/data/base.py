"""The structures every kind of data shares: a batch, a split, a data set."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Batch", "Data", "Split"]


@dataclass(frozen=True)
class Batch:
    """What a network is given and what it should answer; the same for grids, times and points.

    Args:
        inputs: (batch, channels, *space) signals, (batch, channels, points) values, or (batch, length) token ids.
        target: what to predict: (batch,) classes, (batch, out) values, (batch, length) tokens, …; None to predict only.
        coords: (batch, points, dim) coordinates in training steps, if the samples lie on no grid.
        mask: (batch, *space) or (batch, points) whether a sample was seen; False for padding and missing values.
        step: sampling step of the inputs in training steps.

    >>> batch = Batch(torch.zeros(2, 1, 8), torch.tensor([0, 1]))
    >>> len(batch), batch.sampling
    (2, {'step': 1.0})
    """

    inputs: Tensor
    target: Tensor | None = None
    coords: Tensor | None = None
    mask: Tensor | None = None
    step: float | tuple[float, ...] = 1.0

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def sampling(self) -> dict[str, Any]:
        """Return what a network takes beside the inputs, as keyword arguments."""
        given = {"step": self.step, "coords": self.coords, "mask": self.mask}
        return {name: value for name, value in given.items() if value is not None}

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """Return the batch with its tensors moved, as :meth:`torch.Tensor.to` does."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {
            name: value.to(*args, **kwargs) if isinstance(value, Tensor) else value for name, value in held.items()
        }
        return Batch(**moved)


@dataclass(frozen=True)
class Split:
    """The samples of one part of a data set, whole tensors in memory.

    Whatever fits is kept as it came (bytes stay bytes), moved to the device as a whole, and made into floats a batch at
    a time by ``prepare``, so that no step waits for the host.

    Args:
        inputs: (n, …) inputs of all samples.
        target: (n, …) targets of all samples.
        coords: (n, points, dim) coordinates.
        mask: (n, …) which samples were seen.
        step: sampling step in training steps.
        prepare: maps a batch to a batch: normalisation, and augmentation if ``training``.

    >>> split = Split(torch.arange(4.0).view(4, 1, 1), torch.arange(4))
    >>> split.batch(torch.tensor([1, 3])).target
    tensor([1, 3])
    """

    inputs: Tensor
    target: Tensor
    coords: Tensor | None = None
    mask: Tensor | None = None
    step: float | tuple[float, ...] = 1.0
    prepare: Callable[[Batch, bool], Batch] | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, index: Tensor | slice, training: bool = False) -> Batch:
        """Return the samples at ``index`` as a prepared batch."""
        picked: dict[str, Any] = {
            name: None if (whole := getattr(self, name)) is None else whole[index]
            for name in ("inputs", "target", "coords", "mask")
        }
        batch = Batch(step=self.step, **picked)
        return batch if self.prepare is None else self.prepare(batch, training)

    def to(self, device: torch.device | str) -> Split:
        """Return the split with its tensors on ``device``."""
        held = {name: getattr(self, name) for name in ("inputs", "target", "coords", "mask")}
        moved: dict[str, Any] = {name: None if t is None else t.to(device) for name, t in held.items()}
        return replace(self, **moved)


@dataclass(frozen=True)
class Data:
    """A data set: its splits, and what a network for it must be told.

    Args:
        name: of the data set.
        train: samples to learn from.
        validation: samples to choose by; None where none are set aside.
        test: samples to report on.
        in_channels: channels of the inputs.
        out_channels: number of predictions.
        dim: number of spatial dimensions.
        size: length of the inputs along each axis, in training steps.
        task: "classification", "multilabel", "regression", "dense-regression", "segmentation" or "language".
        classes: names of the classes, where they have any.
        vocabulary: number of tokens, if the inputs are (n, length) token ids; ``in_channels`` is 1 then, and how
            wide to embed them is the network's choice.
        parts: of a segmentation into parts of objects, the labels that belong to each kind of object; none otherwise.
        channels: names of the channels as stored, where they have any.
        unit: time of one training step, of series that were given with times.
    """

    name: str
    train: Split
    validation: Split | None
    test: Split
    in_channels: int
    out_channels: int
    dim: int
    size: tuple[int, ...]
    task: str
    classes: tuple[str, ...] = ()
    vocabulary: int | None = None
    parts: tuple[tuple[int, ...], ...] = ()
    channels: tuple[str, ...] = ()
    unit: float | None = None
