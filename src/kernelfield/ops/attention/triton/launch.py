"""Group attention by Triton kernels as one autograd function: arguments, tile sizes and launches."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...autograd import EagerFunction, grads_by_formula
from ...kernel_operator import kernel_operator
from ...launch_sizes import ceil_div, power_of_2
from ..softmax import softmax_sum
from .backward import NOT_OF_KEYS, keys, places, queries
from .forward import forward

__all__ = ["fused_attention"]

#: numbers of g and h per thread and of lanes per program, for heads of up to 12 channels; measured on an H200
TILES = {"forward": (4, 4, 32), "queries": (4, 4, 32), "keys": (2, 4, 32), "places": (4, 4, 32)}
#: number of key elements whose gradients one thread sums
OWNED = 2
#: number of programs that keeps a GPU busy; long sums are split to reach it
PROGRAMS = 4096
#: number of programs below which smaller tiles are faster, although they repeat work
FEWEST = 1024


def _attend(
    q: Tensor, k: Tensor, v: Tensor, place: Tensor, element: Tensor, index: Tensor, inverse: Tensor,
    keep: Tensor | None, pairs: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the result and the logarithms of the sums of exponentials; arguments as in ``fused_attention``."""
    n, _, _, p = q.shape
    h = element.shape[0]
    out, lse = _shapes(q, k, v, place, element, index, inverse, keep, pairs)
    sizes = _arguments("forward", q, k, place, element, index, keep, pairs)
    sizes["HB"] = _smaller(sizes["HB"], h, ceil_div(n * p, sizes["L"]))
    grid = (ceil_div(n * p, sizes["L"]), ceil_div(h, sizes["HB"]))
    forward[grid](q, k, v, place, element, index, q if keep is None else keep, out, lse, **sizes)
    return out, lse


def _shapes(
    q: Tensor, k: Tensor, v: Tensor, place: Tensor, element: Tensor, *_: Any  # noqa: ARG001
) -> tuple[Tensor, Tensor]:  # fmt: skip
    (n, d, g, p), h = q.shape, element.shape[0]
    return v.new_empty((n, d, h, p)), q.new_empty((n, h, g, p), dtype=torch.float32)


class _Fused(EagerFunction):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, place: Tensor, element: Tensor, index: Tensor, inverse: Tensor,
        keep: Tensor | None, pairs: bool,
    ) -> Tensor:  # fmt: skip
        out, lse = _attend(q, k, v, place, element, index, inverse, keep, pairs)
        ctx.save_for_backward(q, k, v, place, element, index, inverse, lse)
        ctx.keep, ctx.pairs = keep, pairs
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # second derivatives need differentiable operations
            *inputs, index, _, _ = ctx.saved_tensors
            found = grads_by_formula(partial(_formula, index=index, keep=ctx.keep), inputs, dout)
        else:
            found = _gradients(*ctx.saved_tensors, keep=ctx.keep, pairs=ctx.pairs, dout=dout.contiguous())
        return (*found, None, None, None, None)


def _formula(
    q: Tensor, k: Tensor, v: Tensor, place: Tensor, element: Tensor, *, index: Tensor, keep: Tensor | None
) -> Tensor:
    """Compute :func:`fused_attention` from torch's operations; arguments as there."""
    a, b = place.shape[1], element.shape[-1]
    index = index.expand(-1, q.shape[-1])
    keys, values = (t[..., index.long().clamp(min=0)].float() for t in (k, v))  # (n, channels, m, j, p)
    q = q.float()
    content = torch.einsum("ncgp,ncmjp->npgmj", q, keys)
    spots = torch.einsum("nagp,hajp->npghj", q[:, :a], place.expand(-1, -1, -1, q.shape[-1]))
    kinds = torch.einsum("nbgp,hmb->npghm", q[:, a : a + b], element)
    weights = softmax_sum(content, spots, kinds, (index >= 0).mT, fused=False)
    if keep is not None:
        weights = weights * keep.unsqueeze(2)
    return torch.einsum("nphmj,ncmjp->nchp", weights, values).to(v.dtype)


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, place: Tensor, element: Tensor, index: Tensor, inverse: Tensor, lse: Tensor,
    *, keep: Tensor | None, pairs: bool, dout: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the gradients of queries, keys, values and both kinds of codes; arguments as in ``fused_attention``."""
    n, _, g, p = q.shape
    m, positions = k.shape[2:]
    h, a, j, _ = place.shape
    mask = q if keep is None else keep
    inputs = (q, k, place, element, index, keep, pairs)
    dq, dk, dv = (torch.empty_like(t) for t in (q, k, v))
    mean = torch.empty_like(lse)
    sizes = _arguments("queries", *inputs)
    sizes["GB"] = _smaller(sizes["GB"], g, ceil_div(n * p, sizes["L"]))
    grid = ceil_div(n * p, sizes["L"]), ceil_div(g, sizes["GB"])
    queries[grid](q, k, v, place, element, index, mask, lse, mean, dout, dq, **sizes)

    # The thread of a key loops over offsets, or over all queries for pairs. Adjacent threads have adjacent keys.
    by_query = place.transpose(2, 3).contiguous() if pairs else place
    sizes = _arguments("keys", *inputs)
    own = {
        "lanes": n * positions, "T": p if pairs else j, "place_h": by_query.stride(0), "place_c": by_query.stride(1),
        "place_t": by_query.stride(2), "place_y": 1 if pairs else 0,
        "inverse_t": inverse.stride(0), "inverse_y": inverse.stride(1) if inverse.shape[1] > 1 else 0,
        "keep_t": 0 if pairs else sizes["keep_j"], "keep_y": sizes["keep_j"] if pairs else 0,
    }  # fmt: skip
    sizes = {name: value for name, value in sizes.items() if name not in NOT_OF_KEYS} | own
    # All elements of a key use the same loaded queries.
    owned = min(OWNED, power_of_2(m)) if q.shape[1] <= 12 else 1
    sizes["MB"] = _smaller(owned, m, ceil_div(n * positions, sizes["L"]))
    grid = ceil_div(n * positions, sizes["L"]), ceil_div(m, sizes["MB"])
    delement = torch.empty((grid[0], *element.shape), dtype=torch.float32, device=q.device)
    keys[grid](q, k, v, by_query, element, inverse, mask, lse, mean, dout, dk, dv, delement, **sizes)

    if a == 0:
        return dq, dk, dv, torch.zeros_like(place), delement.sum(dim=0)
    sizes = _arguments("places", *inputs)
    del sizes["lanes"]
    tiles, offsets = ceil_div(p, sizes["L"]), j * ceil_div(h, sizes["HB"])
    splits = 1 if pairs else max(1, min(n, PROGRAMS // (tiles * offsets)))
    shape = (splits, h, a, j, p) if pairs else (splits * tiles, h, a, j)
    dplace = torch.empty(shape, dtype=torch.float32, device=q.device)
    places[tiles, offsets, splits](q, k, v, place, element, index, mask, lse, mean, dout, dplace, samples=n, **sizes)
    return dq, dk, dv, dplace.sum(dim=0).view_as(place), delement.sum(dim=0)


def _traced_gradients(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, place: Tensor, element: Tensor, index: Tensor, inverse: Tensor,
    keep: Tensor | None, pairs: bool, lse: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _gradients(q, k, v, place, element, index, inverse, lse, keep=keep, pairs=pairs, dout=dout)


_fused_op = kernel_operator(
    "group_attention",
    "Tensor q, Tensor k, Tensor v, Tensor place, Tensor element, Tensor index, Tensor inverse, Tensor? keep, "
    "bool pairs",
    1,
    5,
    _attend,
    _traced_gradients,
    _shapes,
)


def _smaller(tile: int, elements: int, programs: int) -> int:
    """Return the number of elements per program: at most ``tile``, fewer if there would be too few programs."""
    while tile > 1 and programs * ceil_div(elements, tile) < FEWEST:
        tile //= 2
    return tile


def _arguments(
    kernel: str, q: Tensor, k: Tensor, place: Tensor, element: Tensor, index: Tensor, keep: Tensor | None, pairs: bool
) -> dict[str, Any]:
    """Return the sizes and strides that a kernel takes."""
    n, d, g, p = q.shape
    m, positions = k.shape[2:]
    h, a, j = place.shape[:3]
    kept = (0, 0, 0, 0) if keep is None else keep.stride()
    of_g, of_h, lanes = TILES[kernel]
    # Registers hold all channels of these elements, so wider heads take fewer elements at once.
    fewer = 1 if d <= 12 else 2 if d <= 24 else 4
    of_g, of_h = (min(max(1, t // fewer), power_of_2(n)) for t, n in ((of_g, g), (of_h, h)))
    return {
        "lanes": n * p, "P": p, "N": positions, "G": g, "M": m, "H": h, "J": j,
        "place_h": place.stride(0), "place_c": place.stride(1), "place_j": place.stride(2),
        "place_i": place.stride(3) if place.shape[3] > 1 else 0,
        "index_j": index.stride(0), "index_i": index.stride(1) if index.shape[1] > 1 else 0,
        "keep_x": kept[0], "keep_i": kept[1], "keep_m": kept[2], "keep_j": kept[3],
        "A": a, "B": element.shape[-1], "D": d, "KEEP": keep is not None, "PAIRS": pairs,
        "GB": of_g, "HB": of_h, "L": lanes, "num_warps": lanes // 32,
    }  # fmt: skip


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, place: Tensor, element: Tensor, index: Tensor, inverse: Tensor,
    keep: Tensor | None, pairs: bool,
) -> Tensor:  # fmt: skip
    """Return (n, channels, h, queries) sums in the dtype of the values.

    Args:
        q: (n, channels, g, queries) queries.
        k: (n, channels, m, positions) keys.
        v: (n, channels, m, positions) values.
        place: (h, a, keys, 1) codes of position, or (h, a, keys, queries) if every query has its own codes.
        element: (h, m, b) codes of elements, for the b channels after the first a.
        index: (keys, queries) int32 position of each key, -1 for keys that the query does not attend to.
        inverse: (keys, positions) int32, entry (j, y) is the query whose j-th key lies at position y, -1 for none. For
            pairs (queries, positions), the query itself or -1.
        keep: (n, queries, m, keys) bool, True for weights that dropout keeps.
        pairs: whether every query has its own codes.
    """
    tensors = [t.contiguous() for t in (q, k, v, place.float(), element.float())]
    compiling = torch.compiler.is_compiling()
    mask = keep
    if keep is not None and keep.dtype == torch.bool:
        # Some versions of the compiler cannot view bools as bytes; it fuses the conversion with what makes the mask.
        mask = keep.to(torch.uint8) if compiling else keep.view(torch.uint8)
    run = _fused_op if compiling else _Fused.apply
    result: Tensor = run(*tensors, index, inverse, mask, pairs)
    return result
