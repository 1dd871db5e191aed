"""Metrics of a network on a split, and the sizes of its masks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ..groups import Bernoulli, Interval
from ..masks import GaussianMask
from ..models import DNArch
from .checkpoint import gather

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from torch import Tensor

    from ..data.base import Split
    from .task import Task

__all__ = ["NonFiniteOutputs", "evaluate", "evaluation_steps", "mask_sizes"]


class NonFiniteOutputs(RuntimeError):  # noqa: N818
    """A trained network returned values that are infinite or NaN."""


def evaluate(task: Task, split: Split, batch: int = 256, on_batch: Callable[[int, int], None] | None = None) -> Any:
    """Return a meter that has seen all of a split; raise :class:`NonFiniteOutputs` if an output is not finite.

    Args:
        task: the task; its network is put in evaluation mode and back.
        split: on the network's device; otherwise each batch is moved there.
        batch: samples at once.
        on_batch: called after each batch with the number of samples done and of all samples.
    """
    steps, done = evaluation_steps(task, split, batch), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            meter = end.value
            break
        done = min(done + batch, len(split))
        if on_batch is not None:
            on_batch(done, len(split))
    if bool(meter.nonfinite):
        raise NonFiniteOutputs(f"the outputs of the network are not finite for {int(meter.nonfinite)} samples")
    return meter


@torch.no_grad()
def evaluation_steps(
    task: Task, split: Split, batch: int = 256, precision: Callable[[], Any] = contextlib.nullcontext
) -> Generator[None, None, Any]:
    """Evaluate as :func:`evaluate` does, and yield after each batch.

    Args:
        task: as of :func:`evaluate`.
        split: as of :func:`evaluate`.
        batch: samples at once.
        precision: returns the context of the forward pass. It is left before each ``yield``, for whoever runs then.
    """
    was_training = task.training
    task.eval()
    device = next(task.network.parameters()).device
    meter = task.meter(device)
    for start in range(0, len(split), batch):
        with precision():
            samples = split.batch(slice(start, start + batch)).to(device)
            meter.update(task(samples), samples)
        if start == 0 and device.type == "cuda":
            torch.cuda.synchronize(device)  # constants of the split are ready before another training reads them
        yield
    task.train(was_training)
    return meter


@torch.no_grad()
def mask_sizes(network: torch.nn.Module) -> dict[str, float]:
    """Return the mean width of every Gaussian mask, by name, where 1 is the length of the training input.

    A learned subset of a group adds the share of a continuous group in its interval, and the probability of each
    element but the identity of a finite one. For a learned architecture, return all its sizes.
    """
    if isinstance(network, DNArch):
        return network.architecture().flat()
    found = {name: m for name, m in network.named_modules() if isinstance(m, GaussianMask)}
    sizes: dict[str, Tensor] = {
        name: s.abs().mean() for name, s in gather({name: m.sigma for name, m in found.items()}).items()
    }
    for name, m in network.named_modules():
        if isinstance(m, Interval):
            sizes[name] = m.limits()[0]
        elif isinstance(m, Bernoulli):
            sizes |= {f"{name}.{i}": p for i, p in enumerate(m.probabilities()) if i > 0}
    return dict(zip(sizes, torch.stack([s.float() for s in sizes.values()]).tolist(), strict=True)) if sizes else {}
