"""The torch path of group attention: matrix products and softmaxes, a few samples and heads at a time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..._arguments import with_arguments_of
from ..._checks import check_int, is_symbolic
from ..backend import recompute
from .softmax import softmax_sum
from .windows import Neighborhood, cropped, neighbor_index, neighborhoods

__all__ = ["attention_map", "chunked_attention"]

#: bytes of a chunk's intermediate tensors, unless ``CHUNK_INPUTS`` times the inputs is more; four times as many on a
#: GPU, where every chunk costs a hundred launches
CHUNK_BYTES = 1 << 26
CHUNK_INPUTS = 4


def chunked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    codes: tuple[Tensor, Tensor],
    around: Neighborhood,
    keep: Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Compute :func:`~kernelfield.ops.group_attention` in chunks, which the backward pass computes again.

    The arguments are the same; ``codes`` are its ``positions`` and ``elements``.

    The content term is computed once for all output elements, and the weights are summed over the query's elements
    before they multiply values. No tensor is indexed by three elements and a key's position at once.
    """

    def block(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, elements: Tensor, keep: Tensor | None) -> Tensor:
        weights, values = _weights(q, k, v, (positions, elements), around)
        if keep is not None:
            weights = weights * keep.to(weights.dtype).unsqueeze(2)
        return _weighted_sum(weights, values)

    around = _on_grid(around, q)
    count = q.shape[0]
    step = _chunk_size(q, codes, around) if chunk is None else check_int("chunk", chunk)
    learning = any(t.requires_grad for t in (q, k, v, *codes))
    parts = []
    for start in range(0, max(1, count), step) if not is_symbolic(count) else (0,):
        some = slice(None) if is_symbolic(count) or step >= count else slice(start, start + step)
        arguments = (q[some], k[some], v[some], *codes, None if keep is None else keep[some])
        parts.append(recompute(block, *arguments) if learning else block(*arguments))
    y = parts[0] if len(parts) == 1 else torch.cat(parts)
    space = [n - 2 * around.crop for n in q.shape[2:-1]]
    return y.unflatten(1, space).movedim(-2, 1)


@with_arguments_of(Neighborhood.of, without=("crop",))
def attention_map(q: Tensor, k: Tensor, positions: Tensor, elements: Tensor, **around: Any) -> Tensor:
    r"""Return the share of all queries' attention that each position receives, for each output element.

    .. math:: a(y, h) = \frac{1}{|H|\,N} \sum_x \sum_{\tilde h, \hat h} \sigma_{\hat h, y}(\ldots)

    The arguments are those of :func:`~kernelfield.ops.group_attention`; N is the number of positions.

    Returns:
        (n, out_elements, \*space) maps, each of which sums to one.

    >>> q, k = torch.randn(2, 2, 4, 6, 6, 5)
    >>> a = attention_map(q, k, torch.randn(7, 3, 3, 3), torch.randn(7, 4, 2), neighborhood=(3, 3))
    >>> a.shape, bool((a.sum(dim=(-2, -1)) - 1).abs().max() < 1e-5)
    (torch.Size([2, 7, 6, 6]), True)
    """
    space = q.shape[2:-1]
    codes, grid = (positions, elements), _on_grid(Neighborhood.of(crop=0, **around), q)
    step = _chunk_size(q, codes, grid)
    parts = [
        _weights(some, keys, keys, codes, grid)[0].sum(dim=-2)
        for some, keys in zip(q.split(step), k.split(step), strict=True)
    ]
    weights = torch.cat(parts).transpose(1, 2)  # (n, out_elements, positions, keys)
    if grid.points is None:
        received = weights.sum(dim=2)
    else:
        index = neighbor_index(space, grid.points, grid.dilation, q.device).flatten()
        exists = index >= 0
        received = weights.new_zeros(*weights.shape[:2], math.prod(space))
        received = received.index_add(2, index[exists], weights.flatten(2)[..., exists])
    return received.unflatten(2, space) / (q.shape[1] * math.prod(space))


def _weights(
    q: Tensor, k: Tensor, v: Tensor, codes: tuple[Tensor, Tensor], around: Neighborhood
) -> tuple[Tensor, Tensor]:
    """Return the sum over h̃ of the weights, (n, positions, out_elements, elements, keys), and their values."""
    positions, elements = codes
    a, b = positions.shape[-1], elements.shape[-1]
    q = cropped(q, around.crop).flatten(2, -2)  # (n, g, positions, channels)
    if around.points is None:
        k, v = k.flatten(2, -2), v.flatten(2, -2)
        content = (q.flatten(1, 2) @ k.flatten(1, 2).mT).unflatten(1, q.shape[1:3]).transpose(1, 2)
        content = content.unflatten(-1, k.shape[1:3])
        # (n, g, p, a) times (h, p, j, a) is one matrix product for every position of the query.
        place = q[..., :a].permute(2, 0, 1, 3).flatten(1, 2) @ positions.transpose(0, 1).flatten(1, 2).mT
        place = place.unflatten(1, q.shape[:2]).movedim(0, 1).unflatten(-1, (positions.shape[0], -1))
    else:
        # Keys and values of each position: (n, positions, m, j, channels).
        k, v = (neighborhoods(t, around.points, around.dilation, around.crop) for t in (k, v))
        content = (q.transpose(1, 2) @ k.flatten(2, 3).mT).unflatten(-1, k.shape[2:4])
        positions = positions.flatten(1, -2)  # (h, j, a)
        place = (q[..., :a].transpose(1, 2) @ positions.flatten(0, 1).mT).unflatten(-1, positions.shape[:2])
    element = (q[..., a : a + b].transpose(1, 2) @ elements.flatten(0, 1).mT).unflatten(-1, elements.shape[:2])
    # In half precision, exponentials would lose digits that the products need.
    content, place, element = (t.float() if t.dtype.itemsize < 4 else t for t in (content, place, element))
    return softmax_sum(content, place, element, around.valid), v


def _weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Return (n, positions, out_elements, channels) weighted sums."""
    weights = weights.flatten(-2).to(values.dtype)
    if values.dim() == 5:  # each position has its own neighbours
        return weights @ values.flatten(2, 3)
    return (weights.flatten(1, 2) @ values.flatten(1, 2)).unflatten(1, weights.shape[1:3])


def _on_grid(around: Neighborhood, q: Tensor) -> Neighborhood:
    """Return the neighbourhood with a mask of the neighbours on the grid: (positions, neighbours), None for all."""
    points, dilation, crop = around.points, around.dilation, around.crop
    if points is None:
        return around
    if all(dilation * (count // 2) <= crop for count in points):
        return Neighborhood(points, dilation, crop)
    exist = neighbor_index(q.shape[2:-1], points, dilation, q.device, crop) >= 0
    return Neighborhood(points, dilation, crop, exist)


def _chunk_size(q: Tensor, codes: tuple[Tensor, Tensor], around: Neighborhood) -> int:
    if is_symbolic(*q.shape):
        return 1  # not used: a traced program computes a single chunk, because a loop would fix their number
    queries = math.prod([n - 2 * around.crop for n in q.shape[2:-1]])
    keys = codes[0].shape[2] if around.points is None else math.prod(around.points)
    h, m = codes[1].shape[:2]
    g = q.shape[1]
    # Scores, weights, and the keys and values of every neighbourhood, and as much again for their gradients.
    copied = 0 if around.points is None else 2 * m * q.shape[-1]
    size = max(q.element_size(), 4)
    one = max(1, 2 * size * queries * keys * (g * m + g * h + h * m + copied))
    least = 4 * CHUNK_BYTES if q.is_cuda else CHUNK_BYTES
    return max(1, max(least, CHUNK_INPUTS * 3 * q.numel() * size) // one)
