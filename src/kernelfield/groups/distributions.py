r"""Distributions over a group: which elements a layer computes, fixed or learned (chapter 11, section 3.4).

A layer asks its distribution for elements and, where those are chosen one by one, for gates:

- in training they are drawn anew at every call, differentiably in the distribution's parameters;
- in evaluation, or if :attr:`Distribution.frozen`, they are the same at every call: the middles of equal parts of the
  support for continuous factors, the elements that are more likely kept than not for discrete ones.

How *many* elements there are follows the learned support. For continuous factors that number is read from the
parameters when the mode is switched (once an epoch, in an ordinary loop), when a state is loaded, by
:meth:`Distribution.adapt_`, and in evaluation when the parameters have changed since. Discrete ones draw it at every
call, by probabilities read after each step of an optimiser, all layers together. No training pass waits for the device.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._checks import check_int, check_positive
from .._steps import after_steps
from .base import Group

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "Bernoulli",
    "Distribution",
    "Independent",
    "Interval",
    "Uniform",
    "learned",
    "monotonicity",
    "parameter_groups",
]


class Distribution(nn.Module):
    """The contract of a distribution p(u) over a group.

    Args:
        group: the group.
    """

    def __init__(self, group: Group) -> None:
        super().__init__()
        if not isinstance(group, Group):
            raise TypeError(f"group must be a kernelfield.groups.Group, got {type(group).__name__}")
        self.group = group
        #: draw nothing: give the elements of evaluation in training too
        self.frozen = False
        self._adapted_to: tuple[int, ...] | None = None
        _followers.add(self)
        self.register_load_state_dict_post_hook(_adapt_after_loading)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _followers.add(self)  # a copy, too, is told of the steps of optimisers

    def forward(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return elements in the dtype and on the device of ``like``, (n, coords), and their gates, (n,) or None.

        A gate is 1 in value; its gradient is that of the probability to keep the element.
        """
        raise NotImplementedError

    def limits(self) -> Tensor:
        """Return the share of the group in the support, per factor, between 0 and 1, differentiable: (factors,)."""
        raise NotImplementedError

    def size(self) -> int | None:
        """Return how many elements the next pass has, None where it draws their number."""
        raise NotImplementedError

    def adapt_(self) -> Distribution:
        """Set the number of elements to what the learned support needs."""
        self._adapted_to = self._changes()
        return self

    def stepped_(self) -> None:
        """Note that an optimiser has changed the parameters."""
        self._adapted_to = None

    def _changes(self) -> tuple[int, ...]:
        """Return a number per parameter that grows when it is changed in place, by all but fused optimisers."""
        return tuple(p._version for p in self.parameters(recurse=False))  # noqa: SLF001

    def _adapt_if_changed(self) -> None:
        # A traced graph has the number of elements it was traced with.
        if not torch.compiler.is_compiling() and not self.random and self._adapted_to != self._changes():
            self.adapt_()

    def freeze(self, frozen: bool = True) -> Distribution:
        """Give the same elements at every call, or draw again."""
        self.frozen = frozen
        return self

    def train(self, mode: bool = True) -> Distribution:
        super().train(mode)
        return self.adapt_()

    @property
    def random(self) -> bool:
        """Whether the next call draws."""
        return self.training and not self.frozen

    def extra_repr(self) -> str:
        return f"{self.group}"


class Uniform(Distribution):
    """All of a finite group, or elements drawn evenly from all of a continuous one.

    Args:
        group: the group.
        samples: number of elements of a continuous group.

    >>> from kernelfield.groups import SO2
    >>> elements, gates = Uniform(SO2(), samples=4).eval()(torch.zeros(()))
    >>> elements.squeeze(-1) / torch.pi
    tensor([-0.7500, -0.2500,  0.2500,  0.7500])
    """

    everything: Tensor

    def __init__(self, group: Group, samples: int | None = None) -> None:
        super().__init__(group)
        if group.finite:
            if samples not in (None, group.order):
                raise ValueError(f"samples must be None or {group.order} for {group}, got {samples}")
        else:
            check_int("samples", samples)
        self.samples = samples
        # Elements of finite groups are small whole numbers, exact in every dtype the module is moved to.
        self.register_buffer("everything", group.elements() if group.finite else None, persistent=False)

    def forward(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.everything is not None or self.samples is None:
            return self.everything, None
        return self.group.spread(self.samples, _share(self.random, like)), None

    def limits(self) -> Tensor:
        return torch.ones(len(self.group.factors))

    def size(self) -> int | None:
        return self.group.order or self.samples


class Interval(Distribution):
    r"""Uniform on a learned interval around the identity of a one-dimensional group.

    .. math:: u = \exp(\omega\, \log u_0), \qquad u_0 \sim \mathrm{Uniform}(H), \quad \omega \in [0, 1]

    which is U(ω·[-π, π]) on the Lie algebra of the rotations, pushed forward by the exponential map. Samples are
    stratified: one in each of n equal parts of the interval, moved by one common random share of *their* width. The
    gradient reaches ω through every element, its spacing included. Outside of [0, 1] ω counts as the nearer end, but
    its gradient passes, so that an interval that has reached its limit can move away from it again.

    Args:
        group: a one-dimensional continuous group.
        samples: number of elements at full width; :attr:`count` of them are used, ⌈ω·samples⌉.
        width: initial ω.

    >>> from kernelfield.groups import SO2
    >>> interval = Interval(SO2(), samples=8, width=0.5).eval()
    >>> elements, _ = interval(torch.zeros(()))
    >>> elements.squeeze(-1).detach() / torch.pi
    tensor([-0.3750, -0.1250,  0.1250,  0.3750])
    """

    count: int

    def __init__(self, group: Group, samples: int, width: float = 1.0) -> None:
        super().__init__(group)
        if group.finite or group.coords != 1:
            raise ValueError(f"group must be continuous and of one dimension for an interval, got {group}")
        self.samples = check_int("samples", samples)
        if not 0 <= width <= 1:
            raise ValueError(f"width must lie between 0 and 1, got {width}")
        self.width = nn.Parameter(torch.tensor(float(width)))
        self.adapt_()

    def forward(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        self._adapt_if_changed()
        whole = self.group.spread(self.count, _share(self.random, like))
        return self.group.exp(self.limits().to(like) * self.group.log(whole)), None

    def limits(self) -> Tensor:
        return (self.width + (self.width.clamp(0, 1) - self.width).detach())[None]

    def size(self) -> int | None:
        return self.count

    @torch.no_grad()
    def adapt_(self) -> Interval:
        self.width.clamp_(0, 1)
        # An allowance for rounding: half of 8 samples are 4 for a width of 0.50000003 too.
        needed = 1.0 if self.width.is_meta else float(self.width) * (1 - 1e-6)
        self.count = max(1, math.ceil(self.samples * needed))
        super().adapt_()
        return self

    def extra_repr(self) -> str:
        return f"{self.group}, samples={self.samples}, count={self.count}"


class Bernoulli(Distribution):
    r"""Each element of a finite group kept or not, by its own learned probability; the identity always kept.

    .. math:: z_i = \mathbb{1}[s_i > \tfrac12], \qquad s_i = \mathrm{sigm}\big((a_i + \varepsilon_i)/\tau\big), \quad
              \varepsilon_i \sim \mathrm{Logistic}(0, 1)

    so that element i is kept with probability :math:`p_i = \mathrm{sigm}(a_i)`, whatever the temperature τ. The
    gradient is that of the soft s (straight-through Gumbel-softmax between two outcomes). Elements that are not kept
    are not computed, and get no gradient from that call. Which are kept is drawn on the host, which knows the logits
    since the last step of an optimiser.

    An optimiser of Adam's kind moves a logit by at most about its learning rate a step, and from a probability of 0.9
    to one of 0.5 it is 2.2: with the published rate of 1e-4 that takes the published tens of thousands of steps, and
    shorter trainings need a higher one in proportion.

    Args:
        group: a finite group.
        probability: initial probability of every element but the identity.
        temperature: initial τ.

    >>> from kernelfield.groups import Mirror
    >>> elements, gates = Bernoulli(Mirror(), probability=0.4).eval()(torch.zeros(()))
    >>> elements
    tensor([[1.]])
    """

    kept: Tensor

    def __init__(self, group: Group, probability: float = 0.9, temperature: float = 1.0) -> None:
        super().__init__(group)
        if group.order is None:
            raise ValueError(f"group must be finite to keep or drop its elements, got {group}")
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie between 0 and 1, got {probability}")
        start = math.log(probability / (1 - probability))
        self.logits = nn.Parameter(torch.full((group.order - 1,), start))
        self.temperature = check_positive("temperature", temperature)
        self.register_buffer("kept", torch.arange(group.order), persistent=False)
        #: the logits as the host knows them, and the change of them that it has seen
        self._known: tuple[list[float], tuple[int, ...] | None] = ([], None)
        self.adapt_()

    def forward(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        self._adapt_if_changed()
        everything = self.group.elements(like.dtype, like.device)
        if not self.random:
            return everything.index_select(0, self.kept), None
        kept, noise = self._draw(like.device)
        soft = torch.sigmoid((self.logits + noise.to(self.logits.dtype)) / self.temperature)
        # Kept, so 1 in value; elements that are not are nowhere to be seen.
        gates = torch.cat([soft.new_ones(1), 1 + (soft - soft.detach())])
        return everything.index_select(0, kept), gates.index_select(0, kept).to(like)

    def _draw(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the indices of the elements that are kept, (n,), and the noise that decided it, (order - 1,)."""
        if self._known[1] != self._changes():
            read_logits([self])
        noise = torch.logit(torch.rand(len(self.logits), dtype=torch.float64).clamp(1e-6, 1 - 1e-6))
        odds = zip(self._known[0], noise.tolist(), strict=True)
        kept = torch.tensor([0, *(i for i, (a, e) in enumerate(odds, start=1) if a + e > 0)])
        # Without a wait: what is copied from memory that is not pinned is copied before the call returns.
        return kept.to(device, non_blocking=True), noise.float().to(device, non_blocking=True)

    def probabilities(self) -> Tensor:
        """Return the probability to keep each element, the identity's 1 first: (order,)."""
        return torch.cat([self.logits.new_ones(1), torch.sigmoid(self.logits)])

    def limits(self) -> Tensor:
        return self.probabilities().mean()[None]

    def size(self) -> int | None:
        return None if self.random else len(self.kept)

    def anneal_(self, progress: float, start: float = 0.5, end: float = 1e-4) -> None:
        """Set the temperature on the line from ``start`` to ``end``, at ``progress`` in [0, 1] of the training."""
        self.temperature = start + (end - start) * min(max(progress, 0.0), 1.0)

    def stepped_(self) -> None:
        super().stepped_()
        self._known = [], None

    @torch.no_grad()
    def adapt_(self) -> Bernoulli:
        if not self.logits.is_meta:
            self.kept = (self.probabilities() >= 0.5).nonzero().squeeze(-1)
        super().adapt_()
        return self

    def extra_repr(self) -> str:
        return f"{self.group}, kept={len(self.kept)} of {self.group.order}"


class Independent(Distribution):
    r"""Independent distributions along the factors of a group: :math:`p(g) = \prod_i p(d_i)`.

    Args:
        group: the group; its ``factors`` say what the parts are distributions over.
        parts: one distribution for each factor.

    >>> from kernelfield.groups import O2
    >>> elements, _ = learned(O2(), samples=8).eval()(torch.zeros(()))
    >>> elements.shape
    torch.Size([8, 2])
    """

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

    def freeze(self, frozen: bool = True) -> Independent:
        for part in self._distributions():
            part.freeze(frozen)
        super().freeze(frozen)
        return self

    def _distributions(self) -> list[Distribution]:
        return [part for part in self.parts if isinstance(part, Distribution)]


def learned(group: Group, samples: int | None = None) -> Distribution:
    """Return a distribution over ``group`` that begins as all of it and is learned along each of its factors.

    Args:
        group: the group.
        samples: most elements in use of a continuous group, mirrored ones included.
    """
    if not group.finite:
        check_int("samples", samples)
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


def monotonicity(distributions: Iterable[Distribution]) -> Tensor:
    r"""Return what subsets that grow with depth cost (chapter 11, appendix on additional experiments).

    .. math:: \sum_l \max(\gamma_{l+1}, \gamma_l) - \gamma_l = \sum_l \max(0,\, \gamma_{l+1} - \gamma_l) \ge 0

    with γ the :meth:`Distribution.limits` of a layer. (The appendix prints the negative of this, which would reward
    growth.)
    """
    limits = [d.limits() for d in distributions]
    if not limits:
        raise ValueError("distributions must hold at least one distribution, got none")
    steps = [torch.relu(after - before).sum() for before, after in pairwise(limits)]
    return torch.stack(steps).sum() if steps else limits[0].new_zeros(())


def parameter_groups(model: nn.Module, lr: float = 1e-3, ratio: float = 0.1) -> list[dict[str, object]]:
    """Return two parameter groups for an optimiser: the network's at ``lr``, its distributions' at ``lr·ratio``.

    Chapter 11 learns p(u) ten times more slowly than the rest, and never decays it.

    >>> from kernelfield.groups import SO2
    >>> [len(group["params"]) for group in parameter_groups(Interval(SO2(), 4))]
    [0, 1]
    """
    check_positive("lr", lr)
    check_positive("ratio", ratio)
    modules = [m for m in model.modules() if isinstance(m, Distribution)]
    slow = {id(p): p for m in modules for p in m.parameters(recurse=False)}
    rest = [p for p in model.parameters() if id(p) not in slow]
    return [
        {"params": rest, "lr": lr},
        {"params": list(slow.values()), "lr": lr * ratio, "weight_decay": 0.0},
    ]


@torch.no_grad()
def read_logits(distributions: Iterable[Bernoulli]) -> None:
    """Tell the host the logits of ``distributions``, one wait for all of them on each device."""
    by_device: dict[torch.device, list[Bernoulli]] = {}
    for distribution in distributions:
        by_device.setdefault(distribution.logits.device, []).append(distribution)
    for members in by_device.values():
        values = iter(torch.cat([d.logits.double() for d in members]).tolist())
        for d in members:
            d._known = [next(values) for _ in range(len(d.logits))], d._changes()  # noqa: SLF001


def _after_step(distributions: list[Distribution]) -> None:
    for distribution in distributions:
        distribution.stepped_()
    read_logits(d for d in distributions if isinstance(d, Bernoulli) and d.random)


_followers = after_steps(lambda distribution: distribution.parameters(recurse=False), _after_step)


def _adapt_after_loading(module: nn.Module, incompatible: object) -> None:  # noqa: ARG001
    if isinstance(module, Distribution):
        module.adapt_()


def _share(random: bool, like: Tensor) -> Tensor:
    if random:
        return torch.rand(1, dtype=like.dtype, device=like.device)
    return torch.full((1,), 0.5, dtype=like.dtype, device=like.device)
