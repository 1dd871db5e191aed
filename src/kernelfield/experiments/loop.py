"""The loop: every step of it can be taken up again, and none of them waits for the device."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..layers.continuous.kernel_support import drop_crops
from .checkpoint import (
    latest_checkpoint,
    load_network,
    optimizer_tensors,
    read_checkpoint,
    remove_checkpoints,
    restore_optimizer,
    shared_like,
    whole,
    write_checkpoint,
)
from .cuda_graph import CapturedStep
from .evaluation import evaluate, mask_sizes
from .optim import Average, make_optimizer
from .scores import is_better

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lightning.fabric import Fabric

    from ..data.base import Batch, Split
    from .recipe import Training
    from .task import Task

__all__ = ["Loop", "NonFiniteLoss", "Progress"]


class NonFiniteLoss(RuntimeError):  # noqa: N818
    """The loss became infinite or not a number."""


@dataclass(frozen=True)
class Progress:
    """Where training stands.

    Args:
        step: steps done.
        steps: steps in all.
        epoch: epochs done.
        loss: mean loss since the last look.
        lr: learning rate.
        rate: samples per second.
        seconds_left: expected.
        metrics: of the validation split, at the end of an epoch; empty otherwise.
    """

    step: int
    steps: int
    epoch: int
    loss: float
    lr: float
    rate: float
    seconds_left: float
    metrics: dict[str, float]


@dataclass
class State:
    """What of a loop is plain numbers."""

    step: int = 0
    epoch: int = 0
    position: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    waited: int = 0
    rows: list[dict[str, float]] = field(default_factory=list)
    masks: list[dict[str, float]] = field(default_factory=list)


class Loop:
    """Trains a task on a split that lies on the device as a whole.

    The order of an epoch is drawn from the seed and the epoch's number, so that a checkpoint need only know how far the
    epoch had come. Losses are added up on the device and read every ``log_every`` steps.

    Args:
        task: network, loss and optimiser.
        train: samples to learn from.
        validation: samples to choose by.
        settings: how long and how many at once.
        fabric: devices, processes and precision; one of its own on the CPU if not given.
        folder: of checkpoints; None to keep none.
        name: what to call the experiment in errors.
        on_progress: called every ``log_every`` steps and at the end of each evaluated epoch.
    """

    def __init__(
        self,
        task: Task,
        train: Split,
        validation: Split | None,
        settings: Training,
        *,
        fabric: Fabric | None = None,
        folder: Path | None = None,
        name: str = "",
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        from lightning.fabric import Fabric  # noqa: PLC0415

        self.fabric = Fabric(accelerator="cpu", devices=1) if fabric is None else fabric
        self.settings, self.folder, self.name, self.on_progress = settings, folder, name, on_progress
        world = self.fabric.world_size
        self.batch = min(settings.batch, len(train))
        if self.batch % world:
            raise ValueError(f"training.batch must be a multiple of the {world} processes, got {self.batch}")
        self.per_epoch = len(train) // self.batch
        self.total = self.per_epoch * settings.epochs
        task.steps_per_epoch, task.epochs = self.per_epoch, settings.epochs
        if self.fabric.device.type == "cuda" and world > 1:
            task.network = torch.nn.SyncBatchNorm.convert_sync_batchnorm(task.network)
        task.to(self.fabric.device)
        if settings.compile:
            task.network.compile()
        self.task = task
        self.wrapped = self.fabric.setup_module(task, _reapply_compile=False)
        self.sharded = any(hasattr(p, "full_tensor") for p in task.parameters())
        if self.sharded:
            drop_crops(task.network)  # a mask of which each process holds a share cannot be read by a layer
        # After the set-up, which may put shares of parameters in their place.
        self.optimizer = make_optimizer(task.network, task.optimizer_settings, capturable=self._may_capture())
        self._stepper: Any = self.fabric.setup_optimizers(self.optimizer)
        self.rate = task.learning_rate()
        if self.rate.needs == "validation" and validation is None:
            raise ValueError(
                "schedule.split must be 'train' or '' for data without a validation split, got 'validation'"
            )
        self.average = None if settings.ema is None else Average(task.network, settings.ema)
        self.train = _resident(train, self.fabric.device)
        self.validation = None if validation is None else _resident(validation, self.fabric.device)
        self.state = State()
        #: sum of losses, their number, the first step whose loss was not finite, and the steps done
        self.losses = torch.zeros(4, dtype=torch.float64, device=self.fabric.device)
        self.losses[2] = -1
        self.captured = CapturedStep(self._work, task.network) if self._may_capture() else None
        self.lr = 0.0
        # Weights come from the seed itself; what is drawn in training from one of its own for each process.
        torch.manual_seed((settings.seed + 1) * 1_000_003 + self.fabric.global_rank)

    # Steps

    def run(self) -> State:
        """Train from where the last checkpoint stands, or from the beginning, to the end."""
        with _matmul(self.settings.matmul, self.fabric.device):
            return self._run()

    def _run(self) -> State:
        self.resume()
        begun, before, seen = time.perf_counter(), self.state.seconds, self.state.step
        while self.state.epoch < self.settings.epochs and not self._stopped():
            self.task.train()
            for batch in self._epoch():
                self._step(batch)
                state = self.state
                last = state.position == self.per_epoch
                if state.step % self.settings.log_every == 0 and not last:
                    state.seconds = before + time.perf_counter() - begun
                    self._report(self._read_losses(), time.perf_counter() - begun, state.step - seen)
                if state.step % self.settings.checkpoint_every == 0 and not last:
                    state.seconds = before + time.perf_counter() - begun
                    self.save()
            self._end_epoch(before, begun, seen)
        return self.state

    def _epoch(self) -> Iterator[Batch]:
        """Yield the rest of the epoch's batches, of each of them this process's share."""
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + self.state.epoch)
        order = torch.randperm(len(self.train), generator=generator)
        order = order.to(self.train.inputs.device)
        share = self.batch // self.fabric.world_size
        while self.state.position < self.per_epoch:
            start = self.state.position * self.batch + self.fabric.global_rank * share
            batch = self.train.batch(order[start : start + share], training=True)
            self.state.position += 1
            yield batch.to(self.fabric.device)

    def _may_capture(self) -> bool:
        alone = self.fabric.device.type == "cuda" and self.fabric.world_size == 1
        return alone and self.settings.capture

    def _step(self, batch: Batch) -> None:
        self.lr = self.rate.apply(self.optimizer, self.state.step)
        if self.captured is None:
            self._work(batch)
        else:
            self.captured(batch)
        if self.average is not None:
            self.average.update()
        self.state.step += 1

    def _work(self, batch: Batch) -> None:
        """Do what a step does on the device."""
        with self._precision():
            loss = self.wrapped.training_step(batch)
        self.fabric.backward(loss)
        if self.settings.clip is not None:
            self.fabric.clip_gradients(
                self.wrapped, self._stepper, max_norm=self.settings.clip, error_if_nonfinite=False
            )
        self._stepper.step()
        self._stepper.zero_grad(set_to_none=True)
        value = loss.detach().double()
        total, count, first, step = self.losses.unbind()
        # The host asks later; which step it was is noted here.
        bad = ~torch.isfinite(value) & (first < 0)
        first.copy_(torch.where(bad, step, first))
        total += value
        count += 1
        step += 1

    def _read_losses(self) -> float:
        """Return the mean loss since the last call and begin a new one; raise if a loss was not finite."""
        losses = self.losses.clone()
        if self.fabric.world_size > 1:
            # Of every process; the first bad step of any of them.
            each = torch.as_tensor(self.fabric.all_gather(losses))
            losses = torch.cat([each[:, :2].sum(dim=0), each[:, 2].max().unsqueeze(0), each[0, 3:]])
        total, count, first, _ = losses.tolist()
        if first >= 0:
            self._stop_at(int(first))
        self.losses[:2] = 0
        return total / count if count else float("nan")

    def _stop_at(self, step: int) -> None:
        good = None if self.folder is None else latest_checkpoint(self.folder)
        kept = "there is no checkpoint before it" if good is None else f"the last good checkpoint is {good}"
        raise NonFiniteLoss(
            f"the loss is not finite at step {step} (epoch {step // self.per_epoch}) of recipe {self.name!r}; {kept}"
        )

    def _end_epoch(self, before: float, begun: float, seen: int) -> None:
        state, settings = self.state, self.settings
        state.position = 0
        state.epoch += 1
        if state.epoch % settings.evaluate_every and state.epoch < settings.epochs:
            return
        loss = self._read_losses()
        if self.captured is not None:
            self.captured.catch_up()
        metrics = {} if self.validation is None else self.evaluate(self.validation)
        state.seconds = before + time.perf_counter() - begun
        row = {"epoch": state.epoch, "step": state.step, "seconds": round(state.seconds, 2)}
        row |= {"lr": self.lr, "train_loss": loss}
        row |= {f"val_{name}": value for name, value in metrics.items()}
        if self.rate.needs == "train":
            row |= {f"train_{name}": value for name, value in self.evaluate(self.train).items() if name != "loss"}
        state.rows.append(row)
        sizes = mask_sizes(self.task.network)
        if sizes:
            state.masks.append({"epoch": float(state.epoch), **sizes})
        self._report(loss, time.perf_counter() - begun, state.step - seen, metrics)
        if metrics and self.task.metric not in metrics:
            raise ValueError(f"metric must be one of {', '.join(metrics)}, got {self.task.metric!r}")
        self.rate.observe(row)
        if metrics and is_better(self.task.metric, metrics[self.task.metric], state.best):
            state.best, state.best_step, state.waited = metrics[self.task.metric], state.step, 0
            self._save_best()
        else:
            state.waited += settings.evaluate_every
        self.save()

    def _stopped(self) -> bool:
        patience = self.settings.patience
        return patience is not None and self.validation is not None and self.state.waited >= patience

    def _report(self, loss: float, seconds: float, steps: int, metrics: dict[str, float] | None = None) -> None:
        if self.on_progress is None or self.fabric.global_rank != 0:
            return
        pace = seconds / max(1, steps)
        state = self.state
        left = pace * (self.total - state.step)
        rate = self.batch / pace if pace > 0 else 0.0
        self.on_progress(Progress(state.step, self.total, state.epoch, loss, self.lr, rate, left, metrics or {}))

    def evaluate(self, split: Split) -> dict[str, float]:
        """Return the metrics of a split, by the averaged weights if there are any."""
        with self.average or contextlib.nullcontext(), self._precision():
            return evaluate(self.task, split, self.settings.eval_batch or self.settings.batch).compute()

    def _precision(self) -> Any:
        return torch.autocast(self.fabric.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16")

    # Checkpoints

    def save(self) -> None:
        """Write a checkpoint from which :meth:`run` goes on as if nothing had happened; remove the former ones."""
        if self.folder is None or not (self.sharded or self.fabric.global_rank == 0):
            return
        tensors = {f"network.{name}": whole(t) for name, t in self.task.network.state_dict().items()}
        finite = [torch.isfinite(t).all() for t in tensors.values() if t.is_floating_point()]
        if not bool(torch.stack(finite).all()) or float(self.losses[2]) >= 0:
            self._stop_at(self.state.step - 1 if float(self.losses[2]) < 0 else int(self.losses[2]))
        moments, numbers = optimizer_tensors(self.task.network, self.optimizer)
        tensors |= {**moments, "losses": self.losses, "rng.cpu": torch.get_rng_state()}
        if self.fabric.device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.fabric.device)
        values: dict[str, Any] = {"state": asdict(self.state), "rate": self.rate.state_dict(), "optimizer": numbers}
        if self.average is not None:
            tensors |= {f"average.{name}": whole(t) for name, t in self.average.shadow.items()}
            values["average_steps"] = self.average.steps
        values["recipe"] = self.name
        values["learning_rates"] = [group["initial_lr"] for group in self.optimizer.param_groups]
        if self.fabric.global_rank == 0:
            write_checkpoint(self.folder, f"step-{self.state.step:08d}", tensors, values)
            remove_checkpoints(self.folder, "step", keep=1)

    def _save_best(self) -> None:
        if self.folder is None or not (self.sharded or self.fabric.global_rank == 0):
            return
        with self.average or contextlib.nullcontext():
            tensors = {f"network.{name}": whole(t) for name, t in self.task.network.state_dict().items()}
        if self.fabric.global_rank == 0:
            state = {"step": self.state.step, "epoch": self.state.epoch, "best": self.state.best}
            values = {"state": state, "recipe": self.name}
            write_checkpoint(self.folder, f"best-{self.state.step:08d}", tensors, values)
            remove_checkpoints(self.folder, "best", keep=1)

    def resume(self) -> bool:
        """Take up the last checkpoint in the folder; return whether there was one."""
        path = None if self.folder is None else latest_checkpoint(self.folder)
        if path is None or self.folder is None:
            return False
        tensors, values = read_checkpoint(path)
        load_network(self.task.network, tensors, path)
        moments = {key: t for key, t in tensors.items() if key.startswith("optimizer.")}
        restore_optimizer(self.task.network, self.optimizer, moments, values["optimizer"])
        for group, lr in zip(self.optimizer.param_groups, values["learning_rates"], strict=True):
            group["initial_lr"] = lr
        self.rate.load_state_dict(values["rate"])
        if self.average is not None:
            self.average.steps = values["average_steps"]
            for name, shadow in self.average.shadow.items():
                shadow.copy_(shared_like(tensors[f"average.{name}"], shadow))
        self.losses.copy_(tensors["losses"])
        self.state = State(**values["state"])
        if self.fabric.global_rank == 0:
            remove_checkpoints(self.folder, "best", above=self.state.step)
            torch.set_rng_state(tensors["rng.cpu"])
            if "rng.cuda" in tensors and self.fabric.device.type == "cuda":
                torch.cuda.set_rng_state(tensors["rng.cuda"], self.fabric.device)
        if self.captured is not None:
            self.captured.catch_up()
        return True


@contextlib.contextmanager
def _matmul(precision: str, device: torch.device) -> Iterator[None]:
    """Multiply float32 matrices on a GPU with the given precision inside the ``with`` block."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _resident(split: Split, device: torch.device) -> Split:
    """Return the split on the device if it takes less than half of what is free there."""
    if device.type != "cuda":
        return split.to(device)
    parts = (split.inputs, split.target, split.coords, split.mask)
    needed = sum(t.nbytes for t in parts if t is not None)
    return split.to(device) if needed < torch.cuda.mem_get_info(device)[0] / 2 else split
