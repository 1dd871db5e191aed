"""Evaluation of a network on a split: batch norms re-estimated before it, metrics, sizes of masks.

A running average of batch-norm statistics lags behind weights that change fast: after few steps at a large learning
rate, a network is far worse in evaluation than in training. One pass over some training batches gives the statistics
of the present weights.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..groups import Bernoulli, Interval
from ..masks import GaussianMask
from ..models import DNArch
from .checkpoint import gather
from .side_by_side import exhaust

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ..data.base import Split
    from .settings import Training
    from .task import Task

__all__ = [
    "NonFiniteOutputs",
    "batches_to_use",
    "evaluate",
    "evaluation_steps",
    "mask_sizes",
    "norms_with_statistics",
    "reestimate",
    "reestimation_steps",
]

#: up to how many steps a training counts as short, and how many batches are used then
SHORT_TRAINING, USUAL_BATCHES = 5_000, 50


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


def batches_to_use(settings: Training, steps: int, per_epoch: int) -> int:
    """Return the number of batches from which norms are re-estimated before an evaluation; 0 keeps running averages.

    Args:
        settings: ``norm_batches`` of these, if given.
        steps: steps of the training in all.
        per_epoch: steps in an epoch, the largest number that is returned.

    >>> from kernelfield.experiments.settings import Training
    >>> [batches_to_use(Training(), steps, 100) for steps in (1_000, 100_000)], batches_to_use(Training(), 40, 8)
    ([50, 0], 8)
    """
    wanted = settings.norm_batches
    if wanted is None:
        wanted = USUAL_BATCHES if steps <= SHORT_TRAINING else 0
    return min(wanted, per_epoch)


def norms_with_statistics(network: nn.Module) -> list[nn.Module]:
    """Return the batch norms of a network that keep running statistics.

    >>> len(norms_with_statistics(nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))))
    1
    """
    kind = nn.modules.batchnorm._BatchNorm  # noqa: SLF001
    return [m for m in network.modules() if isinstance(m, kind) and m.running_mean is not None]


def reestimate(task: Task, split: Split, *, batch: int, batches: int, seed: int = 0) -> None:
    r"""Replace the running statistics of all batch norms by those of the present weights.

    .. math:: \mu = \tfrac1n \sum_b \mu_b, \qquad
        \sigma^2 = \tfrac1n \sum_b (\sigma_b^2 + \mu_b^2) - \mu^2

    All other layers are in evaluation mode, so that statistics are those of a network without dropout.

    Args:
        task: whose network.
        split: training samples, not augmented.
        batch: samples at once.
        batches: number n of batches.
        seed: of the choice of samples; nothing else is drawn.

    >>> from kernelfield.data.base import Split
    >>> from kernelfield.experiments.task import Task
    >>> network = nn.Sequential(nn.BatchNorm1d(1, affine=False), nn.Flatten())
    >>> x = 3 + 2 * torch.randn(64, 1, 8)
    >>> reestimate(Task(network, out_channels=8), Split(x, torch.zeros(64).long()), batch=16, batches=4)
    >>> torch.allclose(network[0].running_mean, x.mean()), torch.allclose(network[0].running_var, x.var(), rtol=0.05)
    (True, True)
    """
    exhaust(reestimation_steps(task, split, batch=batch, batches=batches, seed=seed))


@torch.no_grad()
def reestimation_steps(
    task: Task,
    split: Split,
    *,
    batch: int,
    batches: int,
    seed: int = 0,
    precision: Callable[[], Any] = contextlib.nullcontext,
) -> Generator[None, None, None]:
    """Re-estimate as :func:`reestimate` does, and yield after each batch.

    Args:
        task: as of :func:`reestimate`.
        split: as of :func:`reestimate`.
        batch: as of :func:`reestimate`.
        batches: as of :func:`reestimate`.
        seed: as of :func:`reestimate`.
        precision: returns the context of the forward pass.
    """
    norms: list[Any] = norms_with_statistics(task.network)
    batches = min(batches, len(split) // batch)
    if not norms or batches < 1:
        return
    device = next(task.network.parameters(), norms[0].running_mean).device
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed)).to(split.inputs.device)
    before = [(m.momentum, m.num_batches_tracked.clone()) for m in norms]
    means: list[Tensor] = [m.running_mean for m in norms]
    variances: list[Tensor] = [m.running_var for m in norms]
    sums = [torch.zeros_like(t) for t in means]
    squares = [torch.zeros_like(t) for t in means]
    was_training = task.training
    task.eval()
    try:
        for m in norms:
            m.train()
            m.momentum = 1.0  # running statistics are those of the last batch
        for i in range(batches):
            with precision():
                task(split.batch(order[i * batch : (i + 1) * batch]).to(device))
            torch._foreach_add_(sums, means)
            torch._foreach_add_(squares, [v + m.square() for v, m in zip(variances, means, strict=True)])
            yield
    finally:
        for m, (momentum, tracked) in zip(norms, before, strict=True):
            m.momentum = momentum
            m.num_batches_tracked.copy_(tracked)
        task.train(was_training)
    for mean, variance, total, square in zip(means, variances, sums, squares, strict=True):
        mean.copy_(total / batches)
        variance.copy_((square / batches - mean.square()).clamp(min=0))
