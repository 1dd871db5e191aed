"""Group attention in two Triton kernels: scores are made, compared and summed without leaving the processor.

One program works on one position of one sample and head. It holds the content scores of a few neighbours for all query
and key elements, (g, m, j), and goes through the output elements h: to these scores each adds its own of position and
element, and what follows of the exponentials is summed over g before any value is read. Neighbours come in tiles; the
largest score and the sum of exponentials are kept for all (h, g) between them. Everything is in float32.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["fused_attention"]

# Programs that add to the gradient of the codes do so in this many copies of it, or they would wait for each other.
SLOTS = 64
# One kernel for all sizes of a network's maps.
SIZES = ["P", "N", "G", "M", "A", "B", "place_h", "place_i", "index_i", "place_slot", "element_slot", "slots"]


@triton.jit
def _content(
    q, k, x, i, at, inside, g, m, P, N, G, M, D: tl.constexpr,
    GP: tl.constexpr, MP: tl.constexpr, JT: tl.constexpr,
):  # fmt: skip
    """Return the scores of content of a tile of neighbours, -1e30 where there is none: (g, m, j)."""
    scores = tl.zeros((GP, MP, JT), dtype=tl.float32)
    for c in range(D):
        one = tl.load(q + ((x * D + c) * G + g) * P + i, mask=g < G, other=0.0)
        there = (m < M)[:, None] & inside[None, :]
        other = tl.load(k + ((x * D + c) * M + m[:, None]) * N + at[None, :], mask=there, other=0.0)
        scores += one[:, None, None] * other[None, :, :]
    real = (m < M)[None, :, None] & inside[None, None, :]
    return tl.where(real, scores, -1e30)


@triton.jit
def _row(table, row):
    """Return the row of an (h, g) table that ``row`` marks."""
    return tl.sum(tl.where(row, table, 0.0), axis=0)


@triton.jit
def _codes(place, element, qa, qb, h, i, j, a, b, m, place_h, place_i, J, M, A, B):
    """Return the codes of a tile and the scores they make: (a, j), (m, b), (g, j), (g, m)."""
    spots = tl.load(
        place + h * place_h + i * place_i + a[:, None] * J + j[None, :],
        mask=(a < A)[:, None] & (j < J)[None, :],
        other=0.0,
    )
    kinds = tl.load(
        element + (h * M + m[:, None]) * B + b[None, :], mask=(m < M)[:, None] & (b < B)[None, :], other=0.0
    )
    by_place = tl.sum(qa[:, :, None] * spots[None, :, :], axis=1)
    by_element = tl.sum(qb[:, None, :] * kinds[None, :, :], axis=2)
    return spots, kinds, by_place, by_element


@triton.jit(do_not_specialize=SIZES[:-3])
def _forward(
    q, k, v, place, element, index, keep, out, lse,
    P, N, G, M, A, B, place_h, place_i, index_i, J: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    KEEP: tl.constexpr, GP: tl.constexpr, MP: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr, AP: tl.constexpr,
    BP: tl.constexpr, JT: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    x, i = pid // P, pid % P
    g, m, hh, d = tl.arange(0, GP), tl.arange(0, MP), tl.arange(0, HP), tl.arange(0, DP)
    a, b = tl.arange(0, AP), tl.arange(0, BP)
    there = (g < G)[:, None]
    qa = tl.load(q + ((x * D + a[None, :]) * G + g[:, None]) * P + i, mask=there & (a < A)[None, :], other=0.0)
    qb = tl.load(q + ((x * D + A + b[None, :]) * G + g[:, None]) * P + i, mask=there & (b < B)[None, :], other=0.0)

    best = tl.full((HP, GP), -3e38, dtype=tl.float32)
    total = tl.zeros((HP, GP), dtype=tl.float32)
    for start in range(0, J, JT):
        j = start + tl.arange(0, JT)
        at = tl.load(index + i * index_i + j, mask=j < J, other=-1)
        inside = at >= 0
        content = _content(q, k, x, i, at, inside, g, m, P, N, G, M, D, GP, MP, JT)
        for h in range(H):
            _, _, by_place, by_element = _codes(place, element, qa, qb, h, i, j, a, b, m, place_h, place_i, J, M, A, B)
            scores = content + by_place[:, None, :] + by_element[:, :, None]
            row = hh[:, None] == h
            before = tl.max(tl.where(row, best, -3e38), axis=0)
            largest = tl.maximum(before, tl.max(tl.max(scores, axis=2), axis=1))
            added = tl.sum(tl.sum(tl.exp(scores - largest[:, None, None]), axis=2), axis=1)
            summed = _row(total, row) * tl.exp(before - largest) + added
            best = tl.where(row, largest[None, :], best)
            total = tl.where(row, summed[None, :], total)
    norm = best + tl.log(tl.maximum(total, 1e-37))
    stored = (hh < H)[:, None] & (g < G)[None, :]
    tl.store(lse + ((x * P + i) * H + hh[:, None]) * G + g[None, :], norm, mask=stored)
    norm = tl.where(stored, norm, 3e38)  # what is not there gets no weight

    acc = tl.zeros((HP, DP), dtype=tl.float32)
    for start in range(0, J, JT):
        j = start + tl.arange(0, JT)
        at = tl.load(index + i * index_i + j, mask=j < J, other=-1)
        inside = at >= 0
        content = _content(q, k, x, i, at, inside, g, m, P, N, G, M, D, GP, MP, JT)
        shown = (m < M)[:, None] & inside[None, :]
        values = tl.load(
            v + ((x * D + d[:, None, None]) * M + m[None, :, None]) * N + at[None, None, :],
            mask=(d < D)[:, None, None] & shown[None, :, :],
            other=0.0,
        )
        if KEEP:
            left = tl.load(keep + ((x * P + i) * M + m[:, None]) * J + j[None, :], mask=shown, other=0)
            values = values * left.to(tl.float32)[None, :, :]
        for h in range(H):
            _, _, by_place, by_element = _codes(place, element, qa, qb, h, i, j, a, b, m, place_h, place_i, J, M, A, B)
            row = hh[:, None] == h
            shift = _row(norm, row)
            weights = tl.exp(content + by_place[:, None, :] + by_element[:, :, None] - shift[:, None, None])
            together = tl.sum(weights, axis=0)
            taken = tl.sum(tl.sum(values * together[None, :, :], axis=2), axis=1)
            acc += tl.where(row, taken[None, :], 0.0)
    tl.store(out + ((x * D + d[None, :]) * H + hh[:, None]) * P + i, acc, mask=(hh < H)[:, None] & (d < D)[None, :])


@triton.jit(do_not_specialize=SIZES)
def _backward(  # noqa: PLR0915
    q, k, v, place, element, index, keep, lse, dout, dq, dk, dv, dplace, delement,
    P, N, G, M, A, B, place_h, place_i, index_i, place_slot, element_slot, slots,
    J: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    KEEP: tl.constexpr, GP: tl.constexpr, MP: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr, AP: tl.constexpr,
    BP: tl.constexpr, JT: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    x, i = pid // P, pid % P
    slot = pid % slots
    g, m, hh, d = tl.arange(0, GP), tl.arange(0, MP), tl.arange(0, HP), tl.arange(0, DP)
    a, b = tl.arange(0, AP), tl.arange(0, BP)
    there = (g < G)[:, None]
    qa = tl.load(q + ((x * D + a[None, :]) * G + g[:, None]) * P + i, mask=there & (a < A)[None, :], other=0.0)
    qb = tl.load(q + ((x * D + A + b[None, :]) * G + g[:, None]) * P + i, mask=there & (b < B)[None, :], other=0.0)
    stored = (hh < H)[:, None] & (g < G)[None, :]
    norm = tl.load(lse + ((x * P + i) * H + hh[:, None]) * G + g[None, :], mask=stored, other=3e38)

    # Of every (h, g), the mean of what the weights' gradients are, which softmax takes away from each of them.
    mean = tl.zeros((HP, GP), dtype=tl.float32)
    for start in range(0, J, JT):
        j = start + tl.arange(0, JT)
        at = tl.load(index + i * index_i + j, mask=j < J, other=-1)
        inside = at >= 0
        content = _content(q, k, x, i, at, inside, g, m, P, N, G, M, D, GP, MP, JT)
        shown = (m < M)[:, None] & inside[None, :]
        values = tl.load(
            v + ((x * D + d[:, None, None]) * M + m[None, :, None]) * N + at[None, None, :],
            mask=(d < D)[:, None, None] & shown[None, :, :],
            other=0.0,
        )
        if KEEP:
            left = tl.load(keep + ((x * P + i) * M + m[:, None]) * J + j[None, :], mask=shown, other=0)
            values = values * left.to(tl.float32)[None, :, :]
        for h in range(H):
            _, _, by_place, by_element = _codes(place, element, qa, qb, h, i, j, a, b, m, place_h, place_i, J, M, A, B)
            row = hh[:, None] == h
            shift = _row(norm, row)
            weights = tl.exp(content + by_place[:, None, :] + by_element[:, :, None] - shift[:, None, None])
            wanted = tl.load(dout + ((x * D + d) * H + h) * P + i, mask=d < D, other=0.0)
            slope = tl.sum(values * wanted[:, None, None], axis=0)
            found = tl.sum(tl.sum(weights * slope[None, :, :], axis=2), axis=1)
            mean += tl.where(row, found[None, :], 0.0)

    dqa = tl.zeros((GP, AP), dtype=tl.float32)
    dqb = tl.zeros((GP, BP), dtype=tl.float32)
    for start in range(0, J, JT):
        j = start + tl.arange(0, JT)
        at = tl.load(index + i * index_i + j, mask=j < J, other=-1)
        inside = at >= 0
        content = _content(q, k, x, i, at, inside, g, m, P, N, G, M, D, GP, MP, JT)
        shown = (m < M)[:, None] & inside[None, :]
        addresses = ((x * D + d[:, None, None]) * M + m[None, :, None]) * N + at[None, None, :]
        exist = (d < D)[:, None, None] & shown[None, :, :]
        values = tl.load(v + addresses, mask=exist, other=0.0)
        left = tl.full((MP, JT), 1.0, dtype=tl.float32)
        if KEEP:
            left = tl.load(keep + ((x * P + i) * M + m[:, None]) * J + j[None, :], mask=shown, other=0).to(tl.float32)
        dcontent = tl.zeros((GP, MP, JT), dtype=tl.float32)
        dvalues = tl.zeros((DP, MP, JT), dtype=tl.float32)
        for h in range(H):
            spots, kinds, by_place, by_element = _codes(
                place, element, qa, qb, h, i, j, a, b, m, place_h, place_i, J, M, A, B
            )
            row = hh[:, None] == h
            shift = _row(norm, row)
            weights = tl.exp(content + by_place[:, None, :] + by_element[:, :, None] - shift[:, None, None])
            wanted = tl.load(dout + ((x * D + d) * H + h) * P + i, mask=d < D, other=0.0)
            slope = tl.sum(values * wanted[:, None, None], axis=0) * left
            together = tl.sum(weights, axis=0) * left
            dvalues += together[None, :, :] * wanted[:, None, None]
            dscores = weights * (slope[None, :, :] - _row(mean, row)[:, None, None])
            dcontent += dscores
            dby_place = tl.sum(dscores, axis=1)
            dby_element = tl.sum(dscores, axis=2)
            dqa += tl.sum(dby_place[:, None, :] * spots[None, :, :], axis=2)
            dqb += tl.sum(dby_element[:, :, None] * kinds[None, :, :], axis=1)
            tl.atomic_add(
                dplace + slot * place_slot + h * place_h + i * place_i + a[:, None] * J + j[None, :],
                tl.sum(qa[:, :, None] * dby_place[:, None, :], axis=0),
                mask=(a < A)[:, None] & (j < J)[None, :],
            )
            tl.atomic_add(
                delement + slot * element_slot + (h * M + m[:, None]) * B + b[None, :],
                tl.sum(qb[:, None, :] * dby_element[:, :, None], axis=0),
                mask=(m < M)[:, None] & (b < B)[None, :],
            )
        tl.atomic_add(dv + addresses, dvalues, mask=exist)
        for c in range(D):
            one = tl.load(q + ((x * D + c) * G + g) * P + i, mask=g < G, other=0.0)
            address = ((x * D + c) * M + m[:, None]) * N + at[None, :]
            other = tl.load(k + address, mask=shown, other=0.0)
            tl.atomic_add(dk + address, tl.sum(dcontent * one[:, None, None], axis=0), mask=shown)
            own = tl.sum(tl.sum(dcontent * other[None, :, :], axis=2), axis=1)
            tl.atomic_add(dq + ((x * D + c) * G + g) * P + i, own, mask=g < G)
    tl.atomic_add(dq + ((x * D + a[None, :]) * G + g[:, None]) * P + i, dqa, mask=there & (a < A)[None, :])
    tl.atomic_add(dq + ((x * D + A + b[None, :]) * G + g[:, None]) * P + i, dqb, mask=there & (b < B)[None, :])


def _pad(n: int) -> int:
    return max(2, triton.next_power_of_2(n))


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, place: Tensor, element: Tensor, index: Tensor, keep: Tensor | None
    ) -> Tensor:
        n, d, g, p = q.shape
        h = place.shape[0]
        out, lse = q.new_empty(n, d, h, p), q.new_empty(n, p, h, g)
        _forward[(n * p,)](q, k, v, place, element, index, q if keep is None else keep, out, lse,
                           **_arguments(q, k, place, element, index, keep))  # fmt: skip
        ctx.save_for_backward(q, k, v, place, element, index, lse)
        ctx.keep = keep
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, place, element, index, lse = ctx.saved_tensors
        dq, dk, dv = (torch.zeros_like(t) for t in (q, k, v))
        pairs = place.dim() == 4
        slots = SLOTS if not pairs else 1
        dplace, delement = place.new_zeros(slots, *place.shape), element.new_zeros(SLOTS, *element.shape)
        if pairs:  # every position has codes of its own, which only samples and heads share
            delement = delement[:1].contiguous()
        _backward[(q.shape[0] * q.shape[3],)](
            q, k, v, place, element, index, q if ctx.keep is None else ctx.keep, lse, dout.contiguous(),
            dq, dk, dv, dplace, delement, place_slot=place.numel(), element_slot=element.numel(), slots=slots,
            **_arguments(q, k, place, element, index, ctx.keep))  # fmt: skip
        return dq, dk, dv, dplace.sum(dim=0), delement.sum(dim=0), None, None


def _arguments(
    q: Tensor, k: Tensor, place: Tensor, element: Tensor, index: Tensor, keep: Tensor | None
) -> dict[str, Any]:
    _, d, g, p = q.shape
    m, n = k.shape[2:]
    h, a, j = place.shape[0], place.shape[-2], place.shape[-1]
    b = element.shape[-1]
    gp, mp, dp = _pad(g), _pad(m), _pad(d)
    # A tile is as many neighbours as leave its tensors in registers.
    tile = min(32, _pad(j), max(4, 4096 // (max(gp, dp) * mp)))
    warps = max(1, min(8, max(gp, dp) * mp * tile // 512))
    return {
        "P": p, "N": n, "J": j, "G": g, "M": m, "H": h, "D": d, "A": a, "B": b,
        "place_h": place.stride(0), "place_i": place.stride(1) if place.dim() == 4 else 0,
        "index_i": j if index.shape[0] > 1 else 0, "KEEP": keep is not None,
        "GP": gp, "MP": mp, "HP": _pad(h), "DP": dp, "AP": _pad(a), "BP": _pad(b), "JT": tile, "num_warps": warps,
    }  # fmt: skip


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, place: Tensor, element: Tensor, index: Tensor, keep: Tensor | None
) -> Tensor:
    """Return (n, channels, h, queries) sums of float32 tensors.

    Args:
        q: (n, channels, g, queries) queries.
        k: (n, channels, m, positions) keys.
        v: (n, channels, m, positions) values.
        place: (h, a, keys) codes of position, or (h, queries, a, keys) where every query has codes of its own.
        element: (h, m, b) codes of elements.
        index: (queries or 1, keys) int32 position of each key, -1 where a query does not see it.
        keep: (n, queries, m, keys) bool, which weights are kept.
    """
    tensors = [t.contiguous() for t in (q, k, v, place, element, index)]
    mask = None if keep is None else keep.contiguous().view(torch.uint8)
    return _Fused.apply(*tensors, mask)
