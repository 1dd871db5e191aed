"""N-Jets: sums of Gaussian derivatives with a learned scale, the baseline of chapter 5."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._checks import per_axis
from .._kinds import POSITIVE, Int, PerAxis
from .._module_state import ComputedBuffers
from .base import Field

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NJet"]


class NJet(ComputedBuffers, Field):
    r"""A sum of Gaussian derivatives up to an order, with one learned scale (chapter 5, section 4.1).

    .. math::
        \psi_c(x) = \sum_{|\alpha| \le N} w_{c\alpha}\, \frac{\sigma^{|\alpha|}}{\sqrt{\alpha!}}\,
        \partial^\alpha G_\sigma(u), \qquad u_d = x_d / h_d, \qquad
        G_\sigma(u) = (2\pi\sigma^2)^{-D/2}\, e^{-\|u\|^2 / 2\sigma^2}

    with spacings h, so σ counts grid steps. The derivatives are Hermite polynomials under the Gaussian. The order
    bounds the number of oscillations, and with it the frequencies that the field can contain at a given scale.

    There is no bias. σ is learned as :math:`\log_2\sigma`, and all channels share it.

    Args:
        dim: number of coordinates D.
        channels: number of values.
        order: highest order N of the derivatives. There are :math:`\binom{N+D}{D}` of them.
        sigma: initial scale σ, in units of ``spacing``.
        spacing: unit of length h, one for all axes or one per axis. Layers pass the distance between their grid points.

    >>> field = NJet(dim=2, channels=3)
    >>> field(torch.rand(5, 2)).shape
    torch.Size([5, 3])
    >>> sum(p.numel() for p in field.parameters())      # 15 coefficients per value, one scale
    46
    >>> bool(NJet(dim=2, channels=3, order=9).max_frequency() > field.max_frequency())
    True
    """

    orders: Tensor

    @checked(order=Int(0, 100), sigma=POSITIVE, spacing=PerAxis(POSITIVE))
    def __init__(
        self,
        dim: int,
        channels: int,
        *,
        order: int = 4,
        sigma: float = 1.0,
        spacing: float | Sequence[float] = 0.25,
    ) -> None:
        super().__init__(dim, channels)
        self.order, self.spacing = order, tuple(map(float, per_axis(spacing, dim)))
        orders = [a for a in itertools.product(range(order + 1), repeat=dim) if sum(a) <= order]
        self.register_computed("orders", torch.tensor(sorted(orders, key=lambda a: (sum(a), a))))
        self.log_sigma = nn.Parameter(torch.tensor(math.log2(sigma), dtype=torch.get_default_dtype()))
        self.coefficients = nn.Parameter(torch.randn(channels, len(orders)) / math.sqrt(len(orders)))

    @property
    def sigma(self) -> Tensor:
        """The scale σ, in units of the spacing."""
        return self.log_sigma.exp2()

    def evaluate(self, coords: Tensor) -> Tensor:
        return nn.functional.linear(self.features(coords), self.coefficients)

    def features(self, coords: Tensor) -> Tensor:
        """Return the normalised derivatives at ``coords``, (…, dim) to (…, number of derivatives)."""
        values: Tensor | None = None
        for d, spacing in enumerate(self.spacing):
            axis = self._derivatives(coords[..., d] / (spacing * self.sigma)).index_select(-1, self.orders[:, d])
            values = axis if values is None else values * axis
        assert values is not None
        return values * (2 * math.pi * self.sigma.square()) ** (-self.dim / 2)

    def _derivatives(self, u: Tensor) -> Tensor:
        """Return all derivatives of exp(-u²/2), order n divided by √n!: (…) to (…, order + 1)."""
        # The Gaussian is inside the recursion: a polynomial alone would overflow far from the centre.
        values = [torch.exp(-0.5 * u.square())]
        for n in range(self.order):
            following = -u * values[n]
            if n:
                following = following - math.sqrt(n) * values[n - 1]
            values.append(following / math.sqrt(n + 1))
        return torch.stack(values, dim=-1)

    def readout(self) -> tuple[Tensor, Tensor]:
        return self.coefficients, self.coefficients.new_zeros(self.channels)

    def hidden_values(self) -> int:
        return len(self.orders)

    @torch.no_grad()
    def scale_(self, factor: float | Tensor) -> NJet:
        self.coefficients.mul_(factor if isinstance(factor, (int, float)) or factor.dim() == 0 else factor[:, None])
        return self

    def max_frequency(self, cut: float = 2.0) -> Tensor:
        r"""Return :math:`(\sqrt N + \mathrm{cut}) / 2\pi\sigma h`, in cycles per unit of coordinate.

        The spectrum of the N-th derivative, :math:`|\omega|^N e^{-\sigma^2\omega^2/2}`, has its peak at √N/σ. The
        bound lies ``cut`` deviations of the Gaussian beyond the peak.
        """
        return (math.sqrt(self.order) + cut) / (2 * math.pi * self.sigma * min(self.spacing))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, order={self.order}"
