"""Scores of a constant prediction, which a network has to beat: the most frequent class, or the mean of the targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from .._arguments import checked
from ..data.base import Batch
from .metrics import Meter, scored

if TYPE_CHECKING:
    from torch import Tensor

    from ..data.base import Data, Split

__all__ = ["constant_scores"]

#: tasks with a constant prediction to compare with
TASKS = ("classification", "regression", "dense-regression")
#: samples per batch
BATCH = 1024


@checked()
def constant_scores(data: Data) -> dict[str, Any]:
    """Return the test metrics of a constant prediction, and of each value of a regression as ``outputs``.

    The constant is the most frequent class of the training data, or the mean of each of their targets. Of 100 patients
    of whom 15 died, 85 % are classified correctly by a network that has learned nothing.

    Args:
        data: the data set; the result is empty for tasks without such a constant.

    >>> from dataclasses import replace
    >>> from kernelfield.data import load
    >>> data = load("digits")
    >>> constant_scores(replace(data, test=data.test.take(data.test.target == data.train.target.mode().values)))
    {'accuracy': 1.0}
    """
    if data.task not in TASKS or data.train.target.dim() < 1:
        return {}
    constant = _constant(data.train, data)
    meter = Meter(data.task, data.out_channels)
    for start in range(0, len(data.test), BATCH):
        batch = _targets(data.test, slice(start, start + BATCH))
        assert batch.target is not None
        shape = batch.target.shape
        space = shape[1:] if data.task == "classification" else shape[2:]
        prediction = constant.view(1, -1, *(1,) * len(space)).expand(shape[0], -1, *space)
        meter.update(prediction, batch)
    metrics = {name: value for name, value in meter.compute().items() if name not in ("loss", "auc")}
    return metrics | ({"outputs": meter.outputs()} if len(meter.outputs()) > 1 else {})


def _targets(split: Split, index: slice) -> Batch:
    """Return the stored targets of some samples, in their own unit, without the inputs and their preparation."""
    target = split.target[index].cpu()
    mask, at = (None if t is None else t[index].cpu() for t in (split.mask, split.at))
    return Batch(torch.zeros(len(target), 1, 1), target, mask=mask, at=at)


def _constant(train: Split, data: Data) -> Tensor:
    """Return the scores (out,) of the most frequent class, or the mean (out,) of the known training targets."""
    batch = _targets(train, slice(0, len(train)))
    assert batch.target is not None
    if data.task == "classification":
        target = batch.target[batch.target >= 0]
        return F.one_hot(target.bincount(minlength=data.out_channels).argmax(), data.out_channels).double()
    target = batch.target.double().view(len(batch), data.out_channels, *batch.target.shape[2:])
    seen = None
    if data.task == "dense-regression":
        target, seen = scored(target, batch)
    seen = torch.ones_like(target) if seen is None else seen
    total, counts = (part.transpose(0, 1).flatten(1).sum(dim=1) for part in (target * seen, seen))
    return total / counts.clamp(min=1)
