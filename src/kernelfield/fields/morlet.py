"""The Morlet wavelet as a field (chapter 10, section 5.3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._kinds import POSITIVE, Number
from .base import Field

__all__ = ["Morlet"]


class Morlet(Field):
    r"""Complex waves under a Gaussian envelope, a classical wavelet of time-frequency analysis.

    .. math::
        \psi(x) = a\, (\pi B)^{-\frac12}\, e^{-\|u\|^2 / B}\, e^{2\pi i\, C u_1}, \qquad u = \mathrm{width} \cdot x

    Channels 2j and 2j + 1 hold the real and the imaginary part of one wavelet. They share a bandwidth B and a frequency
    C, and each has its own amplitude a; all are learned. In more dimensions the wave runs along the first axis. With
    ``width=8`` and amplitude 1 a pair is the wavelet ``cmorB-C`` of PyWavelets on its support [-8, 8].

    Args:
        dim: number of coordinates.
        channels: number of values.
        bandwidth: initial B, above 0.
        frequency: initial C, in waves per unit of u.
        width: value of u at coordinate 1, the end of the kernel.
        spread: width, in octaves, of the interval around ``frequency`` from which each pair's frequency is drawn.

    >>> wavelet = Morlet(1, 2, bandwidth=1.5, frequency=1.0)
    >>> wavelet(torch.tensor([0.0])).detach()
    tensor([0.4607, 0.0000])
    """

    quadrature = True

    @checked(bandwidth=POSITIVE, frequency=POSITIVE, width=POSITIVE, spread=Number(0, 20))
    def __init__(
        self,
        dim: int,
        channels: int,
        *,
        bandwidth: float = 1.5,
        frequency: float = 1.0,
        width: float = 8.0,
        spread: float = 0.0,
    ) -> None:
        super().__init__(dim, channels)
        pairs = (channels + 1) // 2
        self.width = float(width)
        self.log_bandwidth = nn.Parameter(torch.full((pairs,), math.log(bandwidth)))
        octaves = spread * (torch.rand(pairs) - 0.5)
        self.frequency = nn.Parameter(frequency * 2**octaves)
        self.amplitude = nn.Parameter(torch.ones(channels))

    def evaluate(self, coords: Tensor) -> Tensor:
        u = self.width * coords
        bandwidth = self.log_bandwidth.exp()
        envelope = torch.exp(-u.square().sum(dim=-1, keepdim=True) / bandwidth) * (math.pi * bandwidth).rsqrt()
        angle = 2 * math.pi * self.frequency * u[..., :1]
        pairs = torch.stack([envelope * angle.cos(), envelope * angle.sin()], dim=-1)
        return self.amplitude * pairs.flatten(-2)[..., : self.channels]

    def hidden_values(self) -> int:
        return 2 * len(self.frequency)  # whole pairs, even if the number of channels is odd

    @torch.no_grad()
    def scale_(self, factor: float | Tensor) -> Morlet:
        self.amplitude.mul_(factor)
        return self

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, width={self.width}"
