"""From a point cloud to a compact grid, and back (chapter 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ... import grids
from ..._arguments import checked
from ..._checks import per_axis
from ..._kinds import FINITE, Int, ListOf, PerAxis
from ..._object_kinds import TensorOf
from ...ops import Edges, bilateral_edges, query_edges
from ...ops.points.finite import check_seen_finite
from ..continuous.sampling import seen_only
from .message import MessageLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...groups import Group

__all__ = ["Degridify", "Gridify"]


_COORDS = TensorOf("float", "batch, points, dim", empty=False)
_MASK = TensorOf("bool", "batch, points") | None


class _Grid(nn.Module):
    """Base class of :class:`Gridify` and :class:`Degridify`: a grid over a box, and its edges to a cloud."""

    @checked(in_channels=Int(0), extent=ListOf(PerAxis(FINITE), count=2))
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        dim: int = 3,
        grid: int | Sequence[int] = 9,
        extent: tuple[float | Sequence[float], float | Sequence[float]] = (-1.0, 1.0),
        neighbors: int = 9,
        group: Group | None = None,
        **message: Any,
    ) -> None:
        super().__init__()
        self.dim, self.grid, self.neighbors = dim, per_axis(grid, dim), neighbors
        self.low, self.high = grids.check_box(*extent, dim, name="extent[1]")
        if group is not None and group.order != 1:
            raise ValueError(f"group must be None or groups.Trivial(), since others are not supported, got {group!r}")
        self.group = group
        self.messages = MessageLayer(in_channels, out_channels, dim=dim, **message)

    def edges(self, coords: Tensor, mask: Tensor | None = None) -> Edges:
        """Return the edges between a cloud, (batch, points, dim) coordinates, and the grid; they have no gradient."""
        self._check(coords)
        check_seen_finite(mask, coords=coords)
        return bilateral_edges(coords, self.grid, self.neighbors, low=self.low, high=self.high, mask=mask)

    def _check(self, coords: Tensor) -> None:
        if coords.dim() != 3 or coords.shape[-1] != self.dim or not coords.is_floating_point():
            raise ValueError(
                f"coords must be floating-point coordinates of shape (batch, points, {self.dim}), "
                f"got {tuple(coords.shape)} of {coords.dtype}"
            )
        if coords.shape[1] == 0:
            raise ValueError(f"coords must hold at least one point per cloud, got shape {tuple(coords.shape)}")

    def _connected(self, coords: Tensor, mask: Tensor | None, edges: Edges | None) -> tuple[Tensor, Tensor, Edges]:
        """Return the cloud and the grid in units of half the grid's extent, around its middle, and their edges."""
        if edges is None:
            edges = self.edges(coords, mask)
        else:
            self._check(coords)
            check_seen_finite(mask, coords=coords)
        dtype = self.messages.offset_dtype
        # The more precise dtype keeps the digits of a cloud far from zero.
        wide = coords.to(torch.promote_types(coords.dtype, dtype))
        ends = zip(wide.unbind(-1), self.low, self.high, strict=True)
        placed = torch.stack([(c - (a + b) / 2) / ((b - a) / 2) for c, a, b in ends], dim=-1).to(dtype)
        if mask is not None:
            # Edges of padding are computed too, with weight zero. Zeros replace NaN, whose gradient would be NaN.
            placed = placed.masked_fill(~mask.unsqueeze(-1), 0.0)
        nodes = grids.box_grid(self.grid, dtype=dtype, device=coords.device)
        return placed, nodes.flatten(0, -2).unsqueeze(0), edges

    def nodes(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return the (nodes, dim) coordinates of the grid's nodes; the last axis varies fastest."""
        return grids.box_grid(self.grid, self.low, self.high, dtype=dtype, device=device).flatten(0, -2)

    def extra_repr(self) -> str:
        return f"grid={self.grid}, extent={(self.low, self.high)}, neighbors={self.neighbors}"


class Gridify(_Grid):
    r"""Map a point cloud to a regular grid by one layer of message passing (chapter 4, section 2.2).

    .. math::
        x^G_i = \phi_\mathrm{upd}\Big(\bigoplus_{j \to i} \phi_\mathrm{msg}\big(\phi_\mathrm{node}(x^P_j),
        \phi_\mathrm{pos}(c^G_i - c^P_j)\big)\Big)

    The edges connect every node of the grid with its nearest points and every point with its nearest nodes
    (:func:`kernelfield.ops.bilateral_edges`), so no point is lost and no node is empty.

    Args:
        in_channels: channels at the points; 0 for clouds of coordinates alone.
        out_channels: channels on the grid.
        dim: number of spatial dimensions.
        grid: nodes along each axis, one for all or one per axis. In total, use about as many nodes as points.
        extent: lower and upper end of the grid, each one number or one per axis. Offsets are measured in halves of the
            extent, so with another extent the layer works on clouds of another size or position.
        neighbors: number k of nearest points or nodes.
        group: None or ``groups.Trivial()``; the thesis leaves equivariant gridification to future work.
        message: further arguments of :class:`MessageLayer`: channels, field, omega_0, message, reduce.

    >>> layer = Gridify(3, 16, grid=5)
    >>> layer(torch.randn(2, 3, 100), 2 * torch.rand(2, 100, 3) - 1).shape
    torch.Size([2, 16, 5, 5, 5])
    """

    @checked(x=TensorOf("float", "batch, channels, points") | None, coords=_COORDS, mask=_MASK)
    def forward(
        self, x: Tensor | None, coords: Tensor, *, mask: Tensor | None = None, edges: Edges | None = None
    ) -> Tensor:
        """Return (batch, out, \\*grid) values.

        Args:
            x: (batch, in, points) values; None if there are none.
            coords: (batch, points, dim) coordinates.
            mask: (batch, points) True at points, False at padding.
            edges: the edges for these coordinates and this mask, if they are already known.
        """  # noqa: D301
        cloud, nodes, edges = self._connected(coords, mask, edges)
        x = None if x is None else seen_only(x, mask)
        return self.messages(x, cloud, nodes, edges).unflatten(-1, self.grid)


class Degridify(_Grid):
    r"""Map a grid back to the points of a cloud, along the reversed edges of :class:`Gridify` (chapter 4, section 2.3).

    .. math::
        x^P_i = \phi_\mathrm{upd}\Big(\bigoplus_{j \to i} \phi_\mathrm{msg}\big(\phi_\mathrm{node}(x^G_j),
        \phi_\mathrm{pos}(c^P_i - c^G_j)\big)\Big)

    Args:
        in_channels: channels on the grid.
        out_channels: channels at the points.
        dim: number of spatial dimensions.
        grid: nodes along each axis.
        extent: lower and upper end of the grid.
        neighbors: number k of nearest points or nodes.
        group: None; see :class:`Gridify`.
        message: further arguments of :class:`MessageLayer`.

    >>> layer = Degridify(16, 4, grid=5)
    >>> layer(torch.randn(2, 16, 5, 5, 5), 2 * torch.rand(2, 100, 3) - 1).shape
    torch.Size([2, 4, 100])
    """

    def query_edges(self, at: Tensor, coords: Tensor, mask: Tensor | None = None) -> Edges:
        """Return the edges between the grid and queries ``at`` any coordinates (batch, queries, dim).

        Pass them to ``forward(x, at, edges=…)``. They depend on the points of the cloud, ``coords`` and ``mask``, but
        not on other queries; see :func:`kernelfield.ops.query_edges`.
        """
        return query_edges(at, coords, self.grid, self.neighbors, low=self.low, high=self.high, mask=mask)

    @checked(x=TensorOf("float", "batch, channels, *grid"), coords=_COORDS, mask=_MASK)
    def forward(self, x: Tensor, coords: Tensor, *, mask: Tensor | None = None, edges: Edges | None = None) -> Tensor:
        """Return (batch, out, points) values; zero at padding.

        Args:
            x: (batch, in, \\*grid) values.
            coords: (batch, points, dim) coordinates of the outputs.
            mask: (batch, points) True at points, False at padding.
            edges: edges from the points to the grid that :class:`Gridify` used, if they are already known; those of
                :meth:`query_edges` if ``coords`` are not the points of the cloud.
        """  # noqa: D301
        if tuple(x.shape[2:]) != self.grid:
            raise ValueError(f"x must have shape (batch, channels, {self.grid}), got {tuple(x.shape)}")
        cloud, nodes, edges = self._connected(coords, mask, edges)
        y = self.messages(x.flatten(2), nodes, cloud, edges.reversed())
        return y if mask is None else y.masked_fill(~mask.unsqueeze(1), 0.0)
