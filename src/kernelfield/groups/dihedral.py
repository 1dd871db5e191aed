"""Rotations by multiples of 2π/n and the reflection."""

from __future__ import annotations

from .._arguments import checked
from .._kinds import Int
from .cyclic import Cyclic
from .semidirect import RotationsAndMirror

__all__ = ["Dihedral"]


class Dihedral(RotationsAndMirror):
    """The n rotations of the plane by multiples of 2π/n and their mirror images; for n = 4 the group p4m.

    An element is (k, m): the index of its rotation, and 1 or -1. The rotations come first, then the mirrored ones.

    Args:
        n: number of rotations.

    >>> Dihedral(4).elements().T
    tensor([[ 0.,  1.,  2.,  3.,  0.,  1.,  2.,  3.],
            [ 1.,  1.,  1.,  1., -1., -1., -1., -1.]])
    """

    @checked(n=Int(1, 10_000))
    def __init__(self, n: int) -> None:
        super().__init__(Cyclic(n))
        self.n = n

    @property
    def kind(self) -> str:
        return repr(self)  # the meaning of an index depends on n

    def __repr__(self) -> str:
        return f"Dihedral({self.n})"
