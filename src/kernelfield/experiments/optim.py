"""Parameter groups, learning-rate schedules, and the moving average of weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._checks import check_choice, check_int
from ..fields import BSpline, Field
from ..groups import Distribution
from ..masks import Mask
from .scores import is_better

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .recipe import Optimizer, Schedule

__all__ = ["Average", "LearningRate", "make_optimizer", "parameter_groups"]

# The first that a module is decides; splines, and tables among them, are fields too.
_KINDS = {Mask: "masks", Distribution: "subsets", BSpline: "weights", Field: "plain"}


def parameter_groups(
    network: nn.Module, *, lr: float, weight_decay: float = 0.0, mask_lr: float = 1.0, subset_lr: float = 0.1
) -> list[dict[str, Any]]:
    """Return the parameters in groups: weights, what is not decayed, masks, and distributions p(u).

    Weight decay pulls towards zero, which for a mask is no kernel, for p(u) no group, and for a kernel network not a
    small kernel but a slow one; norms and biases are left alone by custom. The coefficients of a spline or a table are
    the kernel itself, and are decayed.

    Args:
        network: any module.
        lr: learning rate.
        weight_decay: of the first group alone.
        mask_lr: learning rate of the masks, in units of ``lr``.
        subset_lr: learning rate of the distributions, in units of ``lr``.

    >>> from kernelfield import CCNN
    >>> groups = parameter_groups(CCNN(1, 10, size=8, channels=4, blocks=1), lr=0.01, weight_decay=0.1, mask_lr=0.1)
    >>> [(g["name"], g["lr"], g["weight_decay"], len(g["params"])) for g in groups]
    [('weights', 0.01, 0.1, 4), ('plain', 0.01, 0.0, 36), ('masks', 0.001, 0.0, 2)]
    """
    kinds: dict[int, str] = {}
    for module in network.modules():
        kind = next((label for base, label in _KINDS.items() if isinstance(module, base)), None)
        if kind is not None:
            kinds |= {id(p): kind for p in module.parameters() if kinds.get(id(p), "plain") == "plain"}
    groups: dict[str, list[nn.Parameter]] = {"weights": [], "plain": [], "masks": [], "subsets": []}
    for parameter in network.parameters():
        if parameter.requires_grad:
            kind = kinds.get(id(parameter), "weights" if parameter.dim() > 1 else "plain")
            groups[kind].append(parameter)
    ratio = {"masks": mask_lr, "subsets": subset_lr}
    return [
        {
            "name": name,
            "params": parameters,
            "lr": lr * ratio.get(name, 1.0),
            "weight_decay": weight_decay if name == "weights" else 0.0,
        }
        for name, parameters in groups.items()
        if parameters
    ]


def make_optimizer(network: nn.Module, how: Optimizer, *, capturable: bool = False) -> torch.optim.Optimizer:
    """Return the optimiser of ``network`` that a recipe describes.

    Args:
        network: whose parameters to change, where they are to stay.
        how: name, learning rates, decay.
        capturable: keep the learning rates and the count of steps on the device, for a step that is a CUDA graph.

    Never a fused one: those change weights without a trace in their version, by which a layer knows that its mask has
    grown and its kernel must be sampled further out.
    """
    groups = parameter_groups(
        network, lr=how.lr, weight_decay=how.weight_decay, mask_lr=how.mask_lr, subset_lr=how.subset_lr
    )
    if check_choice("name", how.name, ("adamw", "sgd")) == "sgd":
        return torch.optim.SGD(groups, momentum=how.momentum)
    if capturable:
        for group in groups:
            group["initial_lr"] = group["lr"]
            group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)
    return torch.optim.AdamW(groups, betas=(how.betas[0], how.betas[1]), foreach=True, capturable=capturable)


class LearningRate:
    """The factor on every group's learning rate.

    Args:
        how: cosine, plateau or constant.
        steps_per_epoch: steps in an epoch.
        epochs: epochs in all.
        metric: what a plateau looks at.

    >>> from kernelfield.experiments.recipe import Schedule
    >>> rate = LearningRate(Schedule("cosine", warmup=1), steps_per_epoch=4, epochs=3)
    >>> [round(rate.factor(step), 2) for step in (0, 3, 4, 8, 12)]
    [0.25, 1.0, 1.0, 0.5, 0.0]
    """

    def __init__(self, how: Schedule, steps_per_epoch: int, epochs: int, metric: str = "accuracy") -> None:
        self.how, self.metric = how, metric
        self.warmup = round(how.warmup * check_int("steps_per_epoch", steps_per_epoch))
        self.total = steps_per_epoch * check_int("epochs", epochs)
        self.scale, self.waited = 1.0, 0
        self.best: float | None = None

    def factor(self, step: int) -> float:
        """Return the factor at a step, counted from zero."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.how.name == "cosine":
            done = min(1.0, (step - self.warmup) / max(1, self.total - self.warmup))
            return self.how.final + (1 - self.how.final) * (1 + math.cos(math.pi * done)) / 2
        return self.scale

    def apply(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Set the learning rates for a step and return the first group's."""
        factor = self.factor(step)
        for group in optimizer.param_groups:
            lr = group.setdefault("initial_lr", group["lr"]) * factor
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)  # in place: a CUDA graph looks for it there
            else:
                group["lr"] = lr
        return float(optimizer.param_groups[0]["initial_lr"] * factor)

    def observe(self, value: float) -> None:
        """Tell a plateau the metric after an epoch."""
        if self.how.name != "plateau":
            return
        if is_better(self.metric, value, self.best):
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited > self.how.patience:
            self.scale, self.waited = self.scale * self.how.factor, 0

    def state_dict(self) -> dict[str, Any]:
        """Return what changes, as plain values."""
        return {"scale": self.scale, "best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state."""
        self.scale, self.best, self.waited = float(state["scale"]), state["best"], int(state["waited"])


class Average:
    """A moving average of a network's weights and running statistics.

    Args:
        network: the network.
        decay: how much of the average is kept each step; less in the beginning, (1 + step)/(10 + step), so that the
            weights a network begins with are soon forgotten.

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

    def __init__(self, network: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"decay must lie between 0 and 1, got {decay}")
        self.decay, self.steps, self.network = decay, 0, network
        self._live = [(name, t) for name, t in network.state_dict(keep_vars=True).items() if t.is_floating_point()]
        self.shadow = {name: t.detach().clone() for name, t in self._tensors()}

    def _tensors(self) -> Iterable[tuple[str, torch.Tensor]]:
        return self._live

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        live = [t.detach() for _, t in self._tensors()]
        # Parameters that are divided among processes, and buffers, which never are, do not go in one list.
        for kind in {type(t) for t in live}:
            pairs = [(s, t) for s, t in zip(self.shadow.values(), live, strict=True) if type(t) is kind]
            torch._foreach_lerp_([s for s, _ in pairs], [t for _, t in pairs], 1 - decay)

    @torch.no_grad()
    def _swap(self) -> None:
        for name, tensor in self._tensors():
            kept = tensor.detach().clone()
            tensor.copy_(self.shadow[name])
            self.shadow[name] = kept

    def __enter__(self) -> Average:
        """Put the average in the weights' place until the end of the ``with`` block."""
        self._swap()
        return self

    def __exit__(self, *_: object) -> None:
        self._swap()
