"""What a network says of a whole split, and how large its masks have become."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..masks import GaussianMask
from ..models import DNArch
from .checkpoint import whole

if TYPE_CHECKING:
    from torch import Tensor

    from ..data.base import Split
    from .task import Task

__all__ = ["evaluate", "mask_sizes"]


@torch.no_grad()
def evaluate(task: Task, split: Split, batch: int = 256) -> Any:
    """Return a meter that has seen all of a split.

    Args:
        task: the task; its network is put in evaluation mode and back.
        split: on the network's device, or a batch at a time moved there.
        batch: samples at once.
    """
    was_training = task.training
    task.eval()
    device = next(task.network.parameters()).device
    meter = task.meter(device)
    for start in range(0, len(split), batch):
        samples = split.batch(slice(start, start + batch)).to(device)
        meter.update(task(samples), samples)
    task.train(was_training)
    return meter


@torch.no_grad()
def mask_sizes(network: torch.nn.Module) -> dict[str, float]:
    """Return the mean width of every Gaussian mask, by name, where 1 is the length of the training input.

    Of an architecture that is learned, all its sizes.
    """
    if isinstance(network, DNArch):
        return network.architecture().flat()
    found = {name: m for name, m in network.named_modules() if isinstance(m, GaussianMask)}
    widths: list[Tensor] = [whole(m.sigma).abs().mean() for m in found.values()]
    return dict(zip(found, torch.stack(widths).tolist(), strict=True)) if widths else {}
