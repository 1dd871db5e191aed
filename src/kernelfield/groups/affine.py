"""Translations of space together with a group that acts on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._arguments import checked
from .._kinds import Int, Number
from .base import Group
from .grid import may_check
from .o2 import O2
from .scale import Scale
from .so2 import SO2

__all__ = ["E2", "SE2", "Affine", "scale_translation"]


class Affine(Group):
    r"""The semi-direct product of the translations of :math:`\mathbb{R}^d` and a group H (chapter 8, Eq. 4).

    .. math:: (x_1, h_1)(x_2, h_2) = (x_1 + h_1 x_2,\; h_1 h_2), \qquad (x, h)^{-1} = (-h^{-1} x,\; h^{-1})

    The coordinates of an element are its translation and then its element of H. The exponential is that of the affine
    matrix: with generator a of h, :math:`x = V(a)\, v`, :math:`V(a) = \sum_k a^k / (k + 1)!`.

    Args:
        group: the group H.

    >>> from kernelfield.groups import Cyclic
    >>> p4 = Affine(Cyclic(4))
    >>> g = torch.tensor([1.0, 0.0, 1.0])               # a quarter turn, then one step down
    >>> p4.act_on(g, torch.tensor([1.0, 0.0])).round()
    tensor([1., 1.])
    >>> p4.product(g, p4.inverse(g)).abs().round()
    tensor([0., 0., 0.])
    """

    @checked()
    def __init__(self, group: Group) -> None:
        self.group = group
        self.dim = group.dim
        self.coords = group.dim + group.coords
        self.identity_coords = (0.0,) * group.dim + group.identity_coords
        self.chart_size = group.dim + group.chart_size
        self.on_grid = group.on_grid
        self.isometric = group.isometric

    def split(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return the translation (…, dim) and the element of H."""
        return a[..., : self.dim], a[..., self.dim :]

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        (x, h), (y, k) = self.split(a), self.split(b)
        return self._pair(x + self.group.act_on(h, y), self.group.product(h, k))

    def inverse(self, a: Tensor) -> Tensor:
        x, h = self.split(a)
        back = self.group.inverse(h)
        return self._pair(-self.group.act_on(back, x), back)

    def exp(self, v: Tensor) -> Tensor:
        x, u = self.split(v)
        return self._pair((self._jacobian(u) @ x.unsqueeze(-1)).squeeze(-1), self.group.exp(u))

    def log(self, a: Tensor) -> Tensor:
        x, h = self.split(a)
        u = self.group.log(h)
        jacobian = self._jacobian(u)
        solved = torch.linalg.solve_ex(jacobian, x.unsqueeze(-1), check_errors=may_check(jacobian)).result
        return self._pair(solved.squeeze(-1), u)

    def chart(self, a: Tensor) -> Tensor:
        x, h = self.split(a)
        return self._pair(x, self.group.chart(h))

    def matrix(self, a: Tensor) -> Tensor:
        """Return the linear part of the action."""
        return self.group.matrix(self.split(a)[1])

    def act_on(self, a: Tensor, x: Tensor) -> Tensor:
        return self.split(a)[0] + super().act_on(a, x)

    def density(self, a: Tensor) -> Tensor:
        return self.group.density(self.split(a)[1]) / self.determinant(a)

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        """Return √(d(space)² + d(H)²), both distances measured in the frame of ``a``: (…)."""
        x, h = self.split(self.relative(a, b))
        return torch.hypot(x.norm(dim=-1), self.group.distance(h, self.group.identity(h.dtype, h.device)))

    def _jacobian(self, u: Tensor) -> Tensor:
        # exp of the block matrix [[a, 1], [0, 0]] holds V(a) in its upper right corner.
        a = self.group.generator(u)
        eye = torch.eye(self.dim, dtype=a.dtype, device=a.device).expand_as(a)
        upper = torch.cat([a, eye], dim=-1)
        block = torch.cat([upper, torch.zeros_like(upper)], dim=-2)
        return torch.linalg.matrix_exp(block)[..., : self.dim, self.dim :]

    def _pair(self, x: Tensor, h: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(x.shape[:-1], h.shape[:-1])
        return torch.cat([x.expand(*shape, -1), h.expand(*shape, -1)], dim=-1)

    def _shift(self, element: Tensor) -> Tensor:
        return self.split(element)[0]

    def _draw(self, n: int, generator: torch.Generator | None, **factory: Any) -> Tensor:
        """Draw elements with translations uniform in [-1, 1]^dim; unbounded space has no uniform distribution."""
        x = torch.rand(n, self.dim, generator=generator, **factory) * 2 - 1
        return self._pair(x, self.group.sample(n, generator=generator, **factory))

    @property
    def kind(self) -> str:
        return f"Affine({self.group.kind})"

    def __repr__(self) -> str:
        return f"Affine({self.group!r})"


def SE2() -> Affine:  # noqa: N802
    """Return the translations and rotations of the plane.

    >>> SE2().identity()
    tensor([0., 0., 0.])
    """
    return Affine(SO2())


def E2() -> Affine:  # noqa: N802
    """Return the translations, rotations and reflections of the plane.

    >>> E2().identity()
    tensor([0., 0., 0., 1.])
    """
    return Affine(O2())


@checked(n=Int(1, 10_000), base=Number(1, without_low=True), dim=Int(1, 3))
def scale_translation(n: int, base: float = 2.0, *, dim: int = 1) -> Affine:
    """Return the translations and dilations of space.

    Args:
        n: number of dilations in the window.
        base: ratio of neighbouring dilations, above 1.
        dim: number of dimensions of space.

    >>> scale_translation(3).act_on(torch.tensor([5.0, 2.0]), torch.tensor([1.0]))      # 5 + 2² · 1
    tensor([9.])
    """
    return Affine(Scale(n, base, dim=dim))
