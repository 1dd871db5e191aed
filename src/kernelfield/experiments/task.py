"""A Lightning module for training: network, loss, metrics, regularisers and optimiser."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from lightning import LightningModule
from torch import Tensor

from .._arguments import accepted_arguments, checked
from .._kinds import PROBABILITY, Choice, Int, ListOf
from .._object_kinds import Instance
from ..data.base import Batch
from ..layers.continuous.kernel_sampler import sampled_once
from .effects import check_parts
from .metrics import TASKS, Meter, is_better, main_metric, metric_names, task_loss
from .optim import LearningRate, make_optimizer
from .regularizers import read_penalties
from .settings import MEASURED, Optimizer, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

__all__ = ["Task"]


class Task(LightningModule):
    """Any network on any data, for :func:`kernelfield.experiments.fit`, Lightning's Fabric or its Trainer.

    A batch is a :class:`~kernelfield.data.base.Batch`, with coordinates and a mask if there are any, or a pair (inputs,
    target) from an ordinary ``DataLoader``.

    Args:
        network: maps inputs to predictions; it may also take ``step``, ``coords`` and ``mask``.
        task: "classification", "multilabel", "regression", "dense-regression", "segmentation" or "language".
        out_channels: number of predictions.
        optimizer: settings of the optimiser.
        schedule: settings of the learning-rate schedule.
        regularizers: weights by name, or ``{"weight": …}`` with further arguments of the penalty.
        label_smoothing: label smoothing of cross-entropies.
        metric: metric that selects the best epoch; the task's main metric if empty.
        parts: for part segmentation, the labels of each kind of object; see :class:`Meter`.
        epochs: epochs of the schedule; Lightning's Trainer overrides it.
        steps_per_epoch: steps per epoch of the schedule; Lightning's Trainer overrides it.

    >>> from kernelfield import CCNN
    >>> from kernelfield.data.base import Batch
    >>> task = Task(CCNN(1, 10, size=8, channels=4, blocks=1), regularizers={"kernel_l2": 1e-6})
    >>> task.training_step(Batch(torch.randn(2, 1, 8), torch.tensor([3, 7]))).shape
    torch.Size([])
    >>> task.training_step((torch.randn(2, 1, 8), torch.tensor([3, 7]))).shape
    torch.Size([])
    """

    @checked(
        task=Choice(*TASKS),
        optimizer=Instance("kernelfield.experiments.recipe.Optimizer") | None,
        schedule=Instance("kernelfield.experiments.recipe.Schedule") | None,
        label_smoothing=PROBABILITY,
        metric=Choice("", *MEASURED),
        parts=ListOf(ListOf(Int(0)), least=0),
    )
    def __init__(
        self,
        network: nn.Module,
        task: str = "classification",
        *,
        out_channels: int = 10,
        optimizer: Optimizer | None = None,
        schedule: Schedule | None = None,
        regularizers: dict[str, Any] | None = None,
        label_smoothing: float = 0.0,
        metric: str = "",
        parts: Sequence[Sequence[int]] = (),
        epochs: int = 1,
        steps_per_epoch: int = 1,
    ) -> None:
        super().__init__()
        self.network = network
        self.task, self.out_channels = task, out_channels
        self.optimizer_settings = optimizer or Optimizer()
        self.schedule_settings = schedule or Schedule()
        self.label_smoothing = label_smoothing
        if label_smoothing and task not in ("classification", "segmentation", "language"):
            raise ValueError(
                f"label_smoothing must be 0 for task {task!r}, which has no classes, got {label_smoothing}"
            )
        self.metric = metric or main_metric(task)
        self.parts = tuple(parts)
        names = metric_names(task, out_channels, parts=bool(parts))
        if self.metric not in names:
            raise ValueError(f"metric must be one of {', '.join(names)} for task {task!r}, got {self.metric!r}")
        watched = self.schedule_settings.monitor
        if watched and watched not in names:
            listed = ", ".join(names)
            raise ValueError(f"schedule.monitor must be one of {listed} for task {task!r}, got {watched!r}")
        self.epochs, self.steps_per_epoch = epochs, steps_per_epoch
        self.penalties = read_penalties(regularizers or {})
        check_parts(network, self.optimizer_settings, self.penalties)
        self._takes = accepted_arguments(network.forward)
        self._meter: Meter | None = None

    def forward(self, batch: Batch | Sequence[Tensor] | Tensor) -> Tensor:
        """Return the predictions for a batch, or for inputs alone."""
        batch = _as_batch(batch)
        return self.network(batch.inputs, **self._sampling(batch))

    def training_step(self, batch: Batch | Sequence[Tensor], batch_idx: int = 0) -> Tensor:  # noqa: ARG002
        """Return the loss of a batch, penalties included."""
        batch = _as_batch(batch)
        with sampled_once():
            loss = task_loss(self.task, self(batch), batch, self.label_smoothing)
            for penalty in self.penalties:
                loss = loss + penalty(self.network)
        if self._trainer is not None:
            # A plateau watches the mean over an epoch; the Trainer would pass on the last batch's loss.
            averaged = self.schedule_settings.name == "plateau"
            self.log("train_loss", loss.detach(), on_step=True, on_epoch=averaged, batch_size=len(batch))
        return loss

    def meter(self, device: torch.device | str | None = None) -> Meter:
        """Return a new meter for this task."""
        return Meter(self.task, self.out_channels, self.device if device is None else device, parts=self.parts)

    def learning_rate(self) -> LearningRate:
        """Return a new learning-rate schedule."""
        return LearningRate(self.schedule_settings, self.steps_per_epoch, self.epochs, self.metric)

    # Hooks for Lightning's Trainer. The training loop of this package does not call them.

    def validation_step(self, batch: Batch | Sequence[Tensor], batch_idx: int = 0) -> None:  # noqa: ARG002
        """Add a batch to the meter."""
        batch = _as_batch(batch)
        if self._meter is None:
            self._meter = self.meter()
        self._meter.update(self(batch), batch)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of the epoch, with names prefixed by val_."""
        self._log_meter("val")

    def test_step(self, batch: Batch | Sequence[Tensor], batch_idx: int = 0) -> None:
        """Add a batch to the meter."""
        self.validation_step(batch, batch_idx)

    def on_test_epoch_end(self) -> None:
        """Log the metrics of the epoch, with names prefixed by test_."""
        self._log_meter("test")

    def _log_meter(self, prefix: str) -> None:
        if self._meter is not None:
            self.log_dict({f"{prefix}_{name}": value for name, value in self._meter.compute().items()}, sync_dist=True)
        self._meter = None

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Batch:  # noqa: ARG002
        """Move a batch to a device."""
        return _as_batch(batch).to(device)

    def configure_optimizers(self) -> Any:
        """Return the optimiser and, unless it is constant, the schedule."""
        optimizer = make_optimizer(self.network, self.optimizer_settings)
        how = self.schedule_settings
        if self._trainer is not None:
            self._take_length_of(self.trainer)
        rate = self.learning_rate()
        if how.name == "plateau":
            if how.warmup:
                raise ValueError(f"schedule.warmup must be 0 for 'plateau' in Lightning's Trainer, got {how.warmup}")
            if rate.needs == "train":
                raise ValueError(f"schedule.monitor must be 'loss' for split='train' here, got {rate.monitor!r}")
            mode: Any = "min" if is_better(rate.monitor, 0, 1) else "max"
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, mode=mode, factor=how.factor, patience=how.patience
            )
            watched = f"{'train' if how.split == 'train' else 'val'}_{rate.monitor}"
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": watched}}
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate.factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _take_length_of(self, trainer: Any) -> None:
        """Set the length of the schedule to that of a Trainer, which counts epochs, steps or both."""
        steps = trainer.estimated_stepping_batches
        if math.isinf(steps):
            if self.schedule_settings.name in ("cosine", "steps"):
                name = self.schedule_settings.name
                raise ValueError(f"max_epochs or max_steps of the Trainer must be given for schedule {name!r}, got -1")
            return
        trainer.fit_loop.setup_data()  # the Trainer counts batches later if it has max_steps alone
        per_epoch = trainer.num_training_batches / trainer.accumulate_grad_batches  # infinite for a stream of batches
        self.steps_per_epoch = max(1, int(min(math.ceil(per_epoch) if math.isfinite(per_epoch) else steps, steps)))
        self.epochs = max(1, math.ceil(steps / self.steps_per_epoch))

    def _sampling(self, batch: Batch) -> dict[str, Any]:
        given = batch.sampling
        if self._takes is None:
            return given
        for name in set(given) - self._takes:
            kind = type(self.network).__name__
            raise ValueError(f"network must take {name}, which these data have, got {kind}, which does not")
        return {"step": batch.step, **given} if "step" in self._takes else given


def _as_batch(given: Any) -> Batch:
    """Return a batch unchanged; wrap inputs, alone or with a target, in a batch."""
    if isinstance(given, Batch):
        return given
    parts = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if len(parts) not in (1, 2) or not all(isinstance(part, Tensor) for part in parts):
        what = ", ".join(type(part).__name__ for part in parts)
        raise TypeError(f"batch must be a Batch or tensors (inputs, target), got {type(given).__name__} of {what}")
    return Batch(*parts)
