"""Augmentation of series and sounds in training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ..._arguments import checked, checked_fields
from ..._kinds import BOOL, NOT_NEGATIVE, RATE, Int, Number
from ..._object_kinds import DICT
from .batch import Chain, Normalize

if TYPE_CHECKING:
    from torch import Tensor

    from ..base import Batch, Data

__all__ = ["AugmentSeries", "augment_series"]


@checked_fields(shift=RATE, speed=RATE, gain=Number(0, 10), noise=NOT_NEGATIVE, hide=RATE, indicators=Int(0))
@dataclass(frozen=True)
class AugmentSeries:
    r"""In training, shift, stretch and scale series, add noise, and set a span of each to zero.

    .. math:: y(t) = e^{g}\, x\big(c + (t - c)\, s + d\big) + n(t), \qquad
        s \sim U(1 \pm \mathrm{speed}),\; d \sim U(\pm\mathrm{shift} \cdot \mathrm{length}),\;
        g \sim N(0, \mathrm{gain}^2),\; n \sim N(0, \mathrm{noise}^2)

    where c is the middle of the series. Values between samples are interpolated linearly. Values from beyond the ends
    are zero, the mean of normalised values; if there is a mask, they count as missing.

    Args:
        shift: largest shift, as a share of the length.
        speed: largest relative change of the speed.
        gain: standard deviation of the logarithm of the gain.
        noise: standard deviation of the noise, in standard deviations of the data.
        hide: largest share of the series that is set to zero.
        indicators: number of last channels that are 1 where a value channel was observed; they move with their values,
            and values that were not observed stay 0.

    >>> from kernelfield.data.base import Batch
    >>> batch = Batch(torch.randn(4, 2, 50))
    >>> augment = AugmentSeries(shift=0.1, noise=0.1)
    >>> augment(batch, True).inputs.shape, augment(batch, False) is batch
    (torch.Size([4, 2, 50]), True)
    """

    shift: float = 0.05
    speed: float = 0.1
    gain: float = 0.1
    noise: float = 0.05
    hide: float = 0.1
    indicators: int = 0
    augments = True

    def __call__(self, batch: Batch, training: bool) -> Batch:
        if not training:
            return batch
        x, mask = batch.inputs, batch.mask
        n, _, length = x.shape
        if self.shift or self.speed:
            x, mask = self._moved(x, mask)
        x, observed = x.split([x.shape[1] - self.indicators, self.indicators], dim=1)
        if self.gain:
            x = x * torch.exp(self.gain * torch.randn(n, 1, 1, device=x.device, dtype=x.dtype))
        if self.noise:
            x = x + self.noise * torch.randn_like(x)
        if self.indicators:
            observed = (observed > 0.999).to(x.dtype)  # both samples that a value lies between
            x = torch.cat([x * observed, observed], dim=1)
        if self.hide:
            span = torch.rand(n, 1, device=x.device) * self.hide * length
            start = torch.rand(n, 1, device=x.device) * (length - span)
            at = torch.arange(length, device=x.device)
            x = x.masked_fill(((at >= start) & (at < start + span)).unsqueeze(1), 0.0)
        if mask is not None:
            x = x.masked_fill(~mask.unsqueeze(1), 0.0)
        return replace(batch, inputs=x, mask=mask)

    def _moved(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        n, channels, length = x.shape
        speed, shift = 2 * torch.rand(2, n, 1, device=x.device, dtype=x.dtype) - 1
        middle = (length - 1) / 2
        steps = torch.arange(length, device=x.device, dtype=x.dtype) - middle
        at = middle + steps * (1 + self.speed * speed) + self.shift * length * shift
        low = at.floor().long()
        share = (at - low).unsqueeze(1)
        inside = (at >= 0) & (at <= length - 1)
        index = [(low + k).clamp(0, length - 1) for k in (0, 1)]
        near, far = (x.gather(2, i.unsqueeze(1).expand(-1, channels, -1)) for i in index)
        moved = torch.where(inside.unsqueeze(1), near + (far - near) * share, 0.0)
        if mask is not None:
            mask = mask.gather(1, at.round().long().clamp(0, length - 1)) & inside
        return moved, mask


@checked(augment=BOOL | DICT)
def augment_series(data: Data, augment: bool | dict[str, Any] = True) -> Data:
    """Return ``data`` with augmented training series.

    Args:
        data: series or sounds on a grid, with one target per sample.
        augment: arguments of :class:`AugmentSeries`; True for its defaults, False for no augmentation.

    >>> from kernelfield.data import load
    >>> data = augment_series(load("chirps"), {"noise": 0.2})
    >>> data.train.prepare.augments, data.train.batch(slice(0, 2), training=True).inputs.shape
    (True, torch.Size([2, 1, 256]))
    """
    if augment is False:
        return data
    given = augment if isinstance(augment, dict) else {}
    known = [field.name for field in dataclasses.fields(AugmentSeries) if field.name != "indicators"]
    if not set(given) <= set(known):
        raise ValueError(f"augment must be true, false, or values of {', '.join(known)}, got {augment!r}")
    grid = data.dim == 1 and data.train.coords is None and data.vocabulary is None
    if not grid or data.task not in ("classification", "multilabel", "regression"):
        what = f"{data.task} of {data.dim} dimensions{'' if data.train.coords is None else ' at points'}"
        raise ValueError(f"augment must be given only for series with one target each, got {data.name!r}: {what}")
    before = data.train.prepare
    steps = before.steps if isinstance(before, Chain) else (before,)
    adds_indicators = any(isinstance(step, Normalize) and step.observed for step in steps)
    try:
        change = AugmentSeries(**given, indicators=data.in_channels // 2 if adds_indicators else 0)
    except (TypeError, ValueError) as error:
        raise type(error)(f"augment.{error}") from None
    return replace(data, train=replace(data.train, prepare=change if before is None else Chain((before, change))))
