"""The forward pass of group attention in Triton: scores are computed, compared and summed in registers.

Each thread, or lane, computes one position of one sample and head, for a few output elements h at once. The lanes of a
warp are neighbours in memory. A thread loops over the query's elements g, a few at a time, and twice over all
neighbours j and key elements m. The first pass computes the normaliser of each (h, g). The second pass computes the
weights, summed over g before they multiply values. Content is computed once for all h of the thread, the score of a
position once for all m. Threads exchange no values, so only the number of elements per step must be a power of two;
excess elements are masked. Scores are in units of log 2 and in float32 for inputs of any type.
"""

# mypy: disable-error-code="no-untyped-def, assignment"
from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["SIZES", "forward"]

# Loops over sizes that are not constants are `while` loops, because the interpreter rejects `range` of an argument.
LOG2E = tl.constexpr(1.4426950408889634)
FAR = tl.constexpr(1e30)
# Arguments that are not specialised, so that one compiled kernel serves maps of all sizes.
SIZES = ["lanes", "P", "N", "G", "M", "H", "J", "place_h", "place_c", "place_j", "place_i", "index_j", "index_i"]
SIZES += ["keep_x", "keep_i", "keep_m", "keep_j"]

# Tensors have one axis, the lanes. All other axes are tuples of such tensors. With more axes the compiler would choose
# a layout for each load and exchange values between threads before every product. (Kernels with three axes gave wrong
# results on a GPU if all three had length 16, with any number of warps, and right results with 8 neighbours.) Tuples
# are flat; channels vary fastest.


@triton.jit
def zeros(L: tl.constexpr, COUNT: tl.constexpr):
    """Return ``COUNT`` tensors of zeros."""
    found = ()
    for _ in tl.static_range(COUNT):
        found = found + (tl.zeros((L,), dtype=tl.float32),)
    return found


@triton.jit
def channels(base, stride, mask, COUNT: tl.constexpr):
    """Load the channels at one position."""
    found = ()
    for c in tl.static_range(COUNT):
        found = found + (tl.load(base + c * stride, mask=mask, other=0.0).to(tl.float32),)
    return found


@triton.jit
def rows(base, first, count, stride, step, mask, factor, ROWS: tl.constexpr, COUNT: tl.constexpr):
    """Load the channels of some elements; indices past the end repeat the last element."""
    found = ()
    for r in tl.static_range(ROWS):
        row = base + tl.minimum(first + r, count - 1) * step
        for c in tl.static_range(COUNT):
            found = found + (tl.load(row + c * stride, mask=mask, other=0.0).to(tl.float32) * factor,)
    return found


@triton.jit
def codes_of(base, first, count, stride, step, ROWS: tl.constexpr, COUNT: tl.constexpr):
    """Load the codes of some output elements; indices past the end repeat the last element."""
    found = ()
    for r in tl.static_range(ROWS):
        row = base + tl.minimum(first + r, count - 1) * step
        for c in tl.static_range(COUNT):
            found = found + (tl.load(row + c * stride),)
    return found


@triton.jit
def placed(start, seen, qs, codes, A: tl.constexpr, D: tl.constexpr, GB: tl.constexpr, HB: tl.constexpr):
    """Return the score of a position minus ``start`` for all (g, h), or a very low score if it is not visible."""
    found = ()
    nowhere = tl.where(seen, 0.0, -FAR)
    for g in tl.static_range(GB):
        for h in tl.static_range(HB):
            z = nowhere - start[g * HB + h]
            for c in tl.static_range(A):
                z += qs[g * D + c] * codes[h * A + c]
            found = found + (z,)
    return found


@triton.jit
def scored(
    spots, qs, ks, kinds, A: tl.constexpr, B: tl.constexpr, D: tl.constexpr, GB: tl.constexpr, HB: tl.constexpr,
    KEY: tl.constexpr,
):  # fmt: skip
    """Return the score of the ``KEY``-th key for all (g, h), given the score of its position."""
    found = ()
    for g in tl.static_range(GB):
        content = qs[g * D] * ks[KEY * D]
        for c in tl.static_range(1, D):
            content += qs[g * D + c] * ks[KEY * D + c]
        for h in tl.static_range(HB):
            z = spots[g * HB + h] + content
            for c in tl.static_range(B):
                z += qs[g * D + A + c] * kinds[(KEY * HB + h) * B + c]
            found = found + (z,)
    return found


@triton.jit
def table(base, g0, G, h0, H, P, mask, other, GB: tl.constexpr, HB: tl.constexpr):
    """Return the entries of an (h, g) table, or ``other`` for elements that do not exist."""
    found = ()
    for g in tl.static_range(GB):
        for h in tl.static_range(HB):
            real = mask & (g0 + g < G) & (h0 + h < H)
            found = found + (tl.load(base + ((h0 + h) * G + g0 + g) * P, mask=real, other=other),)
    return found


@triton.jit(do_not_specialize=SIZES)
def forward(
    q, k, v, place, element, index, keep, out, lse,
    lanes, P, N, G, M, H, J, place_h, place_c, place_j, place_i, index_j, index_i, keep_x, keep_i, keep_m, keep_j,
    A: tl.constexpr, B: tl.constexpr, D: tl.constexpr, KEEP: tl.constexpr, PAIRS: tl.constexpr,
    GB: tl.constexpr, HB: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Write the weighted sums of values and, for every (h, g), the logarithm of its sum of exponentials."""
    lane = tl.program_id(0) * L + tl.arange(0, L)
    here = lane < lanes
    x, i = (lane // P).to(tl.int64), lane % P
    h0 = tl.program_id(1) * HB
    if PAIRS:
        place += tl.where(here, i, 0) * place_i
    index += i * index_i
    keep += x * keep_x + i * keep_i
    k += x * (D * M * N)
    v += x * (D * M * N)
    ys = zeros(L, HB * D)
    g0 = 0
    while g0 < G:
        qs = rows(q + x * (D * G * P) + i, g0, G, G * P, P, here, LOG2E, GB, D)
        nothing = zeros(L, GB * HB)
        best, amount = (), nothing
        for _ in tl.static_range(GB * HB):
            best = best + (tl.full((L,), -0.1 * FAR, dtype=tl.float32),)
        j = 0
        while j < J:
            at = tl.load(index + j * index_j, mask=here, other=-1)
            seen = at >= 0
            codes = codes_of(place + j * place_j, h0, H, place_c, place_h, HB, A)
            spots = placed(nothing, seen, qs, codes, A, D, GB, HB)
            m = 0
            while m < M:
                ks = channels(k + m * N + at, M * N, seen, D)
                kinds = codes_of(element + m * B, h0, H, 1, M * B, HB, B)
                scores = scored(spots, qs, ks, kinds, A, B, D, GB, HB, 0)
                highest, added = (), ()
                for s in tl.static_range(GB * HB):
                    # An online softmax has two exponentials, but one of them is always exp(0).
                    gap = scores[s] - best[s]
                    fall = tl.exp2(-tl.abs(gap))
                    added = added + (tl.where(gap > 0, amount[s] * fall + 1.0, amount[s] + fall),)
                    highest = highest + (tl.maximum(best[s], scores[s]),)
                best, amount = highest, added
                m += 1
            j += 1
        norm = ()
        for g in tl.static_range(GB):
            for h in tl.static_range(HB):
                one = best[g * HB + h] + tl.log2(tl.maximum(amount[g * HB + h], 1e-37))
                real = here & (g0 + g < G) & (h0 + h < H)
                tl.store(lse + ((x * H + h0 + h) * G + g0 + g) * P + i, one, mask=real)
                norm = norm + (tl.where(real, one, FAR),)  # elements that do not exist get no weight
        j = 0
        while j < J:
            at = tl.load(index + j * index_j, mask=here, other=-1)
            seen = at >= 0
            codes = codes_of(place + j * place_j, h0, H, place_c, place_h, HB, A)
            spots = placed(norm, seen, qs, codes, A, D, GB, HB)
            m = 0
            while m < M:
                ks = channels(k + m * N + at, M * N, seen, D)
                vs = channels(v + m * N + at, M * N, seen, D)
                kinds = codes_of(element + m * B, h0, H, 1, M * B, HB, B)
                scores = scored(spots, qs, ks, kinds, A, B, D, GB, HB, 0)
                new = ()
                for h in tl.static_range(HB):
                    weight = tl.exp2(scores[h])
                    for g in tl.static_range(1, GB):
                        weight += tl.exp2(scores[g * HB + h])
                    if KEEP:
                        weight *= tl.load(keep + m * keep_m + j * keep_j, mask=seen, other=0).to(tl.float32)
                    for c in tl.static_range(D):
                        new = new + (ys[h * D + c] + weight * vs[c],)
                ys = new
                m += 1
            j += 1
        g0 += GB
    for h in tl.static_range(HB):
        for c in tl.static_range(D):
            tl.store(out + ((x * D + c) * H + h0 + h) * P + i, ys[h * D + c], mask=here & (h0 + h < H))
