"""Fields that are linear in their coefficients: B-splines (chapter 10) and plain tables of weights."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._arguments import checked, with_arguments_of
from .._checks import per_axis
from .._kinds import FINITE, POSITIVE, Int, PerAxis
from .._object_kinds import TensorOf
from .base import Field

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BSpline", "Table", "cardinal_bspline"]

#: highest degree for which the closed form is used; at higher degrees large terms cancel and lose accuracy
_CLOSED_FORM_UP_TO = 7


@checked(x=TensorOf("float"), order=Int(0, 100))
def cardinal_bspline(x: Tensor, order: int) -> Tensor:
    r"""Return the cardinal B-spline of degree ``order``, a box convolved ``order`` times with itself.

    .. math:: B^n(x) = \frac{1}{n!} \sum_{k=0}^{n+1} (-1)^k \binom{n+1}{k} \big(\tfrac{n+1}{2} - |x| - k\big)_+^n

    It is exactly zero outside its support :math:`|x| < (n+1)/2`.

    Args:
        x: (…) coordinates.
        order: degree n; 0 is a box, 1 a triangle.

    Returns:
        (…) values.

    >>> cardinal_bspline(torch.tensor([-1.5, 0.0, 0.5, 1.0]), order=2)
    tensor([0.0000, 0.7500, 0.5000, 0.1250])
    """
    if order == 0:  # a box; half open, so that shifted boxes tile the line
        return ((x > -0.5) & (x <= 0.5)).to(x.dtype)
    if order > _CLOSED_FORM_UP_TO:
        return _by_recursion(x.abs(), order)
    edge = (order + 1) / 2
    distance = x.abs()
    total = torch.zeros_like(x)
    for k in range(int(edge) + 1):
        total = total + ((-1) ** k * math.comb(order + 1, k)) * (edge - k - distance).clamp(min=0).pow(order)
    return total / math.factorial(order)


def _by_recursion(x: Tensor, order: int) -> Tensor:
    """Return the cardinal B-spline by de Boor's recursion over degrees, which adds only positive terms."""
    at = x.unsqueeze(-1) + order / 2 - torch.arange(order + 1, dtype=x.dtype, device=x.device)
    values = cardinal_bspline(at, 0)
    for degree in range(1, order + 1):
        at, edge = at[..., :-1] - 0.5, (degree + 1) / 2
        values = ((edge + at) * values[..., :-1] + (edge - at) * values[..., 1:]) / degree
    return values.squeeze(-1)


class BSpline(Field):
    r"""A sum of B-splines on a lattice (chapter 10, section 5.2.1): :math:`\psi(x) = \sum_k c_k B^n((x - x_k)/h)`.

    In more dimensions the basis is the product over the axes. The centres :math:`x_k` are ``spacing`` apart; they lie
    symmetrically around the origin or begin at ``first``. The value at a point depends on ``order + 1`` coefficients
    per axis, and only those are read.

    Dilation is exact: a field with the same coefficients and ``spacing`` s·h has at x the value of this field at x/s.

    Args:
        dim: number of coordinates.
        channels: number of values.
        size: number of centres, one for all axes or one per axis.
        order: degree n of the splines, one for all axes or one per axis; 0 is a box, 1 linear, 2 quadratic.
        spacing: distance h between centres, one for all axes or one per axis; by default the outermost centres lie at
            -1 and 1.
        first: the first centre along each axis; by default the centres lie symmetrically around the origin.

    >>> spline = BSpline(dim=1, channels=4, size=5)
    >>> spline(torch.linspace(-1, 1, 9)[:, None]).shape
    torch.Size([9, 4])
    """

    lattice = "spline"

    @checked(order=PerAxis(Int(0, 100)), spacing=PerAxis(POSITIVE) | None, first=FINITE | None)
    def __init__(
        self,
        dim: int,
        channels: int,
        *,
        size: int | Sequence[int] = 7,
        order: int | Sequence[int] = 2,
        spacing: float | Sequence[float] | None = None,
        first: float | None = None,
    ) -> None:
        super().__init__(dim, channels)
        self.size, self.order = per_axis(size, dim), per_axis(order, dim)
        if spacing is None:
            self.spacing = tuple(2 / (n - 1) if n > 1 else 1.0 for n in self.size)
        else:
            self.spacing = tuple(map(float, per_axis(spacing, dim)))
        # Index of the origin among the centres; a fraction lies between two centres.
        self.origin = tuple(
            (n - 1) / 2 if first is None else -first / h for n, h in zip(self.size, self.spacing, strict=True)
        )
        self.coefficients = nn.Parameter(torch.randn(math.prod(self.size), channels))

    def evaluate(self, coords: Tensor) -> Tensor:
        axes = [self._taps(coords[..., d], d) for d in range(self.dim)]
        values = coords.new_zeros(())
        for taps in itertools.product(*(range(len(axis)) for axis in axes)):
            index, weight = axes[0][taps[0]]
            for d in range(1, self.dim):
                i, w = axes[d][taps[d]]
                index, weight = index * self.size[d] + i, weight * w
            values = values + weight.unsqueeze(-1) * nn.functional.embedding(index, self.coefficients)
        return values

    def _taps(self, x: Tensor, axis: int) -> list[tuple[Tensor, Tensor]]:
        """Return, for one axis, the index and the weight of each of the ``order + 1`` coefficients that x sees."""
        count, order = self.size[axis], self.order[axis]
        at = x / self.spacing[axis] + self.origin[axis]
        first = torch.ceil(at - (order + 1) / 2)
        taps = []
        for k in range(order + 1):
            centre = first + k
            weight = cardinal_bspline(at - centre, order)
            inside = (centre >= 0) & (centre < count)
            taps.append((centre.clamp(0, count - 1).long(), torch.where(inside, weight, 0.0)))
        return taps

    def support(self) -> tuple[float, ...]:
        return tuple(
            max(origin, n - 1 - origin) * h + (order + 1) / 2 * h
            for n, origin, h, order in zip(self.size, self.origin, self.spacing, self.order, strict=True)
        )

    @torch.no_grad()
    def scale_(self, factor: float | Tensor) -> BSpline:
        self.coefficients.mul_(factor)
        return self

    def extra_repr(self) -> str:
        order = self.order[0] if len(set(self.order)) == 1 else self.order
        return f"{super().extra_repr()}, size={self.size}, order={order}"


class Table(BSpline):
    r"""One weight per point of a grid on :math:`[-1, 1]^D`, with multilinear interpolation between the points.

    This is the ordinary convolution kernel as a field: a spline of order 1 on the grid. Outside the grid it falls to
    zero within one grid step.

    Args:
        dim: number of coordinates.
        channels: number of values.
        size: number of grid points, one for all axes or one per axis.
        spacing: distance between grid points; by default the outermost lie at -1 and 1.
        first: the first grid point along each axis; by default the points lie symmetrically around the origin.

    >>> table = Table(dim=1, channels=1, size=3)
    >>> table(torch.tensor([[-1.0], [0.0], [1.0]])).equal(table.coefficients)
    True
    >>> table(torch.tensor([[0.5]])).equal(table.coefficients[1:].mean(dim=0, keepdim=True))
    True
    """

    lattice = "table"

    @checked()
    @with_arguments_of(BSpline.__init__, without=("order",))
    def __init__(self, dim: int, channels: int, *, size: int | Sequence[int] = 3, **options: Any) -> None:
        super().__init__(dim, channels, size=size, order=1, **options)
