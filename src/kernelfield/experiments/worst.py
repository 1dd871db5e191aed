"""The test samples with the largest errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ..data.base import Batch, Data
    from .task import Task

__all__ = ["WorstSample", "worst_samples"]


@dataclass(frozen=True)
class WorstSample:
    """A sample and its prediction.

    Args:
        index: its position in the split.
        inputs: (channels, *space) as the network saw it, on the CPU.
        caption: the true target, the prediction, and how sure the network was or how large the error is.
    """

    index: int
    inputs: Tensor
    caption: str


@torch.no_grad()
def worst_samples(task: Task, data: Data, *, count: int = 8, batch: int = 256) -> list[WorstSample]:
    """Return the test samples with the largest loss, the worst first; none for tasks with a target per position.

    Args:
        task: the trained task.
        data: with the test split and the names of the classes.
        count: how many.
        batch: samples at once.
    """
    split = data.test
    if task.task not in ("classification", "regression") or split.coords is not None or split.inputs.dim() < 3:
        return []
    device = next(task.network.parameters()).device
    task.eval()
    losses, outputs, targets = [], [], []
    scale = None
    for start in range(0, len(split), batch):
        part = split.batch(slice(start, start + batch)).to(device)
        prediction = task(part)
        losses.append(_losses(task.task, prediction, part).cpu())
        outputs.append(prediction.cpu())
        targets.append(part.target.cpu())  # type: ignore[union-attr]
        scale = part.scale
    output, target = torch.cat(outputs), torch.cat(targets)
    if scale is not None:
        output, target = scale.undo(output), scale.undo(target)
    order = torch.cat(losses).argsort(descending=True)[:count].tolist()
    found = []
    for i in order:
        seen = split.batch(slice(i, i + 1))
        inputs = seen.inputs[0].cpu()
        if seen.mask is not None:
            inputs = inputs.masked_fill(~seen.mask[0].cpu(), float("nan"))
        found.append(WorstSample(i, inputs, _caption(task.task, output[i], target[i], data.classes)))
    return found


def _losses(task: str, prediction: Tensor, batch: Batch) -> Tensor:
    """Return the loss of each sample."""
    assert batch.target is not None
    if task == "classification":
        return F.cross_entropy(prediction, batch.target, reduction="none")
    return (prediction - batch.target.view_as(prediction)).square().flatten(1).mean(dim=1)


def _caption(task: str, output: Tensor, target: Tensor, classes: Sequence[str]) -> str:
    if task == "classification":
        said, truth = int(output.argmax()), int(target)
        names = [classes[i] if i < len(classes) else str(i) for i in (truth, said)]
        return f"true {names[0]}, predicted {names[1]} ({float(output.softmax(dim=0)[said]):.0%})"
    values = [", ".join(f"{v:.3g}" for v in t.flatten()[:3].tolist()) for t in (target, output)]
    return f"true {values[0]}, predicted {values[1]}"
