"""The structures every kind of data shares: a batch, a split, a data set."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Batch", "Data", "Split", "TargetScale"]


@dataclass(frozen=True)
class TargetScale:
    """The scale of values to predict: a network learns (y - mean) / std, of about unit size whatever they measure.

    Args:
        mean: of each value.
        std: of each value.

    >>> scale = TargetScale.of(torch.tensor([[29_000.0], [31_000.0]]))
    >>> scale.normal(torch.tensor([[30_500.0]])), scale.undo(torch.tensor([[0.5]]))
    (tensor([[0.5000]]), tensor([[30500.]], dtype=torch.float64))
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    # Copied to a device once: a copy at every step would make the host wait for the device.
    _there: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, target: Tensor) -> TargetScale:
        """Return the scale of targets (n, out); values that are all alike keep their unit."""
        values = target.double()
        std = values.std(dim=0, correction=0)
        return cls(tuple(values.mean(dim=0).tolist()), tuple(torch.where(std > 1e-12, std, 1.0).tolist()))

    def normal(self, target: Tensor) -> Tensor:
        """Return targets (n, out) as they are learned, in float32."""
        mean, std = self._on(target.device)
        return ((target.double() - mean) / std).float()

    def undo(self, prediction: Tensor) -> Tensor:
        """Return predictions (n, out) in the unit of the targets, in float64."""
        return self.stretched(prediction) + self._on(prediction.device)[0]

    def stretched(self, error: Tensor) -> Tensor:
        """Return differences (n, out) of predictions in the unit of the targets, in float64."""
        return error.double() * self._on(error.device)[1]

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._there:
            mean, std = (torch.tensor(v, dtype=torch.float64, device=device) for v in (self.mean, self.std))
            self._there[device] = mean, std
        return self._there[device]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_there": {}}


@dataclass(frozen=True)
class Batch:
    """What a network is given and what it should answer; the same for grids, times and points.

    Args:
        inputs: (batch, channels, *space) signals, (batch, channels, points) values, or (batch, length) token ids.
        target: what to predict: (batch,) classes, (batch, out) values, (batch, length) tokens, …; None to predict only.
        coords: (batch, points, dim) coordinates in training steps, if the samples lie on no grid.
        mask: (batch, *space) or (batch, points) whether a sample was seen; False for padding and missing values.
        step: sampling step of the inputs in training steps.
        scale: of the target, if that is not in its own unit; metrics and predictions are.

    >>> batch = Batch(torch.zeros(2, 1, 8), torch.tensor([0, 1]))
    >>> len(batch), batch.sampling
    (2, {'step': 1.0})
    """

    inputs: Tensor
    target: Tensor | None = None
    coords: Tensor | None = None
    mask: Tensor | None = None
    step: float | tuple[float, ...] = 1.0
    scale: TargetScale | None = None

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
