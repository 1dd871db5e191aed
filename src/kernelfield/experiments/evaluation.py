"""Evaluation of a network on a split: metrics, sizes of masks, re-estimated batch-norm statistics, and streams.

Running averages of batch-norm statistics lag behind weights that change fast: after few steps at a large learning rate,
a network is far worse in evaluation than in training. One pass over some training batches gives the statistics of the
current weights.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..data.base import one_step
from ..groups import Bernoulli, Interval
from ..layers.pointwise import uses_batch_statistics
from ..masks import GaussianMask
from ..models import DNArch
from ..streaming import Stream
from ..streaming.causality import check_causal
from .checkpoint import gather
from .side_by_side import exhaust

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ..data.base import Data, Split
    from .settings import Training
    from .task import Task

__all__ = [
    "NonFiniteOutputs",
    "batches_to_use",
    "evaluate",
    "evaluation_steps",
    "heard_accuracy",
    "mask_sizes",
    "norms_with_statistics",
    "reestimate",
    "reestimation_steps",
    "warn_of_nan",
]

#: largest number of steps of a short training, and the number of batches that re-estimate its statistics
SHORT_TRAINING, USUAL_BATCHES = 5_000, 50


class NonFiniteOutputs(RuntimeError):  # noqa: N818
    """A trained network returned values that are infinite or NaN."""


def evaluate(task: Task, split: Split, batch: int = 256, on_batch: Callable[[int, int], None] | None = None) -> Any:
    """Evaluate a network on a split and return the meter; raise :class:`NonFiniteOutputs` if an output is not finite.

    Args:
        task: the task; its network is switched to evaluation mode and back.
        split: samples, on any device; each batch moves to the device of the network.
        batch: samples per batch.
        on_batch: called after each batch with the number of samples so far and the number of all samples.
    """
    steps, parts = evaluation_steps(task, split, batch), _parts(task, split, batch)
    for _, done in parts:
        next(steps)
        if on_batch is not None:
            on_batch(done, len(split))
    meter = exhaust(steps)
    if bool(meter.nonfinite):
        raise NonFiniteOutputs(f"the outputs of the network are not finite for {int(meter.nonfinite)} samples")
    return meter


@torch.no_grad()
def evaluation_steps(
    task: Task, split: Split, batch: int = 256, precision: Callable[[], Any] = contextlib.nullcontext
) -> Generator[None, None, Any]:
    """Evaluate like :func:`evaluate`, and yield after each batch.

    Args:
        task: see :func:`evaluate`.
        split: see :func:`evaluate`.
        batch: samples per batch.
        precision: returns the context of the forward pass; the context is left before each ``yield``.
    """
    was_training = task.training or task.network.training
    if was_training:
        task.eval()
    device = next(task.network.parameters()).device
    meter = task.meter(device)
    for start, end in _parts(task, split, batch):
        with precision():
            samples = split.batch(slice(start, end)).to(device)
            meter.update(task(samples), samples)
        if start == 0 and device.type == "cuda":
            torch.cuda.synchronize(device)  # constants of the split must be ready before another training reads them
        yield
    if was_training:
        task.train()
    return meter


def _parts(task: Task, split: Split, batch: int) -> list[tuple[int, int]]:
    """Return the first sample of each batch of an evaluation, and the first one after it."""
    starts = list(range(0, len(split), batch))
    if len(starts) > 1 and len(split) % batch == 1 and uses_batch_statistics(task.network):
        starts.pop()  # the statistics of a single sample say nothing about it, so the batch before takes it
    return list(itertools.pairwise([*starts, len(split)]))


def warn_of_nan(metrics: dict[str, float], name: str, where: str) -> bool:
    """Warn if the validation score is NaN, and return whether it is.

    Args:
        metrics: validation metrics.
        name: name of the score.
        where: the epoch, for the warning.
    """
    if not math.isnan(metrics[name]):
        return False
    why = "outputs of the network are not finite" if math.isnan(metrics["loss"]) else "no sample defines it"
    warnings.warn(
        f"validation {name} is NaN after {where}, because {why}; such an epoch is never the best one, and counts as "
        "one without improvement",
        stacklevel=3,
    )
    return True


@torch.no_grad()
def mask_sizes(network: torch.nn.Module) -> dict[str, float]:
    """Return the mean width of every Gaussian mask, by name, where 1 is the length of the training input.

    A learned subset of a group adds, for a continuous group, the share of the group that its interval covers, and for a
    finite group, the probability of each element except the identity. For a learned architecture, return all its sizes.
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
        settings: training settings; their ``norm_batches`` is used if it is given.
        steps: number of steps of the training.
        per_epoch: steps in an epoch, which is the upper limit.

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
    r"""Replace the running statistics of all batch norms by those of the current weights.

    .. math:: \mu = \tfrac1n \sum_b \mu_b, \qquad
        \sigma^2 = \tfrac1n \sum_b (\sigma_b^2 + \mu_b^2) - \mu^2

    All other layers are in evaluation mode, so dropout does not affect the statistics.

    Args:
        task: task that holds the network.
        split: training samples, not augmented.
        batch: samples per batch.
        batches: number n of batches.
        seed: seed of the choice of samples; nothing else is random.

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
    """Re-estimate like :func:`reestimate`, and yield after each batch.

    Args:
        task: see :func:`reestimate`.
        split: see :func:`reestimate`.
        batch: see :func:`reestimate`.
        batches: see :func:`reestimate`.
        seed: see :func:`reestimate`.
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
    # In float32, the difference of two squares would lose the variance of a channel whose mean is far larger. Apple's
    # GPUs have no float64.
    wide = torch.float32 if device.type == "mps" else torch.float64
    sums = [torch.zeros_like(t, dtype=wide) for t in means]
    squares = [torch.zeros_like(t, dtype=wide) for t in means]
    was_training = task.training
    task.eval()
    try:
        for m in norms:
            m.train()
            m.momentum = 1.0  # running statistics become those of the last batch
        for i in range(batches):
            with precision():
                task(split.batch(order[i * batch : (i + 1) * batch]).to(device))
            exact = [m.to(wide) for m in means]
            torch._foreach_add_(sums, exact)
            torch._foreach_add_(squares, [v + m.square() for v, m in zip(variances, exact, strict=True)])
            yield
    finally:
        for m, (momentum, tracked) in zip(norms, before, strict=True):
            m.momentum = momentum
            m.num_batches_tracked.copy_(tracked)
        task.train(was_training)
    for mean, variance, total, square in zip(means, variances, sums, squares, strict=True):
        mean.copy_(total / batches)
        variance.copy_((square / batches - (total / batches).square()).clamp(min=0))


@torch.no_grad()
def heard_accuracy(
    network: nn.Module, data: Data, *, points: int = 20, most: int = 500
) -> dict[str, list[float]] | None:
    """Return the accuracy on test samples against the share of each sample that the network has received.

    Args:
        network: the network, on the CPU.
        data: data of the network.
        points: number of shares at which to measure.
        most: largest number of test samples to use.

    Returns:
        ``heard``, the received shares, and ``accuracy`` after each; None for networks that cannot stream, and for
        samples that are not signals in time without gaps.
    """
    split = data.test
    if data.dim != 1 or split.inputs.dim() != 3 or split.coords is not None or split.mask is not None:
        return None
    try:
        check_causal(network)
    except ValueError:
        return None
    batch = split.batch(slice(0, most)).to("cpu")
    if batch.target is None or batch.target.dim() != 1 or batch.target.is_floating_point():
        return None
    online, length = Stream(network, len(batch), step=one_step(batch.step)), batch.inputs.shape[-1]
    cuts = [round(length * i / points) for i in range(points + 1)]
    found: dict[str, list[float]] = {"heard": [], "accuracy": []}
    for a, b in itertools.pairwise(cuts):
        if b > a:
            outputs = online.push(batch.inputs[..., a:b])[..., -1]
            found["heard"].append(b / length)
            found["accuracy"].append(float((outputs.argmax(dim=1) == batch.target).float().mean()))
    return found
