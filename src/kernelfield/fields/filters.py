"""Multiplicative filter networks (chapter 5, section 3.2): plain sines, isotropic Gabor functions, and MAGNet.

MAGNet is the field of FlexConv and CCNN. Read :class:`FilterNetwork` first; the others choose its envelopes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from .._arguments import checked, with_arguments_of
from .._hooks import has_hooks
from .._kinds import POSITIVE, Choice, Int
from .._object_kinds import TensorOf
from ._maps import affine, filter_values, first_outputs, gaussian_envelope, project, scale_linear_, stack_linears
from .base import Architecture, Field
from .start import FILTER_STARTS, start_maps_, start_sines_

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FilterNetwork", "FourierFilter", "GaborFilter", "MAGNet"]

HIDDEN, LAYERS = 32, 3
#: initial inverse widths of the envelopes: the same distribution in all filters, or wider envelopes in later filters
ENVELOPES = ("equal", "varied")


class FilterNetwork(Field):
    r"""A product of filters and linear maps (chapter 5, Eq. 2 to 4).

    .. math::
        h_1 = g_1(x), \qquad
        h_{l+1} = (A_l h_l + a_l) \cdot g_{l+1}(x), \qquad
        \psi(x) = A_\mathrm{out} h_{L+1} + a_\mathrm{out}

    with sine filters :math:`g_l(x) = \sin(W_l x + b_l)`, which a subclass may multiply by an :meth:`envelope`. The
    network is a sum of products of its filters, so its highest frequency has a closed form.

    One linear map evaluates all ``layers + 1`` filters.

    Args:
        dim: number of coordinates.
        channels: number of values.
        gamma: inverse widths γ of the envelopes, which broadcast to (L + 1, hidden, dim).
        hidden: width h of the filters.
        layers: number L of hidden linear maps; the network also has L + 1 filters and a last linear map.
        omega_0: published frequency scale: sines are drawn from U(±1/√D)·2π·ω₀·γ. Chapter 5's "input scale" s is
            2π·ω₀·√(L+1).
        bandwidth: the highest frequency of a sine, in cycles per unit of coordinate; not with ``omega_0`` or
            ``start="flexconv"``, which set the frequencies.
        grid_bandwidth: ``bandwidth`` if that is not given; layers set it from the grid of their kernel.
        start: the publication whose starting values to draw, "ccnn" or "flexconv"; see :mod:`.start`.
        origin: coordinate along each axis at which the phases of "ccnn" are 0.

    >>> class Sines(FilterNetwork):
    ...     def envelope(self, coords, *shape):
    ...         return None
    >>> Sines(dim=1, channels=3, gamma=torch.ones(()))(torch.rand(5, 1)).shape
    torch.Size([5, 3])
    """

    starts = FILTER_STARTS
    #: chapter 5's input scale, for ``start="flexconv"``
    input_scale = 25.6

    @checked(
        gamma=TensorOf("float"),
        omega_0=POSITIVE | None,
        bandwidth=POSITIVE | None,
        grid_bandwidth=POSITIVE,
        start=Choice(*FILTER_STARTS),
    )
    def __init__(
        self,
        dim: int,
        channels: int,
        *,
        gamma: Tensor,
        hidden: int = HIDDEN,
        layers: int = LAYERS,
        omega_0: float | None = None,
        bandwidth: float | None = None,
        grid_bandwidth: float = 16.0,
        start: str = "ccnn",
        origin: float = 0.0,
    ) -> None:
        super().__init__(dim, channels)
        filters = layers + 1
        self.start = start
        if omega_0 is None and start == "flexconv":
            omega_0 = self.input_scale / (2 * math.pi * math.sqrt(filters))
        if omega_0 is not None and bandwidth is not None:
            raise ValueError(
                f"bandwidth must be None with omega_0 or start='flexconv', which set the frequencies, got {bandwidth} "
                f"with omega_0={omega_0:.4g} and start={start!r}"
            )
        self.omega_0 = None if omega_0 is None else float(omega_0)
        self.frequency = nn.Parameter(torch.empty(filters, hidden, dim))
        self.phase = nn.Parameter(torch.empty(filters, hidden))
        highest = grid_bandwidth if bandwidth is None else bandwidth
        start_sines_(start, self.frequency, self.phase, gamma, omega_0=self.omega_0, bandwidth=highest, origin=origin)
        linears = [nn.Linear(hidden, hidden) for _ in range(layers)]
        self.linears, self.out = nn.ModuleList(linears), nn.Linear(hidden, channels)
        start_maps_(start, linears, self.out)

    def envelope(self, coords: Tensor, *shape: Tensor) -> Tensor | None:
        """Return the envelope of the sines, (…, points, filters · hidden), or None without one.

        Args:
            coords: (points, dim) coordinates.
            shape: the parameters :attr:`envelope_parameters`, of one network or stacked, (…, filters, hidden, ·) each.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define envelope(coords, *shape), the envelope of the sines or None"
        )

    #: names of the parameters that shape the envelope
    envelope_parameters: tuple[str, ...] = ()
    #: whether :meth:`architecture` describes this class; a derived class may have another envelope
    known_filters = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.known_filters = cls.__dict__.get("known_filters", False)  # not inherited

    def evaluate(self, coords: Tensor) -> Tensor:
        return self.out(self.features(coords))

    def features(self, coords: Tensor) -> Tensor:
        linears: Any = self.linears if has_hooks(self.linears) else [(m.weight, m.bias) for m in self.linears]
        values = self._compute(
            coords.reshape(-1, self.dim),
            self.frequency,
            self.phase,
            [getattr(self, name) for name in self.envelope_parameters],
            linears,
        )
        return values.view(*coords.shape[:-1], values.shape[-1])

    def readout(self) -> tuple[Tensor, Tensor]:
        return self.out.weight, self.out.bias

    def hidden_values(self) -> int:
        return self.phase.numel()  # all filters are evaluated at once

    def alike(self) -> tuple[Any, ...]:
        maps = len(self.linears)
        envelope = tuple([getattr(self, name).shape for name in self.envelope_parameters])
        return type(self), self.frequency.shape, envelope, maps, self.out.weight.shape

    @classmethod
    def together(cls, fields: Sequence[Field], coords: Tensor, channels: int | None = None) -> Tensor:
        first = fields[0]
        assert isinstance(first, FilterNetwork)
        names = "frequency", "phase", *first.envelope_parameters
        frequency, phase, *shape = (torch.stack([getattr(f, name) for f in fields]) for name in names)
        linears = [stack_linears(maps) for maps in zip(*(f.linears for f in fields), strict=True)]
        values = first._compute(coords, frequency, phase, shape, linears)  # noqa: SLF001
        return affine(values, *cls.readouts(fields, channels))

    @classmethod
    def readouts(cls, fields: Sequence[Field], channels: int | None = None) -> tuple[Tensor, Tensor]:
        return first_outputs(stack_linears([f.out for f in fields]), channels)  # type: ignore[misc]

    def architecture(self) -> Architecture | None:
        if not self.known_filters:
            return None
        filters, hidden = self.phase.shape
        envelope = [getattr(self, name) for name in self.envelope_parameters]
        maps: Any = [t for m in self.linears for t in (m.weight, m.bias)]
        widths = envelope[0].shape[-1] if envelope else 0
        parameters = (self.frequency, self.phase, *envelope, *maps)
        return Architecture("filters", hidden, filters, widths=widths, parameters=parameters)

    def features_from(self, coords: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        frequency, phase, *rest = parameters
        shape, maps = rest[: len(self.envelope_parameters)], rest[len(self.envelope_parameters) :]
        return self._compute(coords, frequency, phase, shape, list(zip(maps[::2], maps[1::2], strict=True)))

    @torch.no_grad()
    def spread_phases_(self) -> None:
        self.phase.uniform_(-math.pi, math.pi)

    def _compute(
        self,
        coords: Tensor,
        frequency: Tensor,
        phase: Tensor,
        shape: list[Tensor],
        linears: Sequence[tuple[Tensor, Tensor] | nn.Module],
    ) -> Tensor:
        """Return the features of one network, (points, hidden), or of n stacked networks, (n, points, hidden)."""
        linear = nn.functional.linear if phase.dim() == 2 else affine
        units = [t.flatten(-3, -2) for t in shape]
        if self.known_filters:
            filters = filter_values(coords, frequency.flatten(-3, -2), phase.flatten(-2), *units)
        else:
            filters = torch.sin(project(coords, frequency.flatten(-3, -2), phase.flatten(-2)))
            envelope = self.envelope(coords, *shape)
            if envelope is not None:
                filters = filters * envelope
        h, *rest = filters.unflatten(-1, phase.shape[-2:]).unbind(-2)
        for layer, g in zip(linears, rest, strict=True):
            h = (layer(h) if isinstance(layer, nn.Module) else linear(h, *layer)) * g
        return h

    def scale_(self, factor: float | Tensor) -> FilterNetwork:
        scale_linear_(self.out, factor)
        return self

    def bandwidths(self, cut: float = 2.0) -> Tensor:
        r"""Return the highest frequency of each filter, (layers + 1,), in cycles per unit of coordinate.

        .. math:: f^+_l = \max_{i, d} \big(|W_{l,i,d}| + \mathrm{cut} \cdot |\gamma_{l,i,d}|\big) / 2\pi

        An envelope of inverse width γ blurs the sine's line in the spectrum by a Gaussian of deviation γ/2π, counted
        up to ``cut`` deviations. (Chapter 5 prints the *smallest* γ of a unit. The largest one blurs the most, and the
        authors' code uses it.)
        """
        spread = self.frequency.abs()
        blur = self.inverse_widths()
        if blur is not None:
            spread = spread + cut * blur.abs()
        return spread.amax(dim=(1, 2)) / (2 * math.pi)

    def inverse_widths(self) -> Tensor | None:
        """Return the inverse widths γ of the envelopes, (filters, hidden, 1 or dim), or None without envelopes."""
        raise NotImplementedError(
            f"{type(self).__name__} must define inverse_widths(), with which max_frequency() widens the band"
        )

    def max_frequency(self, cut: float = 2.0) -> Tensor:
        """Return the sum of the filters' :meth:`bandwidths`: in a product, frequencies add (chapter 5, Eq. 10)."""
        return self.bandwidths(cut).sum()

    def extra_repr(self) -> str:
        filters, hidden = self.phase.shape
        return (
            f"{super().extra_repr()}, hidden={hidden}, filters={filters}, omega_0={self.omega_0}, start={self.start!r}"
        )


class FourierFilter(FilterNetwork):
    r"""A filter network of plain sines: :math:`g_l(x) = \sin(W_l x + b_l)`.

    Args:
        dim: number of coordinates.
        channels: number of values.
        hidden: width of the filters.
        layers: number of hidden linear maps.
        omega_0: published frequency scale; sines are drawn from U(±1/√D)·2π·ω₀/β.
        bandwidth: the highest frequency of a sine, in cycles per unit of coordinate; not with ``omega_0`` or
            ``start="flexconv"``, which set the frequencies.
        grid_bandwidth: ``bandwidth`` if that is not given; layers set it from the grid of their kernel.
        beta: unit of length; ½ if coordinates are half of the published ones.
        start: the publication whose starting values to draw, "ccnn" or "flexconv"; see :mod:`.start`.
        origin: coordinate along each axis at which the phases of "ccnn" are 0.

    >>> field = FourierFilter(dim=2, channels=3)
    >>> field(torch.rand(5, 2)).shape
    torch.Size([5, 3])
    """

    known_filters = True
    input_scale = 256.0

    @checked(beta=POSITIVE)
    @with_arguments_of(FilterNetwork.__init__, without=("gamma",))
    def __init__(self, dim: int, channels: int, *, beta: float = 1.0, **options: Any) -> None:
        super().__init__(dim, channels, gamma=torch.tensor(1 / beta), **options)

    def envelope(self, coords: Tensor, *shape: Tensor) -> None:  # noqa: ARG002
        return None

    def inverse_widths(self) -> None:
        return None


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
        gamma, mean = (t.flatten(-3, -2) for t in shape)
        return gaussian_envelope(coords, gamma, mean)

    def inverse_widths(self) -> Tensor:
        return self.gamma


class GaborFilter(_GaborNetwork):
    r"""A filter network of isotropic Gabor functions (chapter 5, Eq. 5).

    .. math:: g_l(x) = \exp\big(-\tfrac12 \gamma_l^2 \|x - \mu_l\|^2\big) \sin(W_l x + b_l)

    Chapter 5 prints γ in place of γ². Here γ is an inverse width, as it is in :class:`MAGNet`.

    Args:
        dim: number of coordinates.
        channels: number of values.
        hidden: width of the filters.
        layers: number L of hidden linear maps.
        omega_0: published frequency scale; the sine of a unit is drawn from U(±1/√D)·2π·ω₀·γ.
        bandwidth: the highest frequency of a sine, in cycles per unit of coordinate; not with ``omega_0`` or
            ``start="flexconv"``, which set the frequencies.
        grid_bandwidth: ``bandwidth`` if that is not given; layers set it from the grid of their kernel.
        envelopes: distribution of the initial inverse widths of filter l: "equal" for Gamma(α/(L+1), β), the original
            one, or "varied" for Gamma(α/l, β), the improved one of chapter 5.
        alpha: concentration α of that distribution.
        beta: rate β of that distribution.
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
    r"""A multiplicative anisotropic Gabor network (chapter 5, Eq. 7).

    .. math:: g_l(x) = \exp\!\Big(-\tfrac12 \sum_d \big(\gamma_{l,d} (x_d - \mu_{l,d})\big)^2\Big) \sin(W_l x + b_l)

    Args:
        dim: number of coordinates.
        channels: number of values.
        hidden: width of the filters.
        layers: number L of hidden linear maps; "3 layers" in the thesis are 4 filters.
        omega_0: published frequency scale; the sine of a unit is drawn from U(±1/√D)·2π·ω₀·γ.
        bandwidth: the highest frequency of a sine, in cycles per unit of coordinate; not with ``omega_0`` or
            ``start="flexconv"``, which set the frequencies.
        grid_bandwidth: ``bandwidth`` if that is not given; layers set it from the grid of their kernel.
        envelopes: distribution of the initial inverse widths of filter l: "varied" for Gamma(α/l, β), the improved one
            of chapter 5, with wider envelopes in later filters, or "equal" for Gamma(α/(L+1), β), the original one.
        alpha: concentration α of that distribution.
        beta: rate β of that distribution.
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
