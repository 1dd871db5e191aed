"""Kernels on a group: one field, sampled for all pairs of output and input elements at once."""

from __future__ import annotations

import contextlib
import math
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ..._arguments import checked
from ..._hooks import has_hooks, has_own_hooks
from ..._module_state import ComputedBuffers, in_full_precision, keep_geometry
from ...fields import SIREN, Table, bind_field
from ..continuous.kernel_sampler import remember_kernel
from .table_lookup import LookUp, nodes_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...fields import BSpline, Field
    from ...groups import Group

__all__ = ["GroupKernel"]

#: kernels and maps with more entries than this are computed at each call, not looked up
MAX_ENTRIES = 1 << 22
#: number of kernels, one per choice of elements, that are frozen at most
MAX_FROZEN = 8


class GroupKernel(ComputedBuffers):
    r"""A kernel :math:`\psi: \mathbb{R}^d \rtimes H \to \mathbb{R}^{out \times in}`, transformed by output elements.

    .. math:: k_{oi}(h, \tilde h, x) = |\det h|^{-1}\; \psi_{oi}(h^{-1} \tilde h,\; h^{-1} x)

    for output elements h, input elements :math:`\tilde h`, and offsets x on a grid whose outermost points lie at ±1.

    If the group maps the grid to itself, all these points are nodes of a :class:`~kernelfield.fields.Table`, and the
    kernel is a permuted copy of the table. On another finite group the table is first rotated in space, by a fixed
    linear map, and then permuted. Any other field is evaluated at the transformed points. If the group does not map the
    grid to itself, the kernel is zero beyond a distance of 1 from its centre. Otherwise the corners of the grid would
    appear and vanish as the kernel rotates.

    On dilations, ``BSpline`` is the basis of chapter 10: one coefficient for each of the ``kernel_size`` samples at
    dilation 1 and each relative dilation, with linear interpolation between dilations. Splines and tables reach a
    little beyond 1, to the end of their support, so no dilation cuts them off.

    In a module that is cast to half precision, fields that are evaluated at coordinates stay in float32.

    Args:
        group: the group H.
        field: builds the field from (dim, channels), where dim is ``group.chart_size + group.dim``, or one of the two
            if the kernel depends on the group or on space alone. Tables and splines also get the size they need, and
            sines frequencies that the grid can hold, unless they have others.
        out_channels: number of outputs.
        in_channels: number of inputs.
        kernel_size: number of points along each axis of space.
        on_group: whether the kernel depends on the group element. A lifting kernel does not.
        on_space: whether the kernel depends on the position. It must, unless ``kernel_size`` is 1.
        fan_in: number of terms of the sum that uses the kernel, which sets its initial scale.
        interactions: for an ordered group, the number of neighbours that the kernel spans. It is zero unless the input
            element is 0 to ``interactions`` - 1 steps above the output element. By default it spans all elements.
        flip: whether callers mostly use :meth:`flipped`; see :class:`LookUp`.

    >>> from kernelfield.groups import Cyclic
    >>> kernel = GroupKernel(Cyclic(4), Table, 8, 3, kernel_size=5)
    >>> kernel().shape                                  # out, output elements, in, input elements, *points
    torch.Size([8, 4, 3, 4, 5, 5])
    """

    rotation: Tensor | None
    disc: Tensor | None

    @checked()
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
        flip: bool = False,
    ) -> None:
        super().__init__()
        self.group = group
        self.interactions = group.check_interactions(interactions)
        self.shape, self.kernel_size = (out_channels, in_channels), kernel_size
        keep_geometry(self, "kernel_size", "group", "interactions", "windows")
        self.on_group, self.on_space = on_group, on_space
        # Without interactions, the coordinates span all steps of an ordered group.
        self.windows = () if interactions or not on_group else tuple(f.window for f in group.factors if f.ordered)
        dim = (group.chart_size if on_group else 0) + (group.dim if on_space else 0)
        self.field = self._build(field, dim, out_channels * in_channels)
        # The kernel's reach in space at the identity, in its own coordinates.
        ends = group.ordered and self.field.lattice is not None and on_space
        self.reach = max(self.spline.support()[-group.dim :]) if ends else 1.0
        table = self.field.lattice == "table" and group.isometric and group.finite
        self.on_nodes = table and (group.on_grid or not on_space)
        self.register_computed("rotation", self._rotation() if table and not self.on_nodes else None)
        listed = table and (self.on_nodes or self.rotation is not None)
        index = self._index() if listed else None
        # Each output element looks up every entry of a table once. A rotated table has rows for each output element.
        times = index.shape[1] if index is not None and self.on_nodes else 1
        self.look_up = None if index is None else LookUp(index, times, flip=flip)
        self.register_computed("disc", self._disc())
        self._frozen: dict[Any, Tensor] | None = None
        self.fan_in = fan_in or in_channels * self.kernel_size**group.dim
        self._scale(self.fan_in)

    def forward(self, out_elements: Tensor | None = None, in_elements: Tensor | None = None) -> Tensor:
        r"""Return the kernel for all pairs of elements: (out, n_out, in, n_in, \*points).

        Args:
            out_elements: (n_out, coords) elements; all of a finite group by default.
            in_elements: (n_in, coords) elements; all of a finite group by default. A kernel on space alone ignores them
                and has n_in = 1.
        """
        return self._kept(out_elements, in_elements, flip=False)

    def flipped(self, out_elements: Tensor | None = None, in_elements: Tensor | None = None) -> Tensor:
        """Return :meth:`forward` flipped along the axes of space, as torch's convolutions take it."""
        if has_own_hooks(self):
            return self(out_elements, in_elements).flip(tuple(range(4, 4 + self.group.dim)))
        return self._kept(out_elements, in_elements, flip=True)

    @contextlib.contextmanager
    def freezing(self, kernels: dict[Any, Tensor]) -> Iterator[None]:
        """Keep kernels in ``kernels`` at their first use inside the block, and return them in this and later blocks.

        Args:
            kernels: kept kernels; empty at first. The caller clears it when a parameter has changed.
        """
        before, self._frozen = self._frozen, kernels
        try:
            yield
        finally:
            self._frozen = before

    def _kept(self, out_elements: Tensor | None, in_elements: Tensor | None, *, flip: bool) -> Tensor:
        """Return the kernel, flipped or not, from the frozen ones if it is there."""
        key, kept = None, self._frozen
        elements = out_elements, in_elements
        if kept is not None and all(t is None or t.is_cpu for t in elements):  # reading a GPU's elements would wait
            key = flip, *(None if t is None else (t.dtype, tuple(t.flatten().tolist())) for t in elements)
            if key in kept:
                return kept[key]
        kernel, flipped = self._sample(out_elements, in_elements, flip=flip)
        remember_kernel((self,), kernel)  # for penalties on kernels
        kernel = kernel if flipped == flip else kernel.flip(tuple(range(4, 4 + self.group.dim)))
        if kept is not None and key is not None and len(kept) < MAX_FROZEN:
            kept[key] = kernel
        return kernel

    def _sample(self, out_elements: Tensor | None, in_elements: Tensor | None, *, flip: bool) -> tuple[Tensor, bool]:
        """Return the kernel and whether it is already flipped; some paths can flip it at no cost."""
        hooked = has_hooks(self.field)
        if out_elements is None and in_elements is None and self.look_up is not None and not hooked:
            parameter = self.spline.coefficients
            if self.rotation is None:
                return self.look_up(parameter), self.look_up.flip
            if self.rotation.dtype == parameter.dtype:
                return self.look_up(self._rotated(parameter)), self.look_up.flip
        parameter = next(self.field.parameters())
        dtype, device = torch.promote_types(parameter.dtype, torch.float32), parameter.device
        out = self.group.elements(dtype, device) if out_elements is None else out_elements.to(dtype)
        into = self.group.elements(dtype, device) if in_elements is None else in_elements.to(dtype)
        if self.on_nodes and not hooked:
            return self._arrange(self.spline.coefficients[nodes_at(self.coordinates(out, into), self._size())]), False
        if self.disc is None:
            return self._arrange(self._evaluate(self.coordinates(out, into), out)), False
        grid = self._grid(out)
        inside = self._arrange(self.field(self.coordinates(out, into, grid.flatten(0, -2).index_select(0, self.disc))))
        points = math.prod(grid.shape[:-1])
        square = inside.new_zeros(*inside.shape[:-1], points)
        # Writing the points in reverse order flips the kernel.
        targets = points - 1 - self.disc if flip else self.disc
        return square.index_copy(-1, targets, inside).unflatten(-1, grid.shape[:-1]), flip

    def render(self, out_element: Tensor, in_elements: Tensor, stretch: float) -> Tensor:
        r"""Return the kernel for one output element, on as many points as its stretch needs.

        Args:
            out_element: (1, coords) element.
            in_elements: (n_in, coords) elements.
            stretch: largest factor by which ``out_element`` stretches lengths.

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
            grid: (\*points, dim) offsets; those of the kernel's grid by default.
        """
        # Positions need full precision, also under autocast.
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
        """Return True at coordinates where the kernel may differ from zero: (…, dim) to (…)."""
        own = coords[..., -self.group.dim :]
        # The margin allows for rounding: rotations preserve lengths only up to rounding.
        reach = own.norm(dim=-1) if self.group.isometric else own.abs().amax(dim=-1)
        return reach <= self.reach + 1e-4

    def _disc(self) -> Tensor | None:
        """Return the indices of the grid points in reach; None if all are, or if they differ between elements."""
        cut = self.on_space and self.kernel_size > 1 and not self.group.on_grid
        if not cut or not self.group.isometric:
            return None
        return self._inside(self._grid(torch.zeros(1, dtype=torch.float64)).flatten(0, -2)).nonzero().squeeze(-1)

    def _arrange(self, values: Tensor) -> Tensor:
        """Arrange values (n_out, n_in, *points, out·in) as a kernel (out, n_out, in, n_in, *points)."""
        values = values.unflatten(-1, self.shape)
        space = range(2, values.dim() - 2)
        return values.permute(values.dim() - 2, 0, values.dim() - 1, 1, *space)

    def _grid(self, like: Tensor, stretch: float | None = None) -> Tensor:
        """Return the offsets at which the kernel is sampled, far enough for a stretch by ``stretch``."""
        if not self.on_space:
            return like.new_zeros(*[1] * self.group.dim, self.group.dim)
        count, unit = self.points(stretch), max((self.kernel_size - 1) / 2, 0.5)
        axis = (torch.arange(count, dtype=like.dtype, device=like.device) - (count - 1) / 2) / unit
        return torch.stack(torch.meshgrid(*[axis] * self.group.dim, indexing="ij"), dim=-1)

    def points(self, stretch: float | None = None) -> int:
        """Return the number of points along each axis for a stretch by ``stretch``, by default the group's largest."""
        half = (self.kernel_size - 1) / 2
        if self.group.isometric or not self.on_space:
            return self.kernel_size if self.on_space else 1
        ends = self.field.lattice is not None and self.group.ordered  # a spline is zero at the ends of its support
        stretch = self.group.stretch() if stretch is None else stretch
        return 2 * (math.ceil((self.reach * max(half, 0.5) if ends else half) * stretch - 1e-9) - ends) + 1

    def _chart(self, relative: Tensor) -> Tensor:
        """Return the kernel's group coordinates for ``relative`` elements."""
        if self.interactions is None:
            return self.group.chart(relative)
        # Steps 0 … interactions - 1 are spread over [-1, 1]; a single one lies at 0.
        return relative if self.interactions == 1 else relative * (2 / (self.interactions - 1)) - 1

    @property
    def spline(self) -> BSpline:
        """The field, if it has a lattice of coefficients."""
        if self.field.lattice is None:
            raise TypeError(f"field must be a table or a spline, got {type(self.field).__name__}")
        return cast("BSpline", self.field)

    def _rotated(self, table: Tensor) -> Tensor:
        """Return the table rotated in space by every output element: (n_out·points, group nodes·out·in)."""
        assert self.rotation is not None
        by_space = table.view(-1, self.rotation.shape[1], table.shape[1]).transpose(0, 1).flatten(1)
        with torch.autocast(table.device.type, enabled=False):
            return self.rotation @ by_space

    @torch.no_grad()
    def _index(self) -> Tensor | None:
        """Return the index of every kernel entry in the (rotated) table; None if there are too many."""
        everything = self.group.elements(torch.float64)
        coords = self.coordinates(everything, everything)
        channels = math.prod(self.shape)
        if coords[..., 0].numel() * channels > MAX_ENTRIES:
            return None
        sizes = self._size()
        if self.on_nodes:
            nodes = nodes_at(coords, sizes)
        else:  # a row holds the group nodes of one output element and point
            steps = sizes[: -self.group.dim]
            n_out, points = len(everything), coords.shape[2:-1]
            rows = torch.arange(n_out * math.prod(points)).view(n_out, 1, *points)
            nodes = rows * math.prod(steps) + nodes_at(coords, steps)
        return self._arrange(nodes.unsqueeze(-1) * channels + torch.arange(channels))

    @torch.no_grad()
    def _rotation(self) -> Tensor | None:
        """Return the linear map from a table to its values at the rotated points: (n_out·points, nodes).

        It is computed in float64 and has the dtype of the table.
        """
        everything = self.group.elements(torch.float64)
        coords = self.coordinates(everything, everything[:1])[:, 0, ..., -self.group.dim :]
        sizes = self._size()[-self.group.dim :]
        nodes = math.prod(sizes)
        if nodes * coords[..., 0].numel() > MAX_ENTRIES:
            return None
        basis = Table(self.group.dim, nodes, size=sizes).double()
        basis.coefficients.copy_(torch.eye(nodes))
        values = basis(coords)
        if self.kernel_size > 1:
            values = values * self._inside(coords).unsqueeze(-1)
        return values.flatten(0, -2).to(next(self.field.parameters()).dtype)

    def _size(self) -> tuple[int, ...]:
        if self.interactions is not None:
            group: tuple[int, ...] = (self.interactions,)
        else:
            group = self.group.table_size or ()
        group = group if self.on_group else ()
        return (*group, *(self.kernel_size,) * (self.group.dim if self.on_space else 0))

    def _build(self, field: Callable[..., Field], dim: int, channels: int) -> Field:
        made: Any = field.func if isinstance(field, partial) else field
        lattice = getattr(made, "lattice", None)
        # Kernels of few points commute with rotations only if they are smooth: the frequencies of four sines, which a
        # product adds, reach the Nyquist frequency together, and ω₀ is that of chapter 11.
        scale = {"omega_0": 10.0} if isinstance(made, type) and issubclass(made, SIREN) else {}
        field = bind_field(field, grid_bandwidth=max(self.kernel_size - 1, 2) / 16, **scale)
        if lattice == "table":
            if self.on_group and self.group.table_size is None:
                raise ValueError(f"field must be continuous for {self.group}, which is not finite, got Table")
            field = bind_field(field, size=self._size())
        elif lattice == "spline" and self.group.ordered:
            field = bind_field(field, **self._centres())
        return field(dim, channels)

    def _centres(self) -> dict[str, Any]:
        """Return the arguments that place a spline's centres on the samples at the identity and on relative steps."""
        size, order, spacing = [], [], []
        if self.on_group:
            count = self.interactions or 2 * self.group.window - 1  # the relative elements
            size, order, spacing = [count], [1], [2 / (count - 1) if count > 1 else 1.0]
        if self.on_space:
            size += [self.kernel_size] * self.group.dim
            order += [2] * self.group.dim
            spacing += [2 / max(self.kernel_size - 1, 1)] * self.group.dim
        return {"size": size, "order": order, "spacing": spacing}

    @torch.no_grad()
    def _scale(self, fan_in: int) -> None:
        """Scale the kernel to standard deviation 1/√fan_in, so that sums preserve the variance of their terms.

        A field whose published starting values are not scaled by layers stays as it was drawn.
        """
        if self.field.scaling == "none":
            return
        parameter = next(self.field.parameters())
        if self.field.lattice == "table" or (self.field.lattice == "spline" and self.group.ordered):
            # Measured at the nodes: interpolated values between them have a smaller variance.
            spread = parameter.std() if parameter.numel() > 1 else torch.ones(())
        else:
            coords = torch.rand(256, self.field.dim, dtype=parameter.dtype, device=parameter.device) * 2 - 1
            spread = self.field(coords).std()
        self.field.scale_(1 / (spread.clamp(min=1e-8) * math.sqrt(fan_in)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GroupKernel:
        # Looking up a table needs no coordinates, so the table may be rounded like any other weight.
        is_table = self.on_nodes or self.look_up is not None
        before = self.rotation
        super()._apply(fn if is_table else in_full_precision(fn), recurse)
        after = self.rotation
        if before is not None and after is not None and before.dtype != after.dtype and not after.is_meta:
            # Computed again, because a cast from a less precise dtype would not restore the digits.
            with torch.random.fork_rng(devices=[]):
                self.rotation = cast("Tensor", self._rotation()).to(after.device)
        return self

    def extra_repr(self) -> str:
        return f"{self.group}, kernel_size={self.kernel_size}"
