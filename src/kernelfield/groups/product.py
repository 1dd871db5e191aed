"""Direct products of groups."""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._object_kinds import Instance
from .base import Group

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Product"]


class Product(Group):
    """The direct product of groups whose actions commute, such as rotations and dilations.

    An element is the concatenation of one element of each factor.

    Args:
        groups: two or more factors. Rotations do not commute with the mirror; use ``Dihedral`` or ``O2`` for both.

    >>> from kernelfield.groups import Cyclic, Scale
    >>> group = Product(Scale(2, dim=2), Cyclic(4))
    >>> group.elements().shape
    torch.Size([8, 2])
    """

    def __init__(self, *groups: Group) -> None:
        if len(groups) < 2:
            raise ValueError(f"groups must hold at least two groups, got {len(groups)}")
        for group in groups:
            Instance("kernelfield.groups.Group").check("groups", group)
        dims = {group.dim for group in groups}
        if len(dims) != 1:
            raise ValueError(f"groups must act on one space, got dims {sorted(dims)}")
        self.groups = groups
        self.dim = dims.pop()
        self.coords = sum(group.coords for group in groups)
        self.chart_size = sum(group.chart_size for group in groups)
        self.identity_coords = tuple(c for group in groups for c in group.identity_coords)
        self.on_grid = all(group.on_grid for group in groups)
        self.isometric = all(group.isometric for group in groups)
        if all(group.order is not None for group in groups):
            self.order = math.prod(group.order or 1 for group in groups)
            self.table_size = tuple(n for group in groups for n in group.table_size or ())
        for a, b in combinations(groups, 2):
            _check_commute(a, b)

    @property
    def factors(self) -> tuple[Group, ...]:
        return tuple(factor for group in self.groups for factor in group.factors)

    def assemble(self, parts: list[Tensor] | tuple[Tensor, ...]) -> Tensor:  # type: ignore[override]
        pieces, rest = [], list(parts)
        for group in self.groups:
            mine, rest = rest[: len(group.factors)], rest[len(group.factors) :]
            pieces.append(group.assemble(mine))
        return torch.cat(pieces, dim=-1)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        pairs = zip(self._split(a), self._split(b), strict=True)
        parts = [group.product(x, y) for group, (x, y) in zip(self.groups, pairs, strict=True)]
        return torch.cat(parts, dim=-1)

    def inverse(self, a: Tensor) -> Tensor:
        return self._each(a, lambda group, part: group.inverse(part))

    def exp(self, v: Tensor) -> Tensor:
        return self._each(v, lambda group, part: group.exp(part))

    def log(self, a: Tensor) -> Tensor:
        return self._each(a, lambda group, part: group.log(part))

    def chart(self, a: Tensor) -> Tensor:
        return self._each(a, lambda group, part: group.chart(part))

    def matrix(self, a: Tensor) -> Tensor:
        first, *rest = (group.matrix(part) for group, part in zip(self.groups, self._split(a), strict=True))
        for matrix in rest:
            first = first @ matrix
        return first

    def generator(self, v: Tensor) -> Tensor:
        parts = [group.generator(part) for group, part in zip(self.groups, self._split(v), strict=True)]
        return torch.stack(parts).sum(dim=0)

    def _split(self, a: Tensor) -> tuple[Tensor, ...]:
        return a.split([group.coords for group in self.groups], dim=-1)

    def _each(self, a: Tensor, function: Callable[[Group, Tensor], Tensor]) -> Tensor:
        return torch.cat([function(g, part) for g, part in zip(self.groups, self._split(a), strict=True)], dim=-1)

    @property
    def kind(self) -> str:
        return f"Product({', '.join(group.kind for group in self.groups)})"

    def __repr__(self) -> str:
        return f"Product({', '.join(map(repr, self.groups))})"


def _check_commute(a: Group, b: Group) -> None:
    first, second = (group.matrix(_some_elements(group)) for group in (a, b))
    swapped = first[:, None] @ second - second @ first[:, None]
    if float(swapped.abs().max()) > 1e-4:
        raise ValueError(f"groups must act by matrices that commute, got {a} and {b}")


def _some_elements(group: Group) -> Tensor:
    if group.order is not None:
        return group.elements()
    return group.sample(16, generator=torch.Generator().manual_seed(0))
