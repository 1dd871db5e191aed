"""The state of a training loop: progress, counters and clock, and the checkpoints that hold them."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .checkpoint import (
    gather,
    latest_checkpoint,
    load_network,
    optimizer_tensors,
    read_checkpoint,
    remove_checkpoints,
    restore_optimizer,
    restore_replaced,
    shard,
    write_checkpoint,
)

if TYPE_CHECKING:
    from .loop import Loop

__all__ = ["Clock", "Progress", "State", "resume_loop", "save_loop", "save_weights"]


@dataclass(frozen=True)
class Progress:
    """Progress of a training.

    Args:
        step: steps done.
        steps: number of all steps.
        epoch: epochs done.
        loss: mean loss since the last report; NaN in the first report, which only gives ``seconds_left`` after a few
            steps.
        lr: learning rate.
        rate: samples per second.
        seconds_left: expected time to the end.
        metrics: validation metrics at the end of an evaluated epoch; empty otherwise.
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
    """The plain numbers of a loop's state.

    Args:
        step: steps done.
        epoch: epochs done.
        position: steps done in the current epoch.
        seconds: time spent training.
        best: best validation score so far.
        best_step: step of the best validation score.
        best_loss: validation loss at that step, which breaks ties.
        waited: epochs since the best validation score.
        loss_sum: sum of the losses since the last evaluated epoch that the host has read.
        loss_count: number of these losses.
        rows: metrics of each evaluated epoch.
        masks: mask sizes after each evaluated epoch.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    best_loss: float | None = None
    waited: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    rows: list[dict[str, float]] = field(default_factory=list)
    masks: list[dict[str, float]] = field(default_factory=list)


class Clock:
    """Time spent training, including that of an earlier run.

    Args:
        before: seconds of the earlier run.
        first_step: step at which this run started.
    """

    def __init__(self, before: float = 0.0, first_step: int = 0) -> None:
        self.before, self.first_step = before, first_step
        self._begun = time.perf_counter()

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._begun

    @property
    def seconds(self) -> float:
        return self.before + self.elapsed


def save_loop(loop: Loop) -> None:
    """Write the full state of a loop to its folder, and remove the previous checkpoint.

    Every process must call this. The first one writes the random states and loss sums of all processes.
    """
    if loop.folder is None:
        return
    network, state = loop.task.network, loop.state
    tensors = gather({f"network.{name}": t for name, t in network.state_dict().items()})
    finite = [torch.isfinite(t).all() for t in tensors.values() if t.is_floating_point()]
    if not bool(torch.stack(finite).all()) or float(loop.losses[2]) >= 0:
        loop.stop_at(state.step - 1 if float(loop.losses[2]) < 0 else int(loop.losses[2]))
    own = _group_tensors(loop)
    if not (loop.sharded or loop.fabric.global_rank == 0):
        return
    moments, numbers = optimizer_tensors(network, loop.optimizer)
    tensors |= {**moments, **own}
    values: dict[str, Any] = {"state": asdict(state), "rate": loop.rate.state_dict(), "optimizer": numbers}
    for kind, average in (("average", loop.average), ("tail", loop.tail)):
        if average is not None:
            tensors |= gather({f"{kind}.{name}": t for name, t in average.shadow.items()})
            values[f"{kind}_steps"] = average.steps
    values |= {"recipe": loop.name, "lr": loop.lr}
    values["learning_rates"] = [group["initial_lr"] for group in loop.optimizer.param_groups]
    if loop.fabric.global_rank == 0:
        write_checkpoint(loop.folder, f"step-{state.step:08d}", tensors, values)
        for kind in ("step", "best"):
            remove_checkpoints(loop.folder, kind, keep=1)


def save_weights(loop: Loop, kind: str) -> None:
    """Write the evaluated weights as the checkpoint ``kind-STEP``.

    The previous best checkpoint stays until :func:`save_loop` has written a state that knows of the new one. A loop
    that is killed in between resumes from the previous state, to which the previous best checkpoint belongs.
    """
    if loop.folder is None or not (loop.sharded or loop.fabric.global_rank == 0):
        return
    with loop.average or contextlib.nullcontext():
        tensors = gather({f"network.{name}": t for name, t in loop.task.network.state_dict().items()})
        if loop.fabric.global_rank == 0:
            state = {"step": loop.state.step, "epoch": loop.state.epoch, "best": loop.state.best}
            values = {"state": state, "recipe": loop.name}
            write_checkpoint(loop.folder, f"{kind}-{loop.state.step:08d}", tensors, values)
            if kind != "best":
                remove_checkpoints(loop.folder, kind, keep=1)


def resume_loop(loop: Loop) -> bool:
    """Load the last checkpoint in the folder of a loop; return whether there was one."""
    if loop.folder is None:
        return False
    if loop.fabric.global_rank == 0:
        restore_replaced(loop.folder)
    loop.fabric.barrier()
    path = latest_checkpoint(loop.folder)
    if path is None:
        return False
    tensors, values = read_checkpoint(path)
    network = loop.task.network
    load_network(network, tensors, path)
    moments = {key: t for key, t in tensors.items() if key.startswith("optimizer.")}
    restore_optimizer(network, loop.optimizer, moments, values["optimizer"])
    for group, lr in zip(loop.optimizer.param_groups, values["learning_rates"], strict=True):
        group["initial_lr"] = lr
    loop.rate.load_state_dict(values["rate"])
    for kind, average in (("average", loop.average), ("tail", loop.tail)):
        if average is None or f"{kind}_steps" not in values:
            continue
        average.steps = values[f"{kind}_steps"]
        averages = {name: tensors[f"{kind}.{name}"] for name in average.shadow}
        for name, value in shard(averages, average.shadow).items():
            average.shadow[name].copy_(value)
    loop.lr = values.get("lr", 0.0)
    loop.state = State(**values["state"])
    if loop.tail is not None and loop.tail.steps > max(0, loop.settings.average_last - loop.evaluations_left()):
        loop.tail.steps = 0  # forget the last epochs of a shorter training, which are no longer the last ones
    if loop.fabric.global_rank == 0:
        remove_checkpoints(loop.folder, "best", above=loop.state.step)
        remove_checkpoints(loop.folder, "average")  # of a shorter training; the end of this one writes its own
    _restore_group_tensors(loop, tensors)
    return True


def _group_tensors(loop: Loop) -> dict[str, torch.Tensor]:
    """Return the loss sums and random states of every group of processes; those of group 1 are "rng.cpu.1" and so on.

    Every process must call this. Processes that share their samples draw the same numbers and have the same losses.
    """
    own = {"losses": loop.losses, "rng.cpu": torch.get_rng_state()}
    if loop.fabric.device.type == "cuda":
        own["rng.cuda"] = torch.cuda.get_rng_state(loop.fabric.device)
    if loop.fabric.world_size == 1:
        return own
    gathered: dict[str, torch.Tensor] = {}
    for name, tensor in own.items():
        here = tensor.to(loop.fabric.device)
        each = [torch.empty_like(here) for _ in range(loop.fabric.world_size)]
        torch.distributed.all_gather(each, here)
        firsts = each[:: loop.fabric.world_size // loop.groups]
        gathered |= {_of_group(name, group): t.cpu() for group, t in enumerate(firsts)}
    return gathered


def _restore_group_tensors(loop: Loop, tensors: dict[str, torch.Tensor]) -> None:
    """Restore the loss sums and the random state of this process.

    A group that did not exist when the checkpoint was written starts with new random numbers.
    """
    group, device = loop.group, loop.fabric.device
    losses, cpu, cuda = (tensors.get(_of_group(name, group)) for name in ("losses", "rng.cpu", "rng.cuda"))
    if losses is None:
        losses = tensors["losses"].clone()
        losses[:2] = 0  # the first group has restored the sums of all groups
    loop.losses.copy_(losses)
    if cpu is None:
        torch.manual_seed(((loop.settings.seed + 1) * 1_000_003 + group) * 1_000_003 + loop.state.step)
    else:
        torch.set_rng_state(cpu)
    if cuda is not None and device.type == "cuda":
        torch.cuda.set_rng_state(cuda, device)


def _of_group(name: str, group: int) -> str:
    return name if group == 0 else f"{name}.{group}"
