"""Elements of a finite group, each kept with its own learned probability (chapter 11, section 3.4)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..._arguments import checked
from ..._hooks import differs
from ..._kinds import POSITIVE, SHARE
from .base import Distribution

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..._hooks import State
    from ..base import Group

__all__ = ["Bernoulli"]


class Bernoulli(Distribution):
    r"""Elements of a finite group, each kept with its own learned probability; the identity is always kept.

    .. math:: z_i = \mathbb{1}[s_i > \tfrac12], \qquad s_i = \mathrm{sigm}\big((a_i + \varepsilon_i)/\tau\big), \quad
              \varepsilon_i \sim \mathrm{Logistic}(0, 1)

    Element i is kept with probability :math:`p_i = \mathrm{sigm}(a_i)`, which does not depend on the temperature τ. The
    gradient is that of the soft value s (straight-through Gumbel-softmax between two outcomes). Elements that are not
    kept are not computed and get no gradient from that call. The host draws; it reads the logits after each optimiser
    step. Compiled programs with :attr:`fixed_size` draw on the device and compute all elements.

    Adam moves a logit by about its learning rate per step at most. The logits of probabilities 0.9 and 0.5 are 2.2
    apart: tens of thousands of steps at the published rate of 1e-4. Shorter training runs need a higher rate.

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

    @checked(probability=SHARE, temperature=POSITIVE)
    def __init__(self, group: Group, probability: float = 0.9, temperature: float = 1.0) -> None:
        super().__init__(group)
        if group.order is None:
            raise ValueError(f"group must be finite to keep or drop its elements, got {group}")
        start = math.log(probability / (1 - probability))
        self.logits = nn.Parameter(torch.full((group.order - 1,), start))
        self.temperature = float(temperature)
        self.register_computed("kept", torch.arange(group.order))
        #: copy of the logits on the host, and the state of the parameters it was made from
        self._known: tuple[list[float], State | None] = ([], None)
        self.adapt_()

    def forward(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        self._adapt_if_changed()
        everything = self.group.elements(like.dtype, like.device)
        if not self.random:
            return everything.index_select(0, self.kept), None
        if self.gated:
            noise = self._noise(like.device)
            drawn = torch.cat([noise.new_ones(1, dtype=torch.bool), self.logits.double() + noise > 0])
            return everything, torch.where(drawn, self._gates(noise.float()), 0.0).to(like)
        if torch.compiler.is_compiling():  # the message of torch.compile itself would not name the remedy
            torch._dynamo.graph_break(msg="the number of group elements is drawn; distribution.fix_size() computes all")  # noqa: SLF001
        kept, noise = self._draw(like.device)
        return everything.index_select(0, kept), self._gates(noise).index_select(0, kept).to(like)

    def _gates(self, noise: Tensor) -> Tensor:
        """Return the gates that elements have if they are kept, for noise (order - 1,): (order,)."""
        soft = torch.sigmoid((self.logits + noise.to(self.logits.dtype)) / self.temperature)
        # Straight-through: the value is 1, the gradient that of the soft value.
        return torch.cat([soft.new_ones(1), 1 + (soft - soft.detach())])

    def _noise(self, device: torch.device | None = None) -> Tensor:
        """Draw from the logistic distribution, without its tails: (order - 1,)."""
        uniform = torch.rand(len(self.logits), dtype=torch.float64, device=device)
        return torch.logit(uniform.clamp(1e-6, 1 - 1e-6))

    def _draw(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the indices of the kept elements, (n,), and the noise of the draw, (order - 1,)."""
        if differs(self._known[1], self._state()):
            read_logits([self])
        noise = self._noise()
        odds = zip(self._known[0], noise.tolist(), strict=True)
        kept = torch.tensor([0, *(i for i, (a, e) in enumerate(odds, start=1) if a + e > 0)])
        # A copy from memory that is not pinned has read its source when the call returns, so nothing needs to wait.
        return kept.to(device, non_blocking=True), noise.float().to(device, non_blocking=True)

    def probabilities(self) -> Tensor:
        """Return the probability to keep each element: (order,). The first is the identity's, 1."""
        return torch.cat([self.logits.new_ones(1), torch.sigmoid(self.logits)])

    def limits(self) -> Tensor:
        return self.probabilities().mean()[None]

    def size(self) -> int | None:
        if self.random:
            return self.group.order if self.gated else None
        return len(self.kept)

    @property
    def gated(self) -> bool:
        return self.fixed_size and self.random and torch.compiler.is_compiling()

    def anneal_(self, progress: float, start: float = 0.5, end: float = 1e-4) -> None:
        """Interpolate the temperature from ``start`` to ``end``, at ``progress`` in [0, 1] of the training."""
        self.temperature = start + (end - start) * min(max(progress, 0.0), 1.0)

    @classmethod
    def read(cls, distributions: Sequence[Bernoulli]) -> None:
        read_logits(d for d in distributions if d.random)

    @torch.no_grad()
    def adapt_(self) -> Bernoulli:
        if not self.logits.is_meta:
            self.kept = (self.probabilities() >= 0.5).nonzero().squeeze(-1)
        super().adapt_()
        return self

    def extra_repr(self) -> str:
        return f"{self.group}, kept={len(self.kept)} of {self.group.order}"


@torch.no_grad()
def read_logits(distributions: Iterable[Bernoulli]) -> None:
    """Copy the logits of ``distributions`` to the host, with one wait per device."""
    by_device: dict[torch.device, list[Bernoulli]] = {}
    for distribution in distributions:
        by_device.setdefault(distribution.logits.device, []).append(distribution)
    for members in by_device.values():
        values = iter(torch.cat([d.logits.double() for d in members]).tolist())
        for d in members:
            d._known = [next(values) for _ in range(len(d.logits))], d._state()  # noqa: SLF001
