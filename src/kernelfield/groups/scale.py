"""Dilations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._checks import check_int, check_positive
from .base import Group, check_space

__all__ = ["Scale"]


class Scale(Group):
    r"""The dilations of space by powers of a base (chapter 10), of which a layer sees n.

    An element is its exponent k, the dilation by :math:`\mathrm{base}^k`. The group is infinite; :meth:`elements`
    lists the n dilations 1, base, …, base^(n-1), a window that products may leave.

    Args:
        n: number of dilations in the window.
        base: ratio of one to the next, above 1.
        dim: number of dimensions of space.

    >>> group = Scale(3, base=2.0)
    >>> group.matrix(group.elements()).flatten()
    tensor([1., 2., 4.])
    >>> group.determinant(group.inverse(torch.tensor([2.0])))
    tensor(0.2500)
    """

    isometric = False

    def __init__(self, n: int, base: float = 2.0, *, dim: int = 1) -> None:
        self.order = self.n = check_int("n", n)
        if check_positive("base", base) <= 1:
            raise ValueError(f"base must be above 1, got {base}")
        self.base = float(base)
        self.dim = check_space(dim, 1, 2, 3)
        # Two dilations of the window are up to n - 1 powers apart, in either direction.
        self.table_size = (2 * self.n - 1,)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def inverse(self, a: Tensor) -> Tensor:
        return -a

    def exp(self, v: Tensor) -> Tensor:
        return v / math.log(self.base)

    def log(self, a: Tensor) -> Tensor:
        return a * math.log(self.base)

    def chart(self, a: Tensor) -> Tensor:
        return a / max(self.n - 1, 1)

    def matrix(self, a: Tensor) -> Tensor:
        eye = torch.eye(self.dim, dtype=a.dtype, device=a.device)
        return torch.pow(self.base, a)[..., None] * eye

    def generator(self, v: Tensor) -> Tensor:
        return v[..., None] * torch.eye(self.dim, dtype=v.dtype, device=v.device)

    def elements(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        return torch.arange(self.n, dtype=dtype or torch.get_default_dtype(), device=device)[:, None]

    def __repr__(self) -> str:
        return f"Scale({self.n}, base={self.base}, dim={self.dim})"
