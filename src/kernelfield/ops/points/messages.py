"""Message passing along edges, from values at sources to values at targets (chapter 4)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._arguments import checked
from ..._kinds import Choice
from ..._object_kinds import CALLABLE, TensorOf
from ..backend import recompute
from ..conv.shape import is_symbolic
from .chunks import chunk_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from .neighbors import Edges

__all__ = ["aggregate", "pass_messages"]

REDUCTIONS = ("mean", "max", "sum")
#: numbers of values of messages in memory, without gradients and in training, where more are recomputed in the backward
#: pass. On a CPU, blocks above 32 MiB get new pages at each allocation
CHUNK_VALUES = {"cpu": (1 << 21, 1 << 22), "cuda": (1 << 24, 1 << 26)}


@checked(messages=TensorOf("float", "batch, edges, channels"), reduce=Choice(*REDUCTIONS))
def aggregate(messages: Tensor, edges: Edges, size: int, reduce: str = "mean") -> Tensor:
    """Return, for each target, the mean, maximum or sum of the messages on the edges that end there.

    Args:
        messages: (batch, edges, channels) messages.
        edges: the edge of each message.
        size: number of targets.
        reduce: "mean", "max" or "sum".

    Returns:
        (batch, size, channels) values; zero for targets at which no edge ends.

    >>> from kernelfield.ops import Edges
    >>> edges = Edges(torch.tensor([[0, 1, 2]]), torch.tensor([[0, 0, 1]]), torch.tensor([[True, True, False]]))
    >>> aggregate(torch.tensor([[[1.0], [5.0], [9.0]]]), edges, 2, "max").flatten()
    tensor([5., 0.])
    """
    if messages.shape[:2] != edges.source.shape:
        raise ValueError(
            f"messages must have one entry per edge, shape {tuple(edges.source.shape)}, got {tuple(messages.shape)}"
        )
    if messages.device.type == "cpu" and not is_symbolic(*messages.shape) and edges.target.numel():
        largest = int(edges.target.max())
        if largest >= size:
            raise ValueError(f"size must be above the largest target of edges, {largest}, got {size}")
    return _finished(_reduced(messages, edges, size, reduce), edges, reduce)


@checked(
    values=TensorOf("float", "batch, sources, in") | None,
    sources=TensorOf("float", "batch|1, sources, dim"),
    targets=TensorOf("float", "batch|1, targets, dim"),
    message=CALLABLE,
    reduce=Choice(*REDUCTIONS),
)
def pass_messages(
    values: Tensor | None,
    sources: Tensor,
    targets: Tensor,
    edges: Edges,
    message: Callable[[Tensor | None, Tensor], Tensor],
    *,
    channels: int,
    reduce: str = "mean",
) -> Tensor:
    r"""Send messages along edges and reduce them at their targets.

    .. math:: y_i = \bigoplus_{j \to i} \mathrm{message}(x_j,\, c_i - c_j)

    Messages are computed in chunks of edges. If there are several chunks, the backward pass recomputes them, so memory
    is linear in points and nodes, however large the messages are.

    Args:
        values: (batch, sources, in) values, or None for messages that depend on offsets alone.
        sources: (batch or 1, sources, dim) coordinates.
        targets: (batch or 1, targets, dim) coordinates.
        edges: edges from sources to targets.
        message: function that maps (batch, n, in) values and (batch, n, dim) offsets to (batch, n, channels) messages.
        channels: number of channels of the messages.
        reduce: "mean", "max" or "sum".

    Returns:
        (batch, targets, channels) values; zero for targets at which no edge ends.

    >>> from kernelfield.ops import bilateral_edges
    >>> cloud = torch.tensor([[[-1.0], [0.5]]])
    >>> edges = bilateral_edges(cloud, (2,), 1)
    >>> grid = torch.tensor([[[-1.0], [1.0]]])
    >>> pass_messages(None, cloud, grid, edges, lambda _, offset: offset, channels=1).flatten()
    tensor([0.0000, 0.5000])
    """
    if not is_symbolic(*sources.shape, *targets.shape, *edges.source.shape):
        counts = {1, edges.source.shape[0]}
        for name, cloud in (("sources", sources), ("targets", targets), ("values", values)):
            if cloud is not None and cloud.shape[0] not in counts:
                raise ValueError(f"{name} must have the {edges.source.shape[0]} samples of edges, got {len(cloud)}")
    size, total = targets.shape[1], edges.source.shape[1]
    batch = edges.source.shape[0]

    def part(values: Tensor | None, some: Edges) -> Tensor:
        offsets = _rows(targets, some.target) - _rows(sources, some.source)
        sent = message(None if values is None else _rows(values, some.source), offsets)
        return _reduced(sent, some, size, reduce)

    training = torch.is_grad_enabled()
    step = total
    if not is_symbolic(batch, total):
        device = edges.source.device.type
        most = tuple(chunk_values(device, n) for n in CHUNK_VALUES.get(device, (1 << 24, 1 << 26)))
        step = max(1, most[training] // max(1, batch * channels))
    if step >= total:
        return _finished(part(values, edges), edges, reduce)
    parts = []
    for source, target, valid in zip(*(t.split(step, dim=1) for t in edges), strict=True):
        some = type(edges)(source, target, valid)
        parts.append(recompute(part, values, some))
        if len(parts) == 2:  # added at once, since each part is as large as the result
            one, other = parts
            parts = [torch.maximum(one, other) if reduce == "max" else one + other]
    return _finished(parts[0], edges, reduce)


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Return the rows of ``values`` (batch or 1, m, channels) at ``index`` (batch, n): (batch, n, channels)."""
    if values.shape[0] == 1:
        return values[0].index_select(0, index.flatten()).unflatten(0, index.shape)
    return values.flatten(0, 1).index_select(0, _flat(index, values.shape[1])).unflatten(0, index.shape)


def _flat(index: Tensor, size: int) -> Tensor:
    """Return indices into the concatenated rows of all samples."""
    return (index + size * torch.arange(index.shape[0], device=index.device).unsqueeze(1)).flatten()


def _reduced(messages: Tensor, edges: Edges, size: int, reduce: str) -> Tensor:
    """Return the (batch, size, channels) sums, or maxima, which are minus infinity for targets without a message."""
    batch, channels = messages.shape[0], messages.shape[-1]
    if messages.dtype in (torch.bfloat16, torch.float16):
        messages = messages.float()  # long sums lose too much precision in bfloat16
    where = _flat(edges.target, size)
    valid = edges.valid.unsqueeze(-1)
    if reduce == "max":
        lowest = messages.new_full((batch * size, channels), -math.inf)
        sent = messages.masked_fill(~valid, -math.inf).flatten(0, 1)
        best = lowest.scatter_reduce(0, where.unsqueeze(1).expand(-1, channels), sent, "amax")
        return best.unflatten(0, (batch, size))
    sent = messages.masked_fill(~valid, 0.0).flatten(0, 1)
    return messages.new_zeros(batch * size, channels).index_add(0, where, sent).unflatten(0, (batch, size))


def _finished(total: Tensor, edges: Edges, reduce: str) -> Tensor:
    if reduce == "sum":
        return total
    if reduce == "max":
        return total.masked_fill(total == -math.inf, 0.0)
    batch, size = total.shape[:2]
    ends = edges.valid.to(total.dtype).flatten()
    count = total.new_zeros(batch * size).index_add(0, _flat(edges.target, size), ends).view(batch, size, 1)
    return total / count.clamp(min=1)
