"""The group of one element."""

from __future__ import annotations

import torch
from torch import Tensor

from .mirror import SelfInverse

__all__ = ["Trivial"]


class Trivial(SelfInverse):
    """The group with a single element, the identity. Group convolutions on it are ordinary convolutions.

    Its element has one coordinate, which is zero. Signals keep a group axis of length one.

    Args:
        dim: number of dimensions of space.

    >>> Trivial().elements()
    tensor([[0.]])
    """

    order = 1
    table_size = (1,)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def exp(self, v: Tensor) -> Tensor:
        return torch.zeros_like(v)

    def matrix(self, a: Tensor) -> Tensor:
        eye = torch.eye(self.dim, dtype=a.dtype, device=a.device)
        return eye.expand(*a.shape[:-1], self.dim, self.dim)

    def elements(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        return torch.zeros(1, 1, dtype=dtype or torch.get_default_dtype(), device=device)
