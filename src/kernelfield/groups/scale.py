"""Dilations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._arguments import checked
from .._kinds import LARGEST, Int, Number
from .base import Group, strata

__all__ = ["Scale"]

_ABOVE_1 = Number(1, without_low=True)


class Scale(Group):
    r"""Dilations of space by powers of a base (chapter 10); layers use a finite window of them.

    An element is its exponent k, the dilation by :math:`\mathrm{base}^k`. The group is infinite; :meth:`elements`
    lists the n dilations 1, base, …, base^(n-1), a window that is not closed under products. A ``continuous`` window
    holds all exponents between 0 and n - 1, and layers draw some of them.

    Exponents have uniform measure, which is ds/s for dilations s. On this exponential grid the factor 1/s² of the Haar
    measure of dilations and translations becomes 1/s (chapter 10, section 5.2.2).

    Args:
        n: number of dilations in the window.
        base: ratio of neighbouring dilations, above 1.
        dim: number of dimensions of space.
        continuous: whether the window also contains all dilations between these.

    >>> group = Scale(3, base=2.0)
    >>> group.matrix(group.elements()).flatten()
    tensor([1., 2., 4.])
    >>> group.determinant(group.inverse(torch.tensor([2.0])))
    tensor(0.2500)
    """

    isometric = False
    convolution = "filter_bank"
    ordered = True

    @checked(n=Int(1, 10_000), base=_ABOVE_1, dim=Int(1, 3))
    def __init__(self, n: int, base: float = 2.0, *, dim: int = 1, continuous: bool = False) -> None:
        if (n - 1) * math.log(base) > math.log(LARGEST):
            raise ValueError(f"n and base must give dilations of at most {LARGEST:g}, got n={n} and base={base}")
        self.n, self.base, self.dim, self.continuous = n, float(base), dim, continuous
        self.order = None if continuous else self.n
        # Two dilations of the window are up to n - 1 powers apart, in either direction.
        self.table_size = None if continuous else (2 * self.n - 1,)

    @classmethod
    @checked(base=_ABOVE_1, dim=Int(1, 3))
    def fitting(
        cls, length: int, kernel_size: int, base: float = 2.0, *, dim: int = 1, continuous: bool = False
    ) -> Scale:
        r"""Return the dilations at which a kernel is no longer than the signal (chapter 10, section 5.2.2).

        The smallest is 1, because a shrunken kernel can do nothing that the kernel cannot do at its own size. The
        largest is the last base^k for which ``kernel_size`` · base^k is at most ``length``.

        Args:
            length: number of samples of the signal.
            kernel_size: number of samples of the kernel at dilation 1.
            base: ratio of neighbouring dilations, above 1.
            dim: number of dimensions of space.
            continuous: whether the window also contains all dilations between these.

        >>> Scale.fitting(80_200, 79), Scale.fitting(8_000, 79, base=1.5)
        (Scale(10, base=2.0, dim=1), Scale(12, base=1.5, dim=1))
        """
        if kernel_size > length:
            raise ValueError(f"kernel_size must be at most length, {length}, got {kernel_size}")
        # A small margin keeps rounding from losing a power that fits exactly.
        n = math.floor(math.log(length / kernel_size) / math.log(base) + 1e-9) + 1
        return cls(n, base, dim=dim, continuous=continuous)

    @checked(factor=Number(1))
    def pooled(self, factor: float) -> Scale:
        r"""Return the window after pooling by ``factor``, without the ⌊log_base(factor)⌋ largest dilations.

        Chapter 10, section 5.2.2.

        >>> Scale(9).pooled(4), Scale(9).pooled(8), Scale(2).pooled(100)
        (Scale(7, base=2.0, dim=1), Scale(6, base=2.0, dim=1), Scale(1, base=2.0, dim=1))
        """
        return self.shortened(math.floor(math.log(factor) / math.log(self.base) + 1e-9))

    def shortened(self, count: int) -> Scale:
        """Return the window without its ``count`` largest dilations; at least one is left."""
        return Scale(max(1, self.n - count), self.base, dim=self.dim, continuous=self.continuous)

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
        if self.continuous:
            return super().elements(dtype, device)
        return torch.arange(self.n, dtype=dtype or torch.get_default_dtype(), device=device)[:, None]

    def spread(self, n: int, at: Tensor) -> Tensor:
        """Return n exponents, one from each of n equal parts of the window, at the fraction ``at`` of each part."""
        if not self.continuous:
            return super().spread(n, at)
        return ((strata(n, at) + 1) * ((self.n - 1) / 2))[:, None]

    @checked()
    def weight(self, n: int) -> float:
        """Return the measure of one of ``n`` elements, where the step between neighbouring dilations has measure 1."""
        return (self.n - 1) / n if self.continuous and self.n > 1 else 1.0

    def stretch(self) -> float:
        """Return the largest dilation of the window."""
        return self.base ** (self.n - 1)

    def stretches(self) -> tuple[float, ...]:
        """Return the dilations of the window."""
        return tuple(self.base**k for k in range(self.n))

    @property
    def window(self) -> int:
        return self.n

    @property
    def kind(self) -> str:
        return f"Scale(base={self.base})"  # the meaning of an exponent depends on the base

    def __repr__(self) -> str:
        more = ", continuous=True" if self.continuous else ""
        return f"Scale({self.n}, base={self.base}, dim={self.dim}{more})"
