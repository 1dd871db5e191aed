"""Gradients of group attention in Triton: three kernels that recompute every score and write every sum once.

Each gradient is summed by one owner. For a query this is the thread of its position. For a key and its value it is the
thread of their position, which visits the queries that attend to it. For a code it is the threads of its offset. There
are no atomic additions, so results do not depend on the order in which programs run.
"""

# mypy: disable-error-code="no-untyped-def, assignment"
from __future__ import annotations

import triton
import triton.language as tl

from .forward import FAR, LOG2E, SIZES, channels, codes_of, placed, rows, scored, table, zeros

__all__ = ["NOT_OF_KEYS", "keys", "places", "queries"]

LN2 = tl.constexpr(0.6931471805599453)
#: arguments that ``keys`` does not take, because it loops over queries and the other kernels over keys
NOT_OF_KEYS = ["J", "place_j", "place_i", "index_j", "index_i", "keep_j"]
OF_KEYS = ["T", "place_t", "place_y", "inverse_t", "inverse_y", "keep_t", "keep_y"]


@triton.jit
def _slopes(dys, vs, kept, D: tl.constexpr, HB: tl.constexpr, KEY: tl.constexpr):
    """Return the gradient of the weight of the ``KEY``-th value, for every h."""
    found = ()
    for h in tl.static_range(HB):
        one = dys[h * D] * vs[KEY * D]
        for c in tl.static_range(1, D):
            one += dys[h * D + c] * vs[KEY * D + c]
        found = found + (one * kept,)
    return found


@triton.jit(do_not_specialize=SIZES)
def queries(
    q, k, v, place, element, index, keep, lse, mean, dout, dq,
    lanes, P, N, G, M, H, J, place_h, place_c, place_j, place_i, index_j, index_i, keep_x, keep_i, keep_m, keep_j,
    A: tl.constexpr, B: tl.constexpr, D: tl.constexpr, KEEP: tl.constexpr, PAIRS: tl.constexpr,
    GB: tl.constexpr, HB: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Write the gradients of queries and, for every (h, g), the mean gradient of its weights."""
    lane = tl.program_id(0) * L + tl.arange(0, L)
    here = lane < lanes
    x, i = (lane // P).to(tl.int64), lane % P
    g0 = tl.program_id(1) * GB
    if PAIRS:
        place += tl.where(here, i, 0) * place_i
    index += i * index_i
    keep += x * keep_x + i * keep_i
    k += x * (D * M * N)
    v += x * (D * M * N)
    qs = rows(q + x * (D * G * P) + i, g0, G, G * P, P, here, LOG2E, GB, D)
    dqs = zeros(L, GB * D)
    h0 = 0
    while h0 < H:
        dys = rows(dout + x * (D * H * P) + i, h0, H, H * P, P, here, 1.0, HB, D)
        norm = table(lse + x * (H * G * P) + i, g0, G, h0, H, P, here, FAR, GB, HB)
        middle = zeros(L, GB * HB)
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
                kept = tl.full((L,), 1.0, dtype=tl.float32)
                if KEEP:
                    kept = tl.load(keep + m * keep_m + j * keep_j, mask=seen, other=0).to(tl.float32)
                slope = _slopes(dys, vs, kept, D, HB, 0)
                new = ()
                for s in tl.static_range(GB * HB):
                    new = new + (middle[s] + tl.exp2(scores[s]) * slope[s % HB],)
                middle = new
                m += 1
            j += 1
        for g in tl.static_range(GB):
            for h in tl.static_range(HB):
                real = here & (g0 + g < G) & (h0 + h < H)
                tl.store(mean + ((x * H + h0 + h) * G + g0 + g) * P + i, middle[g * HB + h], mask=real)
        j = 0
        while j < J:
            at = tl.load(index + j * index_j, mask=here, other=-1)
            seen = at >= 0
            codes = codes_of(place + j * place_j, h0, H, place_c, place_h, HB, A)
            spots = placed(norm, seen, qs, codes, A, D, GB, HB)
            by_place = zeros(L, GB * HB)
            m = 0
            while m < M:
                ks = channels(k + m * N + at, M * N, seen, D)
                vs = channels(v + m * N + at, M * N, seen, D)
                kinds = codes_of(element + m * B, h0, H, 1, M * B, HB, B)
                scores = scored(spots, qs, ks, kinds, A, B, D, GB, HB, 0)
                kept = tl.full((L,), 1.0, dtype=tl.float32)
                if KEEP:
                    kept = tl.load(keep + m * keep_m + j * keep_j, mask=seen, other=0).to(tl.float32)
                slope = _slopes(dys, vs, kept, D, HB, 0)
                new, added = (), ()
                for g in tl.static_range(GB):
                    ds = ()
                    total = tl.zeros((L,), dtype=tl.float32)
                    for h in tl.static_range(HB):
                        one = tl.exp2(scores[g * HB + h]) * (slope[h] - middle[g * HB + h])
                        total += one
                        ds = ds + (one,)
                        added = added + (by_place[g * HB + h] + one,)
                    for c in tl.static_range(D):
                        one = dqs[g * D + c] + total * ks[c]
                        if c >= A and c < A + B:
                            for h in tl.static_range(HB):
                                one += ds[h] * kinds[h * B + c - A]
                        new = new + (one,)
                dqs, by_place = new, added
                m += 1
            new = ()
            for g in tl.static_range(GB):
                for c in tl.static_range(D):
                    one = dqs[g * D + c]
                    if c < A:
                        for h in tl.static_range(HB):
                            one += by_place[g * HB + h] * codes[h * A + c]
                    new = new + (one,)
            dqs = new
            j += 1
        h0 += HB
    for g in tl.static_range(GB):
        for c in tl.static_range(D):
            tl.store(dq + ((x * D + c) * G + g0 + g) * P + i, dqs[g * D + c], mask=here & (g0 + g < G))


@triton.jit(do_not_specialize=[s for s in SIZES if s not in NOT_OF_KEYS] + OF_KEYS)
def keys(
    q, k, v, place, element, inverse, keep, lse, mean, dout, dk, dv, delement,
    lanes, P, N, G, M, H, T, place_h, place_c, place_t, place_y, inverse_t, inverse_y,
    keep_x, keep_i, keep_m, keep_t, keep_y,
    A: tl.constexpr, B: tl.constexpr, D: tl.constexpr, KEEP: tl.constexpr, PAIRS: tl.constexpr,
    GB: tl.constexpr, HB: tl.constexpr, MB: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Write the gradients of keys and values at a few elements, and this program's part of those of element codes."""
    lane = tl.program_id(0) * L + tl.arange(0, L)
    here = lane < lanes
    x, y = (lane // N).to(tl.int64), lane % N
    m0 = tl.program_id(1) * MB
    own = x * (D * M * N) + y
    ks, vs = rows(k + own, m0, M, M * N, N, here, 1.0, MB, D), rows(v + own, m0, M, M * N, N, here, 1.0, MB, D)
    if PAIRS:
        place += tl.where(here, y, 0) * place_y
    inverse += y * inverse_y
    keep += x * keep_x + y * keep_y
    q += x * (D * G * P)
    dout += x * (D * H * P)
    lse += x * (H * G * P)
    mean += x * (H * G * P)
    dks, dvs = zeros(L, MB * D), zeros(L, MB * D)
    h0 = 0
    while h0 < H:
        kinds = ()
        for m in tl.static_range(MB):
            kinds = kinds + codes_of(element + tl.minimum(m0 + m, M - 1) * B, h0, H, 1, M * B, HB, B)
        des = zeros(L, MB * HB * B)
        t = 0
        while t < T:
            i = tl.load(inverse + t * inverse_t, mask=here, other=-1)
            seen = i >= 0
            dys = rows(dout + i, h0, H, H * P, P, seen, 1.0, HB, D)
            codes = codes_of(place + t * place_t, h0, H, place_c, place_h, HB, A)
            kept, slope = (), ()
            for m in tl.static_range(MB):
                left = tl.full((L,), 1.0, dtype=tl.float32)
                if KEEP:
                    bit = keep + t * keep_t + i * keep_i + tl.minimum(m0 + m, M - 1) * keep_m
                    left = tl.load(bit, mask=seen, other=0).to(tl.float32)
                kept = kept + (left,)
                slope = slope + _slopes(dys, vs, left, D, HB, m)
            together = zeros(L, MB * HB)
            g0 = 0
            while g0 < G:
                qs = rows(q + i, g0, G, G * P, P, seen, LOG2E, GB, D)
                norm = table(lse + i, g0, G, h0, H, P, seen, FAR, GB, HB)
                middle = table(mean + i, g0, G, h0, H, P, seen, 0.0, GB, HB)
                spots = placed(norm, seen, qs, codes, A, D, GB, HB)
                summed, of_keys, of_codes = (), (), ()
                for m in tl.static_range(MB):
                    scores = scored(spots, qs, ks, kinds, A, B, D, GB, HB, m)
                    ds, totals = (), zeros(L, GB)
                    for h in tl.static_range(HB):
                        one = together[m * HB + h]
                        new = ()
                        for g in tl.static_range(GB):
                            weight = tl.exp2(scores[g * HB + h])
                            one += weight
                            weight *= slope[m * HB + h] - middle[g * HB + h]
                            ds = ds + (weight,)
                            new = new + (totals[g] + weight,)
                        summed = summed + (one,)
                        totals = new
                    for c in tl.static_range(D):
                        one = dks[m * D + c]
                        for g in tl.static_range(GB):
                            one += totals[g] * qs[g * D + c]
                        of_keys = of_keys + (one,)
                    for h in tl.static_range(HB):
                        for c in tl.static_range(B):
                            one = des[(m * HB + h) * B + c]
                            for g in tl.static_range(GB):
                                one += ds[h * GB + g] * qs[g * D + A + c]
                            of_codes = of_codes + (one,)
                together, dks, des = summed, of_keys, of_codes
                g0 += GB
            new = ()
            for m in tl.static_range(MB):
                for c in tl.static_range(D):
                    one = together[m * HB] * dys[c]
                    for h in tl.static_range(1, HB):
                        one += together[m * HB + h] * dys[h * D + c]
                    new = new + (dvs[m * D + c] + one * kept[m],)
            dvs = new
            t += 1
        for m in tl.static_range(MB):
            for h in tl.static_range(HB):
                if (h0 + h < H) & (m0 + m < M):
                    spot = delement + ((tl.program_id(0) * H + h0 + h) * M + m0 + m) * B
                    for c in tl.static_range(B):
                        tl.store(spot + c, tl.sum(des[(m * HB + h) * B + c], axis=0) * LN2)
        h0 += HB
    for m in tl.static_range(MB):
        real = here & (m0 + m < M)
        for c in tl.static_range(D):
            at = own + c * (M * N) + (m0 + m) * N
            tl.store(dk + at, dks[m * D + c] * LN2, mask=real)
            tl.store(dv + at, dvs[m * D + c], mask=real)


@triton.jit(do_not_specialize=[*SIZES[1:], "samples"])
def places(
    q, k, v, place, element, index, keep, lse, mean, dout, dplace,
    samples, P, N, G, M, H, J, place_h, place_c, place_j, place_i, index_j, index_i,
    keep_x, keep_i, keep_m, keep_j,
    A: tl.constexpr, B: tl.constexpr, D: tl.constexpr, KEEP: tl.constexpr, PAIRS: tl.constexpr,
    GB: tl.constexpr, HB: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Write the part of the gradients of one offset's codes that comes from some samples and positions."""
    i = tl.program_id(0) * L + tl.arange(0, L)
    here = i < P
    blocks = tl.cdiv(H, HB)
    j = tl.program_id(1) // blocks
    h0 = (tl.program_id(1) % blocks) * HB
    if PAIRS:
        place += tl.where(here, i, 0) * place_i
    at = tl.load(index + j * index_j + i * index_i, mask=here, other=-1)
    seen = at >= 0
    codes = codes_of(place + j * place_j, h0, H, place_c, place_h, HB, A)
    dps = zeros(L, HB * A)
    each = tl.cdiv(samples, tl.num_programs(2))
    x = tl.program_id(2).to(tl.int64) * each
    last = tl.minimum(x + each, samples)
    while x < last:
        dys = rows(dout + x * (D * H * P) + i, h0, H, H * P, P, seen, 1.0, HB, D)
        g0 = 0
        while g0 < G:
            qs = rows(q + x * (D * G * P) + i, g0, G, G * P, P, seen, LOG2E, GB, D)
            norm = table(lse + x * (H * G * P) + i, g0, G, h0, H, P, seen, FAR, GB, HB)
            middle = table(mean + x * (H * G * P) + i, g0, G, h0, H, P, seen, 0.0, GB, HB)
            spots = placed(norm, seen, qs, codes, A, D, GB, HB)
            by_place = zeros(L, GB * HB)
            m = 0
            while m < M:
                shift = (x * (D * M) + m) * N
                ks, vs = channels(k + shift + at, M * N, seen, D), channels(v + shift + at, M * N, seen, D)
                kinds = codes_of(element + m * B, h0, H, 1, M * B, HB, B)
                scores = scored(spots, qs, ks, kinds, A, B, D, GB, HB, 0)
                kept = tl.full((L,), 1.0, dtype=tl.float32)
                if KEEP:
                    factor = keep + x * keep_x + m * keep_m + j * keep_j
                    kept = tl.load(factor + i * keep_i, mask=seen, other=0).to(tl.float32)
                slope = _slopes(dys, vs, kept, D, HB, 0)
                new = ()
                for s in tl.static_range(GB * HB):
                    new = new + (by_place[s] + tl.exp2(scores[s]) * (slope[s % HB] - middle[s]),)
                by_place = new
                m += 1
            new = ()
            for h in tl.static_range(HB):
                for c in tl.static_range(A):
                    one = dps[h * A + c]
                    for g in tl.static_range(GB):
                        one += by_place[g * HB + h] * qs[g * D + c]
                    new = new + (one,)
            dps = new
            g0 += GB
        x += 1
    split = tl.program_id(2)
    part = split * tl.num_programs(0) + tl.program_id(0)
    for h in tl.static_range(HB):
        for c in tl.static_range(A):
            one = dps[h * A + c] * LN2
            if PAIRS:
                tl.store(dplace + (((split * H + h0 + h) * A + c) * J + j) * P + i, one, mask=here & (h0 + h < H))
            elif h0 + h < H:
                tl.store(dplace + ((part * H + h0 + h) * A + c) * J + j, tl.sum(one, axis=0))
