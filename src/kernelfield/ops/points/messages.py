"""Message passing along edges, from values at sources to values at targets (chapter 4)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..._arguments import checked
from ..._checks import is_symbolic
from ..._kinds import Choice
from ..._object_kinds import CALLABLE, TensorOf
from ..backend import recompute
from .chunks import chunk_values
from .finite import may_read

if TYPE_CHECKING:
    from collections.abc import Callable

    from .neighbors import Edges

__all__ = ["aggregate", "pass_messages"]

REDUCTIONS = ("mean", "max", "sum")
#: numbers of values of messages in memory, without gradients and in training, where more are recomputed in the backward
#: pass. On a CPU, blocks above 32 MiB get new pages at each allocation
CHUNK_VALUES = {"cpu": (1 << 21, 1 << 22), "cuda": (1 << 24, 1 << 26)}
#: values of all messages up to which the backward pass keeps the chunks instead of recomputing them. A GPU's chunks are
#: as large as memory allows
KEPT_VALUES = {"cpu": 1 << 24}


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
    return _finished(_reduced(_neutral(messages, edges, reduce), edges, size, reduce), edges, reduce)


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

    Messages are computed in chunks of edges. If there are many, the backward pass recomputes them, so memory is linear
    in points and nodes, however large the messages are. On a CPU the edges of all samples are one list, without
    padding.

    Args:
        values: (batch, sources, in) values, or None for messages that depend on offsets alone.
        sources: (batch or 1, sources, dim) coordinates.
        targets: (batch or 1, targets, dim) coordinates.
        edges: edges from sources to targets.
        message: function that maps (batch, n, in) values and (batch, n, dim) offsets to (batch, n, channels) messages,
            each from the values and the offset of its own edge. The batch may be 1, with the edges of all samples.
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
    graph = _Graph(values, sources, targets, edges)
    if not _packs(edges):
        return _sent(graph, message, channels, reduce)
    batch, size = edges.source.shape[0], targets.shape[1]
    return _sent(_packed(graph), message, channels, reduce, padded=False).view(batch, size, channels)


class _Graph(NamedTuple):
    """The arguments ``values``, ``sources``, ``targets`` and ``edges`` of :func:`pass_messages`."""

    values: Tensor | None
    sources: Tensor
    targets: Tensor
    edges: Edges


def _sent(
    graph: _Graph,
    message: Callable[[Tensor | None, Tensor], Tensor],
    channels: int,
    reduce: str,
    *,
    padded: bool = True,
) -> Tensor:
    """Return (batch, targets, channels) reduced messages, computed in chunks of edges."""
    values, sources, targets, edges = graph
    (batch, total), size = edges.source.shape, targets.shape[1]

    def send(values: Tensor | None, some: Edges) -> Tensor:
        offsets = _rows(targets, some.target) - _rows(sources, some.source)
        sent = message(None if values is None else _rows(values, some.source), offsets)
        return _neutral(sent, some if padded else None, reduce)

    def part(values: Tensor | None, some: Edges) -> Tensor:
        return _reduced(send(values, some), some, size, reduce)

    step, run = total, recompute
    if not is_symbolic(batch, total):
        device = edges.source.device.type
        most = tuple(chunk_values(device, n) for n in CHUNK_VALUES.get(device, (1 << 24, 1 << 26)))
        step = max(1, most[torch.is_grad_enabled()] // max(1, batch * channels))
        if batch * total * channels <= chunk_values(device, KEPT_VALUES.get(device, 0)):
            run = _call
    if step >= total:
        return _finished(part(values, edges), edges, reduce)
    found: Tensor | None = None
    for source, target, valid in zip(*(t.split(step, dim=1) for t in edges), strict=True):
        some = type(edges)(source, target, valid)
        if reduce == "max" or torch._C._are_functorch_transforms_active():  # noqa: SLF001
            one = run(part, values, some)
            if found is not None:
                one = torch.maximum(found, one) if reduce == "max" else found + one
            found = one
        else:
            # Sums grow in place: a chunk ends at few of the targets, and the backward pass needs no sum.
            sent = run(send, values, some)
            if found is None:
                found = sent.new_zeros(batch, size, channels)
            found.view(batch * size, channels).index_add_(0, _flat(target, size), sent.flatten(0, 1))
    assert found is not None  # there are at least two chunks
    return _finished(found, edges, reduce)


def _call(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Return ``function(*arguments)``, keeping what its backward pass needs."""
    return function(*arguments)


def _packs(edges: Edges) -> bool:
    """Return whether to drop padding among the edges. That needs their number: not on a GPU or in a traced graph."""
    return (
        may_read(edges.valid)
        and not is_symbolic(*edges.valid.shape)
        and not torch._C._are_functorch_transforms_active()  # noqa: SLF001
    )


def _packed(graph: _Graph) -> _Graph:
    """Return the same graph as a single sample, with the rows of all samples one after the other, without padding."""
    values, sources, targets, edges = graph
    batch = edges.source.shape[0]

    def stacked(rows: Tensor) -> Tensor:
        return rows.expand(batch, -1, -1).reshape(1, -1, rows.shape[-1])

    kept = edges.valid.flatten().nonzero().squeeze(1)
    source = _flat(edges.source, sources.shape[1])[kept].unsqueeze(0)
    target = _flat(edges.target, targets.shape[1])[kept].unsqueeze(0)
    some = type(edges)(source, target, torch.ones_like(source, dtype=torch.bool))
    return _Graph(None if values is None else stacked(values), stacked(sources), stacked(targets), some)


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Return the rows of ``values`` (batch or 1, m, channels) at ``index`` (batch, n): (batch, n, channels)."""
    if values.shape[0] == 1:
        return values[0].index_select(0, index.flatten()).unflatten(0, index.shape)
    return values.flatten(0, 1).index_select(0, _flat(index, values.shape[1])).unflatten(0, index.shape)


def _flat(index: Tensor, size: int) -> Tensor:
    """Return indices into the concatenated rows of all samples."""
    return (index + size * torch.arange(index.shape[0], device=index.device).unsqueeze(1)).flatten()


def _neutral(messages: Tensor, edges: Edges | None, reduce: str) -> Tensor:
    """Return messages in at least float32, with padding replaced by a value that changes no sum or no maximum."""
    if messages.dtype in (torch.bfloat16, torch.float16):
        messages = messages.float()  # long sums lose too much precision in bfloat16
    if edges is None:
        return messages
    return messages.masked_fill(~edges.valid.unsqueeze(-1), -math.inf if reduce == "max" else 0.0)


def _reduced(messages: Tensor, edges: Edges, size: int, reduce: str) -> Tensor:
    """Return the (batch, size, channels) sums, or maxima, which are minus infinity for targets without a message."""
    batch, channels = messages.shape[0], messages.shape[-1]
    where, sent = _flat(edges.target, size), messages.flatten(0, 1)
    if reduce == "max":
        lowest = messages.new_full((batch * size, channels), -math.inf)
        best = lowest.scatter_reduce(0, where.unsqueeze(1).expand(-1, channels), sent, "amax")
        return best.unflatten(0, (batch, size))
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
