"""Losses, one per task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from .._arguments import checked
from .._kinds import PROBABILITY, Choice
from .._object_kinds import Instance, TensorOf
from ..data.shape import TASKS

if TYPE_CHECKING:
    from ..data.base import Batch

__all__ = ["IGNORED", "TASKS", "observed_target", "scored", "target_of", "task_loss"]

#: target of a position that does not count; positions whose mask is False do not count either
IGNORED = -100


@checked(
    task=Choice(*TASKS),
    prediction=TensorOf("float", "batch, …"),
    batch=Instance("kernelfield.data.Batch"),
    label_smoothing=PROBABILITY,
)
def task_loss(task: str, prediction: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
    r"""Return the mean loss of a batch. Where there is one target per position, only observed positions count.

    Args:
        task: classification (cross-entropy), multilabel (binary cross-entropy), regression and dense-regression
            (squared error; at queries, NaN is left out), segmentation and language (cross-entropy at every position; a
            target of -100 is left out).
        prediction: (batch, out) or, at every position, (batch, out, \*space).
        batch: with targets (batch,) classes; (batch, out) labels in {0, 1} or values; (batch, out, \*space) values;
            (batch, \*space) classes.
        label_smoothing: of cross-entropies.

    >>> from kernelfield.data.base import Batch
    >>> batch = Batch(torch.zeros(2, 1, 3), torch.zeros(2, 1, 3), mask=torch.tensor([[True] * 3, [False] * 3]))
    >>> prediction = torch.cat([torch.ones(1, 1, 3), 5 * torch.ones(1, 1, 3)])
    >>> task_loss("dense-regression", prediction, batch)
    tensor(1.)
    """
    target = target_of(batch)
    prediction = prediction.float() if prediction.dtype in (torch.bfloat16, torch.float16) else prediction
    by_class = task in ("classification", "segmentation", "language") and not target.is_floating_point()
    if by_class and (prediction.shape[0], *prediction.shape[2:]) != tuple(target.shape):
        wanted = f"(batch, out{', *space' if target.dim() > 1 else ''})"
        got = f"{tuple(prediction.shape)} for targets {tuple(target.shape)}"
        raise ValueError(
            f"prediction must be {wanted} for task {task!r}, got {got}; the network's readout sets its shape"
        )
    if task in ("multilabel", "regression", "dense-regression") and prediction.numel() != target.numel():
        got = f"{tuple(prediction.shape)} for targets {tuple(target.shape)}"
        raise ValueError(f"prediction must have the shape of the targets for task {task!r}, got {got}")
    if task == "classification":
        return F.cross_entropy(prediction, target, label_smoothing=label_smoothing)
    if task == "multilabel":
        labels = target.to(prediction.dtype).view(prediction.shape)
        return F.binary_cross_entropy_with_logits(prediction, labels)
    if task == "regression":
        return F.mse_loss(prediction, target.to(prediction.dtype).view(prediction.shape))
    if task == "dense-regression":
        target, seen = scored(target.to(prediction.dtype).view(prediction.shape), batch)
        errors = (prediction - target).square()
        return errors.mean() if seen is None else (errors * seen).sum() / seen.sum().clamp(min=1)
    # The sum divided by the count, so that a batch in which nothing counts costs nothing rather than 0/0.
    target = observed_target(target, None if batch.at is not None else batch.mask)
    total = F.cross_entropy(prediction, target, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing)
    return total / (target != IGNORED).sum().clamp(min=1)


def scored(target: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
    r"""Return values (batch, out, \*space) to predict, and 1 where they count and 0 elsewhere; None if all count.

    At the samples themselves the mask of the batch decides. At queries NaN does not count: channels may be observed at
    different times.
    """
    if batch.at is not None:
        known = ~target.isnan()
        return torch.where(known, target, 0.0), known.to(target.dtype)
    if batch.mask is None:
        return target, None
    return target, batch.mask.unsqueeze(1).expand_as(target).to(target.dtype)


def target_of(batch: Batch) -> Tensor:
    """Return the target of a batch; raise if it has none."""
    if batch.target is None:
        raise ValueError("batch must have a target to be scored, got None")
    return batch.target


def observed_target(target: Tensor, mask: Tensor | None) -> Tensor:
    """Return the target with ``IGNORED`` where the mask is False."""
    return target if mask is None else torch.where(mask, target, IGNORED)
