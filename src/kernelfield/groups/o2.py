"""All rotations of the plane, and the mirror."""

from __future__ import annotations

from .._arguments import checked
from .._kinds import Choice
from .semidirect import RotationsAndMirror
from .so2 import SO2

__all__ = ["O2"]


class O2(RotationsAndMirror):
    """The rotations of the plane and their mirror images (chapter 11); with translations the group E(2).

    An element is (angle, m) with m = 1 or -1. Samples come in pairs: each rotation with and without the mirror.

    Args:
        chart: coordinates of rotations at which kernels are sampled, "algebra" or "circle"; see
            :class:`~kernelfield.groups.SO2`.

    >>> import torch
    >>> O2().spread(4, torch.tensor([0.5])).T / torch.tensor([[torch.pi], [1.0]])
    tensor([[-0.5000,  0.5000, -0.5000,  0.5000],
            [ 1.0000,  1.0000, -1.0000, -1.0000]])
    """

    @checked(chart=Choice("algebra", "circle"))
    def __init__(self, chart: str = "algebra") -> None:
        super().__init__(SO2(chart))

    @property
    def kind(self) -> str:
        return type(self).__name__  # the chart does not change the elements
