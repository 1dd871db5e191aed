"""Checkpoints of a training loop: weights, optimiser, averages, random numbers and counters."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
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

__all__ = ["resume_loop", "save_best", "save_loop"]


def save_loop(loop: Loop) -> None:
    """Write the full state of a loop to its folder, and remove the previous checkpoint."""
    if loop.folder is None or not (loop.sharded or loop.fabric.global_rank == 0):
        return
    network, state = loop.task.network, loop.state
    tensors = gather({f"network.{name}": t for name, t in network.state_dict().items()})
    finite = [torch.isfinite(t).all() for t in tensors.values() if t.is_floating_point()]
    if not bool(torch.stack(finite).all()) or float(loop.losses[2]) >= 0:
        loop.stop_at(state.step - 1 if float(loop.losses[2]) < 0 else int(loop.losses[2]))
    moments, numbers = optimizer_tensors(network, loop.optimizer)
    tensors |= {**moments, "losses": loop.losses, "rng.cpu": torch.get_rng_state()}
    if loop.fabric.device.type == "cuda":
        tensors["rng.cuda"] = torch.cuda.get_rng_state(loop.fabric.device)
    values: dict[str, Any] = {"state": asdict(state), "rate": loop.rate.state_dict(), "optimizer": numbers}
    if loop.average is not None:
        tensors |= gather({f"average.{name}": t for name, t in loop.average.shadow.items()})
        values["average_steps"] = loop.average.steps
    values |= {"recipe": loop.name, "lr": loop.lr}
    values["learning_rates"] = [group["initial_lr"] for group in loop.optimizer.param_groups]
    if loop.fabric.global_rank == 0:
        write_checkpoint(loop.folder, f"step-{state.step:08d}", tensors, values)
        remove_checkpoints(loop.folder, "step", keep=1)


def save_best(loop: Loop) -> None:
    """Write the weights that were evaluated last as the best ones, and remove the previous best."""
    if loop.folder is None or not (loop.sharded or loop.fabric.global_rank == 0):
        return
    with loop.average or contextlib.nullcontext():
        tensors = gather({f"network.{name}": t for name, t in loop.task.network.state_dict().items()})
        if loop.fabric.global_rank == 0:
            state = {"step": loop.state.step, "epoch": loop.state.epoch, "best": loop.state.best}
            values = {"state": state, "recipe": loop.name}
            write_checkpoint(loop.folder, f"best-{loop.state.step:08d}", tensors, values)
            remove_checkpoints(loop.folder, "best", keep=1)


def resume_loop(loop: Loop) -> bool:
    """Load the last checkpoint in the folder of a loop; return whether there was one."""
    from .loop import State  # noqa: PLC0415

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
    if loop.average is not None:
        loop.average.steps = values["average_steps"]
        averages = {name: tensors[f"average.{name}"] for name in loop.average.shadow}
        for name, value in shard(averages, loop.average.shadow).items():
            loop.average.shadow[name].copy_(value)
    loop.losses.copy_(tensors["losses"])
    loop.lr = values.get("lr", 0.0)
    loop.state = State(**values["state"])
    if loop.fabric.global_rank == 0:
        remove_checkpoints(loop.folder, "best", above=loop.state.step)
        torch.set_rng_state(tensors["rng.cpu"])
        if "rng.cuda" in tensors and loop.fabric.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["rng.cuda"], loop.fabric.device)
    if loop.captured is not None:
        loop.captured.catch_up()
    return True
