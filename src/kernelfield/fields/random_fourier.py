"""Random Fourier features followed by a perceptron (chapters 4 and 6)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._kinds import POSITIVE, Choice, Int
from .._module_state import keep_geometry
from ._maps import project, scale_linear_
from .base import Field
from .mlp import ACTIVATIONS

__all__ = ["RandomFourier"]


class RandomFourier(Field):
    r"""A perceptron on :math:`[\cos z, \sin z]`, :math:`z = W x + b`, :math:`W \sim N(0, (2\pi\omega_0)^2)`.

    It is the position network of chapter 4 (``hidden=128, layers=3, omega_0=0.1``; section 2.5.3) and the kernel
    network of chapter 6 (``features=128, layers=5, learn_frequencies=False``). Phases b start at 0.

    Args:
        dim: number of coordinates.
        channels: number of values.
        features: number of frequencies, each giving a cosine and a sine; half of ``hidden`` if not given.
        omega_0: standard deviation of the frequencies, in cycles per unit of coordinate.
        hidden: width of the hidden layers.
        layers: number of layers, the features and the last linear map included.
        activation: activation of the perceptron: "relu", "leaky_relu", "swish", "gelu" or "sine".
        learn_frequencies: whether W and b are learned.

    >>> field = RandomFourier(dim=3, channels=128, hidden=128, omega_0=0.1)
    >>> field(torch.rand(10, 3)).shape
    torch.Size([10, 128])
    >>> sum(p.numel() for p in field.parameters())      # 2·128 + 2·(128² + 128)
    33280
    """

    frequency: Tensor
    phase: Tensor

    @checked(layers=Int(2), omega_0=POSITIVE, activation=Choice(*ACTIVATIONS))
    def __init__(
        self,
        dim: int,
        channels: int,
        *,
        features: int | None = None,
        omega_0: float = 1.0,
        hidden: int = 32,
        layers: int = 3,
        activation: str = "gelu",
        learn_frequencies: bool = True,
    ) -> None:
        super().__init__(dim, channels)
        count = max(1, hidden // 2) if features is None else features
        self.omega_0, self.activation = float(omega_0), activation
        frequency = torch.randn(count, dim) * (2 * math.pi * self.omega_0)
        phase = torch.zeros(count)
        if learn_frequencies:
            self.frequency, self.phase = nn.Parameter(frequency), nn.Parameter(phase)
        else:
            self.register_buffer("frequency", frequency)
            self.register_buffer("phase", phase)
        widths = [2 * count, *[hidden] * (layers - 2), channels]
        linears = [nn.Linear(a, b) for a, b in pairwise(widths)]
        for linear in linears:
            # Variance-preserving, as in the authors' networks: U(±√(3/n)), no bias.
            nn.init.kaiming_uniform_(linear.weight, nonlinearity="linear")
            nn.init.zeros_(linear.bias)
        self.linears = nn.ModuleList(linears)
        keep_geometry(self, "activation")

    def evaluate(self, coords: Tensor) -> Tensor:
        return self.linears[-1](self.features(coords))

    def features(self, coords: Tensor) -> Tensor:
        z = project(coords, self.frequency, self.phase)
        x = torch.cat([z.cos(), z.sin()], dim=-1)
        for linear in self.linears[:-1]:
            x = ACTIVATIONS[self.activation](linear(x))
        return x

    def readout(self) -> tuple[Tensor, Tensor]:
        last: Any = self.linears[-1]
        return last.weight, last.bias

    def hidden_values(self) -> int:
        linears: Any = self.linears
        return max(linear.in_features for linear in linears)

    def scale_(self, factor: float | Tensor) -> RandomFourier:
        scale_linear_(self.linears[-1], factor)
        return self

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, features={self.frequency.shape[0]}, omega_0={self.omega_0}"
