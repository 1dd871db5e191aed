"""Filter networks whose sines have Gaussian envelopes (chapter 5, section 3.2): isotropic Gabor, and MAGNet."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._kinds import POSITIVE, Choice, Int
from .._signature import with_arguments_of
from .filters import HIDDEN, LAYERS, FilterNetwork

__all__ = ["GaborFilter", "MAGNet"]

#: initial inverse widths of the envelopes: the same distribution in all filters, or wider envelopes in later filters
ENVELOPES = ("equal", "varied")


class _GaborNetwork(FilterNetwork):
    """Sines under Gaussian envelopes; subclasses choose the envelopes' shape and initial widths."""

    #: whether a unit has one inverse width for all axes, or one per axis
    isotropic: ClassVar[bool]
    #: default of the argument ``envelopes``
    default_envelopes: ClassVar[str]

    @checked(envelopes=Choice(*ENVELOPES) | None, alpha=POSITIVE, beta=POSITIVE, hidden=Int(1), layers=Int(1))
    @with_arguments_of(FilterNetwork.__init__, without=("gamma",))
    def __init__(
        self,
        dim: int,
        channels: int,
        *,
        envelopes: str | None = None,
        alpha: float = 6.0,
        beta: float = 1.0,
        mean_range: tuple[float, float] = (-1.0, 1.0),
        **options: Any,
    ) -> None:
        filters, hidden = options.get("layers", LAYERS) + 1, options.get("hidden", HIDDEN)
        envelopes = self.default_envelopes if envelopes is None else envelopes
        shapes = alpha / (torch.arange(1, filters + 1) if envelopes == "varied" else torch.full((filters,), filters))
        shapes = shapes[:, None, None].expand(filters, hidden, 1 if self.isotropic else dim)
        gamma = torch.distributions.Gamma(shapes, torch.tensor(float(beta))).sample()
        super().__init__(dim, channels, gamma=gamma, **options)
        self.envelopes = envelopes
        self.gamma = nn.Parameter(gamma)
        self.mean = nn.Parameter(torch.empty(filters, hidden, dim).uniform_(*mean_range))

    envelope_parameters = ("gamma", "mean")

    def envelope(self, coords: Tensor, *shape: Tensor) -> Tensor:
        gamma, mean = (t.flatten(-3, -2).unsqueeze(-3) for t in shape)  # (…, 1, units, dim)
        # Axis by axis, so the (…, points, units, dim) tensor of all offsets never exists.
        exponent = ((coords[:, 0:1] - mean[..., 0]) * gamma[..., 0]).square()
        for d in range(1, self.dim):
            width = gamma[..., min(d, gamma.shape[-1] - 1)]
            exponent = exponent + ((coords[:, d : d + 1] - mean[..., d]) * width).square()
        return torch.exp(-0.5 * exponent)

    def inverse_widths(self) -> Tensor:
        return self.gamma


class GaborFilter(_GaborNetwork):
    r"""A filter network of isotropic Gabor functions (chapter 5, Eq. 4).

    .. math:: g_l(x) = \exp\big(-\tfrac12 \gamma_l^2 \|x - \mu_l\|^2\big) \sin(W_l x + b_l)

    Args:
        dim: number of coordinates.
        channels: number of values.
        hidden: width of the filters.
        layers: number L of hidden linear maps.
        omega_0: published frequency scale; the sine of a unit is drawn from U(±1/√D)·2π·ω₀·γ.
        bandwidth: the highest frequency of a sine, in cycles per unit of coordinate, for ``omega_0=None`` and
            ``start="ccnn"``.
        envelopes: how the inverse widths of filter l are drawn: "equal" from Gamma(α/(L+1), β), the original start, or
            "varied" from Gamma(α/l, β), chapter 5's improved one.
        alpha: concentration α.
        beta: rate of that distribution.
        mean_range: interval from which the envelopes' centres are drawn.
        start: the publication whose starting values to draw, "ccnn" or "flexconv"; see :mod:`.start`.
        origin: coordinate along each axis at which the phases of "ccnn" are 0.

    >>> GaborFilter(dim=2, channels=3)(torch.rand(5, 2)).shape
    torch.Size([5, 3])
    """

    known_filters = True
    isotropic = True
    default_envelopes = "equal"


class MAGNet(_GaborNetwork):
    r"""A multiplicative anisotropic Gabor network (chapter 5, Eq. 6).

    .. math:: g_l(x) = \exp\!\Big(-\tfrac12 \sum_d \big(\gamma_{l,d} (x_d - \mu_{l,d})\big)^2\Big) \sin(W_l x + b_l)

    Args:
        dim: number of coordinates.
        channels: number of values.
        hidden: width of the filters.
        layers: number L of hidden linear maps; "3 layers" in the thesis are 4 filters.
        omega_0: published frequency scale; the sine of a unit is drawn from U(±1/√D)·2π·ω₀·γ.
        bandwidth: the highest frequency of a sine, in cycles per unit of coordinate, for ``omega_0=None`` and
            ``start="ccnn"``.
        envelopes: how the inverse widths of filter l are drawn: "varied" from Gamma(α/l, β), chapter 5's improved
            start, with wide envelopes in later filters, or "equal" from Gamma(α/(L+1), β), the original one.
        alpha: concentration α.
        beta: rate of that distribution.
        mean_range: interval from which the envelopes' centres are drawn.
        start: the publication whose starting values to draw, "ccnn" or "flexconv"; see :mod:`.start`.
        origin: coordinate along each axis at which the phases of "ccnn" are 0.

    >>> magnet = MAGNet(dim=2, channels=3)
    >>> magnet(torch.rand(5, 2)).shape
    torch.Size([5, 3])
    >>> sum(p.numel() for p in magnet.parameters())     # 4,064 + 33·3
    4163
    >>> bool(magnet.max_frequency() > 0)
    True
    """

    known_filters = True
    isotropic = False
    default_envelopes = "varied"
