"""Losses and metrics of each task. Metrics accumulate on the device and are read once at the end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassJaccardIndex
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

from .._arguments import checked
from .._kinds import PROBABILITY, Choice, Int, ListOf
from .._object_kinds import Instance, TensorOf
from ..data.sets.clouds.shapenet_part import part_iou
from ..data.shape import TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..data.base import Batch

__all__ = [
    "IGNORED",
    "TASKS",
    "Meter",
    "is_better",
    "main_metric",
    "metric_names",
    "observed_target",
    "scored",
    "target_of",
    "task_loss",
]

#: target of an ignored position; positions whose mask is False are ignored too
IGNORED = -100
_MAIN = {"regression": "mse", "dense-regression": "mse", "language": "bits"}
_SMALLER = ("loss", "mse", "mae", "l2", "bits")
#: metrics that are means over values or samples
_MEANS = {"regression": ("mse", "mae"), "dense-regression": ("mse", "mae", "psnr", "l2")}
#: largest number of classes of a confusion matrix, which has the square of it as entries; segmentation always has one
_MOST_CONFUSED = 1000
#: number of bins of the predicted probabilities, for the area under the ROC curve of millions of pixels
_BINS = 4096


@checked(
    task=Choice(*TASKS),
    prediction=TensorOf("float", "batch, …"),
    batch=Instance("kernelfield.data.Batch"),
    label_smoothing=PROBABILITY,
)
def task_loss(task: str, prediction: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
    r"""Return the mean loss of a batch. If there is a target per position, only observed positions count.

    Args:
        task: classification (cross-entropy), multilabel (binary cross-entropy), regression and dense-regression
            (squared error; at queries, NaN is ignored), segmentation and language (cross-entropy at every position; a
            target of -100 is ignored).
        prediction: (batch, out) or, at every position, (batch, out, \*space).
        batch: batch whose targets are (batch,) classes; (batch, out) labels in {0, 1} or values; (batch, out, \*space)
            values; or (batch, \*space) classes.
        label_smoothing: label smoothing of cross-entropies.

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
    # The sum divided by the count, at least 1: a batch without observed positions has loss 0 and not 0/0.
    target = observed_target(target, None if batch.at is not None else batch.mask)
    total = F.cross_entropy(prediction, target, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing)
    return total / (target != IGNORED).sum().clamp(min=1)


def scored(target: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
    r"""Return targets (batch, out, \*space) and their weights, 1 where they count and 0 elsewhere; None if all count.

    At the samples themselves, the mask of the batch gives the weights. At queries, NaN does not count, because channels
    may be observed at different times.
    """
    if batch.at is not None:
        known = ~target.isnan()
        return torch.where(known, target, 0.0), known.to(target.dtype)
    if batch.mask is None:
        return target, None
    return target, batch.mask.unsqueeze(1).expand_as(target).to(target.dtype)


def target_of(batch: Batch) -> Tensor:
    """Return the target of a batch; raise a ValueError if it has none."""
    if batch.target is None:
        raise ValueError("batch must have a target to be scored, got None")
    return batch.target


def observed_target(target: Tensor, mask: Tensor | None) -> Tensor:
    """Return the target with ``IGNORED`` where the mask is False."""
    return target if mask is None else torch.where(mask, target, IGNORED)


@checked(task=Choice(*TASKS))
def main_metric(task: str) -> str:
    """Return the name of the metric that selects the best epoch.

    >>> main_metric("classification"), main_metric("language")
    ('accuracy', 'bits')
    """
    return _MAIN.get(task, "accuracy")


def metric_names(task: str, out_channels: int, *, parts: bool = False) -> list[str]:
    """Return the names of all metrics of a task.

    Args:
        task: see :func:`task_loss`.
        out_channels: number of predictions.
        parts: whether the labels are parts of objects; see :class:`Meter`.

    >>> metric_names("classification", 10), metric_names("classification", 2)
    (['loss', 'accuracy'], ['loss', 'accuracy', 'auc'])
    """
    names = ["loss", *_MEANS.get(task, ("accuracy",))]
    names += {"multilabel": ["auc"], "language": ["bits"], "segmentation": ["iou"]}.get(task, [])
    names += ["part_iou", "part_iou_kinds"] if parts else []
    names += ["auc"] if _has_bins(task, out_channels) or _has_two_classes(task, out_channels) else []
    return names + (["auc_clip", "map", "map_clip"] if task == "multilabel" and out_channels > 1 else [])


def _has_bins(task: str, out_channels: int) -> bool:
    return task == "segmentation" and out_channels == 2


def _has_two_classes(task: str, out_channels: int) -> bool:
    return task == "classification" and out_channels == 2


def is_better(metric: str, value: float, than: float | None) -> bool:
    """Return whether ``value`` is better than ``than``: smaller for losses and errors, larger for other metrics.

    >>> is_better("accuracy", 0.9, 0.8), is_better("mse", 0.9, 0.8)
    (True, False)
    """
    if math.isnan(value):
        return False
    if than is None or math.isnan(than):
        return True
    return value < than if metric in _SMALLER else value > than


class Meter:
    """Accumulates predictions on their device and computes the metrics of a task.

    Args:
        task: see :func:`~.metrics.task_loss`.
        out_channels: number of predictions.
        device: device of the predictions.
        parts: labels of each kind of object, for a segmentation into parts; see :class:`~kernelfield.data.Data`. They
            add ``part_iou``, the mean intersection over union of all objects, and ``part_iou_kinds``, the mean over
            kinds of the means over their objects (chapter 4, section 4.3).

    >>> from kernelfield.data.base import Batch
    >>> meter = Meter("classification", 3)
    >>> meter.update(torch.eye(3), Batch(torch.zeros(3, 1, 1), torch.tensor([0, 1, 1])))
    >>> round(meter.compute()["accuracy"], 3)
    0.667
    """

    @checked(task=Choice(*TASKS), parts=ListOf(ListOf(Int(0)), least=0))
    def __init__(
        self,
        task: str,
        out_channels: int,
        device: torch.device | str = "cpu",
        *,
        parts: Sequence[Sequence[int]] = (),
    ) -> None:
        self.task, self.out_channels = task, out_channels
        if parts and task != "segmentation":
            raise ValueError(f"parts must be given only for task 'segmentation', got them for {task!r}")
        self.parts = tuple(parts)
        #: sum of intersections over unions, and number of objects, for each kind of object
        self.part_ious = torch.zeros(2, len(self.parts), dtype=torch.float64, device=device)
        names = ("loss", *_MEANS.get(task, ("accuracy",)))
        self._means = {name: _Mean().to(device) for name in names}
        self._by_class = task in ("classification", "segmentation", "language")
        counted = self._by_class and (task == "segmentation" or out_channels <= _MOST_CONFUSED)
        self._jaccard = _Jaccard(out_channels).to(device) if counted else None
        #: counts of pixels by class, of two, and bin of the predicted probability
        bins = 2 * _BINS if _has_bins(task, out_channels) else 0
        self.bins = torch.zeros(bins, dtype=torch.float64, device=device)
        self._scores: list[Tensor] = []
        self._labels: list[Tensor] = []
        #: for each predicted value, sums of squared and absolute errors, and their number
        values = out_channels if task in ("regression", "dense-regression") else 0
        self._errors = torch.zeros(3, values, dtype=torch.float64, device=device)
        #: number of samples with a prediction that is infinite or NaN
        self.nonfinite = torch.zeros((), dtype=torch.long, device=device)

    @property
    def confusion(self) -> Tensor:
        """Return the counts of samples by target and predicted class; empty without classes, or with very many."""
        return torch.zeros(0, 0, dtype=torch.long) if self._jaccard is None else self._jaccard.confmat

    @torch.no_grad()
    def update(self, prediction: Tensor, batch: Batch) -> None:
        """Add a batch."""
        loss = task_loss(self.task, prediction, batch)
        self.nonfinite += (~torch.isfinite(prediction)).flatten(1).any(dim=1).sum()
        if self.task == "multilabel":
            weight = self._add_labels(prediction, target_of(batch).view(prediction.shape))
        elif self._by_class:
            weight = self._add_classes(prediction, batch)
        else:
            weight = self._add_values(prediction, batch)
        self._means["loss"].update(loss, weight)

    def _add_labels(self, scores: Tensor, labels: Tensor) -> Any:
        self._scores.append(scores.float())
        self._labels.append(labels > 0.5)
        self._means["accuracy"].update(((scores > 0) == (labels > 0.5)).double())
        return len(scores)

    def _add_values(self, prediction: Tensor, batch: Batch) -> Tensor:
        target, seen = target_of(batch).double().view(prediction.shape), None
        if self.task == "dense-regression":
            target, seen = scored(target, batch)
        errors = prediction.double() - target
        if batch.scale is not None:
            errors, target = batch.scale.stretched(errors), batch.scale.undo(target)
        seen = torch.ones_like(errors) if seen is None else seen
        if errors.shape[1] == self._errors.shape[1]:
            parts = (errors.square() * seen, errors.abs() * seen, seen)
            self._errors += torch.stack([part.double().transpose(0, 1).flatten(1).sum(dim=1) for part in parts])
        self._means["mse"].update(errors.square(), seen)
        self._means["mae"].update(errors.abs(), seen)
        if self.task == "dense-regression":
            squared, counts, norms = (
                (values * seen).flatten(1).sum(dim=1) for values in (errors.square(), seen, target.square())
            )
            known = (counts > 0).double()  # a sample without any target has no error, and is not a perfect one
            # Signals lie between 0 and 1, so the peak is 1.
            self._means["psnr"].update(-10 * torch.log10((squared / counts.clamp(min=1)).clamp(min=1e-20)), known)
            self._means["l2"].update((squared / norms.clamp(min=1e-20)).sqrt(), known)
        return seen.sum()

    def _add_classes(self, prediction: Tensor, batch: Batch) -> Tensor:
        target = target_of(batch)
        if self.task != "classification":
            target = observed_target(target, None if batch.at is not None else batch.mask)
        if self.parts:
            share, kind = part_iou(prediction, target.flatten(1), self.parts)
            known = (kind >= 0).double()
            self.part_ious.index_add_(1, kind.clamp(min=0), torch.stack([share.double() * known, known]))
        classes, target = prediction.argmax(dim=1).flatten(), target.flatten()
        counts = (target != IGNORED).double()
        self._means["accuracy"].update((classes == target).double(), counts)
        if self._jaccard is not None:
            self._jaccard.update(classes, target)
        if self.bins.numel():
            # torchmetrics compares every pixel with every threshold; a histogram costs one addition per pixel.
            chance = prediction.float().softmax(dim=1)[:, 1].flatten()
            index = (chance * _BINS).long().clamp(0, _BINS - 1) + _BINS * target.clamp(min=0)
            self.bins.scatter_add_(0, index, counts)
        if _has_two_classes(self.task, self.out_channels):
            self._scores.append((prediction[:, 1] - prediction[:, 0]).float().flatten())
            self._labels.append(target)
        return counts.sum()

    def outputs(self) -> list[dict[str, float]]:
        """Return the mean squared and the mean absolute error of each predicted value of a regression.

        The values may have different units, so an error over all of them can hide that of one.

        >>> from kernelfield.data.base import Batch
        >>> meter = Meter("regression", 2)
        >>> meter.update(torch.zeros(4, 2), Batch(torch.zeros(4, 1, 1), torch.tensor([[100.0, 1.0]] * 4)))
        >>> meter.outputs()
        [{'mse': 10000.0, 'mae': 100.0}, {'mse': 1.0, 'mae': 1.0}]
        """
        squared, absolute, counts = self._errors.cpu()
        return [
            {"mse": a, "mae": b} for a, b in zip((squared / counts).tolist(), (absolute / counts).tolist(), strict=True)
        ]

    def compute(self) -> dict[str, float]:
        """Return the metrics of all batches so far.

        A metric is NaN if no sample counted. All metrics are NaN if a prediction was infinite or NaN, since the largest
        of such scores does not name a class.
        """
        if not self._means["loss"].update_called or bool(self.nonfinite):
            return dict.fromkeys(metric_names(self.task, self.out_channels, parts=bool(self.parts)), math.nan)
        metrics = {name: float(mean.compute()) for name, mean in self._means.items()}
        if self.task == "multilabel":
            scores, labels = torch.cat(self._scores).cpu(), torch.cat(self._labels).cpu()
            metrics["auc"] = _mean_of_known(binary_auroc, scores, labels)
            if scores.shape[1] > 1:  # several tags: metrics of each tag over all clips, and of each clip over all tags
                metrics["auc_clip"] = _mean_of_known(binary_auroc, scores.T, labels.T)
                metrics["map"] = _mean_of_known(binary_average_precision, scores, labels)
                metrics["map_clip"] = _mean_of_known(binary_average_precision, scores.T, labels.T)
        if self.task == "language":
            metrics["bits"] = metrics["loss"] / math.log(2)
        if self.task == "segmentation" and self._jaccard is not None:
            metrics["iou"] = float(self._jaccard.compute())
        if self.parts:
            total, objects = self.part_ious.cpu()
            metrics["part_iou"] = float(total.sum() / objects.sum().clamp(min=1))
            metrics["part_iou_kinds"] = float((total / objects)[objects > 0].mean())
        if _has_two_classes(self.task, self.out_channels):
            scores, labels = torch.cat(self._scores).cpu(), torch.cat(self._labels).cpu()
            known = labels != IGNORED
            metrics["auc"] = _mean_of_known(binary_auroc, scores[known, None], labels[known, None] == 1)
        if self.bins.numel():
            metrics["auc"] = _binned_area(*self.bins.cpu().view(2, _BINS))
        return metrics


class _Mean(MeanMetric):
    """Weighted mean in float64. Updates do not wait for the device; those of the base class do, to search for NaN."""

    weight: Tensor

    def __init__(self) -> None:
        # Each process evaluates all samples, so there is nothing to sum over processes.
        super().__init__(nan_strategy="disable", sync_on_compute=False)
        self.set_dtype(torch.float64)

    def update(self, value: Any, weight: Any = 1.0) -> None:
        weight = torch.as_tensor(weight, dtype=torch.float64, device=value.device).broadcast_to(value.shape)
        self.mean_value += (value * weight).sum()
        self.weight += weight.sum()


class _Jaccard(MulticlassJaccardIndex):
    """Mean intersection over union of the classes that occur; updates do not wait for the device."""

    confmat: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__(classes, average="macro", validate_args=False, sync_on_compute=False)

    def update(self, preds: Tensor, target: Tensor) -> None:
        index = target.clamp(min=0) * self.num_classes + preds
        self.confmat.view(-1).scatter_add_(0, index, (target != IGNORED).to(self.confmat.dtype))


def _mean_of_known(metric: Callable[..., Tensor], scores: Tensor, labels: Tensor) -> float:
    """Return the mean of a metric over the columns in which it is defined, NaN if there are none.

    Ranks in [0, 1] replace the scores, since a float32 sigmoid would make large scores equal.
    """
    known = labels.any(dim=0)
    if metric is binary_auroc:
        known &= ~labels.all(dim=0)
    if not bool(known.any()):
        return float("nan")
    distinct, ranks = scores[:, known].unique(return_inverse=True)
    columns = zip(ranks.T.double() / max(1, len(distinct) - 1), labels[:, known].T.long(), strict=True)
    return float(torch.stack([metric(score, label, validate_args=False) for score, label in columns]).double().mean())


def _binned_area(negatives: Tensor, positives: Tensor) -> float:
    """Return the area under the ROC curve from the counts of both classes in bins of increasing score."""
    pairs = float(negatives.sum() * positives.sum())
    below = negatives.cumsum(0) - negatives / 2  # negatives in the same bin count half
    return float((positives * below).sum()) / pairs if pairs else float("nan")
