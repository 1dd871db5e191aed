"""The contract of a field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from .._checks import check_coords, check_dim, check_int
from .start import SCALING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..grids import KernelGrid

__all__ = ["Field"]


class Field(nn.Module):
    r"""A continuous function :math:`\mathbb{R}^D \to \mathbb{R}^N`: coordinates in, values out.

    A field knows nothing of layers. Whoever takes a field takes any callable that builds one from ``(dim, channels)``:
    a class of this package, or ``functools.partial(SIREN, omega_0=10)``.

    A subclass gives :meth:`evaluate` and :meth:`scale_`, :meth:`hidden_values` if it has any, and :meth:`max_frequency`
    where a closed form exists.

    Args:
        dim: number of coordinates D.
        channels: number of values N.
    """

    #: names of the published starting values that the field can be drawn with; see :mod:`.start`
    starts: ClassVar[tuple[str, ...]] = ()
    #: the one it was drawn with, if it has any
    start: str | None = None

    def __init__(self, dim: int, channels: int) -> None:
        super().__init__()
        self.dim = check_dim(dim)
        self.channels = check_int("channels", channels)

    def forward(self, coords: Tensor, channels: int | None = None) -> Tensor:
        """Return the values at ``coords``: (…, dim) to (…, channels), only the first ``channels`` of them if given.

        Inside autocast too the field is evaluated in the dtype of ``coords``: neighbouring positions of a long kernel
        are one number in bfloat16.
        """
        check_coords(coords, self.dim)
        with torch.autocast(coords.device.type, enabled=False):
            return self.evaluate(coords) if channels is None else self.evaluate_first(coords, channels)

    def evaluate(self, coords: Tensor) -> Tensor:
        """Return the values at checked ``coords``: (…, dim) to (…, channels)."""
        raise NotImplementedError

    def features(self, coords: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return what the last linear map is applied to: (…, dim) to (…, hidden); None for a field without one."""
        return None

    def readout(self) -> tuple[Tensor, Tensor]:
        """Return the last linear map, (channels, hidden) and (channels,), of a field that has :meth:`features`."""
        raise NotImplementedError

    def evaluate_first(self, coords: Tensor, channels: int) -> Tensor:
        """Return the first ``channels`` values at checked ``coords``; of a field with features, no others are made."""
        features = self.features(coords)
        if features is None:
            return self.evaluate(coords)[..., :channels]
        weight, bias = self.readout()
        return nn.functional.linear(features, weight.narrow(0, 0, channels), bias.narrow(0, 0, channels))

    def hidden_values(self) -> int:
        """Return how many values of one point :meth:`evaluate` holds at once on the way to those it returns."""
        return 0

    def alike(self) -> tuple[Any, ...] | None:
        """Return what fields must share to be evaluated by one :meth:`together`; None if each is alone."""
        return None

    @classmethod
    def together(cls, fields: Sequence[Field], coords: Tensor, channels: int | None = None) -> Tensor:
        """Return the values of several fields that are :meth:`alike`, at the same ``coords``.

        The same numbers as evaluating one after the other, in as few operations as one of them takes.

        Args:
            fields: n fields of this class.
            coords: (points, dim) coordinates.
            channels: how many values, the first ones; all if not given.

        Returns:
            (n, points, channels) values.
        """
        return torch.stack([field(coords, channels) for field in fields])

    @classmethod
    def on_grid(cls, fields: Sequence[Field], grid: KernelGrid, channels: int | None = None) -> Tensor | None:  # noqa: ARG003
        """Return the values of several fields that are :meth:`alike` on a regular grid, in a launch or two.

        Args:
            fields: n fields of this class.
            grid: where.
            channels: how many values, the first ones; all if not given.

        Returns:
            (n, channels, points) values; None for a field, or on a device, that has no kernel for it.
        """
        return None

    @torch.no_grad()
    def scale_(self, factor: float | Tensor) -> Field:
        """Multiply the field's values by ``factor`` from now on, by changing its last linear map in place."""
        raise NotImplementedError

    @property
    def scaling(self) -> str:
        """How a layer scales the field at first: "points", "measured" or "none"; see :data:`.start.SCALING`."""
        return "measured" if self.start is None else SCALING[self.start]

    def max_frequency(self) -> Tensor | None:
        """Return the highest frequency the field contains, in cycles per unit of coordinate; None if unknown."""
        return None

    def support(self) -> tuple[float, ...] | None:
        """Return how far from the origin along each axis the field may differ from zero; None if everywhere."""
        return None

    def extra_repr(self) -> str:
        return f"dim={self.dim}, channels={self.channels}"
