"""What is done to a batch on its way to the network: normalisation, augmentation. All of it on the batch's device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..base import Batch, TargetScale

__all__ = ["AsFloat", "AsTokens", "Chain", "CropFlip", "Normalize", "Observed", "ScaleTarget", "Standardize"]


@dataclass(frozen=True)
class Standardize:
    """Make bytes into floats of zero mean and unit variance: (x · scale - mean) / std for each channel.

    Args:
        mean: of each channel, after scaling.
        std: of each channel, after scaling.
        scale: of the stored numbers; 1 / 255 for bytes.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 1 / 255
    # Copied to a device once: a copy at every step would make the host wait for the device.
    _there: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        x = batch.inputs
        if x.device not in self._there:
            shape = (1, -1, *(1,) * (x.dim() - 2))
            std = torch.tensor(self.std, device=x.device).view(shape)
            self._there[x.device] = (
                self.scale / std,
                torch.tensor(self.mean, device=x.device).view(shape) / std,
            )
        gain, offset = self._there[x.device]
        return replace(batch, inputs=x.float() * gain - offset)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_there": {}}


@dataclass(frozen=True, eq=False)
class Normalize:
    """Bring measured values to zero mean and unit variance, (x - mean) / std for each channel; 0 where they are NaN.

    Args:
        mean: (1, channels, …) of each channel.
        std: (1, channels, …) of each channel.
        observed: whether to add for each channel one that is 1 where it was seen and 0 elsewhere.
        limit: largest absolute value afterwards.
    """

    mean: Tensor
    std: Tensor
    observed: bool = False
    limit: float | None = None
    # Copied to a device once, as in Standardize.
    _there: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        return replace(batch, inputs=self.values(batch.inputs))

    def values(self, x: Tensor) -> Tensor:
        """Return values (n, channels, …) normalised."""
        if x.device not in self._there:
            self._there[x.device] = (self.mean.to(x.device), self.std.to(x.device))
        mean, std = self._there[x.device]
        normal = ((x - mean) / std).nan_to_num()
        if self.limit is not None:
            normal = normal.clamp(-self.limit, self.limit)
        return torch.cat([normal, (~x.isnan()).to(normal.dtype)], dim=1) if self.observed else normal

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_there": {}}


@dataclass(frozen=True)
class AsFloat:
    """Make stored integers into floats, nothing more."""

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        return replace(batch, inputs=batch.inputs.float())


@dataclass(frozen=True)
class AsTokens:
    """Make stored bytes into token ids, inputs and (n, length) targets alike."""

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        target = None if batch.target is None else batch.target.long()
        return replace(batch, inputs=batch.inputs.long(), target=target)


@dataclass(frozen=True)
class CropFlip:
    """In training, shift images by up to ``pad`` pixels, zeros coming in, and mirror half of them.

    Args:
        pad: pixels.
        flip: whether to mirror, left and right exchanged.
    """

    pad: int = 4
    flip: bool = True

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
        padded = F.pad(x, (self.pad,) * 4)
        sample = torch.arange(n, device=x.device).view(n, 1, 1)
        # Advanced indices around a slice: the channels come last, and go back to their place.
        return replace(batch, inputs=padded[sample, :, row.unsqueeze(2), column.unsqueeze(1)].movedim(-1, 1))


@dataclass(frozen=True)
class Observed:
    """Append a channel that is 1 where a sample was seen and 0 elsewhere, and make the unseen zero."""

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        if batch.mask is None:
            seen = torch.ones_like(batch.inputs[:, :1])
        else:
            seen = batch.mask.unsqueeze(1).to(batch.inputs.dtype)
        return replace(batch, inputs=torch.cat([batch.inputs * seen, seen], dim=1))


@dataclass(frozen=True)
class ScaleTarget:
    """Bring values to predict to zero mean and unit variance, and say so.

    Args:
        scale: of the training targets.
    """

    scale: TargetScale

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        target = None if batch.target is None else self.scale.normal(batch.target)
        return replace(batch, target=target, scale=self.scale)


@dataclass(frozen=True)
class Chain:
    """One after the other."""

    steps: tuple[Callable[[Batch, bool], Batch], ...]

    def __call__(self, batch: Batch, training: bool) -> Batch:
        for step in self.steps:
            batch = step(batch, training)
        return batch
