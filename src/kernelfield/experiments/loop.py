"""The training loop. It resumes from any checkpoint and waits for the device only to report and to evaluate."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ..cuda_graphs import CapturedFunction
from ..data.base import TENSORS
from ..groups import Bernoulli
from ..layers.continuous.kernel_support import sample_full_kernels
from .checkpoint import latest_checkpoint
from .evaluation import batches_to_use, evaluation_steps, mask_sizes, reestimation_steps, warn_of_nan
from .loop_state import Clock, Progress, State, resume_loop, save_loop, save_weights
from .metrics import is_better
from .optim import Average, make_optimizer
from .processes import context_mesh, split_over, synchronise_norms
from .side_by_side import exhaust, matmul_precision

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from lightning.fabric import Fabric

    from ..data.base import Batch, Split
    from .settings import Training
    from .task import Task

__all__ = ["Loop", "NonFiniteLoss", "Progress", "TrainingInterrupted", "resident"]

#: number of steps before the first estimate of the training time
FIRST_REPORT = 4


class NonFiniteLoss(RuntimeError):  # noqa: N818
    """The loss became infinite or NaN."""


class TrainingInterrupted(Exception):  # noqa: N818
    """The training was stopped. It can resume from the checkpoint that was written."""


class Loop:
    """Train a task on a split.

    The order of samples depends only on the seed and the number of the epoch, so a checkpoint stores only the position
    in the epoch. Losses are summed on the device and read every ``log_every`` steps.

    Args:
        task: network, loss and optimiser.
        train: training samples.
        validation: samples that select the best epoch; None for none.
        settings: length of the training, batch size and precision.
        fabric: devices, processes and precision; by default the CPU.
        folder: folder of checkpoints; None to write none.
        name: name of the experiment, for error messages.
        on_progress: called after a few steps, then every ``log_every`` steps and at the end of each evaluated epoch.
        should_stop: called after every step. If it returns true, the loop writes a checkpoint and raises
            :class:`TrainingInterrupted`. Several processes stop together as soon as it returns true in one of them; on
            GPUs they synchronise this every tenth step.
        context: number of processes that share every sample, each with a slab of it; see :mod:`kernelfield.parallel`.
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
        should_stop: Callable[[], bool] | None = None,
        context: int = 1,
    ) -> None:
        from lightning.fabric import Fabric  # noqa: PLC0415

        self.fabric = Fabric(accelerator="cpu", devices=1) if fabric is None else fabric
        self.settings, self.folder, self.name = settings, folder, name
        self.on_progress, self.should_stop = on_progress, should_stop
        world = self.fabric.world_size
        #: processes that share samples; None if each process has its own samples
        self.mesh = context_mesh(self.fabric, context)
        #: number of groups of processes with separate samples, and the group of this process
        self.groups, self.group = world // context, self.fabric.global_rank // context
        self.batch = min(settings.batch, len(train))
        if self.batch % self.groups:
            what = "processes" if context == 1 else f"groups of {context} processes"
            raise ValueError(f"training.batch must be a multiple of the {self.groups} {what}, got {self.batch}")
        if settings.compile and context > 1:
            raise ValueError(f"training.compile must be false for context={context}, got true")
        self.per_epoch = len(train) // self.batch
        self.total = self.per_epoch * settings.epochs
        task.steps_per_epoch, task.epochs = self.per_epoch, settings.epochs
        if world > 1:
            task.network = split_over(synchronise_norms(task.network), self.mesh)
        task.to(self.fabric.device)
        if settings.compile:
            task.network.compile()
        self.task = task
        self.wrapped = self.fabric.setup_module(task, _reapply_compile=False)
        self.sharded = any(hasattr(p, "full_tensor") for p in task.parameters())
        if self.sharded:
            sample_full_kernels(task.network)  # a layer cannot read a mask that is sharded over processes
        # The optimiser comes after setup_module, which may replace parameters by shards.
        self.optimizer = make_optimizer(task.network, task.optimizer_settings, capturable=self._may_capture())
        self._stepper: Any = self.fabric.setup_optimizers(self.optimizer)
        self.rate = task.learning_rate()
        if self.rate.needs == "validation" and validation is None:
            raise ValueError(
                "schedule.split must be 'train' or '' for data without a validation split, got 'validation'"
            )
        self.average = None if settings.ema is None else Average(task.network, settings.ema)
        #: mean of the weights after each of the last epochs, for ``training.select: average``
        self.tail = Average(task.network, None) if settings.select == "average" else None
        #: distributions whose temperature has a schedule
        self._annealed = [m for m in task.network.modules() if isinstance(m, Bernoulli) and settings.temperature]
        self.train = resident(train, self.fabric.device)
        self.validation = None if validation is None else resident(validation, self.fabric.device)
        self.state = State()
        #: sum of losses, their count, the first step with a loss that is not finite, and the number of steps
        self.losses = torch.zeros(4, dtype=torch.float64, device=self.fabric.device)
        self.losses[2] = -1
        self.captured = CapturedFunction(self._work, warn=False) if self._may_capture() else None
        self.lr = 0.0
        self._warned = False
        self._clock = Clock()
        # The seed itself is for the initial weights. Each group has another seed for the random numbers of the
        # training.
        torch.manual_seed((settings.seed + 1) * 1_000_003 + self.group)

    # Steps

    def run(self) -> State:
        """Train to the end, from the last checkpoint in the folder if there is one."""
        return exhaust(self.steps())

    def steps(self) -> Generator[None, None, State]:
        """Train like :meth:`run`, and yield after each step or evaluation batch has been enqueued."""
        with matmul_precision(self.settings.matmul, self.fabric.device):
            self.resume()
            self._clock = Clock(self.state.seconds, self.state.step)
            while self.state.epoch < self.settings.epochs and not self._out_of_patience():
                self.task.train()
                for batch in self._epoch():
                    self._step(batch)
                    self._after_step()
                    yield
                yield from self._end_epoch()
        return self.state

    def _after_step(self) -> None:
        """Report, write a checkpoint, or stop, if this is due."""
        state, settings = self.state, self.settings
        # The end of an evaluated epoch is reported and saved after its evaluation.
        last = state.position == self.per_epoch and self._is_evaluated(state.epoch + 1)
        if state.step - self._clock.first_step == min(FIRST_REPORT, self.total):
            self._report_time()
        if state.step % settings.log_every == 0 and not last:
            state.seconds = self._clock.seconds
            self._report(self._read_losses())
        stopping = self._is_stopping()
        if stopping or (state.step % settings.checkpoint_every == 0 and not last):
            state.seconds = self._clock.seconds
            self.save()
        if stopping:
            raise TrainingInterrupted(f"training {self.name!r} was stopped at step {state.step} of {self.total}")

    def _is_stopping(self) -> bool:
        """Return whether to stop after this step; all processes agree, because they write checkpoints together."""
        if self.should_stop is None:
            return False
        stop = self.should_stop()
        if self.fabric.world_size == 1:
            return stop
        if self.fabric.device.type == "cuda" and self.state.step % 10:  # the exchange waits for the device
            return False
        return bool(torch.as_tensor(self.fabric.all_gather(torch.tensor(float(stop)))).any())

    def _epoch(self) -> Iterator[Batch]:
        """Yield the remaining batches of the epoch, each reduced to the samples of this process's group."""
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + self.state.epoch)
        order = torch.randperm(len(self.train), generator=generator)
        order = order.to(self.train.inputs.device)
        share = self.batch // self.groups
        while self.state.position < self.per_epoch:
            start = self.state.position * self.batch + self.group * share
            batch = self.train.batch(order[start : start + share], training=True)
            self.state.position += 1
            yield batch.to(self.fabric.device)

    def _may_capture(self) -> bool:
        single_gpu = self.fabric.device.type == "cuda" and self.fabric.world_size == 1
        return single_gpu and self.settings.capture

    def _step(self, batch: Batch) -> None:
        self.lr = self.rate.apply(self.optimizer, self.state.step)
        for distribution in self._annealed:
            distribution.anneal_(self.state.step / self.total, *self.settings.temperature)
        if self.captured is None:
            self._work(batch)
        else:
            self.captured(batch)
        if self.average is not None:
            self.average.update()
        self.state.step += 1

    def _work(self, batch: Batch) -> None:
        """Run the part of a step that is on the device: forward, backward, optimiser, sum of losses."""
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
        # The device records the first bad step, and the host reads it later.
        bad = ~torch.isfinite(value) & (first < 0)
        first.copy_(torch.where(bad, step, first))
        total += value
        count += 1
        step += 1

    def _read_losses(self) -> float:
        """Return the mean loss since the last call; raise :class:`NonFiniteLoss` if a loss was not finite."""
        losses = self.losses.clone()
        if self.fabric.world_size > 1:
            # Sum over processes, and the first bad step of any of them.
            each = torch.as_tensor(self.fabric.all_gather(losses))
            losses = torch.cat([each[:, :2].sum(dim=0), each[:, 2].max().unsqueeze(0), each[0, 3:]])
        total, count, first, _ = losses.tolist()
        if first >= 0:
            self.stop_at(int(first))
        self.losses[:2] = 0
        self.state.loss_sum += total
        self.state.loss_count += int(count)
        return total / count if count else float("nan")

    def stop_at(self, step: int) -> None:
        """Raise :class:`NonFiniteLoss` for a step, and name the last good checkpoint."""
        good = None if self.folder is None else latest_checkpoint(self.folder)
        kept = "there is no checkpoint before it" if good is None else f"the last good checkpoint is {good}"
        raise NonFiniteLoss(
            f"the loss is not finite at step {step} (epoch {step // self.per_epoch}) of recipe {self.name!r}; {kept}"
        )

    def _end_epoch(self) -> Generator[None, None, None]:
        state, settings = self.state, self.settings
        state.position = 0
        state.epoch += 1
        if not self._is_evaluated(state.epoch):
            return
        recent = self._read_losses()
        yield from self._reestimation()
        metrics = {} if self.validation is None else (yield from self._evaluation(self.validation))
        state.seconds = self._clock.seconds
        row = {"epoch": state.epoch, "step": state.step, "seconds": round(state.seconds, 2)}
        row |= {"lr": self.lr, "train_loss": state.loss_sum / state.loss_count}
        state.loss_sum, state.loss_count = 0.0, 0
        row |= {f"val_{name}": value for name, value in metrics.items()}
        if self.rate.needs == "train":
            scores = yield from self._evaluation(self.train)
            row |= {f"train_{name}": value for name, value in scores.items() if name != "loss"}
        state.rows.append(row)
        sizes = mask_sizes(self.task.network)
        if sizes:
            state.masks.append({"epoch": float(state.epoch), **sizes})
        if self.tail is not None and self.evaluations_left() < settings.average_last:
            self._add_to_tail(self.tail)
        self._report(recent, metrics)
        self.rate.observe(row)
        if metrics and self._is_best(metrics[self.task.metric], metrics["loss"]):
            state.best, state.best_loss = metrics[self.task.metric], metrics["loss"]
            state.best_step, state.waited = state.step, 0
            save_weights(self, "best")
        else:
            state.waited += settings.evaluate_every
            if metrics and not self._warned and self.fabric.global_rank == 0:
                self._warned = warn_of_nan(metrics, self.task.metric, f"epoch {state.epoch} of {self.name!r}")
        self.save()

    def _is_evaluated(self, epoch: int) -> bool:
        """Return whether the network is evaluated after this number of epochs; after the last one it always is."""
        return epoch % self.settings.evaluate_every == 0 or epoch >= self.settings.epochs

    def evaluations_left(self) -> int:
        """Return the number of later epochs that will be evaluated."""
        every, epochs = self.settings.evaluate_every, self.settings.epochs
        return -(-epochs // every) - -(-self.state.epoch // every)

    def _add_to_tail(self, tail: Average) -> None:
        """Add the weights that are evaluated to the mean of the last epochs."""
        with self.average or contextlib.nullcontext():
            tail.update()

    def average_last(self) -> dict[str, float] | None:
        """Load the mean of the last epochs' weights into the network, write it as a checkpoint, and validate it.

        Every process must call this, at the end of the training. Returns the validation metrics; None if
        ``training.select`` is not "average".
        """
        if self.tail is None:
            return None
        if not self.tail.steps:  # stopped early
            self._add_to_tail(self.tail)
        self.average = self.tail  # replaces the weights in evaluation, re-estimation and checkpoints
        exhaust(self._reestimation(averaged=True))
        save_weights(self, "average")
        return {} if self.validation is None else self.evaluate(self.validation)

    def _is_best(self, value: float, loss: float) -> bool:
        """Return whether a validation score beats the best one so far; for equal scores the smaller loss wins."""
        best, best_loss = self.state.best, self.state.best_loss
        return is_better(self.task.metric, value, best) or (
            value == best and best_loss is not None and loss < best_loss
        )

    def _out_of_patience(self) -> bool:
        patience = self.settings.patience
        return patience is not None and self.validation is not None and self.state.waited >= patience

    def _report(self, loss: float, metrics: dict[str, float] | None = None) -> None:
        if self.on_progress is None or self.fabric.global_rank != 0:
            return
        state = self.state
        pace = self._clock.elapsed / max(1, state.step - self._clock.first_step)
        left = pace * (self.total - state.step)
        rate = self.batch / pace if pace > 0 else 0.0
        self.on_progress(Progress(state.step, self.total, state.epoch, loss, self.lr, rate, left, metrics or {}))

    def _report_time(self) -> None:
        """Report the expected time of the training from its first steps; a forward pass counts as a third of a step."""
        if self.on_progress is None or self.fabric.global_rank != 0:
            return
        if self.fabric.device.type == "cuda":
            torch.cuda.synchronize(self.fabric.device)
        state, settings = self.state, self.settings
        pace = self._clock.elapsed / max(1, state.step - self._clock.first_step)
        evaluated = batches_to_use(settings, self.total, self.per_epoch)
        if self.validation is not None:
            evaluated += -(-len(self.validation) // (settings.eval_batch or settings.batch))
        evaluations = (settings.epochs - state.epoch) // settings.evaluate_every
        left = pace * (self.total - state.step + evaluations * evaluated / 3)
        rate = self.batch / pace if pace > 0 else 0.0
        self.on_progress(Progress(state.step, self.total, state.epoch, float("nan"), self.lr, rate, left, {}))

    def evaluate(self, split: Split) -> dict[str, float]:
        """Return the metrics on a split, with averaged weights if there are any."""
        return exhaust(self._evaluation(split))

    def _evaluation(self, split: Split) -> Generator[None, None, dict[str, float]]:
        batch = self.settings.eval_batch or self.settings.batch
        with self.average or contextlib.nullcontext():
            meter = yield from evaluation_steps(self.task, split, batch, self._precision)
        return meter.compute()

    def _reestimation(self, *, averaged: bool = False) -> Generator[None, None, None]:
        """Re-estimate batch-norm statistics, those of the averaged weights if there are any."""
        # A mean of the weights of several epochs has never run in training, however long that was.
        batches = batches_to_use(self.settings, 0 if averaged else self.total, self.per_epoch)
        # Every process uses the same samples; its share of the batch size fits into its memory.
        batch, seed = self.batch // self.groups, self.settings.seed * 1_000_003 + self.state.epoch
        with self.average or contextlib.nullcontext():
            yield from reestimation_steps(
                self.task, self.train, batch=batch, batches=batches, seed=seed, precision=self._precision
            )

    def _precision(self) -> Any:
        return torch.autocast(self.fabric.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16")

    # Checkpoints

    def save(self) -> None:
        """Write a checkpoint from which :meth:`run` continues with the same results; remove the previous one."""
        save_loop(self)

    def resume(self) -> bool:
        """Load the last checkpoint in the folder; return whether there was one."""
        return resume_loop(self)


def resident(split: Split, device: torch.device) -> Split:
    """Return the split on the device if it takes less than half of the free memory there; else return it unchanged."""
    parts = [t for name in TENSORS if (t := getattr(split, name)) is not None]
    if device.type != "cuda" or all(t.device == device for t in parts):
        return split.to(device)
    return split.to(device) if sum(t.nbytes for t in parts) < torch.cuda.mem_get_info(device)[0] / 2 else split
