"""The backward pass of attentive convolutions in Triton: gradients of maxima and sums of responses that are not stored.

Names and memory layout are those of :mod:`kernelfield.ops.attentive.triton.forward`. A slope is a gradient. The slope
of a response is the slope of its sum plus, if the response is the largest, the slope of the maximum. Slopes and
channels of maxima have one extra position per sample, (b, HO · WO + 1, G, N), which is zero; reads outside the map go
there.
"""

# mypy: disable-error-code="no-untyped-def, assignment"
from __future__ import annotations

import triton
import triton.language as tl

from ...attention.triton.forward import channels, zeros
from .forward import own_tile, samples

__all__ = ["peaks_grad", "sources", "taps"]

SIZES = ["B", "each", "C", "G", "N", "HI", "WI", "HO", "WO", "tiles", "across"]


@triton.jit(do_not_specialize=SIZES)
def peaks_grad(x, w, place, slope, dx, dw, B, each, C, N, HI, WI, WO, KS: tl.constexpr, L: tl.constexpr):
    """Add the slope of each maximum to the window where it was found, and sum the gradients of its weights.

    Results are dx (b, C, HI, WI), summed in no fixed order, and dw (splits, KS², C, N).
    """
    c = tl.program_id(0)
    n = tl.program_id(1) * L + tl.arange(0, L)
    here = n < N
    ws = channels(w + c * N + n, C * N, here, KS * KS)
    found = zeros(L, KS * KS)
    b = tl.program_id(2) * each
    last = tl.minimum(b + each, B)
    while b < last:
        row = b.to(tl.int64) * C + c
        spot = tl.load(place + row * N + n, mask=here, other=0)
        d = tl.load(slope + row * N + n, mask=here, other=0.0)
        corner = row * (HI * WI) + spot // WO * WI + spot % WO
        new = ()
        for k in tl.static_range(KS * KS):
            offset = corner + k // KS * WI + k % KS
            new = new + (found[k] + d * tl.load(x + offset, mask=here, other=0.0),)
            tl.atomic_add(dx + offset, d * ws[k], mask=here, sem="relaxed")
        found = new
        b += 1
    target = dw + tl.program_id(2).to(tl.int64) * (KS * KS) * C * N + c * N + n
    for k in tl.static_range(KS * KS):
        tl.store(target + k * C * N, found[k], mask=here)


@triton.jit(do_not_specialize=SIZES)
def taps(
    x, w, alpha, dtotal, dtop, which, dalpha, dw, B, each, C, G, N, HI, WI, HO, WO,
    KS: tl.constexpr, ALPHA: tl.constexpr, TOP: tl.constexpr, CB: tl.constexpr,
    P: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a sum's factors (b, C, G, N) and weights (splits, KS², C, G, N).

    One program loads the slopes of its outputs once for CB channels, and loops over several samples.
    """
    blocks = tl.cdiv(N, L)
    g, n = tl.program_id(0) // blocks, tl.program_id(0) % blocks * L + tl.arange(0, L)
    here = n < N
    c = tl.program_id(1) * CB
    w += g * N + n
    dws = zeros(L, CB * KS * KS)
    b = tl.program_id(2) * each
    last = tl.minimum(b + each, B)
    while b < last:
        sample = b.to(tl.int64)
        base = (sample * (HO * WO + 1) * G + g) * N + n
        planes = x + (sample * C * G + g) * (HI * WI)
        es = zeros(L, CB * KS * KS)
        y = 0
        while y < HO:
            column = 0
            while column < WO:
                sums, tops, at = (), (), ()
                for p in tl.static_range(P):
                    spot = base + (y * WO + column + p) * G * N
                    real = here & (column + p < WO)
                    sums = sums + (tl.load(dtotal + spot, mask=real, other=0.0),)
                    if TOP:
                        tops = tops + (tl.load(dtop + spot, mask=real, other=0.0),)
                        at = at + (tl.load(which + spot, mask=real, other=-1).to(tl.int32),)
                new = ()
                for i in tl.static_range(CB):
                    plane = planes + tl.minimum(c + i, C - 1) * G * (HI * WI)
                    values = samples(plane, y, column, HI, WI, KS, P + KS - 1)
                    slopes = sums
                    if TOP:
                        slopes = ()
                        for p in tl.static_range(P):
                            slopes = slopes + (sums[p] + tl.where(at[p] == c + i, tops[p], 0.0),)
                    for k in tl.static_range(KS * KS):
                        z = es[i * KS * KS + k]
                        for p in tl.static_range(P):
                            z += slopes[p] * values[k // KS * (P + KS - 1) + p + k % KS]
                        new = new + (z,)
                es = new
                column += P
            y += 1
        new = ()
        for i in tl.static_range(CB):
            real = here & (c + i < C)
            if ALPHA:
                spot = ((sample * C + c + i) * G + g) * N + n
                factor = tl.load(alpha + spot, mask=real, other=0.0)
                ws = channels(w + (c + i) * G * N, C * G * N, real, KS * KS)
                slope = ws[0] * es[i * KS * KS]
                for k in tl.static_range(1, KS * KS):
                    slope += ws[k] * es[i * KS * KS + k]
                tl.store(dalpha + spot, slope, mask=real)
                for k in tl.static_range(KS * KS):
                    new = new + (dws[i * KS * KS + k] + factor * es[i * KS * KS + k],)
            else:
                for k in tl.static_range(KS * KS):
                    new = new + (dws[i * KS * KS + k] + es[i * KS * KS + k],)
        dws = new
        b += 1
    target = dw + tl.program_id(2).to(tl.int64) * (KS * KS) * C * G * N + g * N + n
    for i in tl.static_range(CB):
        for k in tl.static_range(KS * KS):
            tl.store(target + (k * C + c + i) * G * N, dws[i * KS * KS + k], mask=here & (c + i < C))


@triton.jit(do_not_specialize=SIZES)
def sources(
    w, alpha, dtotal, dtop, which, dx, C, G, N, HI, WI, HO, WO, tiles, across,
    KS: tl.constexpr, ALPHA: tl.constexpr, TOP: tl.constexpr, R: tl.constexpr, P: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a sum's input, (b, G, HI, WI, C).

    The lanes are channels, which share the slopes of an output around a tile of the input. Weights are (G, N, KS², C),
    factors (b, G, N, C).
    """
    b, y, column, g, c = own_tile(C, tiles, across, R, P, L)
    here = c < C
    first = (b * (HO * WO + 1) * G + g) * N
    dtotal += first
    dtop += first
    which += first
    w += g * N * (KS * KS) * C + c
    alpha += (b * G + g) * N * C + c
    spots = ()  # positions of the window; positions outside the map are the extra one
    for i in tl.static_range(R + KS - 1):
        for j in tl.static_range(P + KS - 1):
            row, at = y + i - (KS - 1), column + j - (KS - 1)
            real = (row >= 0) & (row < HO) & (at >= 0) & (at < WO)
            spots = spots + (tl.where(real, row * WO + at, HO * WO) * G * N,)
    ys = zeros(L, R * P)
    n = 0
    while n < N:
        ws = channels(w + n * (KS * KS) * C, C, here, KS * KS)
        if ALPHA:
            factor = tl.load(alpha + n * C, mask=here, other=0.0)
            scaled = ()
            for k in tl.static_range(KS * KS):
                scaled = scaled + (ws[k] * factor,)
            ws = scaled
        for i in tl.static_range(R + KS - 1):
            line = ()
            for j in tl.static_range(P + KS - 1):
                spot = spots[i * (P + KS - 1) + j] + n
                slope = tl.load(dtotal + spot)
                if TOP:
                    slope = slope + tl.where(c == tl.load(which + spot).to(tl.int32), tl.load(dtop + spot), 0.0)
                line = line + (slope,)
            new = ()
            for r in tl.static_range(R):
                for p in tl.static_range(P):
                    z = ys[r * P + p]
                    if r <= i and i < r + KS:  # if a row of the kernel links the two rows
                        for k in tl.static_range(KS):
                            z += ws[(r + KS - 1 - i) * KS + k] * line[p + KS - 1 - k]
                    new = new + (z,)
            ys = new
        n += 1
    for r in tl.static_range(R):
        for p in tl.static_range(P):
            spot = (((b * G + g) * HI + y + r) * WI + column + p) * C + c
            tl.store(dx + spot, ys[r * P + p], mask=here & (y + r < HI) & (column + p < WI))
