"""Base class of Dihedral and O2: rotations and the mirror."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .base import Group
from .mirror import Mirror

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RotationsAndMirror"]


class RotationsAndMirror(Group):
    r"""Rotations of the plane with the mirror: an element (r, m) acts as R(r)M(m), a reflection followed by a rotation.

    Conjugation by the mirror inverts rotations, :math:`M R(r) M = R(-r)`, so the product is semi-direct:

    .. math:: (r_1, m_1)(r_2, m_2) = (r_1 r_2^{m_1},\; m_1 m_2), \qquad (r, m)^{-1} = (r^{-m}, m)
    """

    dim = 2
    coords = 2
    identity_coords = (0.0, 1.0)

    def __init__(self, rotations: Group) -> None:
        self.rotations, self.mirror = rotations, Mirror()
        self.chart_size = rotations.chart_size + 1
        self.on_grid = rotations.on_grid
        if rotations.order is not None and rotations.table_size is not None:
            self.order = 2 * rotations.order
            self.table_size = (2, *rotations.table_size)

    @property
    def factors(self) -> tuple[Group, ...]:
        return (self.mirror, self.rotations)

    def assemble(self, parts: Sequence[Tensor]) -> Tensor:
        sign, turn = parts
        return torch.cat([turn, sign], dim=-1)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        turn = self.rotations.product(a[..., :1], a[..., 1:] * b[..., :1])
        return torch.cat(torch.broadcast_tensors(turn, a[..., 1:] * b[..., 1:]), dim=-1)

    def inverse(self, a: Tensor) -> Tensor:
        # r^m: the power of a rotation is its index or angle times the sign.
        turn = self.rotations.inverse(a[..., 1:] * a[..., :1])
        return torch.cat([turn, a[..., 1:]], dim=-1)

    def exp(self, v: Tensor) -> Tensor:
        return torch.cat([self.rotations.exp(v[..., :1]), self.mirror.exp(v[..., 1:])], dim=-1)

    def log(self, a: Tensor) -> Tensor:
        return torch.cat([self.rotations.log(a[..., :1]), a[..., 1:]], dim=-1)

    def chart(self, a: Tensor) -> Tensor:
        return torch.cat([self.mirror.chart(a[..., 1:]), self.rotations.chart(a[..., :1])], dim=-1)

    def matrix(self, a: Tensor) -> Tensor:
        return self.rotations.matrix(a[..., :1]) @ self.mirror.matrix(a[..., 1:])

    def generator(self, v: Tensor) -> Tensor:
        return self.rotations.generator(v[..., :1])
