"""Batches, splits and data sets."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._arguments import checked_fields
from .._kinds import BOOL, FINITE, LARGEST, POSITIVE, SMALLEST, STRING, TEXT, Choice, Int, ListOf
from .._object_kinds import CALLABLE, Instance, TensorOf
from .shape import TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["TENSORS", "Batch", "Data", "Split", "TargetScale"]

#: deviation of targets around zero that may come from rounding
ROUNDING = 1e-15
#: names of the tensors of a split
TENSORS = ("inputs", "target", "coords", "mask", "at")


@checked_fields(mean=ListOf(FINITE), std=ListOf(POSITIVE))
@dataclass(frozen=True)
class TargetScale:
    """Scale of a regression target: a network learns (y - mean) / std, whatever the unit of y.

    Args:
        mean: mean of each value.
        std: standard deviation of each value.

    >>> scale = TargetScale.of(torch.tensor([[29_000.0], [31_000.0]]))
    >>> scale.normal(torch.tensor([[30_500.0]])), scale.undo(torch.tensor([[0.5]]))
    (tensor([[0.5000]]), tensor([[30500.]], dtype=torch.float64))
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    # One copy per device: a copy at every step would make the host wait for the device.
    _by_device: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, target: Tensor, name: str = "target") -> TargetScale:
        r"""Return the scale of targets (n, out, \*space); NaN is ignored, and a constant has standard deviation 1.

        Error messages call the targets ``name``.
        """
        values = target.double().movedim(1, -1).flatten(0, -2)
        mean = values.nanmean(dim=0).nan_to_num()
        std = (values - mean).square().nanmean(dim=0).sqrt()
        if bool(((mean.abs() > LARGEST) | (std > LARGEST)).any()):
            largest = float(values.nan_to_num().abs().max())
            raise ValueError(
                f"{name} must have a mean and a standard deviation up to {LARGEST:g}, got {largest:.3g}; rescale it"
            )
        small = (std > 0) & (std <= SMALLEST) & (std > 1e-9 * mean.abs())  # a constant may vary by rounding
        if bool(small.any()) and bool((std[small] <= ROUNDING).all()):
            warnings.warn(
                f"{name} varies by only {float(std[small][0]):.3g} and counts as constant; rescale it if that is no "
                "rounding error",
                stacklevel=3,
            )
        elif bool(small.any()):
            raise ValueError(
                f"{name} must have a standard deviation above {SMALLEST:g}, got {float(std[small][0]):.3g}; rescale it"
            )
        return cls(tuple(mean.tolist()), tuple(torch.where(std > SMALLEST, std, 1.0).tolist()))

    def normal(self, target: Tensor) -> Tensor:
        r"""Return normalised targets (n, out, \*space), in float32."""
        mean, std = self._on(target)
        return ((target.double() - mean) / std).float()

    def undo(self, prediction: Tensor) -> Tensor:
        r"""Return predictions (n, out, \*space) in the unit of the targets, in float64."""
        return self.stretched(prediction) + self._on(prediction)[0]

    def stretched(self, error: Tensor) -> Tensor:
        r"""Return differences (n, out, \*space) of normalised values in the unit of the targets, in float64."""
        return error.double() * self._on(error)[1]

    def _on(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation on the device of ``values`` (n, out, …), of shape (out, 1, …)."""
        device = values.device
        if device not in self._by_device:
            mean, std = (torch.tensor(v, dtype=torch.float64, device=device) for v in (self.mean, self.std))
            self._by_device[device] = mean, std
        shape = (-1, *(1,) * (values.dim() - 2))
        mean, std = self._by_device[device]
        return mean.view(shape), std.view(shape)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_by_device": {}}


@checked_fields(
    inputs=TensorOf("any", "batch, …"),
    target=TensorOf("any", "batch, …") | None,
    coords=TensorOf("float", "batch, points, dim") | None,
    mask=TensorOf("bool") | None,
    at=TensorOf("float", "batch, queries, dim") | None,
    step=POSITIVE | ListOf(POSITIVE),
    scale=Instance("kernelfield.data.base.TargetScale") | None,
)
@dataclass(frozen=True)
class Batch:
    """Inputs and targets of some samples, on grids, at times or at points.

    Args:
        inputs: (batch, channels, *space) signals, (batch, channels, points) values, or (batch, length) token ids.
        target: (batch,) classes, (batch, out) values, (batch, length) tokens, …; None if there are no targets.
        coords: (batch, points, dim) coordinates in training steps, if the samples do not lie on a grid.
        mask: (batch, *space) or (batch, points) whether a position was observed; False for padding and missing values.
        step: sampling step of the inputs in training steps.
        scale: scale of the target, if it is normalised; metrics and predictions use the original unit.
        at: (batch, queries, dim) coordinates, in training steps, at which the network predicts. The target is then
            (batch, out, queries), and NaN where there is nothing to predict.

    >>> batch = Batch(torch.zeros(2, 1, 8), torch.tensor([0, 1]))
    >>> len(batch), batch.sampling
    (2, {})
    """

    inputs: Tensor
    target: Tensor | None = None
    coords: Tensor | None = None
    mask: Tensor | None = None
    step: float | tuple[float, ...] = 1.0
    scale: TargetScale | None = None
    at: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def sampling(self) -> dict[str, Any]:
        """Return step, if it is not 1, coords, mask and at, if there are any, as keyword arguments of a network."""
        # Networks on groups take no step, and those that do take 1 by default.
        steps = self.step if isinstance(self.step, (tuple, list)) else (self.step,)
        step = None if all(s == 1 for s in steps) else self.step
        given = {"step": step, "coords": self.coords, "mask": self.mask, "at": self.at}
        return {name: value for name, value in given.items() if value is not None}

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """Return the batch with its tensors moved, as :meth:`torch.Tensor.to` does."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {
            name: value.to(*args, **kwargs) if isinstance(value, Tensor) else value for name, value in held.items()
        }
        return Batch(**moved)


@checked_fields(
    inputs=TensorOf("any", "batch, …"),
    target=TensorOf("any", "batch, …"),
    coords=TensorOf("float", "batch, points, dim") | None,
    mask=TensorOf("bool") | None,
    at=TensorOf("float", "batch, queries, dim") | None,
    step=POSITIVE | ListOf(POSITIVE),
    prepare=CALLABLE | None,
)
@dataclass(frozen=True)
class Split:
    """The samples of one part of a data set, in memory.

    A split keeps samples as stored (bytes stay bytes), and :meth:`to` moves all of them to the device at once.
    ``prepare`` converts each batch to floats there, so no step waits for the host.

    Args:
        inputs: (n, …) inputs of all samples.
        target: (n, …) targets of all samples.
        coords: (n, points, dim) coordinates.
        mask: (n, …) whether a position was observed.
        step: sampling step in training steps.
        prepare: transform of a batch: normalisation, and augmentation if ``training``.
        at: (n, queries, dim) coordinates at which the network predicts; see :class:`Batch`.

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
    at: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, index: Tensor | slice, training: bool = False) -> Batch:
        """Return the samples at ``index`` as a prepared batch."""
        picked: dict[str, Any] = {
            name: None if (whole := getattr(self, name)) is None else whole[index] for name in TENSORS
        }
        batch = Batch(step=self.step, **picked)
        return batch if self.prepare is None else self.prepare(batch, training)

    def take(self, index: Tensor | slice) -> Split:
        """Return a split that holds the samples at ``index``."""
        return self._map(lambda tensor: tensor[index])

    def cut(self, counts: Sequence[int]) -> list[Split]:
        """Cut the samples, in order, into splits of ``counts`` samples each.

        >>> [len(part) for part in Split(torch.zeros(5, 1, 1), torch.zeros(5)).cut((3, 0, 2))]
        [3, 0, 2]
        """
        ends = list(itertools.accumulate(counts, initial=0))
        return [self.take(slice(start, end)) for start, end in itertools.pairwise(ends)]

    def to(self, device: torch.device | str) -> Split:
        """Return the split with its tensors on ``device``."""
        return self._map(lambda tensor: tensor.to(device))

    def _map(self, function: Callable[[Tensor], Tensor]) -> Split:
        """Apply ``function`` to every tensor."""
        held = {name: getattr(self, name) for name in TENSORS}
        mapped: dict[str, Any] = {name: None if t is None else function(t) for name, t in held.items()}
        return replace(self, **mapped)


@checked_fields(
    name=TEXT,
    train=Instance("kernelfield.data.Split"),
    validation=Instance("kernelfield.data.Split") | None,
    test=Instance("kernelfield.data.Split"),
    size=ListOf(Int()),
    task=Choice(*TASKS),
    classes=ListOf(STRING, least=0),
    vocabulary=Int() | None,
    parts=ListOf(ListOf(Int(0)), least=0),
    channels=ListOf(STRING, least=0),
    unit=POSITIVE | None,
    dates=BOOL | None,
    columns=ListOf(STRING, least=0),
    targets=ListOf(STRING, least=0),
    levels=ListOf(Int(0), least=0),
    always=ListOf(STRING, least=0),
    reach=ListOf(FINITE, least=0),
)
@dataclass(frozen=True)
class Data:
    """A data set: its splits, and the shapes that a network for it needs.

    Args:
        name: name of the data set.
        train: training samples.
        validation: validation samples; None if there are none.
        test: test samples.
        in_channels: channels of the inputs.
        out_channels: number of predictions.
        dim: number of spatial dimensions.
        size: length of the inputs along each axis, in training steps.
        task: "classification", "multilabel", "regression", "dense-regression", "segmentation" or "language".
        classes: names of the classes, if known.
        vocabulary: number of tokens, if the inputs are (n, length) token ids; ``in_channels`` is then 1, and the
            network chooses the width of the embedding.
        parts: labels that belong to each kind of object, for a segmentation of objects into parts; empty otherwise.
        channels: names of the stored channels, if known.
        unit: time of one training step, for series with times.
        dates: whether these times are dates; None if unknown.
        columns: names of the columns of a table with one series per line, in order of time, if known.
        targets: names of the channels to predict at query times, if known.
        levels: least pixel, largest pixel and value of white of images with pixels of more than 8 bits, which are
            stored as bytes; empty if there are none.
        always: names of the channels that have a value in each training sample, if known.
        reach: least and largest query coordinate of the training samples; empty if there are none.
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
    dates: bool | None = None
    columns: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    levels: tuple[int, ...] = ()
    always: tuple[str, ...] = ()
    reach: tuple[float, ...] = ()

    @classmethod
    def from_splits(
        cls,
        name: str,
        splits: Sequence[Split | None],
        task: str = "classification",
        *,
        in_channels: int | None = None,
        out_channels: int | None = None,
        size: Sequence[int] | None = None,
        classes: Sequence[str] = (),
        **others: Any,
    ) -> Data:
        """Return a data set from three splits; shapes that are not given are those of the training inputs.

        Args:
            name: name of the data set.
            splits: training, validation and test samples; a validation split that is empty counts as None.
            task: see :class:`Data`.
            in_channels: channels of the inputs; by default the stored ones, or 1 for (n, length) token ids.
            out_channels: number of predictions; the number of classes by default.
            size: length along each axis, in training steps; that of the stored inputs by default.
            classes: names of the classes, if known.
            others: ``vocabulary``, ``parts``, ``channels``, ``unit``, ``dates``, ``columns``, ``targets``, ``levels``,
                ``always`` and ``reach`` of :class:`Data`.

        >>> split = Split(torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.long))
        >>> data = Data.from_splits("blank", [split, None, split], classes=("black", "white"))
        >>> data.in_channels, data.out_channels, data.dim, data.size
        (3, 2, 2, (8, 8))
        """
        train, validation, test = splits
        if train is None or test is None:
            raise ValueError(f"splits must hold training and test samples, got {[s and len(s) for s in splits]}")
        channels, *space = train.inputs.shape[1:] if train.inputs.dim() > 2 else (1, *train.inputs.shape[1:])
        size = tuple(space if size is None else size)
        return cls(
            name,
            train,
            validation if validation is not None and len(validation) else None,
            test,
            channels if in_channels is None else in_channels,
            len(classes) if out_channels is None else out_channels,
            len(size),
            size,
            task,
            tuple(classes),
            **others,
        )
