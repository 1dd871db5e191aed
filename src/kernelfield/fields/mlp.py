"""Multilayer perceptrons on coordinates (chapter 2, section 4.2 and its appendix on splines)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._arguments import checked, with_arguments_of
from .._hooks import has_hooks
from .._kinds import POSITIVE, Choice, Int
from .._module_state import keep_geometry
from ._maps import WeightNormLinear, affine, first_outputs, project, scale_linear_, stack_linears
from .base import Architecture, Field
from .start import SIREN_STARTS, start_siren_

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["MLP", "SIREN"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "swish": F.silu,
    "gelu": F.gelu,
    "sine": torch.sin,
}


class MLP(Field):
    r"""A pointwise network :math:`\psi(x) = W_L\, h_{L-1} + b_L`, :math:`h_l = \sigma(\omega_0 (W_l h_{l-1} + b_l))`.

    Only sines use ω₀. A ReLU network is a spline, and its biases place the knots. With ``knots="uniform"`` the knots
    are spread over :math:`[-1, 1]^D` by :math:`b_l = -W_l h_{l-1}(x_\mathrm{unif})` (chapter 2, appendix "Kernel
    Parameterization via ReLU Networks"). With ``knots="zero"`` they lie at the origin, as is usual elsewhere.

    Args:
        dim: number of coordinates.
        channels: number of values.
        hidden: width of the hidden layers.
        layers: number of linear maps, the last one included.
        activation: "relu", "leaky_relu", "swish", "gelu" or "sine".
        omega_0: factor inside the sines of the first layer; other activations ignore it.
        hidden_omega_0: the same factor in the hidden layers; ``omega_0`` if not given.
        knots: initial places at which the hidden units bend, "uniform" or "zero".
        norm: whether to normalise layers before each activation; it helps piecewise activations (chapter 2, appendix
            "Using Sine Non-Linearities").
        weight_norm: whether to split each weight into length and direction.

    >>> MLP(dim=2, channels=5, activation="gelu")(torch.rand(7, 3, 2)).shape
    torch.Size([7, 3, 5])
    """

    @checked(
        layers=Int(2),
        activation=Choice(*ACTIVATIONS),
        omega_0=POSITIVE,
        hidden_omega_0=POSITIVE | None,
        knots=Choice("uniform", "zero"),
    )
    def __init__(
        self,
        dim: int,
        channels: int,
        *,
        hidden: int = 32,
        layers: int = 3,
        activation: str = "relu",
        omega_0: float = 1.0,
        hidden_omega_0: float | None = None,
        knots: str = "uniform",
        norm: bool = False,
        weight_norm: bool = False,
    ) -> None:
        super().__init__(dim, channels)
        self.activation, self.knots = activation, knots
        self.omega_0 = float(omega_0)
        self.hidden_omega_0 = float(omega_0 if hidden_omega_0 is None else hidden_omega_0)
        widths = [dim, *[hidden] * (layers - 1), channels]
        linears = [nn.Linear(a, b) for a, b in pairwise(widths)]
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in linears[1:]) if norm else None
        self._initialise(linears)
        self.linears = nn.ModuleList(WeightNormLinear(m) if weight_norm else m for m in linears)
        scales = ("omega_0", "hidden_omega_0") if activation == "sine" else ()  # others ignore them
        keep_geometry(self, "activation", *scales)

    def evaluate(self, coords: Tensor) -> Tensor:
        return self.linears[-1](self.features(coords))

    def features(self, coords: Tensor) -> Tensor:
        first: Any
        first, *hidden = self.linears[:-1]
        z = first(coords) if has_hooks(first) else project(coords, first.weight, first.bias)
        x = self._activate(z, 0)
        for i, linear in enumerate(hidden, 1):
            x = self._activate(linear(x), i)
        return x

    def readout(self) -> tuple[Tensor, Tensor]:
        last: Any = self.linears[-1]
        return last.weight, last.bias

    def hidden_values(self) -> int:
        return len(self.linears[0].bias)  # type: ignore[arg-type]

    def alike(self) -> tuple[Any, ...] | None:
        if self.norms is not None:
            return None  # only an ablation uses norms, so there is no code that stacks their weights
        return type(self), self.activation, self.omega_0, self.hidden_omega_0, tuple(p.shape for p in self.parameters())

    @classmethod
    def together(cls, fields: Sequence[Field], coords: Tensor, channels: int | None = None) -> Tensor:
        first = fields[0]
        assert isinstance(first, MLP)
        lowest, *hidden, _ = zip(*(f.linears for f in fields), strict=True)
        x = first._activate(project(coords, *stack_linears(lowest)), 0)  # noqa: SLF001
        for i, linears in enumerate(hidden, 1):
            x = first._activate(affine(x, *stack_linears(linears)), i)  # noqa: SLF001
        return affine(x, *cls.readouts(fields, channels))

    @classmethod
    def readouts(cls, fields: Sequence[Field], channels: int | None = None) -> tuple[Tensor, Tensor]:
        last: list[Any] = [f.linears[-1] for f in fields]  # type: ignore[index]
        return first_outputs(stack_linears(last), channels)

    def architecture(self) -> Architecture | None:
        if type(self) not in (MLP, SIREN) or self.activation != "sine" or self.norms is not None:
            return None
        maps: Any = list(self.linears[:-1])
        # An architecture has one factor for all layers. If hidden layers have another, their weights take the ratio.
        ratio = self.hidden_omega_0 / self.omega_0
        factors = [1.0, *[ratio] * (len(maps) - 1)]
        parameters = tuple(
            t if f == 1 else t * f for m, f in zip(maps, factors, strict=True) for t in (m.weight, m.bias)
        )
        return Architecture("sines", maps[0].out_features, len(maps), omega=self.omega_0, parameters=parameters)

    def features_from(self, coords: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        first, *hidden = zip(parameters[::2], parameters[1::2], strict=True)
        x = torch.sin(self.omega_0 * project(coords, *first))
        for weight, bias in hidden:
            x = torch.sin(self.omega_0 * affine(x, weight, bias))
        return x

    def scale_(self, factor: float | Tensor) -> MLP:
        scale_linear_(self.linears[-1], factor)
        return self

    def _activate(self, x: Tensor, layer: int) -> Tensor:
        if self.norms is not None:
            x = self.norms[layer](x)
        if self.activation == "sine":
            x = (self.hidden_omega_0 if layer else self.omega_0) * x
        return ACTIVATIONS[self.activation](x)

    @torch.no_grad()
    def _initialise(self, linears: list[nn.Linear]) -> None:
        width = linears[0].out_features
        # One point of the domain for each hidden unit: evenly spaced on a line, random in more dimensions.
        points = torch.linspace(-1, 1, width)[:, None] if self.dim == 1 else torch.rand(width, self.dim) * 2 - 1
        at_points = points
        for i, linear in enumerate(linears[:-1]):
            nn.init.kaiming_uniform_(linear.weight, nonlinearity="relu")
            knots = -(linear.weight * at_points).sum(dim=1)
            linear.bias.copy_(knots if self.knots == "uniform" else torch.zeros_like(knots))
            at_points = self._activate(linear(at_points), i)
        nn.init.kaiming_uniform_(linears[-1].weight, nonlinearity="linear")
        nn.init.zeros_(linears[-1].bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}, omega_0={self.omega_0}"


class SIREN(MLP):
    r"""A network of sines: :math:`h_l = \sin(\omega_l (W_l h_{l-1} + b_l))` (chapter 2, section 4.2).

    ω₀ sets how fast the kernel may vary; it multiplies the biases as well as the weights. By default weights are drawn
    from :math:`U(\pm 1/D)` in the first layer and :math:`U(\pm\sqrt{6/n}/\omega_0)` in the others, where n is the
    number of inputs. Biases spread the phases over one period. ``start`` selects the starting values of a publication.

    Args:
        dim: number of coordinates.
        channels: number of values.
        hidden: width of the hidden layers.
        layers: number of linear maps, the last one included.
        omega_0: frequency prior, the factor inside the sines of the first layer.
        hidden_omega_0: factor inside the sines of the hidden layers; ``omega_0`` if not given. If coordinates are half
            of the published ones, ``omega_0`` is twice the published number and ``hidden_omega_0`` the number itself.
        start: the publication whose starting values to draw: "siren", "ckconv", "flexconv" or "partial"; see
            :mod:`.start`.
        weight_norm: whether to split each weight into length and direction, as the networks of chapter 2 do; by default
            only for ``start="ckconv"``.

    >>> siren = SIREN(dim=1, channels=8, hidden=32, weight_norm=True)
    >>> siren(torch.linspace(-1, 1, 784)[:, None]).shape
    torch.Size([784, 8])
    >>> sum(p.numel() for p in siren.parameters())      # 96 + 1,088 + 34·8
    1456
    """

    starts = SIREN_STARTS

    @checked(omega_0=POSITIVE, start=Choice(*SIREN_STARTS))
    @with_arguments_of(MLP.__init__, without=("activation", "knots", "norm"))
    def __init__(
        self,
        dim: int,
        channels: int,
        *,
        omega_0: float = 30.0,
        start: str = "siren",
        weight_norm: bool | None = None,
        **options: Any,
    ) -> None:
        self.start = start
        weight_norm = start == "ckconv" if weight_norm is None else weight_norm
        super().__init__(dim, channels, activation="sine", omega_0=omega_0, weight_norm=weight_norm, **options)

    def _initialise(self, linears: list[nn.Linear]) -> None:
        assert self.start is not None
        start_siren_(self.start, linears, omega_0=self.omega_0, hidden_omega_0=self.hidden_omega_0)
