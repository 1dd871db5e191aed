"""All rotations of the plane."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._arguments import checked
from .._kinds import Choice
from .base import Group, strata, wrap
from .rotation import rotation_generator, rotation_matrix

__all__ = ["SO2", "angle_chart"]

#: Distance of the branch cut from half a turn. A cut at half a turn would let rounding choose the sign of the angle.
MARGIN = 1e-4


class SO2(Group):
    r"""The rotations of the plane (chapter 11); with translations the group SE(2).

    An element is its angle in :math:`[-\pi, \pi)`, which is also its logarithm.

    Args:
        chart: coordinates at which kernels are sampled. "algebra": angle/π, which is discontinuous at half a turn only.
            "circle": (cos, sin), which is continuous everywhere.

    >>> group = SO2()
    >>> group.product(torch.tensor([3.0]), torch.tensor([3.0])) + 2 * torch.pi
    tensor([6.])
    >>> group.spread(4, torch.tensor([0.5])).squeeze(-1) / torch.pi
    tensor([-0.7500, -0.2500,  0.2500,  0.7500])
    """

    dim = 2

    @checked(chart=Choice("algebra", "circle"))
    def __init__(self, chart: str = "algebra") -> None:
        self.chart_kind = chart
        self.chart_size = 1 if chart == "algebra" else 2

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return wrap(a + b)

    def inverse(self, a: Tensor) -> Tensor:
        return wrap(-a)

    def exp(self, v: Tensor) -> Tensor:
        return wrap(v)

    def log(self, a: Tensor) -> Tensor:
        return wrap(a, MARGIN)

    def chart(self, a: Tensor) -> Tensor:
        return angle_chart(a, self.chart_kind)

    def matrix(self, a: Tensor) -> Tensor:
        return rotation_matrix(a[..., 0])

    def generator(self, v: Tensor) -> Tensor:
        return rotation_generator(v[..., 0])

    def spread(self, n: int, at: Tensor) -> Tensor:
        return math.pi * strata(n, at)[:, None]

    @property
    def kind(self) -> str:
        return type(self).__name__  # the chart does not change the elements

    def __repr__(self) -> str:
        return "SO2()" if self.chart_kind == "algebra" else f"SO2(chart={self.chart_kind!r})"


def angle_chart(angle: Tensor, kind: str) -> Tensor:
    """Return kernel coordinates of angles (…, 1): (…, 1) for "algebra", (…, 2) for "circle"."""
    if kind == "circle":
        return torch.cat([angle.cos(), angle.sin()], dim=-1)
    return wrap(angle, MARGIN) / math.pi
