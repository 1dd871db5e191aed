"""Rotations by multiples of 2π/n."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._arguments import checked
from .._kinds import Int
from .base import Group, wrap
from .rotation import rotation_generator, rotation_matrix

__all__ = ["Cyclic", "index_chart"]


class Cyclic(Group):
    r"""The n rotations of the plane by multiples of :math:`2\pi/n`; with translations and n = 4 the group p4.

    An element is its index k: the counterclockwise rotation by :math:`2\pi k/n`, as by ``torch.rot90``.

    Args:
        n: number of rotations.

    >>> group = Cyclic(4)
    >>> group.elements().squeeze(-1)
    tensor([0., 1., 2., 3.])
    >>> group.product(torch.tensor([3.0]), torch.tensor([2.0]))
    tensor([1.])
    >>> x = torch.randn(1, 1, 5, 5)
    >>> group.act(torch.tensor([1.0]), x).equal(torch.rot90(x, 1, (-2, -1)))
    True
    """

    dim = 2

    @checked(n=Int(1, 10_000))
    def __init__(self, n: int) -> None:
        self.order = self.n = n
        self.table_size = (self.n,)
        self.on_grid = 4 % self.n == 0

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.remainder(a + b, self.n)

    def inverse(self, a: Tensor) -> Tensor:
        return torch.remainder(-a, self.n)

    def exp(self, v: Tensor) -> Tensor:
        return torch.remainder(torch.round(v * (self.n / (2 * math.pi))), self.n)

    def log(self, a: Tensor) -> Tensor:
        return wrap(a * (2 * math.pi / self.n), margin=1e-4)

    def chart(self, a: Tensor) -> Tensor:
        return index_chart(a, self.n)

    def matrix(self, a: Tensor) -> Tensor:
        return rotation_matrix(a[..., 0] * (2 * math.pi / self.n))

    def generator(self, v: Tensor) -> Tensor:
        return rotation_generator(v[..., 0])

    def elements(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        return torch.arange(self.n, dtype=dtype or torch.get_default_dtype(), device=device)[:, None]

    @property
    def kind(self) -> str:
        return repr(self)  # the meaning of an index depends on n

    def __repr__(self) -> str:
        return f"Cyclic({self.n})"


def index_chart(index: Tensor, n: int) -> Tensor:
    """Map the indices of n rotations to nodes of a table on [-1, 1], in the order -n/2, …, 0, … of signed rotations.

    >>> index_chart(torch.arange(5.0), 5)
    tensor([ 0.0000,  0.5000,  1.0000, -1.0000, -0.5000])
    """
    if n == 1:
        return torch.zeros_like(index)
    return torch.remainder(index + n // 2, n) * (2 / (n - 1)) - 1
