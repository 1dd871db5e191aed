"""Base class of fields, and functions that build a field for a layer."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._hooks import has_hooks
from .._kinds import TEXT, Choice
from .._object_kinds import TensorOf
from ._maps import first_outputs
from .start import SCALING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Architecture", "Field", "bind_field", "bind_start", "build_field", "field_options"]


@dataclass(frozen=True)
class Architecture:
    """A description of the layers below a field's last linear map, for code that evaluates them itself.

    Args:
        kind: "filters", a product of filters and linear maps, or "sines", alternating linear maps and sines.
        hidden: units per layer.
        layers: number of filters, or of layers of sines.
        widths: inverse widths of a filter's envelope: one, one per axis, or 0 without an envelope.
        omega: factor inside the sines.
        parameters: tensors that the features depend on, in the order in which :meth:`Field.features_from` takes them.

    >>> from kernelfield.fields import SIREN
    >>> SIREN(dim=1, channels=8).architecture()
    Architecture(kind='sines', hidden=32, layers=2, widths=0, omega=30.0)
    """

    kind: str
    hidden: int
    layers: int
    widths: int = 0
    omega: float = 1.0
    parameters: tuple[Tensor, ...] = field(default=(), repr=False, compare=False)


class Field(nn.Module):
    r"""A continuous function :math:`\mathbb{R}^D \to \mathbb{R}^N`: coordinates in, values out.

    A field does not depend on layers. An argument ``field`` is any callable that builds one from ``(dim, channels)``: a
    class of this package, or ``functools.partial(SIREN, omega_0=10)``.

    A subclass defines :meth:`evaluate` and :meth:`scale_`, :meth:`hidden_values` if it has hidden layers, and
    :meth:`max_frequency` where a closed form exists.

    Args:
        dim: number of coordinates D.
        channels: number of values N.

    >>> class Cosines(Field):
    ...     def __init__(self, dim, channels):
    ...         super().__init__(dim, channels)
    ...         self.weight = nn.Parameter(torch.randn(channels, dim))
    ...         self.gain = nn.Parameter(torch.ones(channels))
    ...     def evaluate(self, coords):
    ...         return self.gain * torch.cos(coords @ self.weight.mT)
    ...     @torch.no_grad()
    ...     def scale_(self, factor):
    ...         self.gain.mul_(factor)
    ...         return self
    >>> Cosines(2, 3)(torch.rand(5, 2)).shape
    torch.Size([5, 3])
    """

    #: "table" or "spline" for a field with one coefficient per node of a lattice, else None. In a "table" the
    #: coefficients are the values at the nodes, interpolated linearly. In a "spline" each one weights a B-spline at its
    #: node. Attributes ``size``, ``order``, ``spacing`` and ``origin`` describe the lattice.
    lattice: str | None = None
    #: whether channels 2j and 2j + 1 are the real and the imaginary part of one complex function
    quadrature: bool = False
    #: names of the published starting values that the class offers; see :mod:`.start`
    starts: ClassVar[tuple[str, ...]] = ()
    #: name of the starting values that this field was drawn with, if any
    start: str | None = None
    #: whether the values are more than starting values, so that a layer made of this field must not scale them
    _keeps_scale = False

    @checked()
    def __init__(self, dim: int, channels: int) -> None:
        super().__init__()
        self.dim, self.channels = dim, channels
        self.register_load_state_dict_post_hook(_keep_scale)

    @checked(coords=TensorOf("float", "…, .dim"))
    def forward(self, coords: Tensor, channels: int | None = None) -> Tensor:
        """Return the values at ``coords``, (…, dim) to (…, channels), or the first ``channels`` of them.

        Autocast is switched off inside: in bfloat16, neighbouring positions of a long kernel would round to one number.
        """
        if channels is not None and channels > self.channels:
            raise ValueError(f"channels must be at most the field's {self.channels}, got {channels}")
        with torch.autocast(coords.device.type, enabled=False):
            values = self.evaluate(coords) if channels is None else self.evaluate_first(coords, channels)
        if not torch.compiler.is_compiling() and values.shape != (
            wanted := (*coords.shape[:-1], channels or self.channels)
        ):
            raise ValueError(
                f"{type(self).__name__}.evaluate must return one value per channel, {wanted} for coords of shape "
                f"{tuple(coords.shape)}, got {tuple(values.shape)}"
            )
        return values

    def evaluate(self, coords: Tensor) -> Tensor:
        """Return the values at checked ``coords``: (…, dim) to (…, channels)."""
        raise NotImplementedError(f"{type(self).__name__} must define evaluate(coords), the values of the field")

    def features(self, coords: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return the inputs of the last linear map, (…, dim) to (…, hidden); None for a field without one."""
        return None

    def readout(self) -> tuple[Tensor, Tensor]:
        """Return the last linear map, (channels, hidden) and (channels,), of a field that has :meth:`features`."""
        raise NotImplementedError(f"{type(self).__name__} must define readout(), the last linear map after features()")

    @classmethod
    def readouts(cls, fields: Sequence[Field], channels: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the last linear maps of n fields, or their first ``channels`` outputs: weights and biases."""
        weight, bias = (torch.stack(same) for same in zip(*(f.readout() for f in fields), strict=True))
        return first_outputs((weight, bias), channels)

    def architecture(self) -> Architecture | None:
        """Return the layers below the last linear map; None for a field that has no such description."""
        return None

    def features_from(self, coords: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """Return :meth:`features` for other values of the parameters of :meth:`architecture`.

        Args:
            coords: (points, dim) coordinates.
            parameters: in the order of the architecture, of one field or stacked over n fields.

        Returns:
            (points, hidden) or (n, points, hidden) features.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define features_from(coords, parameters), which its architecture() promises"
        )

    def evaluate_first(self, coords: Tensor, channels: int) -> Tensor:
        """Return the first ``channels`` values at checked ``coords``; a field with features computes no others."""
        features = None if has_hooks(self) else self.features(coords)
        if features is None:
            return self.evaluate(coords)[..., :channels]
        weight, bias = self.readout()
        return nn.functional.linear(features, weight.narrow(0, 0, channels), bias.narrow(0, 0, channels))

    def hidden_values(self) -> int:
        """Return the number of intermediate values per point that :meth:`evaluate` holds at once."""
        return 0

    def alike(self) -> tuple[Any, ...] | None:
        """Return a key that is equal for fields that :meth:`together` can evaluate in one call, or None."""
        return None

    @classmethod
    def together(cls, fields: Sequence[Field], coords: Tensor, channels: int | None = None) -> Tensor:
        """Return the values of several fields that are :meth:`alike`, at the same ``coords``.

        The result equals evaluating one after the other, in as many operations as a single field takes.

        Args:
            fields: n fields of this class.
            coords: (points, dim) coordinates.
            channels: return only the first ``channels`` values; all if not given.

        Returns:
            (n, points, channels) values.
        """
        return torch.stack([field(coords, channels) for field in fields])

    @torch.no_grad()
    def scale_(self, factor: float | Tensor) -> Field:
        """Multiply the field's values by ``factor``, one for all or one per channel, in place."""
        raise NotImplementedError(
            f"{type(self).__name__} must define scale_(factor), with which layers set the scale of a new kernel"
        )

    def spread_phases_(self) -> None:
        """Draw the phases of a field of sines uniformly, in place; do nothing for other fields."""

    @property
    def scaling(self) -> str:
        """How a layer scales a new field: "points", "measured" or "none"; see :data:`.start.SCALING`."""
        return "measured" if self.start is None else SCALING[self.start]

    def max_frequency(self, cut: float = 2.0) -> Tensor | None:  # noqa: ARG002
        """Return the highest frequency the field contains, in cycles per unit of coordinate; None if unknown.

        Args:
            cut: number of standard deviations after which the spectrum of a Gaussian counts as zero.
        """
        return None

    def support(self) -> tuple[float, ...] | None:
        """Return the distance from the origin, per axis, beyond which the field is zero; None if unbounded."""
        return None

    def extra_repr(self) -> str:
        return f"dim={self.dim}, channels={self.channels}"


def _keep_scale(field: Field, _: object = None) -> None:
    field._keeps_scale = True  # noqa: SLF001


@checked()
def bind_field(field: Callable[..., Field], **hints: Any) -> Callable[..., Field]:
    """Bind those of ``hints`` that ``field`` takes and that are not bound yet.

    Args:
        field: a class, ``functools.partial`` of one or any callable that makes a field from ``(dim, channels)``.
        hints: keyword arguments to bind.

    >>> from kernelfield.fields import SIREN
    >>> bind_field(partial(SIREN, omega_0=10), omega_0=30, hidden=16, size=5).keywords
    {'omega_0': 10, 'hidden': 16}
    """
    bound = field.keywords if isinstance(field, partial) else {}
    builder = field.func if isinstance(field, partial) and not field.args else field
    taken = _argument_names(builder) if isinstance(builder, type) else inspect.signature(field).parameters
    return partial(field, **{k: v for k, v in hints.items() if k in taken and k not in bound})


@lru_cache(maxsize=128)
def _argument_names(field: type[Field]) -> frozenset[str]:
    """Return the argument names of a field class, cached: reading signatures took a tenth of a network's build time."""
    return frozenset(inspect.signature(field).parameters)


@checked(start=TEXT)
def bind_start(field: Callable[..., Field], start: str) -> Callable[..., Field]:
    """Bind the starting values ``start`` if ``field`` has them and no others are bound yet.

    Args:
        field: callable that makes the field.
        start: name of published starting values; see :mod:`.start`.

    >>> from kernelfield.fields import SIREN, MAGNet
    >>> bind_start(MAGNet, "ccnn").keywords, bind_start(SIREN, "ccnn").keywords
    ({'start': 'ccnn'}, {})
    """
    builder = field.func if isinstance(field, partial) else field
    return bind_field(field, **({"start": start} if start in getattr(builder, "starts", ()) else {}))


@checked()
def build_field(field: Callable[..., Field] | Field, dim: int, channels: int, **hints: Any) -> Field:
    """Build a field of ``dim`` coordinates and ``channels`` values.

    Args:
        field: a class, ``functools.partial`` of one or any callable that makes a field from ``(dim, channels)``; or a
            field, which is checked and returned, so that layers may share one.
        dim: number of coordinates.
        channels: number of values.
        hints: arguments of the layer that some fields take, such as ``size`` or ``mean_range``; see :func:`bind_field`.

    >>> from kernelfield.fields import Table
    >>> build_field(Table, 2, 4, size=5, mean_range=(0, 1)).size
    (5, 5)
    """
    built = field if isinstance(field, Field) else bind_field(field, **hints)(dim, channels)
    if not isinstance(built, Field):
        raise TypeError(f"field must make a kernelfield.fields.Field, got {type(built).__name__}")
    if (built.dim, built.channels) != (dim, channels):
        raise ValueError(
            f"field must have dim={dim} and channels={channels}, got dim={built.dim} and channels={built.channels}"
        )
    return built


def field_options(
    field: Callable[..., Field], *, default_start: str | None = None, start: str | None = None, **arguments: Any
) -> Callable[..., Field]:
    """Bind arguments to a kernel field, except those that are None.

    A width that the field does not take, or has already, has no effect. A frequency scale is then an error, since its
    default is None.

    Args:
        field: callable that makes the field.
        default_start: starting values to use if the field has them.
        start: starting values to use; an error if the field does not have them.
        arguments: hidden, omega_0 and hidden_omega_0.

    >>> from kernelfield.fields import Table
    >>> field_options(Table, omega_0=30.0)
    Traceback (most recent call last):
    ValueError: omega_0 must be None for field Table, which does not take it, got 30.0
    """
    bound = bind_field(field, **{name: value for name, value in arguments.items() if value is not None})
    assert isinstance(bound, partial)
    for name, value in arguments.items():
        if name.endswith("omega_0") and value is not None and bound.keywords.get(name) != value:
            why = f"has {name}={bound.keywords[name]}" if name in bound.keywords else "does not take it"
            label = getattr(bound.func, "__name__", bound.func)
            raise ValueError(f"{name} must be None for field {label}, which {why}, got {value}")
    if start is not None:
        builder = field.func if isinstance(field, partial) else field
        Choice(*getattr(builder, "starts", ())).check("start", start)
        return partial(bound, start=start)
    return bound if default_start is None else bind_start(bound, default_start)
