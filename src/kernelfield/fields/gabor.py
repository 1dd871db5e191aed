"""Filter networks whose sines have Gaussian envelopes (chapter 5, section 3.2): isotropic Gabor, and MAGNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._checks import check_int, check_positive
from .filters import FilterNetwork

__all__ = ["GaborFilter", "MAGNet"]


class _GaborNetwork(FilterNetwork):
    """Sines under Gaussian envelopes; the two public ones differ in the envelopes' shape and how they are drawn."""

    def __init__(
        self,
        dim: int,
        channels: int,
        *,
        hidden: int,
        layers: int,
        omega_0: float | None,
        bandwidth: float,
        beta: float,
        concentrations: Tensor,
        axes: int,
        mean_range: tuple[float, float],
    ) -> None:
        super().__init__(
            dim,
            channels,
            hidden=hidden,
            layers=layers,
            omega_0=omega_0,
            bandwidth=bandwidth,
            total_gamma=float(concentrations.sum()) / check_positive("beta", beta),
        )
        low, high = mean_range
        if not low < high:
            raise ValueError(f"mean_range must be an interval (low, high) with low < high, got {mean_range}")
        rate = torch.tensor(float(beta))
        shapes = concentrations[:, None, None].expand(layers + 1, hidden, axes)
        self.gamma = nn.Parameter(torch.distributions.Gamma(shapes, rate).sample())
        self.mean = nn.Parameter(torch.empty(layers + 1, hidden, dim).uniform_(low, high))
        with torch.no_grad():
            # Narrow envelopes carry fast sines, so that each unit shows about as many oscillations.
            self.frequency.mul_(self.gamma)

    envelope_parameters = ("gamma", "mean")

    def envelope(self, coords: Tensor, *shape: Tensor) -> Tensor:
        gamma, mean = (t.flatten(-3, -2).unsqueeze(-3) for t in shape)  # (…, 1, units, dim)
        # Axis by axis: the (…, points, units, dim) tensor of all offsets is never held.
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
        omega_0: frequency scale; the sine of a unit is drawn from U(±1/√D)·2π·ω₀·γ.
        bandwidth: chooses omega_0 if that is None: the frequency, in cycles per unit of coordinate, that the filters of
            a typical unit add up to.
        alpha: envelopes are drawn from Gamma(α/(L+1), β).
        beta: rate of that distribution.
        mean_range: interval from which the envelopes' centres are drawn.

    >>> GaborFilter(dim=2, channels=3)(torch.rand(5, 2)).shape
    torch.Size([5, 3])
    """

    known_filters = True

    def __init__(
        self,
        dim: int,
        channels: int,
        *,
        hidden: int = 32,
        layers: int = 3,
        omega_0: float | None = None,
        bandwidth: float = 16.0,
        alpha: float = 6.0,
        beta: float = 1.0,
        mean_range: tuple[float, float] = (-1.0, 1.0),
    ) -> None:
        super().__init__(
            dim,
            channels,
            hidden=hidden,
            layers=layers,
            omega_0=omega_0,
            bandwidth=bandwidth,
            beta=beta,
            concentrations=torch.full(
                (check_int("layers", layers) + 1,), check_positive("alpha", alpha) / (layers + 1)
            ),
            axes=1,
            mean_range=mean_range,
        )


class MAGNet(_GaborNetwork):
    r"""A multiplicative anisotropic Gabor network (chapter 5, Eq. 6).

    .. math:: g_l(x) = \exp\!\Big(-\tfrac12 \sum_d \big(\gamma_{l,d} (x_d - \mu_{l,d})\big)^2\Big) \sin(W_l x + b_l)

    Args:
        dim: number of coordinates.
        channels: number of values.
        hidden: width of the filters.
        layers: number L of hidden linear maps; "3 layers" in the thesis are 4 filters.
        omega_0: frequency scale; the sine of a unit is drawn from U(±1/√D)·2π·ω₀·γ.
        bandwidth: chooses omega_0 if that is None: the frequency, in cycles per unit of coordinate, that the filters of
            a typical unit add up to.
        alpha: envelopes of filter l are drawn from Gamma(α/l, β), wide for later filters.
        beta: rate of that distribution.
        mean_range: interval from which the envelopes' centres are drawn.

    >>> magnet = MAGNet(dim=2, channels=3)
    >>> magnet(torch.rand(5, 2)).shape
    torch.Size([5, 3])
    >>> sum(p.numel() for p in magnet.parameters())     # 4,064 + 33·3
    4163
    >>> bool(magnet.max_frequency() > 0)
    True
    """

    known_filters = True

    def __init__(
        self,
        dim: int,
        channels: int,
        *,
        hidden: int = 32,
        layers: int = 3,
        omega_0: float | None = None,
        bandwidth: float = 16.0,
        alpha: float = 6.0,
        beta: float = 1.0,
        mean_range: tuple[float, float] = (-1.0, 1.0),
    ) -> None:
        super().__init__(
            dim,
            channels,
            hidden=hidden,
            layers=layers,
            omega_0=omega_0,
            bandwidth=bandwidth,
            beta=beta,
            concentrations=check_positive("alpha", alpha) / torch.arange(1, check_int("layers", layers) + 2),
            axes=dim,
            mean_range=mean_range,
        )
