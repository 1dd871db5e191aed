"""Kernels on a group: one field, sampled for all pairs of output and input elements at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..._checks import check_int
from ...fields import Field, Table
from ...groups import Group

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GroupKernel"]


class GroupKernel(nn.Module):
    r"""A kernel :math:`\psi: \mathbb{R}^d \rtimes H \to \mathbb{R}^{out \times in}`, moved to all elements of its output.

    .. math:: k_{oi}(h, \tilde h, x) = |\det h|^{-1}\; \psi_{oi}(h^{-1} \tilde h,\; h^{-1} x)

    for output elements h, input elements :math:`\tilde h`, and offsets x on a grid with its outermost points at ±1.

    A :class:`~kernelfield.fields.Table` on a group that maps the grid to itself has all these points on its nodes: the
    kernel is then a permuted copy of the table. Any other field is evaluated at the moved points. Where the group does
    not map the grid to itself, points further than 1 from the centre are zero, so that what lies in the corners of the
    grid does not come and go as the kernel turns.

    Args:
        group: the group H.
        field: builds the field from (dim, channels), dim being ``group.chart_size + group.dim``, or one of the two if
            the kernel lives on the group or on space alone. The class ``Table`` is given the size it needs.
        out_channels: number of outputs.
        in_channels: number of inputs.
        kernel_size: number of points along each axis of space.
        on_group: whether the kernel depends on the group element (a lifting kernel does not).
        on_space: whether it depends on the position; only with ``kernel_size=1`` it need not.
        fan_in: number of terms of the sum the kernel is used in; sets its scale at initialisation.

    >>> from kernelfield.groups import Cyclic
    >>> kernel = GroupKernel(Cyclic(4), Table, 8, 3, kernel_size=5)
    >>> kernel().shape                                  # out, elements out, in, elements in, *points
    torch.Size([8, 4, 3, 4, 5, 5])
    """

    table_index: Tensor | None

    def __init__(
        self,
        group: Group,
        field: Callable[..., Field],
        out_channels: int,
        in_channels: int,
        *,
        kernel_size: int,
        on_group: bool = True,
        on_space: bool = True,
        fan_in: int | None = None,
    ) -> None:
        super().__init__()
        self.group = group
        self.shape = (check_int("out_channels", out_channels), check_int("in_channels", in_channels))
        self.kernel_size = check_int("kernel_size", kernel_size)
        self.on_group, self.on_space = on_group, on_space
        dim = (group.chart_size if on_group else 0) + (group.dim if on_space else 0)
        self.field = self._build(field, dim, out_channels * in_channels)
        looked_up = isinstance(self.field, Table) and group.on_grid and group.isometric and group.finite
        self.register_buffer("table_index", self._index_all() if looked_up else None, persistent=False)
        self._scale(fan_in or in_channels * self.kernel_size**group.dim)

    def forward(self, out_elements: Tensor | None = None, in_elements: Tensor | None = None) -> Tensor:
        r"""Return the kernel for all pairs of elements: (out, n_out, in, n_in, \*points).

        Args:
            out_elements: (n_out, coords) elements; all of a finite group if not given.
            in_elements: (n_in, coords) elements; all of a finite group if not given. A kernel on space alone takes
                none and has n_in = 1.
        """
        dtype, device = self._place()
        index = self.table_index if out_elements is None and in_elements is None else None
        if index is None:
            out = self.group.elements(dtype, device) if out_elements is None else out_elements
            into = self.group.elements(dtype, device) if in_elements is None else in_elements
            coords = self.coordinates(out.to(dtype), into.to(dtype))
            if self.table_index is None:
                return self._arrange(self._evaluate(coords, out.to(dtype)))
            index = self._nodes(coords)
        coefficients = self.field.coefficients
        values = coefficients.index_select(0, index.flatten()).unflatten(0, index.shape)
        return self._arrange(values)

    def coordinates(self, out_elements: Tensor, in_elements: Tensor) -> Tensor:
        r"""Return where the field is sampled: (n_out, n_in, \*points, dim), group coordinates first."""
        parts = []
        grid = self._grid(out_elements)
        points = grid.shape[:-1]
        n_in = len(in_elements) if self.on_group else 1
        if self.on_group:
            relative = self.group.relative(out_elements[:, None], in_elements[None])
            chart = self.group.chart(relative)
            parts.append(chart.view(*chart.shape[:2], *[1] * len(points), -1).expand(-1, -1, *points, -1))
        if self.on_space:
            back = self.group.matrix(self.group.inverse(out_elements))
            moved = torch.einsum("nij,pj->npi", back, grid.flatten(0, -2)).unflatten(1, points)
            parts.append(moved.unsqueeze(1).expand(-1, n_in, *points, -1))
        return torch.cat(parts, dim=-1)

    def _evaluate(self, coords: Tensor, out_elements: Tensor) -> Tensor:
        values = self.field(coords)
        if self.on_space and not self.group.on_grid and self.kernel_size > 1:
            own = coords[..., -self.group.dim :]
            # The length is the same for all rotations; compared with a little room, so that rounding decides nothing.
            reach = own.norm(dim=-1) if self.group.isometric else own.abs().amax(dim=-1)
            values = values * (reach <= 1 + 1e-4).to(values.dtype).unsqueeze(-1)
        if not self.group.isometric and self.on_space:
            shrink = 1 / self.group.determinant(out_elements)
            values = values * shrink.view(-1, *[1] * (values.dim() - 1))
        return values

    def _arrange(self, values: Tensor) -> Tensor:
        """(n_out, n_in, *points, out·in) to (out, n_out, in, n_in, *points)."""
        values = values.unflatten(-1, self.shape)
        space = range(2, values.dim() - 2)
        return values.permute(values.dim() - 2, 0, values.dim() - 1, 1, *space)

    def _grid(self, like: Tensor) -> Tensor:
        """Return the offsets at which the kernel is sampled, wide enough for its largest dilation: (*points, dim)."""
        if not self.on_space:
            return like.new_zeros(*[1] * self.group.dim, self.group.dim)
        half = (self.kernel_size - 1) / 2
        reach = half if self.group.isometric else math.ceil(half * self._stretch() - 1e-9)
        count = round(2 * reach) + 1
        axis = (torch.arange(count, dtype=like.dtype, device=like.device) - reach) / max(half, 0.5)
        return torch.stack(torch.meshgrid(*[axis] * self.group.dim, indexing="ij"), dim=-1)

    def _stretch(self) -> float:
        volume = self.group.determinant(self.group.elements(torch.float64)).max()
        return float(volume) ** (1 / self.group.dim)

    def _index_all(self) -> Tensor:
        everything = self.group.elements(torch.float64)
        return self._nodes(self.coordinates(everything, everything))

    def _nodes(self, coords: Tensor) -> Tensor:
        """Return the rows of the table that lie at ``coords``."""
        index = torch.zeros_like(coords[..., 0], dtype=torch.long)
        for d, n in enumerate(self._table_size()):
            node = torch.round((coords[..., d] + 1) * ((n - 1) / 2)).long()
            index = index * n + node
        return index

    def _table_size(self) -> tuple[int, ...]:
        group = self.group.table_size or () if self.on_group else ()
        return (*group, *(self.kernel_size,) * (self.group.dim if self.on_space else 0))

    def _build(self, field: Callable[..., Field], dim: int, channels: int) -> Field:
        if field is not Table:
            return field(dim, channels)
        if self.on_group and self.group.table_size is None:
            raise ValueError(f"field must be continuous for {self.group}, which has no table of elements, got Table")
        return Table(dim, channels, size=self._table_size())

    @torch.no_grad()
    def _scale(self, fan_in: int) -> None:
        """Give the kernel the standard deviation 1/√fan_in, which keeps the variance of what it sums."""
        dtype, device = self._place()
        spread = self.field(torch.rand(256, self.field.dim, dtype=dtype, device=device) * 2 - 1).std()
        if isinstance(self.field, Table):  # between its nodes an interpolated table is smaller than on them
            spread = self.field.coefficients.std() if self.field.coefficients.numel() > 1 else torch.ones(())
        self.field.scale_(1 / (spread.clamp(min=1e-8) * math.sqrt(fan_in)))

    def _place(self) -> tuple[torch.dtype, torch.device]:
        parameter = next(self.field.parameters())
        return parameter.dtype, parameter.device

    def extra_repr(self) -> str:
        return f"{self.group}, kernel_size={self.kernel_size}"
