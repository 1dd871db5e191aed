"""Kernels on a group: one field, sampled for all pairs of output and input elements at once."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..._checks import check_int
from ...fields import BSpline, Field, Table, bind_field
from ...groups import Group, Scale
from ..continuous.kernel_sampler import remember_kernel
from .table_lookup import LookUp, nodes_at

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GroupKernel"]

#: most entries of a kernel, and of a map of its points, that are kept instead of being worked out each time
MOST_ENTRIES = 1 << 22


class GroupKernel(nn.Module):
    r"""A kernel :math:`\psi: \mathbb{R}^d \rtimes H \to \mathbb{R}^{out \times in}`, moved to all output elements.

    .. math:: k_{oi}(h, \tilde h, x) = |\det h|^{-1}\; \psi_{oi}(h^{-1} \tilde h,\; h^{-1} x)

    for output elements h, input elements :math:`\tilde h`, and offsets x on a grid with its outermost points at ±1.

    A :class:`~kernelfield.fields.Table` on a group that maps the grid to itself has all these points on its nodes: the
    kernel is then a permuted copy of the table. On another finite group the table is first turned in space, a fixed
    linear map, and then permuted. Any other field is evaluated at the moved points. Where the group does not map the
    grid to itself, points further than 1 from the centre are zero, so that what lies in the corners of the grid does
    not come and go as the kernel turns.

    On dilations, ``BSpline`` is the basis of chapter 10: one coefficient for each of the ``kernel_size`` samples at
    dilation 1 and, linear between them, for each relative dilation. Splines and tables reach as far as their outermost
    coefficients do, a little beyond 1, so that no dilation cuts them off.

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
        interactions: of a kernel on dilations, how many of them it spans: it is zero unless the input's exponent is 0
            to ``interactions`` - 1 above the output's. All that the window allows, in both directions, if not given.
        reverse: whether :meth:`reversed` is what the kernel is mostly asked for; see :class:`LookUp`.

    >>> from kernelfield.groups import Cyclic
    >>> kernel = GroupKernel(Cyclic(4), Table, 8, 3, kernel_size=5)
    >>> kernel().shape                                  # out, elements out, in, elements in, *points
    torch.Size([8, 4, 3, 4, 5, 5])
    """

    turn_map: Tensor | None
    disc: Tensor | None

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
        interactions: int | None = None,
        reverse: bool = False,
    ) -> None:
        super().__init__()
        self.group = group
        self.interactions = check_interactions(group, interactions)
        self.shape = (check_int("out_channels", out_channels), check_int("in_channels", in_channels))
        self.kernel_size = check_int("kernel_size", kernel_size)
        self.on_group, self.on_space = on_group, on_space
        dim = (group.chart_size if on_group else 0) + (group.dim if on_space else 0)
        self.field = self._build(field, dim, out_channels * in_channels)
        # How far the kernel reaches into space, in its own coordinates, at dilation 1.
        self.reach = self._reach()
        table = isinstance(self.field, Table) and group.isometric and group.finite
        self.looked_up = table and (group.on_grid or not on_space)
        turned = table and not self.looked_up
        self.register_buffer("turn_map", self._turn_all() if turned else None, persistent=False)
        listed = table and (self.looked_up or self.turn_map is not None)
        index = self._index_all() if listed else None
        # An entry of a table that was turned for each of the output elements is looked up once in all.
        times = index.shape[1] if index is not None and self.looked_up else 1
        self.look_up = None if index is None else LookUp(index, times, reverse=reverse)
        self.register_buffer("disc", self._disc(), persistent=False)
        self.fan_in = fan_in or in_channels * self.kernel_size**group.dim
        self._scale(self.fan_in)

    def forward(self, out_elements: Tensor | None = None, in_elements: Tensor | None = None) -> Tensor:
        r"""Return the kernel for all pairs of elements: (out, n_out, in, n_in, \*points).

        Args:
            out_elements: (n_out, coords) elements; all of a finite group if not given.
            in_elements: (n_in, coords) elements; all of a finite group if not given. A kernel on space alone takes
                none and has n_in = 1.
        """
        kernel, is_reversed = self._sample(out_elements, in_elements, reverse=False)
        remember_kernel((self,), kernel)  # for penalties on it
        return kernel.flip(self._axes) if is_reversed else kernel

    def reversed(self, out_elements: Tensor | None = None, in_elements: Tensor | None = None) -> Tensor:
        """Return :meth:`forward` reversed along the axes of space, as torch's correlations take it."""
        kernel, is_reversed = self._sample(out_elements, in_elements, reverse=True)
        remember_kernel((self,), kernel)  # for penalties on it
        return kernel if is_reversed else kernel.flip(self._axes)

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(4, 4 + self.group.dim))

    @property
    def table_index(self) -> Tensor | None:
        r"""The place in the (turned) table of every entry of the kernel, (out, n_out, in, n_in, \*points), or None."""
        return None if self.look_up is None else self.look_up.places()

    def _sample(self, out_elements: Tensor | None, in_elements: Tensor | None, *, reverse: bool) -> tuple[Tensor, bool]:
        """Return the kernel, and whether it is reversed, as was wished for."""
        dtype, device = self._place()
        if out_elements is None and in_elements is None and self.look_up is not None:
            table = self._table()
            if self.turn_map is None or self.turn_map.dtype == dtype:
                return self.look_up(table if self.turn_map is None else self._turned(table)), self.look_up.reverse
        out = self.group.elements(dtype, device) if out_elements is None else out_elements.to(dtype)
        into = self.group.elements(dtype, device) if in_elements is None else in_elements.to(dtype)
        if self.looked_up:
            return self._arrange(self._table()[nodes_at(self.coordinates(out, into), self._table_size())]), False
        if self.disc is None:
            return self._arrange(self._evaluate(self.coordinates(out, into), out)), False
        grid = self._grid(out)
        inside = self._arrange(self.field(self.coordinates(out, into, grid.flatten(0, -2).index_select(0, self.disc))))
        points = math.prod(grid.shape[:-1])
        whole = inside.new_zeros(*inside.shape[:-1], points)
        # Where a point goes is free to choose: from the other end, the kernel is reversed.
        places = points - 1 - self.disc if reverse else self.disc
        return whole.index_copy(-1, places, inside).unflatten(-1, grid.shape[:-1]), reverse

    def render(self, out_element: Tensor, in_elements: Tensor, stretch: float) -> Tensor:
        r"""Return the kernel for one output element, on no more points than its dilation needs.

        Args:
            out_element: (1, coords) element.
            in_elements: (n_in, coords) elements.
            stretch: by how much ``out_element`` stretches lengths, at most.

        Returns:
            (out, in, n_in, \*points) kernel.
        """
        coords = self.coordinates(out_element, in_elements, self._grid(out_element, stretch))
        return self._arrange(self._evaluate(coords, out_element))[:, 0]

    def coordinates(self, out_elements: Tensor, in_elements: Tensor, grid: Tensor | None = None) -> Tensor:
        r"""Return where the field is sampled: (n_out, n_in, \*points, dim), group coordinates first.

        Args:
            out_elements: (n_out, coords) elements.
            in_elements: (n_in, coords) elements.
            grid: (\*points, dim) offsets; those of the whole kernel if not given.
        """
        # Positions are no place to save digits, whatever the network around computes in.
        with torch.autocast(out_elements.device.type, enabled=False):
            return self._coordinates(out_elements, in_elements, grid)

    def _coordinates(self, out_elements: Tensor, in_elements: Tensor, grid: Tensor | None) -> Tensor:
        parts = []
        grid = self._grid(out_elements) if grid is None else grid
        points = grid.shape[:-1]
        n_in = len(in_elements) if self.on_group else 1
        if self.on_group:
            relative = self.group.relative(out_elements[:, None], in_elements[None])
            chart = self._chart(relative)
            parts.append(chart.view(*chart.shape[:2], *[1] * len(points), -1).expand(-1, -1, *points, -1))
        if self.on_space:
            back = self.group.matrix(self.group.inverse(out_elements))
            moved = torch.einsum("nij,pj->npi", back, grid.flatten(0, -2)).unflatten(1, points)
            parts.append(moved.unsqueeze(1).expand(-1, n_in, *points, -1))
        return torch.cat(parts, dim=-1)

    def _evaluate(self, coords: Tensor, out_elements: Tensor) -> Tensor:
        values = self.field(coords)
        if self.on_space and not self.group.on_grid and self.kernel_size > 1:
            values = values * self._inside(coords).unsqueeze(-1)
        if self.interactions is not None:
            span = 1.0 if self.interactions > 1 else 0.0
            values = values * (coords[..., :1].abs() <= span + 1e-4)
        if not self.group.isometric and self.on_space:
            shrink = 1 / self.group.determinant(out_elements)
            values = values * shrink.view(-1, *[1] * (values.dim() - 1))
        return values

    def _inside(self, coords: Tensor) -> Tensor:
        """Return whether the kernel is there or ends before: (…)."""
        own = coords[..., -self.group.dim :]
        # The length is the same for all rotations; compared with a little room, so that rounding decides nothing.
        reach = own.norm(dim=-1) if self.group.isometric else own.abs().amax(dim=-1)
        return reach <= self.reach + 1e-4

    def _disc(self) -> Tensor | None:
        """Return the points of the grid where the kernel is, whichever way it turns; None if all or not the same."""
        cut = self.on_space and self.kernel_size > 1 and not self.group.on_grid
        if not cut or not self.group.isometric:
            return None
        return self._inside(self._grid(torch.zeros(1, dtype=torch.float64)).flatten(0, -2)).nonzero().squeeze(-1)

    def _arrange(self, values: Tensor) -> Tensor:
        """(n_out, n_in, *points, out·in) to (out, n_out, in, n_in, *points)."""
        values = values.unflatten(-1, self.shape)
        space = range(2, values.dim() - 2)
        return values.permute(values.dim() - 2, 0, values.dim() - 1, 1, *space)

    def _grid(self, like: Tensor, stretch: float | None = None) -> Tensor:
        """Return the offsets at which the kernel is sampled, wide enough for a dilation by ``stretch``."""
        if not self.on_space:
            return like.new_zeros(*[1] * self.group.dim, self.group.dim)
        half = (self.kernel_size - 1) / 2
        unit = max(half, 0.5)
        reach = half
        if not self.group.isometric:
            # A spline is zero at its very ends.
            ends = self.spline() is not None
            stretch = self.group.stretch() if stretch is None else stretch
            reach = math.ceil((self.reach * unit if ends else half) * stretch - 1e-9) - (1 if ends else 0)
        count = round(2 * reach) + 1
        axis = (torch.arange(count, dtype=like.dtype, device=like.device) - reach) / unit
        return torch.stack(torch.meshgrid(*[axis] * self.group.dim, indexing="ij"), dim=-1)

    def _chart(self, relative: Tensor) -> Tensor:
        """Return the group coordinates of a kernel between elements that are ``relative`` to each other."""
        if self.interactions is None:
            return self.group.chart(relative)
        # The window 0 … interactions - 1 fills [-1, 1]; a window of one has its element at 0.
        return relative if self.interactions == 1 else relative * (2 / (self.interactions - 1)) - 1

    def spline(self) -> BSpline | None:
        """Return the field if it is a spline on dilations, which knows where it ends."""
        return self.field if isinstance(self.field, BSpline) and isinstance(self.group, Scale) else None

    def _reach(self) -> float:
        spline = self.spline()
        return 1.0 if spline is None or not self.on_space else max(spline.support()[-self.group.dim :])

    def _turned(self, table: Tensor) -> Tensor:
        """Return the table turned in space by every output element: (n_out·points, group nodes·out·in)."""
        assert self.turn_map is not None
        by_space = table.view(-1, self.turn_map.shape[1], table.shape[1]).transpose(0, 1).flatten(1)
        with torch.autocast(table.device.type, enabled=False):
            return self.turn_map @ by_space

    @torch.no_grad()
    def _index_all(self) -> Tensor | None:
        """Return the place in the (turned) table of every entry of the kernel, in its final order; None if too many."""
        everything = self.group.elements(torch.float64)
        coords = self.coordinates(everything, everything)
        channels = math.prod(self.shape)
        if coords[..., 0].numel() * channels > MOST_ENTRIES:
            return None
        sizes = self._table_size()
        if self.looked_up:
            nodes = nodes_at(coords, sizes)
        else:  # row: output element and point; within it the node on the group
            steps = sizes[: -self.group.dim]
            n_out, points = len(everything), coords.shape[2:-1]
            rows = torch.arange(n_out * math.prod(points)).view(n_out, 1, *points)
            nodes = rows * math.prod(steps) + nodes_at(coords, steps)
        return self._arrange(nodes.unsqueeze(-1) * channels + torch.arange(channels))

    @torch.no_grad()
    def _turn_all(self) -> Tensor | None:
        r"""Return the kernel's points at all output elements as a linear map of the table's: (n_out·points, nodes).

        It has the dtype at construction. After a change of dtype the field is evaluated instead, at full precision.
        """
        everything = self.group.elements(torch.float64)
        coords = self.coordinates(everything, everything[:1])[:, 0, ..., -self.group.dim :]
        sizes = self._table_size()[-self.group.dim :]
        nodes = math.prod(sizes)
        if nodes * coords[..., 0].numel() > MOST_ENTRIES:
            return None
        basis = Table(self.group.dim, nodes, size=sizes).double()
        basis.coefficients.copy_(torch.eye(nodes))
        values = basis(coords)
        if self.kernel_size > 1:
            values = values * self._inside(coords).unsqueeze(-1)
        return values.flatten(0, -2).to(self._place()[0])

    def _table_size(self) -> tuple[int, ...]:
        if self.interactions is not None:
            group: tuple[int, ...] = (self.interactions,)
        else:
            group = self.group.table_size or ()
        group = group if self.on_group else ()
        return (*group, *(self.kernel_size,) * (self.group.dim if self.on_space else 0))

    def _build(self, field: Callable[..., Field], dim: int, channels: int) -> Field:
        if field is not Table:
            if isinstance(self.group, Scale) and _makes_spline(field):
                field = bind_field(field, **self._lattice(self.group))
            return field(dim, channels)
        if self.on_group and self.group.table_size is None:
            raise ValueError(f"field must be continuous for {self.group}, which has no table of elements, got Table")
        return Table(dim, channels, size=self._table_size())

    def _lattice(self, group: Scale) -> dict[str, Any]:
        """Return the arguments that put a spline's centres on the samples of dilation 1 and on relative dilations."""
        size, order, spacing = [], [], []
        if self.on_group:
            count = self.interactions or 2 * group.n - 1
            size, order, spacing = [count], [1], [2 / (count - 1) if count > 1 else 1.0]
        if self.on_space:
            size += [self.kernel_size] * group.dim
            order += [2] * group.dim
            spacing += [2 / max(self.kernel_size - 1, 1)] * group.dim
        return {"size": size, "order": order, "spacing": spacing}

    @torch.no_grad()
    def _scale(self, fan_in: int) -> None:
        """Give the kernel the standard deviation 1/√fan_in, which keeps the variance of what it sums.

        A field whose published start has no such scale is left as it was drawn.
        """
        if self.field.scaling == "none":
            return
        if isinstance(self.field, Table) or self.spline() is not None:
            # Between its nodes an interpolated table is smaller than on them.
            coefficients = self._table()
            spread = coefficients.std() if coefficients.numel() > 1 else torch.ones(())
        else:
            dtype, device = self._place()
            spread = self.field(torch.rand(256, self.field.dim, dtype=dtype, device=device) * 2 - 1).std()
        self.field.scale_(1 / (spread.clamp(min=1e-8) * math.sqrt(fan_in)))

    def _table(self) -> Tensor:
        if not isinstance(self.field, BSpline):
            raise TypeError(f"field must be a table to be looked up, got {type(self.field).__name__}")
        return self.field.coefficients

    def _place(self) -> tuple[torch.dtype, torch.device]:
        parameter = next(self.field.parameters())
        return parameter.dtype, parameter.device

    def extra_repr(self) -> str:
        return f"{self.group}, kernel_size={self.kernel_size}"


def check_interactions(group: Group, interactions: int | None) -> int | None:
    """Return the number of dilations a kernel spans, if it is one and the group has dilations."""
    if interactions is None:
        return None
    if not isinstance(group, Scale):
        raise ValueError(f"interactions must be None for {group}, which is no kernelfield.groups.Scale")  # noqa: TRY004
    if check_int("interactions", interactions) > group.n:
        raise ValueError(f"interactions must be at most the {group.n} dilations of {group}, got {interactions}")
    return interactions


def _makes_spline(field: Callable[..., Field]) -> bool:
    made = field.func if isinstance(field, partial) else field
    return isinstance(made, type) and issubclass(made, BSpline) and not issubclass(made, Table)
