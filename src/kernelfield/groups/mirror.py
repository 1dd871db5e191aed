"""The reflection of one axis."""

from __future__ import annotations

import torch
from torch import Tensor

from .._arguments import checked
from .._kinds import Int
from .base import Group
from .rotation import mirror_matrix

__all__ = ["Mirror"]


class SelfInverse(Group):
    """Base class of groups whose elements are their own inverses, logarithms and chart coordinates.

    Args:
        dim: number of dimensions of space.
    """

    on_grid = True

    @checked(dim=Int(1, 3))
    def __init__(self, dim: int = 2) -> None:
        self.dim = dim

    def inverse(self, a: Tensor) -> Tensor:
        return a

    log = chart = inverse

    def generator(self, v: Tensor) -> Tensor:
        return v.new_zeros(*v.shape[:-1], self.dim, self.dim)


class Mirror(SelfInverse):
    """The identity and the reflection of the last axis of space, which swaps left and right in an image.

    An element is its sign, 1 or -1.

    Args:
        dim: number of dimensions of space.

    >>> group = Mirror()
    >>> group.elements().squeeze(-1)
    tensor([ 1., -1.])
    >>> x = torch.randn(1, 1, 5, 5)
    >>> group.act(torch.tensor([-1.0]), x).equal(x.flip(-1))
    True
    """

    order = 2
    identity_coords = (1.0,)
    table_size = (2,)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def exp(self, v: Tensor) -> Tensor:
        return torch.where(v < 0, -1.0, 1.0).to(v.dtype)

    def matrix(self, a: Tensor) -> Tensor:
        return mirror_matrix(a[..., 0], self.dim)

    def elements(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        # Computed on the device, because a copy of a Python list would wait for the device.
        return 1 - 2 * torch.arange(2, dtype=dtype or torch.get_default_dtype(), device=device)[:, None]
