"""Multiplicative filter networks (chapter 5, section 3.2), and those of plain sines; :mod:`.gabor` has the others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._checks import check_int, check_positive
from ..ops.fieldnet import Shape, features_on
from ..ops.fused import fuses
from ._linear import affine, first_outputs, read_out, scale_linear_, stack_linears
from .base import Field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..grids import KernelGrid

__all__ = ["FilterNetwork", "FourierFilter"]


class FilterNetwork(Field):
    r"""A product of filters and linear maps (chapter 5, Eq. 3).

    .. math::
        h_1 = g_1(x), \qquad
        h_{l+1} = (A_l h_l + a_l) \cdot g_{l+1}(x), \qquad
        \psi(x) = A_\mathrm{out} h_{L+1} + a_\mathrm{out}

    with sine filters :math:`g_l(x) = \sin(W_l x + b_l)`, which a subclass may multiply by an :meth:`envelope`. Such a
    network is a sum of exponentially many products of its filters, so its highest frequency is known in closed form.

    The ``layers + 1`` filters are evaluated together, one linear map for all of them.

    Args:
        dim: number of coordinates.
        channels: number of values.
        hidden: width h of the filters.
        layers: number L of hidden linear maps; the network has L + 1 filters and one more, last, linear map.
        omega_0: frequency scale in cycles per unit of coordinate. Chapter 5's "input scale" s is 2π·ω₀·√(L+1).
        bandwidth: what to choose omega_0 by if it is None: the frequency, along an axis, that the filters of a typical
            unit add up to.
        total_gamma: what the mean envelopes of all filters add up to, by which each filter's sines are scaled.
    """

    def __init__(
        self,
        dim: int,
        channels: int,
        *,
        hidden: int,
        layers: int,
        omega_0: float | None,
        bandwidth: float,
        total_gamma: float,
    ) -> None:
        super().__init__(dim, channels)
        check_int("hidden", hidden)
        check_int("layers", layers)
        check_positive("bandwidth", bandwidth)
        if omega_0 is None:
            # Sines are drawn from U(±1/√D)·2π·ω₀·γ: half of the bound on average, and γ in all.
            omega_0 = bandwidth * 2 * math.sqrt(dim) / total_gamma
        self.omega_0 = check_positive("omega_0", omega_0)
        filters = layers + 1
        bound = 1 / math.sqrt(dim)
        self.frequency = nn.Parameter(torch.empty(filters, hidden, dim).uniform_(-bound, bound))
        self.phase = nn.Parameter(torch.empty(filters, hidden).uniform_(-math.pi, math.pi))
        with torch.no_grad():
            self.frequency.mul_(2 * math.pi * self.omega_0)
        self.linears = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.out = nn.Linear(hidden, channels)
        for linear in [*self.linears, self.out]:
            nn.init.kaiming_uniform_(linear.weight, nonlinearity="linear")

    def envelope(self, coords: Tensor, *shape: Tensor) -> Tensor | None:
        """Return what multiplies the sines, (…, points, filters · hidden), or None for nothing.

        Args:
            coords: (points, dim) coordinates.
            shape: the parameters :attr:`envelope_parameters`, of one network or stacked, (…, filters, hidden, ·) each.
        """
        raise NotImplementedError

    #: names of the parameters that shape the envelope
    envelope_parameters: tuple[str, ...] = ()
    #: whether :mod:`kernelfield.ops.fieldnet` computes the filters of just this class: one that is derived from it may
    #: have another envelope
    known_filters = False

    def evaluate(self, coords: Tensor) -> Tensor:
        return self.out(self.features(coords))

    def features(self, coords: Tensor) -> Tensor:
        values = self._compute(
            coords.reshape(-1, self.dim),
            self.frequency,
            self.phase,
            [getattr(self, name) for name in self.envelope_parameters],
            [(m.weight, m.bias) for m in self.linears],  # type: ignore[misc]
        )
        return values.view(*coords.shape[:-1], values.shape[-1])

    def readout(self) -> tuple[Tensor, Tensor]:
        return self.out.weight, self.out.bias

    def hidden_values(self) -> int:
        return self.phase.numel()  # all filters lie together

    def alike(self) -> tuple[Any, ...]:
        return type(self), tuple(p.shape for p in self.parameters())

    @classmethod
    def together(cls, fields: Sequence[Field], coords: Tensor, channels: int | None = None) -> Tensor:
        first = fields[0]
        assert isinstance(first, FilterNetwork)

        def stacked(name: str) -> Tensor:
            return torch.stack([getattr(f, name) for f in fields])

        linears = zip(*(f.linears for f in fields), strict=True)
        values = first._compute(  # noqa: SLF001
            coords,
            stacked("frequency"),
            stacked("phase"),
            [stacked(name) for name in first.envelope_parameters],
            [stack_linears(maps) for maps in linears],
        )
        return affine(values, *first_outputs(stack_linears([f.out for f in fields]), channels))  # type: ignore[misc]

    @classmethod
    def on_grid(cls, fields: Sequence[Field], grid: KernelGrid, channels: int | None = None) -> Tensor | None:
        first = fields[0]
        assert isinstance(first, FilterNetwork)
        if not vars(cls).get("known_filters") or not fuses(first.phase):
            return None
        filters, hidden = first.phase.shape
        envelope = [getattr(first, name) for name in first.envelope_parameters]
        shape = Shape(hidden, filters, widths=envelope[0].shape[-1] if envelope else 0)
        networks = [FilterNetwork._in_order(f) for f in fields]  # type: ignore[arg-type]

        def formula(*parameters: Tensor) -> Tensor:
            each = len(parameters) // len(fields)
            coords = grid.coords(dtype=first.phase.dtype, device=first.phase.device).flatten(0, -2)
            split = [parameters[i * each : (i + 1) * each] for i in range(len(fields))]
            frequency, phase, *rest = (torch.stack(same) for same in zip(*split, strict=True))
            maps = rest[len(envelope) :]
            linears = list(zip(maps[::2], maps[1::2], strict=True))
            return first._compute(coords, frequency, phase, rest[: len(envelope)], linears).mT  # noqa: SLF001

        features = features_on(shape, networks, grid, formula)
        return None if features is None else read_out([f.out for f in fields], features, channels)  # type: ignore[misc]

    def _in_order(self) -> list[Tensor]:
        """Return what the features depend on, in the order of :mod:`kernelfield.ops.fieldnet`."""
        maps: Any = [t for m in self.linears for t in (m.weight, m.bias)]
        return [self.frequency, self.phase, *(getattr(self, name) for name in self.envelope_parameters), *maps]

    def _compute(
        self,
        coords: Tensor,
        frequency: Tensor,
        phase: Tensor,
        shape: list[Tensor],
        linears: list[tuple[Tensor, Tensor]],
    ) -> Tensor:
        """Return the last filters of one network, (points, hidden), or of n stacked ones, (n, points, hidden)."""
        filters = torch.sin(affine(coords, frequency.flatten(-3, -2), phase.flatten(-2)))
        envelope = self.envelope(coords, *shape)
        if envelope is not None:
            filters = filters * envelope
        h, *rest = filters.unflatten(-1, phase.shape[-2:]).unbind(-2)
        for (weight, bias), g in zip(linears, rest, strict=True):
            h = affine(h, weight, bias) * g
        return h

    def scale_(self, factor: float | Tensor) -> FilterNetwork:
        scale_linear_(self.out, factor)
        return self

    def bandwidths(self, cut: float = 2.0) -> Tensor:
        r"""Return the highest frequency of each filter, (layers + 1,), in cycles per unit of coordinate.

        .. math:: f^+_l = \max_{i, d} \big(|W_{l,i,d}| + \mathrm{cut} \cdot |\gamma_{l,i,d}|\big) / 2\pi

        An envelope of inverse width γ blurs the sine's line in the spectrum by a Gaussian of deviation γ/2π, counted
        up to ``cut`` deviations. (Chapter 5 prints the *smallest* γ of a unit; it is the largest that blurs the most,
        and the authors' code takes that one.)
        """
        spread = self.frequency.abs()
        blur = self.inverse_widths()
        if blur is not None:
            spread = spread + cut * blur.abs()
        return spread.amax(dim=(1, 2)) / (2 * math.pi)

    def inverse_widths(self) -> Tensor | None:
        """Return the inverse widths γ of the envelopes, (filters, hidden, 1 or dim), or None without envelopes."""
        raise NotImplementedError

    def max_frequency(self, cut: float = 2.0) -> Tensor:
        """Return the sum of the filters' :meth:`bandwidths`: in a product, frequencies add (chapter 5, Eq. 8)."""
        return self.bandwidths(cut).sum()

    def extra_repr(self) -> str:
        filters, hidden = self.phase.shape
        return f"{super().extra_repr()}, hidden={hidden}, filters={filters}, omega_0={self.omega_0}"


class FourierFilter(FilterNetwork):
    r"""A filter network of plain sines: :math:`g_l(x) = \sin(W_l x + b_l)`.

    Args:
        dim: number of coordinates.
        channels: number of values.
        hidden: width of the filters.
        layers: number of hidden linear maps.
        omega_0: frequency scale; sines are drawn from U(±1/√D)·2π·ω₀.
        bandwidth: chooses omega_0 if that is None: the frequency that the filters of a typical unit add up to.

    >>> field = FourierFilter(dim=2, channels=3)
    >>> field(torch.rand(5, 2)).shape
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
    ) -> None:
        super().__init__(
            dim,
            channels,
            hidden=hidden,
            layers=layers,
            omega_0=omega_0,
            bandwidth=bandwidth,
            total_gamma=check_int("layers", layers) + 1,
        )

    def envelope(self, coords: Tensor, *shape: Tensor) -> None:  # noqa: ARG002
        return None

    def inverse_widths(self) -> None:
        return None
