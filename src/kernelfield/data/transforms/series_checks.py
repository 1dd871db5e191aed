"""Comparisons of new series with those of training; doubtful ones are announced."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from .clouds import NormalizePoints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ..base import Batch, Data
    from .series import Series

__all__ = [
    "OTHER_SIZE",
    "check_standardize",
    "compare_channels",
    "compare_coords",
    "compare_extent",
    "compare_queries",
    "compare_series_channels",
]

#: ratio of the sizes of new and training values, and distance of their means in standard deviations, above which a
#: warning says that the unit may differ
OTHER_SIZE, OTHER_MEAN = 50, 20
#: ratio of the lengths of new series and of training above which the unit of their times is in doubt
_OTHER_UNIT = 20
#: share of the range of query times by which new ones may exceed it
_MARGIN = 0.05


def check_standardize(standardize: bool, task: str, name: str) -> None:
    """Raise a ValueError if targets that are no values shall be normalised."""
    if standardize and task not in ("regression", "dense-regression"):
        raise ValueError(f"standardize must be False for data {name!r}, whose targets are classes ({task}), got True")


def compare_series_channels(values: Tensor, data: Data, series: Sequence[Series]) -> None:
    """Warn of channels without a value in some series that had one in each training series.

    The network has never seen a series without them, and its prediction looks like any other.
    """
    without = values.isnan().all(dim=2)
    for name in data.always:
        unseen = without[:, data.channels.index(name)]
        if bool(unseen.any()):
            first = series[int(unseen.int().argmax())].where
            warnings.warn(
                f"{int(unseen.sum())} of {len(series)} series have no value of {name!r}, such as {first}; all training "
                "series had one",
                stacklevel=4,
            )


def compare_queries(at: Tensor, reach: Sequence[float], unit: float) -> None:
    """Warn of query coordinates beyond those of training, where the network was never trained to predict.

    Args:
        at: (n, queries, 1) query coordinates, in training steps since the first sample of a series.
        reach: least and largest one in training; empty if unknown.
        unit: time of one training step.
    """
    if len(reach) != 2:
        return
    low, high = reach
    margin = max(1.0, _MARGIN * (high - low))
    beyond = (at < low - margin) | (at > high + margin)
    if bool(beyond.any()):
        least, most = (float(value) * unit for value in (at[beyond].min(), at[beyond].max()))
        warnings.warn(
            f"{int(beyond.sum())} of {at.numel()} query times lie {least:.4g} to {most:.4g} after the first sample of "
            f"their series, and in training {low * unit:.4g} to {high * unit:.4g}; the network has not learned to "
            "predict there. Check that the times have the same unit",
            stacklevel=4,
        )


def compare_extent(series: Sequence[Series], unit: float, data: Data) -> None:
    """Warn if times reach much farther than those of training, or not nearly as far: their unit may differ."""
    extent = max(0.0 if s.times is None else float(s.times[-1] - s.times[0]) for s in series) / unit
    _compare_reach(extent / max(1, data.size[0] - 1), f"times of {series[0].where} and others", data)


def compare_coords(batch: Batch, data: Data, where: str) -> None:
    """Warn if coordinates reach much farther than those of training, or not nearly as far, as :func:`compare_extent`.

    Args:
        batch: raw samples.
        data: the data set, or its metadata.
        where: description of the samples.
    """
    coords = batch.coords
    if coords is None or not coords.numel() or coords.shape[2] != len(data.size) or _scales_points(data.test.prepare):
        return
    unseen = torch.zeros_like(coords, dtype=torch.bool) if batch.mask is None else ~batch.mask.bool().unsqueeze(2)
    low = coords.masked_fill(unseen, torch.inf).amin(dim=1)
    extent = (coords.masked_fill(unseen, -torch.inf).amax(dim=1) - low).amax(dim=0).tolist()
    factors = [reach / max(1, size - 1) for reach, size in zip(extent, data.size, strict=True)]
    _compare_reach(max(factors), f"coords of {where}", data)


def _scales_points(prepare: Any) -> bool:
    """Return whether a preparation scales every cloud to the same size, so that its unit does not matter."""
    return isinstance(prepare, NormalizePoints) or any(map(_scales_points, getattr(prepare, "steps", ())))


def _compare_reach(factor: float, what: str, data: Data) -> None:
    """Warn of a ratio of extents that is far from 1."""
    if factor > _OTHER_UNIT or 0 < factor < 1 / _OTHER_UNIT:
        warnings.warn(
            f"{what} reach {factor:.3g} times as far as those of {data.name}; they must have the same unit",
            stacklevel=4,
        )


def compare_channels(
    values: Tensor,
    mean: Tensor,
    std: Tensor,
    names: Sequence[str],
    where: str,
    *,
    other_size: float = OTHER_SIZE,
    stacklevel: int = 3,
) -> None:
    """Warn if the values of a channel are far larger or smaller than in training.

    Args:
        values: (channels, n) raw values in float64; NaN is a missing value.
        mean: (channels,) means in training.
        std: (channels,) standard deviations in training; infinite ones are not compared.
        names: names of the channels, if known.
        where: description of the samples.
        other_size: ratio of root mean squares that raises the warning.
        stacklevel: number of calls between the warning and the line that it names.
    """
    size, usual = values.square().nanmean(dim=1).sqrt(), (mean.square() + std.square()).sqrt()
    middle, ratio = values.nanmean(dim=1), size / usual
    away = (middle - mean).abs() > OTHER_MEAN * std
    strange = ((ratio > other_size) | (ratio < 1 / other_size) | away) & (size > 0) & std.isfinite()
    for channel in torch.nonzero(strange).flatten().tolist()[:3]:
        name = repr(names[channel]) if channel < len(names) else str(channel)
        warnings.warn(
            f"channel {name} of {where} has a mean of {middle[channel]:.3g} and a root mean square of "
            f"{size[channel]:.3g}, and in training {mean[channel]:.3g} and {usual[channel]:.3g}; its values must have "
            "the same unit",
            stacklevel=stacklevel,
        )
