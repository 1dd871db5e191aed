"""Convolutional message passing between two sets of points (chapter 4, section 2.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..._arguments import checked
from ..._kinds import POSITIVE, Choice, Int
from ..._module_state import in_full_precision
from ..._object_kinds import TensorOf
from ...fields import Field, RandomFourier, build_field
from ...ops import pass_messages
from ..pointwise import Pointwise

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...ops import Edges

__all__ = ["MESSAGES", "MessageLayer"]

MESSAGES = ("product", "mlp")


class MessageLayer(nn.Module):
    r"""Messages from sources to targets, computed from the sources' values and offsets (chapter 4, Eq. 1).

    .. math::
        y_i = \phi_\mathrm{upd}\Big(\bigoplus_{j \to i} \phi_\mathrm{msg}\big(\phi_\mathrm{node}(x_j),
        \phi_\mathrm{pos}(c_i - c_j)\big)\Big)

    The position network is a field, so the layer is a convolution between two sets of points. Node and update networks
    are perceptrons of two layers.

    Args:
        in_channels: channels at the sources; 0 if they have coordinates only.
        out_channels: channels at the targets.
        dim: number of spatial dimensions.
        channels: width of all networks and of the messages; ``out_channels`` if not given.
        field: makes the position network from ``(dim, channels)``.
        omega_0: standard deviation of the frequencies in cycles per unit of offset, for fields that take it.
        message: "product" multiplies node and position embeddings, as published for ModelNet40; "mlp" is a perceptron
            of both, as published for ShapeNet.
        reduce: "mean", "max" or "sum".

    >>> from kernelfield.ops import bilateral_edges
    >>> layer = MessageLayer(6, 16, dim=3)
    >>> cloud, grid = torch.rand(2, 50, 3), torch.rand(1, 27, 3)
    >>> layer(torch.randn(2, 6, 50), cloud, grid, bilateral_edges(cloud, (3, 3, 3), 4)).shape
    torch.Size([2, 16, 27])
    """

    @checked(in_channels=Int(0), omega_0=POSITIVE, message=Choice(*MESSAGES), reduce=Choice("mean", "max", "sum"))
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        dim: int = 3,
        channels: int | None = None,
        field: Callable[..., Field] | Field = RandomFourier,
        omega_0: float = 0.1,
        message: str = "product",
        reduce: str = "mean",
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.dim = in_channels, out_channels, dim
        self.channels = out_channels if channels is None else channels
        self.kind, self.reduce = message, reduce
        width = self.channels
        self.node = _pointwise(in_channels, width, width) if in_channels else None
        self.position = build_field(field, dim, width, hidden=width, omega_0=omega_0)
        parts = 2 if in_channels else 1
        self.message = _linear(parts * width, width, width) if message == "mlp" else None
        self.update = _pointwise(width, width, out_channels)

    @checked(
        x=TensorOf("float", "batch, channels, sources") | None,
        sources=TensorOf("float", "batch|1, sources, dim"),
        targets=TensorOf("float", "batch|1, targets, dim"),
    )
    def forward(self, x: Tensor | None, sources: Tensor, targets: Tensor, edges: Edges) -> Tensor:
        """Return (batch, out, targets) values.

        Args:
            x: (batch, in, sources) values; None if there are none.
            sources: (batch or 1, sources, dim) coordinates.
            targets: (batch or 1, targets, dim) coordinates.
            edges: from sources to targets.
        """
        if (x is None) != (self.in_channels == 0):
            wanted = f"(batch, {self.in_channels}, points) values" if self.in_channels else "None for in_channels=0"
            raise ValueError(f"x must be {wanted}, got {None if x is None else tuple(x.shape)}")
        if x is not None and (x.dim() != 3 or x.shape[1] != self.in_channels):
            raise ValueError(f"x must have shape (batch, {self.in_channels}, points), got {tuple(x.shape)}")
        values = None if self.node is None or x is None else self.node(x).mT
        gathered = pass_messages(
            values,
            sources.to(self.offset_dtype),
            targets.to(self.offset_dtype),
            edges,
            self._message,
            channels=self.channels,
            reduce=self.reduce,
        )
        return self.update(gathered.mT.to(self.dtype))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MessageLayer:
        super()._apply(fn, recurse=False)
        for name, child in self.named_children() if recurse else ():
            child._apply(in_full_precision(fn) if name == "position" else fn)  # noqa: SLF001
        return self

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next(self.update.parameters()).dtype

    @property
    def offset_dtype(self) -> torch.dtype:
        """The dtype of coordinates and offsets: that of the weights, but at least float32."""
        return torch.promote_types(self.dtype, torch.float32)

    def _message(self, values: Tensor | None, offsets: Tensor) -> Tensor:
        """Return the message of each edge, which depends on positions only through their offset."""
        position = self.position(offsets).to(self.dtype if values is None else values.dtype)
        if values is None:
            return position if self.message is None else self.message(position)
        return values * position if self.message is None else self.message(torch.cat([values, position], dim=-1))

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, dim={self.dim}, message={self.kind}, reduce={self.reduce}"


def _pointwise(in_channels: int, hidden: int, out_channels: int) -> nn.Sequential:
    """Return an MLP of two layers for signals, applied at every point."""
    return nn.Sequential(Pointwise(in_channels, hidden, gain=1.0), nn.GELU(), Pointwise(hidden, out_channels, gain=1.0))


def _linear(in_channels: int, hidden: int, out_channels: int) -> nn.Sequential:
    """Return an MLP of two layers for edges, with channels last."""
    linears = [nn.Linear(in_channels, hidden), nn.Linear(hidden, out_channels)]
    for linear in linears:
        nn.init.kaiming_uniform_(linear.weight, nonlinearity="linear")
        nn.init.zeros_(linear.bias)
    return nn.Sequential(linears[0], nn.GELU(), linears[1])
