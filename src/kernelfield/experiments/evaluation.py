"""Metrics of a network on a split, and the sizes of its masks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ..masks import GaussianMask
from ..models import DNArch
from .checkpoint import gather
from .side_by_side import exhaust

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from torch import Tensor

    from ..data.base import Split
    from .task import Task

__all__ = ["NonFiniteOutputs", "check_outputs", "evaluate", "evaluation_steps", "mask_sizes"]


def evaluate(task: Task, split: Split, batch: int = 256) -> Any:
    """Return a meter that has seen all of a split; raise :class:`NonFiniteOutputs` if an output is not finite.

    Args:
        task: the task; its network is put in evaluation mode and back.
        split: on the network's device; otherwise each batch is moved there.
        batch: samples at once.
    """
    meter = exhaust(evaluation_steps(task, split, batch))
    if bool(meter.nonfinite):
        raise NonFiniteOutputs(f"the outputs of the network are not finite for {int(meter.nonfinite)} samples")
    return meter


class NonFiniteOutputs(RuntimeError):  # noqa: N818
    """A trained network returned values that are infinite or NaN."""


def check_outputs(outputs: Tensor) -> Tensor:
    """Return the outputs (n, …) of a network if all of them are finite.

    >>> check_outputs(torch.tensor([[0.0, 1.0], [float("nan"), 0.0]]))
    Traceback (most recent call last):
    kernelfield.experiments.evaluation.NonFiniteOutputs: the outputs of the network are not finite for 1 of 2 samples,
    the first of them sample 1
    """
    wrong = (~torch.isfinite(outputs)).flatten(1).any(dim=1)
    if bool(wrong.any()):
        first = int(wrong.int().argmax())
        raise NonFiniteOutputs(
            f"the outputs of the network are not finite for {int(wrong.sum())} of {len(outputs)} samples, the first of "
            f"them sample {first}"
        )
    return outputs


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

    For a learned architecture, return all its sizes.
    """
    if isinstance(network, DNArch):
        return network.architecture().flat()
    found = {name: m for name, m in network.named_modules() if isinstance(m, GaussianMask)}
    widths: list[Tensor] = [s.abs().mean() for s in gather({name: m.sigma for name, m in found.items()}).values()]
    return dict(zip(found, torch.stack(widths).tolist(), strict=True)) if widths else {}
