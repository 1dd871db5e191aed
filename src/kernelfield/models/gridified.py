"""Gridified networks: map a point cloud to a grid, convolve there and, for dense predictions, map back (chapter 4)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .._arguments import checked, with_arguments_of
from .._checks import per_axis
from .._kinds import POSITIVE, RATE, Choice, Int, PerAxis
from .._object_kinds import TensorOf
from ..fields import Field, Table
from ..layers import CCNNBlock, Degridify, Gridify, MessageLayer, SeparableConv, make_norm, run_blocks
from ..layers.pointwise import NORMS
from .point_inputs import check_query_points
from .readout import Readout, ReadoutClassifier
from .registry import register

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ops import Edges

__all__ = ["GridifiedNet"]


class GridifiedNet(ReadoutClassifier):
    """Gridify, residual blocks of a CCNN on the grid, and an average or :class:`Degridify` (chapter 4, section 2.6).

    Args:
        in_channels: channels at the points; 0 for clouds of coordinates alone.
        out_channels: number of predictions.
        dim: number of spatial dimensions, 1 to 3.
        channels: number of channels on the grid.
        blocks: number of residual blocks (:class:`CCNNBlock`); 0 for a network that maps to the grid and back only.
        kernel_size: points of the kernels along each axis, odd.
        field: makes the kernels' fields; by default a table with a weight for each point.
        norm: "batch", "channel", "layer" or "none".
        dropout: dropout probability inside the blocks.
        readout: "mean" predicts for the whole cloud, "dense" at every point.
        sigma: initial width of Gaussian masks on the kernels, where 1 is their reach; None for no masks.
        options: further arguments of :class:`Gridify`: ``grid``, the nodes along each axis; ``neighbors``, the number
            of nearest points or nodes with which a node or point has edges; ``extent``, the lower and upper end of the
            grid; ``message``, "product" or "mlp"; ``reduce``, "mean", "max" or "sum"; ``omega_0``, the frequency scale
            of the position networks; and ``group``.

    >>> import torch
    >>> net = GridifiedNet(6, 10, grid=4, channels=8, blocks=1, kernel_size=3)
    >>> net(torch.randn(2, 6, 50), coords=2 * torch.rand(2, 50, 3) - 1).shape
    torch.Size([2, 10])
    >>> net = GridifiedNet(6, 5, grid=4, channels=8, blocks=1, kernel_size=3, readout="dense")
    >>> net(torch.randn(2, 6, 50), coords=2 * torch.rand(2, 50, 3) - 1).shape
    torch.Size([2, 5, 50])
    >>> net(torch.randn(2, 6, 50), coords=2 * torch.rand(2, 50, 3) - 1, at=torch.zeros(7, 3)).shape     # anywhere
    torch.Size([2, 5, 7])
    """

    # ``field`` and ``channels`` mean something else here than in a message layer, so they are not passed on.
    @checked(
        in_channels=Int(0),
        dim=Int(1, 3),
        blocks=Int(0, 10_000),
        kernel_size=PerAxis(Int(1, odd=True)),
        norm=Choice(*NORMS),
        dropout=RATE,
        readout=Choice("mean", "dense"),
        sigma=POSITIVE | None,
    )
    @with_arguments_of(MessageLayer, Gridify)
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        dim: int = 3,
        channels: int = 128,
        blocks: int = 3,
        kernel_size: int = 9,
        field: Callable[..., Field] = Table,
        norm: str = "batch",
        dropout: float = 0.0,
        readout: str = "mean",
        sigma: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        reach = per_axis(kernel_size, dim)
        self.gridify = Gridify(in_channels, channels, dim=dim, **options)
        make_conv: Callable[..., nn.Module] = partial(
            SeparableConv, dim=dim, size=tuple((n + 1) // 2 for n in reach), field=field, sigma=sigma
        )
        self.blocks = nn.ModuleList(
            CCNNBlock(make_conv, channels, channels, norm=norm, dropout=dropout) for _ in range(blocks)
        )
        self.norm = make_norm(norm, channels)
        self.degridify = Degridify(channels, channels, dim=dim, **options) if readout == "dense" else None
        self.readout = Readout(channels, out_channels, readout)

    @checked(
        x=TensorOf("float", "batch, channels, points") | None,
        coords=TensorOf("float", "batch, points, dim", empty=False),
        mask=TensorOf("bool", "batch, points") | None,
        at=TensorOf("float") | None,
    )
    def forward_features(
        self,
        x: Tensor | None,
        *,
        coords: Tensor,
        mask: Tensor | None = None,
        edges: Edges | None = None,
        at: Tensor | None = None,
    ) -> Tensor:
        """Return features on the grid (batch, channels, *grid) or, dense, at the points (batch, channels, points).

        Args:
            x: (batch, in, points) values; None if there are none.
            coords: (batch, points, dim) coordinates.
            mask: (batch, points) True at points, False at padding.
            edges: edges between these points and the grid from ``gridify.edges``, if they are already known.
            at: (batch, queries, dim) or (queries, dim) coordinates of the features, if they differ from the points.
        """
        if at is not None:
            check_query_points(at, coords.shape[0], self.gridify.dim, self.readout.kind)
            at = (at if at.dim() == 3 else at.unsqueeze(0)).to(coords.dtype).expand(coords.shape[0], -1, -1)
        if edges is None:
            edges = self.gridify.edges(coords, mask)
        y = self.gridify(x, coords, mask=mask, edges=edges)
        y = self.norm(run_blocks(self.blocks, y))
        if self.degridify is None:
            return y
        if at is not None:
            return self.degridify(y, at, edges=self.degridify.query_edges(at, coords, mask))
        return self.degridify(y, coords, mask=mask, edges=edges)

    @with_arguments_of(forward_features)
    def forward(self, x: Tensor | None, **points: Any) -> Tensor:
        """Return predictions, (batch, out) or, dense, (batch, out, points); arguments as in :meth:`forward_features`.

        A dense network predicts ``at`` any coordinates, also where the cloud has no point: (batch, out, queries). No
        output depends on other queries.
        """
        return self.readout(self.forward_features(x, **points))


_MODELNET: dict[str, Any] = {"in_channels": 6, "out_channels": 40, "dropout": 0.1}
_DENSE: dict[str, Any] = {"omega_0": 1.0, "readout": "dense"}
_PARTS = {"in_channels": 6, "out_channels": 50, "message": "mlp", "reduce": "max", "dropout": 0.3, **_DENSE}
for _name, _summary, _arguments in (
    ("modelnet40", "of 9³ nodes, 3 blocks, 128 channels, 469,288 parameters", _MODELNET),
    ("modelnet40_3", "of 3³ nodes, 3 blocks, 128 channels", {**_MODELNET, "grid": 3, "kernel_size": 3}),
    (
        "shapenet",
        "of 13³ nodes for parts of objects, 6 blocks, 256 channels",
        {**_PARTS, "grid": 13, "channels": 256, "blocks": 6},
    ),
    (
        "reconstruction",
        "without blocks, from the cloud to the grid and back",
        {"in_channels": 1, "out_channels": 1, "blocks": 0, "channels": 64, "norm": "none", **_DENSE},
    ),
):
    register(f"gridified_{_name}", GridifiedNet, f"gridified network {_summary} (chapter 4)", dim=3, **_arguments)
