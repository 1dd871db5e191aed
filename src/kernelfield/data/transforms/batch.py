"""Transforms of a batch before it reaches the network: normalisation and augmentation, on the batch's device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from ..._arguments import checked_fields
from ..._checks import check_int
from ..._kinds import FINITE, NOT_NEGATIVE, POSITIVE, Choice, Int, ListOf
from ..._object_kinds import CALLABLE, Instance

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..base import Batch, TargetScale

__all__ = [
    "AsFloat",
    "AsTokens",
    "Chain",
    "Clip",
    "CropFlip",
    "Normalize",
    "Observed",
    "ResizeRotateCrop",
    "ScaleTarget",
    "Standardize",
    "StandardizeEach",
    "Subsample",
    "as_values",
    "augments",
]

#: values beyond the edge of an image
PADDINGS = ("zero", "symmetric")


@checked_fields(mean=ListOf(FINITE), std=ListOf(POSITIVE), scale=POSITIVE)
@dataclass(frozen=True)
class Standardize:
    """Convert bytes to floats of zero mean and unit variance, (x · scale - mean) / std for each channel.

    Args:
        mean: mean of each channel, after scaling.
        std: standard deviation of each channel, after scaling.
        scale: factor on the stored numbers; 1 / 255 for bytes.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 1 / 255
    # One copy per device: a copy at every step would make the host wait for the device.
    _by_device: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        x = batch.inputs
        if x.device not in self._by_device:
            std = torch.tensor(self.std, device=x.device)
            self._by_device[x.device] = self.scale / std, torch.tensor(self.mean, device=x.device) / std
        shape = (1, -1, *(1,) * (x.dim() - 2))
        gain, offset = (t.view(shape) for t in self._by_device[x.device])
        return replace(batch, inputs=x.float() * gain - offset)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_by_device": {}}


@dataclass(frozen=True)
class StandardizeEach:
    """Convert bytes to floats; each channel of each sample has zero mean and unit variance over its positions."""

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        flat = batch.inputs.float().flatten(2)
        centred = flat - flat.mean(dim=2, keepdim=True)
        # A constant channel becomes zero. Bytes that differ have a standard deviation above 1e-2.
        deviation = centred.square().mean(dim=2, keepdim=True).sqrt().clamp(min=1e-3)
        return replace(batch, inputs=(centred / deviation).view(batch.inputs.shape))


@checked_fields(limit=POSITIVE)
@dataclass(frozen=True)
class Clip:
    """Clip inputs to [-limit, limit].

    Args:
        limit: largest absolute value, positive.
    """

    limit: float

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        return replace(batch, inputs=batch.inputs.clamp(-self.limit, self.limit))


@checked_fields(limit=POSITIVE | None)
@dataclass(frozen=True, eq=False)
class Normalize:
    """Normalise measured values to zero mean and unit variance, (x - mean) / std; NaN becomes 0.

    Args:
        mean: means, (1, channels, 1) of each channel or (1, 1, length) of each step.
        std: standard deviations, of the same shape.
        observed: whether to add an indicator for each channel: a channel that is 1 where the other was observed, and 0
            elsewhere.
        limit: largest absolute value afterwards.
    """

    mean: Tensor
    std: Tensor
    observed: bool = False
    limit: float | None = None
    # One copy per device, as in Standardize.
    _by_device: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        return replace(batch, inputs=self.values(batch.inputs))

    def values(self, x: Tensor) -> Tensor:
        """Return normalised values (n, channels, …)."""
        steps = self.mean.shape[2:]
        if steps.numel() > 1 and steps != x.shape[2:]:
            raise ValueError(
                f"x must have {steps[0]} steps, like the statistics that normalise it, got {tuple(x.shape)}"
            )
        if x.device not in self._by_device:
            self._by_device[x.device] = (self.mean.to(x.device), self.std.to(x.device))
        mean, std = self._by_device[x.device]
        normal = ((x - mean) / std).nan_to_num()
        if self.limit is not None:
            normal = normal.clamp(-self.limit, self.limit)
        return torch.cat([normal, (~x.isnan()).to(normal.dtype)], dim=1) if self.observed else normal

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_by_device": {}}


@dataclass(frozen=True)
class AsFloat:
    """Convert stored integers to floats."""

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        return replace(batch, inputs=batch.inputs.float())


@dataclass(frozen=True)
class Subsample:
    """Keep every ``every``-th position of a sequence, without a low-pass filter.

    >>> from kernelfield.data.base import Batch
    >>> batch = Batch(torch.arange(7.0).view(1, 1, 7), torch.zeros(1))
    >>> Subsample(3)(batch, False).inputs.tolist()
    [[[0.0, 3.0, 6.0]]]
    """

    every: int

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        mask = None if batch.mask is None else batch.mask[..., :: self.every]
        return replace(batch, inputs=batch.inputs[..., :: self.every], mask=mask)


@dataclass(frozen=True)
class AsTokens:
    """Convert stored bytes to token ids, in inputs and in (n, length) targets."""

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        target = None if batch.target is None else batch.target.long()
        return replace(batch, inputs=batch.inputs.long(), target=target)


def as_values(tokens: Tensor, mask: Tensor) -> Tensor:
    """Return token ids (n, length) as one channel (n, 1, length), with the padding moved from the right to the left.

    Args:
        tokens: ids, padded on the right.
        mask: (n, length) True for tokens, False for padding.

    >>> as_values(torch.tensor([[5, 6, 0]]), torch.tensor([[True, True, False]])).tolist()
    [[[0, 5, 6]]]
    """
    # A stable sort puts the padding (False) first and keeps the order of the tokens.
    order = mask.int().argsort(dim=1, stable=True)
    return tokens.gather(1, order).unsqueeze(1)


@checked_fields(pad=Int(0), padding=Choice(*PADDINGS))
@dataclass(frozen=True)
class CropFlip:
    """In training, shift images at random by up to ``pad`` pixels and mirror half of them.

    This equals padding by ``pad`` pixels on each side and cropping at random.

    Args:
        pad: largest shift in pixels.
        flip: whether to mirror images horizontally.
        padding: values beyond the edge: "zero", or "symmetric" for the image mirrored at its edge.

    >>> from kernelfield.data.base import Batch
    >>> ones = Batch(torch.ones(50, 1, 8, 8))
    >>> [CropFlip(4, padding=padding)(ones, True).inputs.min().item() for padding in ("zero", "symmetric")]
    [0.0, 1.0]
    """

    pad: int = 4
    flip: bool = True
    padding: str = "zero"
    augments = True

    def __call__(self, batch: Batch, training: bool) -> Batch:
        if not training:
            return batch
        x = batch.inputs
        n, _, rows, columns = x.shape
        shift = torch.randint(2 * self.pad + 1, (2, n, 1), device=x.device)
        row = torch.arange(rows, device=x.device) + shift[0]
        column = torch.arange(columns, device=x.device) + shift[1]
        if self.flip:
            column = torch.where(torch.rand(n, 1, device=x.device) < 0.5, column, column.flip(1))
        if self.padding == "symmetric":
            row, column = _mirrored(row - self.pad, rows), _mirrored(column - self.pad, columns)
        else:
            x = F.pad(x, (self.pad,) * 4)
        sample = torch.arange(n, device=x.device).view(n, 1, 1)
        # Advanced indices on both sides of a slice put its axis, the channels, last.
        return replace(batch, inputs=x[sample, :, row.unsqueeze(2), column.unsqueeze(1)].movedim(-1, 1))


def _mirrored(index: Tensor, size: int) -> Tensor:
    """Return indices with those beyond 0 … size - 1 mirrored at the edge; the edge pixel is repeated."""
    index = index.remainder(2 * size)
    return torch.where(index < size, index, 2 * size - 1 - index)


@checked_fields(degrees=NOT_NEGATIVE)
@dataclass(frozen=True)
class ResizeRotateCrop:
    """Resize images to ``size`` pixels per side; in training with a random rotation, crop and flip (chapter 3, STL-10).

    In training, an image is enlarged to ``enlarged`` pixels, rotated by up to ``degrees``, cropped at random to
    ``size`` and mirrored half of the time. All of this is one map of coordinates and one bilinear interpolation, with
    zeros beyond the edge.

    Args:
        size: pixels per side of the result.
        enlarged: pixels per side before the crop, in training.
        degrees: largest angle.
        augment: whether to augment; False only resizes.

    >>> from kernelfield.data.base import Batch
    >>> images = Batch(torch.randint(256, (2, 3, 96, 96), dtype=torch.uint8))
    >>> ResizeRotateCrop()(images, True).inputs.shape, ResizeRotateCrop(64)(images, False).inputs.shape
    (torch.Size([2, 3, 256, 256]), torch.Size([2, 3, 64, 64]))
    """

    size: int = 256
    enlarged: int = 272
    degrees: float = 15.0
    augment: bool = True

    def __post_init__(self) -> None:
        check_int("enlarged", self.enlarged, least=self.size)

    @property
    def augments(self) -> bool:
        """Whether training images differ from call to call."""
        return self.augment

    def __call__(self, batch: Batch, training: bool) -> Batch:
        x = batch.inputs.float()
        if not training or not self.augment:
            small = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=self.size < x.shape[-1])
            return replace(batch, inputs=small)
        n = len(x)
        angle, across, down, side = torch.rand(4, n, device=x.device)
        angle = torch.deg2rad((2 * angle - 1) * self.degrees)
        free = self.enlarged - self.size
        # Offsets of the crop's centre by whole pixels, in units of half the enlarged image.
        across, down = (((t * (free + 1)).floor() - free / 2) * 2 / self.enlarged for t in (across, down))
        zoom = self.size / self.enlarged
        cos, sin, flip = angle.cos(), angle.sin(), torch.where(side < 0.5, -zoom, zoom)
        rows = [
            torch.stack([cos * flip, -sin * zoom, cos * across - sin * down], dim=1),
            torch.stack([sin * flip, cos * zoom, sin * across + cos * down], dim=1),
        ]
        grid = F.affine_grid(torch.stack(rows, dim=1), [n, x.shape[1], self.size, self.size], align_corners=False)
        return replace(batch, inputs=F.grid_sample(x, grid, mode="bilinear", align_corners=False))


@dataclass(frozen=True)
class Observed:
    """Append a channel that is 1 at observed positions, and set all channels to zero at the others."""

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        if batch.mask is None:
            seen = torch.ones_like(batch.inputs[:, :1])
        else:
            seen = batch.mask.unsqueeze(1).to(batch.inputs.dtype)
        return replace(batch, inputs=torch.cat([batch.inputs * seen, seen], dim=1))


@checked_fields(scale=Instance("kernelfield.data.base.TargetScale"))
@dataclass(frozen=True)
class ScaleTarget:
    """Normalise targets to zero mean and unit variance, and keep their scale in the batch.

    Args:
        scale: scale of the training targets.
    """

    scale: TargetScale

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        target = None if batch.target is None else self.scale.normal(batch.target)
        return replace(batch, target=target, scale=self.scale)


@checked_fields(steps=ListOf(CALLABLE))
@dataclass(frozen=True)
class Chain:
    """Apply transforms in order."""

    steps: tuple[Callable[[Batch, bool], Batch], ...]

    @property
    def augments(self) -> bool:
        """Whether training samples differ from call to call."""
        return any(augments(step) for step in self.steps)

    def __call__(self, batch: Batch, training: bool) -> Batch:
        for step in self.steps:
            batch = step(batch, training)
        return batch


def augments(prepare: Callable[[Batch, bool], Batch] | None) -> bool:
    """Return whether a transform augments training samples.

    >>> augments(Chain((CropFlip(), AsFloat()))), augments(AsFloat())
    (True, False)
    """
    return bool(getattr(prepare, "augments", False))
