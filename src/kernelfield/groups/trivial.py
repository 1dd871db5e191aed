"""The group of one element."""

from __future__ import annotations

import torch
from torch import Tensor

from .._arguments import checked
from .._kinds import Int
from .base import Group

__all__ = ["Trivial"]


class Trivial(Group):
    """The group of the identity alone: its group convolutions are ordinary convolutions.

    Its element has one coordinate, which is zero. Signals keep a group axis of length one.

    Args:
        dim: number of dimensions of space.

    >>> Trivial().elements()
    tensor([[0.]])
    """

    order = 1
    table_size = (1,)
    on_grid = True

    @checked(dim=Int(1, 3))
    def __init__(self, dim: int = 2) -> None:
        self.dim = dim

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def inverse(self, a: Tensor) -> Tensor:
        return a

    def exp(self, v: Tensor) -> Tensor:
        return torch.zeros_like(v)

    def log(self, a: Tensor) -> Tensor:
        return a

    def chart(self, a: Tensor) -> Tensor:
        return a

    def matrix(self, a: Tensor) -> Tensor:
        eye = torch.eye(self.dim, dtype=a.dtype, device=a.device)
        return eye.expand(*a.shape[:-1], self.dim, self.dim)

    def generator(self, v: Tensor) -> Tensor:
        return v.new_zeros(*v.shape[:-1], self.dim, self.dim)

    def elements(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        return torch.zeros(1, 1, dtype=dtype or torch.get_default_dtype(), device=device)
