"""Distributions over products of groups; a penalty and parameter groups for the distributions of a network."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..._arguments import checked
from ..._kinds import POSITIVE, ListOf
from ..._object_kinds import Instance
from .base import Distribution, Interval
from .bernoulli import Bernoulli

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base import Group

__all__ = ["Independent", "learned", "monotonicity", "parameter_groups"]

_DISTRIBUTIONS = ListOf(Instance("kernelfield.groups.Distribution"))


class Independent(Distribution):
    r"""Independent distributions over the factors of a group: :math:`p(g) = \prod_i p_i(g_i)`.

    Args:
        group: the group.
        parts: one distribution for each of the group's ``factors``.

    >>> from kernelfield.groups import O2
    >>> elements, _ = learned(O2(), samples=8).eval()(torch.zeros(()))
    >>> elements.shape
    torch.Size([8, 2])
    """

    @checked(parts=_DISTRIBUTIONS)
    def __init__(self, group: Group, parts: Sequence[Distribution]) -> None:
        super().__init__(group)
        if len(parts) != len(group.factors):
            raise ValueError(f"parts must be {len(group.factors)} distributions for {group}, got {len(parts)}")
        self.parts = nn.ModuleList(parts)

    def forward(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        draws = [part(like) for part in self.parts]
        elements = self.group.join([drawn for drawn, _ in draws])
        if all(gates is None for _, gates in draws):
            return elements, None
        total = like.new_ones(1)
        for drawn, gates in draws:
            own = like.new_ones(len(drawn)) if gates is None else gates
            total = (total[:, None] * own).flatten()
        return elements, total

    def limits(self) -> Tensor:
        return torch.cat([part.limits() for part in self._distributions()])

    def size(self) -> int | None:
        sizes = [part.size() for part in self._distributions()]
        return None if None in sizes else math.prod(n for n in sizes if n is not None)

    @property
    def gated(self) -> bool:
        return any(part.gated for part in self._distributions())

    def freeze(self, frozen: bool = True) -> Independent:
        for part in self._distributions():
            part.freeze(frozen)
        super().freeze(frozen)
        return self

    def _distributions(self) -> list[Distribution]:
        return [part for part in self.parts if isinstance(part, Distribution)]


@checked()
def learned(group: Group, samples: int | None = None) -> Distribution:
    """Return a learned distribution over ``group``, with a part for each factor; its support starts as the whole group.

    Args:
        group: the group.
        samples: largest number of elements of a continuous group, including reflected ones.

    >>> from kernelfield.groups import SO2, Mirror
    >>> learned(SO2(), samples=8).size(), type(learned(Mirror())).__name__
    (8, 'Bernoulli')
    """
    if samples is None and not group.finite:
        raise ValueError(f"samples must be an int of at least 1 for {group}, which is continuous, got None")
    finite = math.prod(factor.order for factor in group.factors if factor.order is not None)
    parts: list[Distribution] = []
    for factor in group.factors:
        if factor.order is not None:
            parts.append(Bernoulli(factor))
            continue
        if samples is None or samples % finite:
            raise ValueError(f"samples must be a multiple of {finite} for {group}, got {samples}")
        parts.append(Interval(factor, samples // finite))
    return parts[0] if len(parts) == 1 else Independent(group, parts)


@checked(distributions=_DISTRIBUTIONS)
def monotonicity(distributions: Sequence[Distribution]) -> Tensor:
    r"""Return the penalty on supports that grow with depth (chapter 11, appendix on additional experiments).

    .. math:: \sum_l \max(\gamma_{l+1}, \gamma_l) - \gamma_l = \sum_l \max(0,\, \gamma_{l+1} - \gamma_l) \ge 0

    with γ the :meth:`Distribution.limits` of a layer. (The appendix prints the negative of this, which would reward
    growth.)

    Args:
        distributions: the distributions of the layers, in order of depth; their groups have equally many factors.

    >>> from kernelfield.groups import SO2
    >>> monotonicity([Interval(SO2(), 8, width=0.5), Interval(SO2(), 8, width=0.75)]).item()
    0.25
    """
    limits = [d.limits() for d in distributions]
    if len({len(each) for each in limits}) > 1:
        factors = [len(each) for each in limits]
        raise ValueError(f"distributions must be over groups with equally many factors, got {factors}")
    steps = [torch.relu(after - before).sum() for before, after in pairwise(limits)]
    return torch.stack(steps).sum() if steps else limits[0].new_zeros(())


@checked(lr=POSITIVE, ratio=POSITIVE)
def parameter_groups(model: nn.Module, lr: float = 1e-3, ratio: float = 0.1) -> list[dict[str, object]]:
    """Return two parameter groups for an optimiser: the network's at ``lr``, its distributions' at ``lr·ratio``.

    Chapter 11 learns p(u) at a tenth of the network's learning rate and without weight decay.

    Args:
        model: the network.
        lr: learning rate of the network.
        ratio: learning rate of the distributions as a fraction of ``lr``.

    >>> from kernelfield.groups import SO2
    >>> [len(group["params"]) for group in parameter_groups(Interval(SO2(), 4))]
    [0, 1]
    """
    modules = [m for m in model.modules() if isinstance(m, Distribution)]
    slow = {id(p): p for m in modules for p in m.parameters(recurse=False)}
    rest = [p for p in model.parameters() if id(p) not in slow]
    return [
        {"params": rest, "lr": lr},
        {"params": list(slow.values()), "lr": lr * ratio, "weight_decay": 0.0},
    ]
