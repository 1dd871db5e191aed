"""What a prediction costs in training, and what is reported of it: one of each per task."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from .._checks import check_choice
from ..data.sets.clouds.shapenet_part import part_iou

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..data.base import Batch

__all__ = ["TASKS", "Meter", "area_under_curve", "average_precision", "is_better", "main_metric", "task_loss"]

TASKS = ("classification", "multilabel", "regression", "dense-regression", "segmentation", "language")
#: target of a position that does not count, beside those whose mask is False
IGNORED = -100
_MAIN = {"regression": "mse", "dense-regression": "mse", "language": "bits"}
_SMALLER = ("loss", "mse", "mae", "l2", "bits")
#: into how many equal parts probabilities are sorted to know the area under the curve of millions of pixels
_BINS = 4096


def main_metric(task: str) -> str:
    """Return the name of the metric to choose by.

    >>> main_metric("classification"), main_metric("language")
    ('accuracy', 'bits')
    """
    return _MAIN.get(check_choice("task", task, TASKS), "accuracy")


def is_better(metric: str, value: float, than: float | None) -> bool:
    """Return whether ``value`` is the better one; of losses and errors the smaller is.

    >>> is_better("accuracy", 0.9, 0.8), is_better("mse", 0.9, 0.8)
    (True, False)
    """
    if math.isnan(value):
        return False
    if than is None or math.isnan(than):
        return True
    return value < than if metric in _SMALLER else value > than


def task_loss(task: str, prediction: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
    r"""Return the mean loss of a batch, positions that were not seen left out where there is one target per position.

    Args:
        task: classification (cross-entropy), multilabel (binary cross-entropy), regression and dense-regression
            (squared error), segmentation and language (cross-entropy at every position; a target of -100 is left out).
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
    target = _target(batch)
    prediction = prediction.float() if prediction.dtype in (torch.bfloat16, torch.float16) else prediction
    check_choice("task", task, TASKS)
    by_class = task in ("classification", "segmentation", "language") and not target.is_floating_point()
    if by_class and (prediction.shape[0], *prediction.shape[2:]) != tuple(target.shape):
        wanted = f"(batch, out{', *space' if target.dim() > 1 else ''})"
        got = f"{tuple(prediction.shape)} for targets {tuple(target.shape)}"
        raise ValueError(f"network must give {wanted} for task {task!r}, got {got}; readout of the network says which")
    if task == "classification":
        return F.cross_entropy(prediction, target, label_smoothing=label_smoothing)
    if task == "multilabel":
        labels = target.to(prediction.dtype).view(prediction.shape)
        return F.binary_cross_entropy_with_logits(prediction, labels)
    if task == "regression":
        return F.mse_loss(prediction, target.to(prediction.dtype).view(prediction.shape))
    if task == "dense-regression":
        errors = (prediction - target.to(prediction.dtype).view(prediction.shape)).square().mean(dim=1)
        if batch.mask is None:
            return errors.mean()
        seen = batch.mask.to(errors.dtype)
        return (errors * seen).sum() / seen.sum().clamp(min=1)
    # The sum divided by the count, so that a batch in which nothing counts costs nothing rather than 0/0.
    target = _seen(target, batch.mask)
    total = F.cross_entropy(prediction, target, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing)
    return total / (target != IGNORED).sum().clamp(min=1)


def area_under_curve(scores: Tensor, labels: Tensor) -> float:
    """Return the area under the ROC curve: the chance that a positive scores above a negative, ties counting half.

    Args:
        scores: (n,) numbers.
        labels: (n,) in {0, 1}.

    >>> area_under_curve(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.75
    """
    labels = labels.double()
    _, inverse, counts = scores.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks = (ends - (counts - 1) / 2)[inverse]
    positives = labels.sum()
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    return float(((ranks * labels).sum() - positives * (positives + 1) / 2) / (positives * negatives))


def average_precision(scores: Tensor, labels: Tensor) -> float:
    """Return the mean, over the positives, of the share of positives among all that score as high as they do.

    Args:
        scores: (n,) numbers.
        labels: (n,) in {0, 1}.

    >>> round(average_precision(torch.tensor([0.9, 0.8, 0.7, 0.1]), torch.tensor([1, 0, 1, 0])), 4)
    0.8333
    """
    labels = labels.double()
    if not float(labels.sum()):
        return float("nan")
    _, inverse = scores.neg().unique(return_inverse=True)
    count = int(inverse.max()) + 1
    positives = torch.zeros(count, dtype=torch.float64).index_add(0, inverse, labels)
    everything = torch.zeros(count, dtype=torch.float64).index_add(0, inverse, torch.ones_like(labels))
    precision = positives.cumsum(0) / everything.cumsum(0)
    return float((precision * positives).sum() / labels.sum())


class Meter:
    """Adds up predictions and gives metrics; stays on the device until asked.

    Args:
        task: as in :func:`task_loss`.
        out_channels: number of predictions.
        device: of the predictions.
        parts: of a segmentation into parts, the labels of each kind of object; see :class:`~kernelfield.data.Data`.
            Metrics then hold ``part_iou``, the mean share of agreement over objects, and ``part_iou_kinds``, the mean
            over kinds of the means over their objects (chapter 4, section 4.3).

    >>> from kernelfield.data.base import Batch
    >>> meter = Meter("classification", 3)
    >>> meter.update(torch.eye(3), Batch(torch.zeros(3, 1, 1), torch.tensor([0, 1, 1])))
    >>> round(meter.compute()["accuracy"], 3)
    0.667
    """

    def __init__(
        self,
        task: str,
        out_channels: int,
        device: torch.device | str = "cpu",
        *,
        parts: Sequence[Sequence[int]] = (),
    ) -> None:
        self.task, self.out_channels = check_choice("task", task, TASKS), out_channels
        if parts and task != "segmentation":
            raise ValueError(f"parts must be left out unless task is 'segmentation', got them for {task!r}")
        self.parts = tuple(parts)
        #: of each kind of object, the sum of its shares and their number
        self.shares = torch.zeros(2, len(self.parts), dtype=torch.float64, device=device)
        classes = out_channels if task in ("classification", "segmentation", "language") else 0
        #: (target, predicted) counts
        self.confusion = torch.zeros(classes, classes, dtype=torch.long, device=device)
        #: sums of losses, squared and absolute errors, what they are counted by, decibels and relative l² of samples
        self.sums = torch.zeros(7, dtype=torch.float64, device=device)
        #: of pixels of two classes, how many of each class have a probability in each bin
        self.bins = torch.zeros(2 * _BINS if task == "segmentation" and classes == 2 else 0, device=device).double()
        self.samples = 0
        self.scores: list[Tensor] = []
        self.labels: list[Tensor] = []

    @torch.no_grad()
    def update(self, prediction: Tensor, batch: Batch) -> None:
        """Add a batch."""
        target = _target(batch)
        loss = task_loss(self.task, prediction, batch)
        weight = torch.tensor(float(len(batch)), device=prediction.device)
        zero = torch.zeros((), device=prediction.device)
        squared = absolute = values = decibels = relative = zero
        if self.task == "multilabel":
            self.scores.append(prediction.float())
            self.labels.append(target.view(prediction.shape))
        elif self.task in ("regression", "dense-regression"):
            errors = prediction.double() - target.double().view(prediction.shape)
            if batch.scale is not None:
                errors = batch.scale.stretched(errors)
            seen = torch.ones_like(errors)
            if self.task == "dense-regression" and batch.mask is not None:
                seen = batch.mask.unsqueeze(1).expand_as(errors).double()
            squared, absolute, values = (errors.square() * seen).sum(), (errors.abs() * seen).sum(), seen.sum()
            weight = values
            if self.task == "dense-regression":
                each = (errors.square() * seen).flatten(1).sum(dim=1) / seen.flatten(1).sum(dim=1).clamp(min=1)
                decibels = (-10 * torch.log10(each.clamp(min=1e-20))).sum()
                sizes = (target.double().view(prediction.shape).square() * seen).flatten(1).sum(dim=1)
                norms = (errors.square() * seen).flatten(1).sum(dim=1)
                relative = (norms / sizes.clamp(min=1e-20)).sqrt().sum()
                self.samples += len(batch)
        else:
            if self.task != "classification":
                target = _seen(target, batch.mask)
            if self.parts:
                share, kind = part_iou(prediction, target.flatten(1), self.parts)
                known = (kind >= 0).double()
                rows = torch.stack([share.double() * known, known])
                self.shares.index_add_(1, kind.clamp(min=0), rows)
            classes = prediction.argmax(dim=1).flatten()
            target = target.flatten()
            counts = (target != IGNORED).long()
            index = target.clamp(min=0) * self.out_channels + classes
            self.confusion.view(-1).scatter_add_(0, index, counts)
            if self.bins.numel():
                chance = prediction.float().softmax(dim=1)[:, 1].flatten()
                place = (chance * _BINS).long().clamp(max=_BINS - 1) + _BINS * target.clamp(min=0)
                self.bins.scatter_add_(0, place, counts.double())
            weight = counts.sum()
        entries = (loss.double() * weight, weight, squared, absolute, values, decibels, relative)
        self.sums += torch.stack([entry.double() for entry in entries])

    def compute(self) -> dict[str, float]:
        """Return the metrics of all batches so far."""
        loss, weight, squared, absolute, values, decibels, relative = self.sums.tolist()
        metrics = {"loss": loss / weight if weight else float("nan")}
        if self.task == "multilabel":
            scores, labels = torch.cat(self.scores).cpu(), torch.cat(self.labels).cpu()
            metrics["accuracy"] = float(((scores > 0) == (labels > 0.5)).double().mean())
            metrics["auc"] = _mean(area_under_curve, scores.T, labels.T)
            if scores.shape[1] > 1:  # tags: of each of them over all samples, and of each sample over all of them
                metrics["auc_clip"] = _mean(area_under_curve, scores, labels)
                metrics["map"] = _mean(average_precision, scores.T, labels.T)
                metrics["map_clip"] = _mean(average_precision, scores, labels)
        elif self.task in ("regression", "dense-regression"):
            metrics |= {"mse": squared / max(values, 1), "mae": absolute / max(values, 1)}
            if self.task == "dense-regression":
                # Of signals between 0 and 1: what 1 is to the root of the mean squared error.
                metrics["psnr"] = decibels / max(self.samples, 1)
                metrics["l2"] = relative / max(self.samples, 1)
        else:
            counts = self.confusion.double()
            metrics["accuracy"] = float(counts.diag().sum() / counts.sum().clamp(min=1))
            if self.task == "language":
                metrics["bits"] = metrics["loss"] / math.log(2)
            if self.task == "segmentation":
                union = counts.sum(0) + counts.sum(1) - counts.diag()
                metrics["iou"] = float((counts.diag()[union > 0] / union[union > 0]).mean())
            if self.parts:
                total, objects = self.shares.cpu()
                metrics["part_iou"] = float(total.sum() / objects.sum().clamp(min=1))
                metrics["part_iou_kinds"] = float((total / objects)[objects > 0].mean())
            if self.bins.numel():
                metrics["auc"] = _binned_area(*self.bins.cpu().view(2, _BINS))
        return metrics


def _binned_area(negatives: Tensor, positives: Tensor) -> float:
    """Return the area under the ROC curve from the counts of both classes in bins of rising score."""
    pairs = float(negatives.sum() * positives.sum())
    below = negatives.cumsum(0) - negatives / 2  # those of the same bin count half
    return float((positives * below).sum()) / pairs if pairs else float("nan")


def _mean(metric: Callable[[Tensor, Tensor], float], scores: Tensor, labels: Tensor) -> float:
    """Return the mean of a metric over the rows for which it is known."""
    each = [metric(s, l > 0.5) for s, l in zip(scores, labels, strict=True)]
    known = [value for value in each if not math.isnan(value)]
    return sum(known) / len(known) if known else float("nan")


def _target(batch: Batch) -> Tensor:
    if batch.target is None:
        raise ValueError("batch must have a target to be scored, got None")
    return batch.target


def _seen(target: Tensor, mask: Tensor | None) -> Tensor:
    return target if mask is None else torch.where(mask, target, IGNORED)
