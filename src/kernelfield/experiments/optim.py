"""Optimisers, learning-rate schedules, and averages of weights."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._arguments import checked
from .._kinds import NOT_NEGATIVE, POSITIVE, SHARE, TEXT, Choice, ListOf
from .._object_kinds import Instance
from ..fields import BSpline, Field
from ..groups import Distribution
from ..masks import Mask
from .metrics import is_better
from .settings import MEASURED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .settings import Optimizer, Schedule

__all__ = ["KINDS", "Average", "LearningRate", "make_optimizer", "parameter_groups", "parameter_kinds"]

# The first matching class decides: splines and tables are fields too.
_CLASSES = {Mask: "masks", Distribution: "subsets", BSpline: "weights", Field: "fields"}
#: kinds of parameters
KINDS = ("weights", "biases", "fields", "masks", "subsets")
#: smallest relative change that counts as an improvement for a plateau; torch's default
_THRESHOLD = 1e-4


@checked()
def parameter_kinds(network: nn.Module) -> dict[str, str]:
    """Return the kind of every parameter by its name: weights, biases, fields, masks or subsets.

    The coefficients of a spline or a table are the kernel itself, so they count as weights. Parameters of norms count
    as biases.

    >>> from kernelfield import CCNN
    >>> kinds = parameter_kinds(CCNN(1, 10, size=8, channels=4, blocks=1))
    >>> [kinds[name] for name in ("stem.depthwise.mask.sigma", "readout.linear.weight", "readout.linear.bias")]
    ['masks', 'weights', 'biases']
    """
    kinds: dict[int, str] = {}
    for module in network.modules():
        kind = next((label for base, label in _CLASSES.items() if isinstance(module, base)), None)
        if kind is not None:
            kinds |= {id(p): kind for p in module.parameters() if kinds.get(id(p), "fields") == "fields"}
    return {name: kinds.get(id(p), "weights" if p.dim() > 1 else "biases") for name, p in network.named_parameters()}


@checked(lr=POSITIVE, weight_decay=NOT_NEGATIVE, decayed=ListOf(TEXT), mask_lr=NOT_NEGATIVE, subset_lr=NOT_NEGATIVE)
def parameter_groups(
    network: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.0,
    decayed: Sequence[str] = ("weights",),
    mask_lr: float = 1.0,
    subset_lr: float = 0.1,
) -> list[dict[str, Any]]:
    """Return the parameters in groups by learning rate and weight decay.

    By default only weights are decayed. Weight decay pulls parameters towards zero. A mask of size zero is no kernel,
    p(u) at zero is no group, and a kernel network at zero is a smooth kernel, not a small one. Norms and biases are not
    decayed, as is usual.

    Args:
        network: any module.
        lr: learning rate.
        weight_decay: weight decay of the parameters that ``decayed`` names.
        decayed: kinds of :func:`parameter_kinds`, "all", or patterns of parameter names.
        mask_lr: learning rate of the masks, in units of ``lr``.
        subset_lr: learning rate of the distributions, in units of ``lr``.

    >>> from kernelfield import CCNN
    >>> groups = parameter_groups(CCNN(1, 10, size=8, channels=4, blocks=1), lr=0.01, weight_decay=0.1, mask_lr=0.1)
    >>> [(g["name"], g["lr"], g["weight_decay"], len(g["params"])) for g in groups]
    [('decayed', 0.01, 0.1, 4), ('plain', 0.01, 0.0, 36), ('masks', 0.001, 0.0, 2)]
    """
    kinds = parameter_kinds(network)
    chosen = _chosen(kinds, decayed) if weight_decay else set()
    ratio = {"masks": mask_lr, "subsets": subset_lr}
    groups: dict[str, dict[str, Any]] = {}
    for label in ("decayed", "plain", "masks", "masks, decayed", "subsets", "subsets, decayed"):
        rate = lr * ratio.get(label.split(",", 1)[0], 1.0)
        decay = weight_decay if label.endswith("decayed") else 0.0
        groups[label] = {"name": label, "params": [], "lr": rate, "weight_decay": decay}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            decays = name in chosen
            plain = "decayed" if decays else "plain"
            label = f"{kinds[name]}{', decayed' * decays}" if kinds[name] in ratio else plain
            groups[label]["params"].append(parameter)
    return [group for group in groups.values() if group["params"]]


def _chosen(kinds: dict[str, str], decayed: Sequence[str]) -> set[str]:
    """Return the names of the parameters that match ``decayed``."""
    chosen: set[str] = set()
    for entry in decayed:
        if entry == "all":
            return set(kinds)
        found = {name for name, kind in kinds.items() if kind == entry or fnmatchcase(name, entry)}
        if not found and entry not in KINDS:
            listed = ", ".join(map(repr, ("all", *KINDS)))
            raise ValueError(f"optimizer.decayed must hold {listed} or patterns of parameter names, got {entry!r}")
        chosen |= found
    return chosen


@checked(settings=Instance("kernelfield.experiments.recipe.Optimizer"))
def make_optimizer(network: nn.Module, settings: Optimizer, *, capturable: bool = False) -> torch.optim.Optimizer:
    """Return the torch optimiser that the settings describe, in its fused version on a GPU.

    Args:
        network: the network, on the device where it is trained.
        settings: name, learning rates, decay.
        capturable: whether to keep learning rates and step counts on the device, for steps in a CUDA graph.
    """
    groups = parameter_groups(
        network,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        decayed=settings.decayed,
        mask_lr=settings.mask_lr,
        subset_lr=settings.subset_lr,
    )
    parameters = [p for group in groups for p in group["params"]]
    if capturable:
        for group in groups:
            group["initial_lr"] = group["lr"]
            group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)
    if settings.name == "adadelta":
        return torch.optim.Adadelta(groups, foreach=True, capturable=capturable)
    # Fused optimisers do not support parameters that are sharded over processes.
    fused = all(p.device.type == "cuda" and not hasattr(p, "full_tensor") for p in parameters)
    how: dict[str, Any] = {"fused": True} if fused else {"foreach": True}
    optimizer: torch.optim.Optimizer
    if settings.name == "sgd":
        optimizer = torch.optim.SGD(groups, momentum=settings.momentum, nesterov=settings.nesterov, **how)
        if fused and settings.momentum:
            # Created at the start, so that the captured step equals all others.
            for p in parameters:
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    else:
        kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
        optimizer = kind(groups, betas=(settings.betas[0], settings.betas[1]), capturable=capturable, **how)
    if fused:
        # Fused steps do not increment the version counters, by which layers notice that a mask has changed.
        optimizer.register_step_post_hook(lambda *_: torch.autograd.graph.increment_version(parameters))
    return optimizer


class LearningRate:
    """A learning-rate schedule: the factor on every group's learning rate.

    Args:
        settings: cosine, steps, plateau or constant.
        steps_per_epoch: steps in an epoch.
        epochs: number of epochs.
        metric: metric that selects the best epoch; a plateau schedule watches it unless the settings name another.

    >>> from kernelfield.experiments.recipe import Schedule
    >>> rate = LearningRate(Schedule("cosine", warmup=1), steps_per_epoch=4, epochs=3)
    >>> [round(rate.factor(step), 2) for step in (0, 3, 4, 8, 12)]
    [0.25, 1.0, 1.0, 0.5, 0.0]
    >>> rate = LearningRate(Schedule("steps", milestones=[1, 2], factor=0.1), steps_per_epoch=4, epochs=3)
    >>> [round(rate.factor(step), 2) for step in (0, 3, 4, 8)]
    [1.0, 1.0, 0.1, 0.01]
    """

    @checked(settings=Instance("kernelfield.experiments.recipe.Schedule"), metric=Choice(*MEASURED))
    def __init__(self, settings: Schedule, steps_per_epoch: int, epochs: int, metric: str = "accuracy") -> None:
        if settings.warmup > epochs:
            raise ValueError(f"schedule.warmup must be at most the {epochs} epochs of training, got {settings.warmup}")
        if any(epoch >= epochs for epoch in settings.milestones):
            text = f"schedule.milestones must be below the {epochs} epochs of training, got {settings.milestones}"
            raise ValueError(text)
        self.settings = settings
        self.monitor = settings.monitor or metric
        self.steps_per_epoch = steps_per_epoch
        self.warmup = round(settings.warmup * steps_per_epoch)
        self.total = steps_per_epoch * epochs
        #: state of a plateau: its factor, the epoch of the last improvement or reduction, and its best value
        self.scale, self.since = 1.0, 0.0
        self.best: float | None = None

    def factor(self, step: int) -> float:
        """Return the factor at a step, counted from zero."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if self.settings.name == "cosine":
            done = min(1.0, max(0, step - self.warmup) / max(1, self.total - self.warmup))
            return warm * (self.settings.final + (1 - self.settings.final) * (1 + math.cos(math.pi * done)) / 2)
        # A rate that is lowered during the warm-up must not jump at the end of it, so the factors are multiplied.
        if self.settings.name == "steps":
            passed = sum(step >= epoch * self.steps_per_epoch for epoch in self.settings.milestones)
            return warm * self.settings.factor**passed
        return warm * self.scale

    def apply(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Set the learning rates for a step and return that of the first group."""
        factor = self.factor(step)
        for group in optimizer.param_groups:
            lr = group.setdefault("initial_lr", group["lr"]) * factor
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)  # in place: a CUDA graph reads this tensor
            else:
                group["lr"] = lr
        return float(optimizer.param_groups[0]["initial_lr"] * factor)

    @property
    def needs(self) -> str:
        """The split on which a plateau schedule needs more than the training loss: "validation", "train" or ""."""
        if self.settings.name != "plateau":
            return ""
        if self.settings.split == "train" and self.monitor == "loss":
            return ""
        return self.settings.split

    def observe(self, row: dict[str, float]) -> None:
        """Pass the metrics of an epoch to a plateau schedule.

        Args:
            row: "epoch", "train_loss", and metrics with the prefix "val_" or "train_".
        """
        if self.settings.name != "plateau":
            return
        prefix = "train" if self.settings.split == "train" else "val"
        column = f"{prefix}_{self.monitor}"
        if column not in row and not self.settings.split and not any(name.startswith("val_") for name in row):
            column = "train_loss"
        if column not in row:
            listed = ", ".join(name for name in row if name.startswith(("val_", "train_")))
            raise ValueError(f"schedule.monitor must be one of {listed}, got {column}")
        value, metric = row[column], column.partition("_")[2]
        margin = _THRESHOLD * abs(self.best) if self.best is not None else 0.0
        least = None if self.best is None else self.best + (-margin if is_better(metric, 0, 1) else margin)
        if is_better(metric, value, least):
            self.best, self.since = value, row["epoch"]
        elif row["epoch"] - self.since > self.settings.patience:
            self.scale, self.since = self.scale * self.settings.factor, row["epoch"]

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as plain values."""
        return {"scale": self.scale, "best": self.best, "since": self.since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`."""
        self.scale, self.best, self.since = float(state["scale"]), state["best"], float(state["since"])


class Average:
    """A moving average of a network's weights and running statistics, or their plain mean.

    Args:
        network: the network.
        decay: share of the average that each step keeps. At first it is smaller, (1 + step)/(10 + step), so that the
            initial weights are soon forgotten. None for the plain mean of the weights at all updates.

    >>> net = nn.Linear(1, 1)
    >>> average = Average(net, 0.5)
    >>> with torch.no_grad():
    ...     _ = net.weight.add_(1)
    >>> average.update()
    >>> with average:
    ...     inside = net.weight.item()
    >>> inside < net.weight.item()
    True
    """

    @checked(decay=SHARE | None)
    def __init__(self, network: nn.Module, decay: float | None) -> None:
        self.decay, self.steps, self.network = decay, 0, network
        self._live = [(name, t) for name, t in network.state_dict(keep_vars=True).items() if t.is_floating_point()]
        self.shadow = {name: t.detach().clone() for name, t in self._live}

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average."""
        self.steps += 1
        if self.decay is None:
            decay = (self.steps - 1) / self.steps
        else:
            decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        live = [t.detach() for _, t in self._live]
        # A list of tensors must not mix sharded parameters with buffers, which are never sharded.
        for kind in {type(t) for t in live}:
            pairs = [(s, t) for s, t in zip(self.shadow.values(), live, strict=True) if type(t) is kind]
            torch._foreach_lerp_([s for s, _ in pairs], [t for _, t in pairs], 1 - decay)

    @torch.no_grad()
    def _swap(self) -> None:
        # All are copied before one is replaced: two names may share a tensor, such as that of an embedding.
        kept = {name: tensor.detach().clone() for name, tensor in self._live}
        for name, tensor in self._live:
            tensor.copy_(self.shadow[name])
        self.shadow = kept

    def __enter__(self) -> Average:
        """Use the average as the weights until the end of the ``with`` block."""
        self._swap()
        return self

    def __exit__(self, *_: object) -> None:
        self._swap()
