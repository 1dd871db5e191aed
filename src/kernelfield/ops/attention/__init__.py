"""Attention between the samples of a signal on a group (chapter 9), with what the elements share computed once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._checks import check_choice, check_int
from ..backend import recompute, unavailable, use_triton
from ..conv.shape import is_symbolic
from .softmax import softmax_sum
from .windows import neighbor_index, neighbor_tables, windows

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["attention_map", "group_attention", "group_attention_reference"]

METHODS = ("auto", "fused", "chunked", "reference")
#: bytes that the intermediate tensors of one chunk may take, if that is more than ``CHUNK_INPUTS`` times the inputs;
#: four times as many on a GPU, where every chunk costs a hundred launches
CHUNK_BYTES = 1 << 26
CHUNK_INPUTS = 4
#: heads of up to this many channels are left to the fused kernels, whose threads hold a few elements of each
FUSED_CHANNELS = 32


def group_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    elements: Tensor,
    *,
    neighborhood: Sequence[int] | None = None,
    dilation: int = 1,
    crop: int = 0,
    valid: Tensor | None = None,
    keep: Tensor | None = None,
    chunk: int | None = None,
    method: str = "auto",
) -> Tensor:
    r"""Attend to all elements and positions around each position, once for every output element (chapter 9, Eq. 14).

    .. math::
        y(x, h) = \sum_{\tilde h} \sum_{\hat h, y} \sigma_{\hat h, y}\big(\langle q(x, \tilde h),\, k(y, \hat h)\rangle
            + \langle q_1(x, \tilde h),\, p_h(y - x)\rangle
            + \langle q_2(x, \tilde h),\, e(h^{-1} \hat h)\rangle\big)\, v(y, \hat h)

    where :math:`q = (q_1, q_2)` is parted along its channels as the codes p and e are wide.

    The score is a sum of three terms of which none depends on all of (h, h̃, ĥ, y). That of content is computed once
    for all output elements, and the sum over h̃ is taken of the weights, by
    :func:`~kernelfield.ops.attention.softmax.softmax_sum`, before they meet values. Nothing is held that has h, h̃, ĥ
    and a position of the key at once, and values are weighted |H| times less often than scores are compared. Samples
    and heads are worked through in chunks, which are recomputed in the backward pass.

    Args:
        q: (n, elements, \*space, channels) queries, already scaled; n counts samples and heads.
        k: (n, elements, \*space, channels) keys.
        v: (n, elements, \*space, channels) values.
        positions: (out_elements, \*neighborhood, a) codes of the offset of a key from its query; (out_elements,
            queries, keys, a) for a global neighbourhood. a may be zero.
        elements: (out_elements, elements, b) codes of a key's element relative to the output's. b may be zero.
        neighborhood: number of positions along each axis, odd; all positions if not given.
        dilation: distance of the neighbourhood's positions.
        crop: number of positions at each end of each axis that get no output.
        valid: (queries, keys) bool, which keys a query of a global neighbourhood sees; all if not given.
        keep: (n, positions, elements, keys) factors of the weights, such as a dropout mask over its rate.
        chunk: number of samples and heads in one go; by default as many as make intermediate tensors of 64 MiB, on a
            GPU 256 MiB, or four times the inputs, whichever is more.
        method: "fused", Triton kernels, one forward and three backward, which hold no scores at all; "chunked", matrix
            products and softmaxes; "reference", the formula as it stands; "auto", fused on a GPU for heads of up to 32
            channels in float32 and below, unless ``chunk`` is given, and chunked elsewhere.

    Returns:
        (n, out_elements, \*space, channels) sums, over h̃ too, so that the weights add up to the number of elements.

    >>> q, k, v = torch.randn(3, 2, 4, 6, 6, 5)
    >>> y = group_attention(q, k, v, torch.randn(7, 3, 3, 3), torch.randn(7, 4, 2), neighborhood=(3, 3))
    >>> y.shape
    torch.Size([2, 7, 6, 6, 5])
    """

    def block(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, elements: Tensor, keep: Tensor | None) -> Tensor:
        weights, values = _weights(q, k, v, positions, elements, neighborhood, dilation, crop, valid)
        if keep is not None:
            weights = weights * keep.to(weights.dtype).unsqueeze(2)
        return _apply(weights, values)

    check_choice("method", method, METHODS)
    if method == "reference":
        options: dict[str, Any] = {
            "neighborhood": neighborhood,
            "dilation": dilation,
            "crop": crop,
            "valid": valid,
            "keep": keep,
        }
        return group_attention_reference(q, k, v, positions, elements, **options)
    if method == "fused" and (reason := unavailable(q.device)):
        raise ValueError(f"method must be one that can compute here, got 'fused', which {reason}")
    if method == "fused" or (method == "auto" and chunk is None and _fusable(q, keep)):
        return _fused(q, k, v, positions, elements, neighborhood, dilation, crop, valid, keep)
    if neighborhood is not None:
        valid = _seen(q, neighborhood, dilation, crop)
    count = q.shape[0]
    step = _chunk(q, positions, elements, neighborhood, crop) if chunk is None else check_int("chunk", chunk)
    learning = any(t.requires_grad for t in (q, k, v, positions, elements))
    parts = []
    for start in range(0, max(1, count), step) if not is_symbolic(count) else (0,):
        some = slice(None) if is_symbolic(count) or step >= count else slice(start, start + step)
        arguments = (q[some], k[some], v[some], positions, elements, None if keep is None else keep[some])
        parts.append(recompute(block, *arguments) if learning else block(*arguments))
    y = parts[0] if len(parts) == 1 else torch.cat(parts)
    space = [n - 2 * crop for n in q.shape[2:-1]]
    return y.unflatten(1, space).movedim(-2, 1)


def _fusable(q: Tensor, keep: Tensor | None) -> bool:
    return q.shape[-1] <= FUSED_CHANNELS and (keep is None or keep.dtype == torch.bool) and use_triton(q)


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    elements: Tensor,
    neighborhood: Sequence[int] | None,
    dilation: int,
    crop: int,
    valid: Tensor | None,
    keep: Tensor | None,
) -> Tensor:
    from .triton.launch import fused_attention  # noqa: PLC0415

    space, pairs = tuple(q.shape[2:-1]), neighborhood is None
    for axis, length in enumerate(space, start=2):
        q = q.narrow(axis, crop, length - 2 * crop)
    inner = q.shape[2:-1]
    # Channels first, as projections leave them: positions are then neighbours in memory.
    q, k, v = (t.movedim(-1, 1).flatten(3) for t in (q, k, v))
    if neighborhood is None:
        place = positions.permute(0, 3, 2, 1)
        index, inverse = _everyone(q.shape[-1], k.shape[-1], valid, q.device)
    else:
        place = positions.flatten(1, -2).transpose(1, 2).unsqueeze(-1)
        index, inverse = neighbor_tables(space, tuple(neighborhood), dilation, crop, q.device)
    y = fused_attention(q, k, v, place, elements, index, inverse, keep, pairs)
    return y.movedim(1, -1).unflatten(2, inner)


def _everyone(queries: int, keys: int, valid: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return which position each key of a query is, and which query each of a key: (keys, queries), (queries, keys)."""
    index, inverse = (torch.arange(n, dtype=torch.int32, device=device)[:, None] for n in (keys, queries))
    if valid is None:
        return index, inverse
    return torch.where(valid.mT, index, -1).contiguous(), torch.where(valid, inverse, -1).contiguous()


def attention_map(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    elements: Tensor,
    *,
    neighborhood: Sequence[int] | None = None,
    dilation: int = 1,
    valid: Tensor | None = None,
) -> Tensor:
    r"""Return how much every position is attended to, by all queries together, for each output element.

    .. math:: a(y, h) = \frac{1}{|H|\,N} \sum_x \sum_{\tilde h, \hat h} \sigma_{\hat h, y}(\ldots)

    Arguments as in :func:`group_attention`. Its maps sum to one: (n, out_elements, \*space).

    >>> q, k = torch.randn(2, 2, 4, 6, 6, 5)
    >>> a = attention_map(q, k, torch.randn(7, 3, 3, 3), torch.randn(7, 4, 2), neighborhood=(3, 3))
    >>> a.shape, bool((a.sum(dim=(-2, -1)) - 1).abs().max() < 1e-5)
    (torch.Size([2, 7, 6, 6]), True)
    """
    space = q.shape[2:-1]
    if neighborhood is not None:
        valid = _seen(q, neighborhood, dilation, 0)
    step = _chunk(q, positions, elements, neighborhood, 0)
    parts = [
        _weights(some, keys, keys, positions, elements, neighborhood, dilation, 0, valid)[0].sum(dim=-2)
        for some, keys in zip(q.split(step), k.split(step), strict=True)
    ]
    weights = torch.cat(parts).transpose(1, 2)  # (n, out_elements, positions, keys)
    if neighborhood is None:
        received = weights.sum(dim=2)
    else:
        index = neighbor_index(space, neighborhood, dilation, q.device).flatten()
        seen = index >= 0
        received = weights.new_zeros(*weights.shape[:2], math.prod(space))
        received = received.index_add(2, index[seen], weights.flatten(2)[..., seen])
    return received.unflatten(2, space) / (q.shape[1] * math.prod(space))


def _weights(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    elements: Tensor,
    neighborhood: Sequence[int] | None,
    dilation: int,
    crop: int,
    valid: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return Σ_h̃ of the attention, (n, positions, out_elements, elements, keys), and the values it is to weight."""
    a, b = positions.shape[-1], elements.shape[-1]
    for axis, length in enumerate(q.shape[2:-1], start=2):
        q = q.narrow(axis, crop, length - 2 * crop)
    q = q.flatten(2, -2)  # (n, g, positions, channels)
    if neighborhood is None:
        k, v = k.flatten(2, -2), v.flatten(2, -2)
        content = (q.flatten(1, 2) @ k.flatten(1, 2).mT).unflatten(1, q.shape[1:3]).transpose(1, 2)
        content = content.unflatten(-1, k.shape[1:3])
        # (n, g, p, a) with (h, p, j, a): one product for every position of the query.
        place = q[..., :a].permute(2, 0, 1, 3).flatten(1, 2) @ positions.transpose(0, 1).flatten(1, 2).mT
        place = place.unflatten(1, q.shape[:2]).movedim(0, 1).unflatten(-1, (positions.shape[0], -1))
    else:
        k, v = (_around(t, neighborhood, dilation, crop) for t in (k, v))  # (n, positions, m, j, channels)
        content = (q.transpose(1, 2) @ k.flatten(2, 3).mT).unflatten(-1, k.shape[2:4])
        codes = positions.flatten(1, -2)  # (h, j, a)
        place = (q[..., :a].transpose(1, 2) @ codes.flatten(0, 1).mT).unflatten(-1, codes.shape[:2])
    element = (q[..., a : a + b].transpose(1, 2) @ elements.flatten(0, 1).mT).unflatten(-1, elements.shape[:2])
    # Exponentials of half precision would cost digits that the products need.
    content, place, element = (t.float() if t.dtype.itemsize < 4 else t for t in (content, place, element))
    return softmax_sum(content, place, element, valid), v


def _apply(weights: Tensor, values: Tensor) -> Tensor:
    """Return (n, positions, out_elements, channels) weighted sums."""
    weights = weights.flatten(-2).to(values.dtype)
    if values.dim() == 5:  # each position has its own neighbours
        return weights @ values.flatten(2, 3)
    return (weights.flatten(1, 2) @ values.flatten(1, 2)).unflatten(1, weights.shape[1:3])


def _around(x: Tensor, neighborhood: Sequence[int], dilation: int, crop: int) -> Tensor:
    r"""(n, m, \*space, channels) to (n, positions, m, neighbours, channels)."""
    padding = [dilation * (points // 2) - crop for points in neighborhood]
    around = windows(x.movedim(-1, 2), neighborhood, padding, dilation)
    dim = len(neighborhood)
    around = around.movedim(tuple(range(3, 3 + dim)), tuple(range(1, 1 + dim)))  # n, *positions, m, channels, *points
    return around.flatten(1, dim).flatten(-dim).transpose(-1, -2)


def _seen(q: Tensor, neighborhood: Sequence[int], dilation: int, crop: int) -> Tensor | None:
    """Return which neighbours lie within the grid, None if all of them do: (positions, neighbours)."""
    if all(dilation * (points // 2) <= crop for points in neighborhood):
        return None
    return neighbor_index(q.shape[2:-1], neighborhood, dilation, q.device, crop) >= 0


def _chunk(q: Tensor, positions: Tensor, elements: Tensor, neighborhood: Sequence[int] | None, crop: int) -> int:
    if is_symbolic(*q.shape):
        return 1  # not used: a traced loop would fix the number of chunks
    places = math.prod([n - 2 * crop for n in q.shape[2:-1]])
    keys = positions.shape[2] if neighborhood is None else math.prod(neighborhood)
    h, m = elements.shape[:2]
    g = q.shape[1]
    # Scores and weights, and the keys and values of every neighbourhood; each again as its gradient.
    copied = 0 if neighborhood is None else 2 * m * q.shape[-1]
    size = max(q.element_size(), 4)
    one = max(1, 2 * size * places * keys * (g * m + g * h + h * m + copied))
    least = 4 * CHUNK_BYTES if q.is_cuda else CHUNK_BYTES
    return max(1, max(least, CHUNK_INPUTS * 3 * q.numel() * size) // one)


def group_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    elements: Tensor,
    *,
    neighborhood: Sequence[int] | None = None,
    dilation: int = 1,
    crop: int = 0,
    valid: Tensor | None = None,
    keep: Tensor | None = None,
) -> Tensor:
    """The formula of :func:`group_attention` as it stands: all scores at once, softmax, weighted sum.

    Takes codes of elements (out_elements, query elements, elements, b) too, which may depend on the query's element.

    >>> q, k, v = torch.randn(3, 2, 4, 6, 6, 5)
    >>> codes = torch.randn(7, 3, 3, 3), torch.randn(7, 4, 2)
    >>> fast = group_attention(q, k, v, *codes, neighborhood=(3, 3))
    >>> torch.allclose(fast, group_attention_reference(q, k, v, *codes, neighborhood=(3, 3)), atol=1e-4)
    True
    """
    space, a = q.shape[2:-1], positions.shape[-1]
    for axis, length in enumerate(space, start=2):
        q = q.narrow(axis, crop, length - 2 * crop)
    inner = q.shape[2:-1]
    q = q.flatten(2, -2)
    if neighborhood is None:
        around = [t.flatten(2, -2).unsqueeze(1) for t in (k, v)]
        codes = positions
    else:
        around = [_around(t, neighborhood, dilation, crop) for t in (k, v)]
        codes = positions.flatten(1, -2).unsqueeze(1)
        valid = neighbor_index(space, neighborhood, dilation, q.device, crop) >= 0
    keys, values = (t.expand(-1, q.shape[2], -1, -1, -1) for t in around)
    codes = codes.expand(-1, q.shape[2], -1, -1)
    relative = elements if elements.dim() == 4 else elements.unsqueeze(1).expand(-1, q.shape[1], -1, -1)
    scores = torch.einsum("ngpc,npmjc->npgmj", q, keys).unsqueeze(2)
    scores = scores + torch.einsum("ngpa,hpja->nphgj", q[..., :a], codes).unsqueeze(-2)
    scores = scores + torch.einsum("ngpb,hgmb->nphgm", q[..., a : a + relative.shape[-1]], relative).unsqueeze(-1)
    if valid is not None:
        scores = scores.masked_fill(~valid[:, None, None, None], -math.inf)
    weights = scores.flatten(-2).softmax(dim=-1).unflatten(-1, scores.shape[-2:])
    if keep is not None:
        weights = weights * keep[:, :, None, None]
    return torch.einsum("nphgmj,npmjc->nhpc", weights, values).unflatten(2, inner)
