r"""The forward pass of attentive convolutions in Triton: responses are compared and summed in registers, never written.

:math:`r_{bjn}(x) = \sum_k w_{kjn} f_{bj}(x + k)` is the response of input j to the kernel of output n; j and n each
count channels and elements. The lanes of a program are outputs n, each with its own weights. They share the samples of
the input, which the program reads once. Signals on outputs have n last in memory.
"""

# mypy: disable-error-code="no-untyped-def, assignment"
from __future__ import annotations

import triton
import triton.language as tl

from ...attention.triton.forward import channels, zeros

__all__ = ["own_tile", "peaks", "samples", "sums"]

# Loops over sizes that are not constants are `while` loops, because the interpreter rejects `range` of an argument.
# Tensors have one axis, the lanes; all other axes are tuples of tensors or scalars. Positions of a tile beyond the map
# are computed from samples on the map, but not written. SIZES are not specialised, so that one compiled kernel serves
# maps of all sizes.
SIZES = ["C", "G", "N", "HI", "WI", "HO", "WO", "tiles", "across"]


@triton.jit
def own_tile(count, tiles, across, R: tl.constexpr, P: tl.constexpr, L: tl.constexpr):
    """Return the sample of a program, the first row and column of its tile, its element, and its lanes of ``count``."""
    pid = tl.program_id(0)
    tile, blocks = pid % tiles, tl.cdiv(count, L)
    lanes = tl.program_id(1) % blocks * L + tl.arange(0, L)
    return (pid // tiles).to(tl.int64), tile // across * R, tile % across * P, tl.program_id(1) // blocks, lanes


@triton.jit
def samples(plane, row, column, HI, WI, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Load a window of a plane, row by row; indices past the end repeat the last row or column."""
    found = ()
    for i in tl.static_range(ROWS):
        line = plane + tl.minimum(row + i, HI - 1) * WI
        for j in tl.static_range(COLUMNS):
            found = found + (tl.load(line + tl.minimum(column + j, WI - 1)),)
    return found


@triton.jit
def response(ws, values, ROW: tl.constexpr, COLUMN: tl.constexpr, KS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the response of each lane at one position of a window of ``COLUMNS`` columns."""
    z = ws[0] * values[ROW * COLUMNS + COLUMN]
    for k in tl.static_range(1, KS * KS):
        z += ws[k] * values[(ROW + k // KS) * COLUMNS + COLUMN + k % KS]
    return z


@triton.jit(do_not_specialize=SIZES)
def peaks(x, w, top, place, C, N, HI, WI, HO, WO, KS: tl.constexpr, P: tl.constexpr, L: tl.constexpr):
    """Write the largest response of each input to each kernel, and the first position where it occurs.

    Inputs are x (b, C, HI, WI) and w (KS², C, N); both results are (b, C, N).
    """
    pid = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * L + tl.arange(0, L)
    here = n < N
    plane = x + pid * (HI * WI)
    ws = channels(w + (pid % C) * N + n, C * N, here, KS * KS)
    best = tl.full((L,), float("-inf"), dtype=tl.float32)
    where = tl.zeros((L,), dtype=tl.int32)
    y = 0
    while y < HO:
        column = 0
        while column < WO:
            values = samples(plane, y, column, HI, WI, KS, P + KS - 1)
            for p in tl.static_range(P):
                z = response(ws, values, 0, p, KS, P + KS - 1)
                better = (z > best) & (column + p < WO)
                best = tl.where(better, z, best)
                where = tl.where(better, y * WO + column + p, where)
            column += P
        y += 1
    tl.store(top + pid * N + n, best, mask=here)
    tl.store(place + pid * N + n, where, mask=here)


@triton.jit(do_not_specialize=SIZES)
def sums(
    x, w, alpha, total, top, which, C, G, N, HI, WI, HO, WO, tiles, across,
    KS: tl.constexpr, ALPHA: tl.constexpr, TOP: tl.constexpr, R: tl.constexpr, P: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Write the sum of weighted responses over channels and, on request, the largest of them and its channel.

    Inputs are x (b, C, G, HI, WI), w (KS², C, G, N) and weights alpha (b, C, G, N). Results are (b, HO, WO, G, N);
    channels have one extra position per sample, (b, HO · WO + 1, G, N).
    """
    b, y, column, g, n = own_tile(N, tiles, across, R, P, L)
    here = n < N
    x += (b * C * G + g) * (HI * WI)
    w += g * N + n
    alpha += (b * C * G + g) * N + n
    total += ((b * HO * WO) * G + g) * N + n
    top += ((b * HO * WO) * G + g) * N + n
    which += (b * (HO * WO + 1) * G + g) * N + n
    total_, best, index = zeros(L, R * P), (), ()
    for _ in tl.static_range(R * P if TOP else 0):
        best = best + (tl.full((L,), float("-inf"), dtype=tl.float32),)
        index = index + (tl.zeros((L,), dtype=tl.int32),)
    c = 0
    while c < C:
        ws = channels(w + c * G * N, C * G * N, here, KS * KS)
        if ALPHA:
            factor = tl.load(alpha + c * G * N, mask=here, other=0.0)
            scaled = ()
            for k in tl.static_range(KS * KS):
                scaled = scaled + (ws[k] * factor,)
            ws = scaled
        values = samples(x + c * G * (HI * WI), y, column, HI, WI, R + KS - 1, P + KS - 1)
        added, higher, found = (), (), ()
        for r in tl.static_range(R):
            for p in tl.static_range(P):
                z = response(ws, values, r, p, KS, P + KS - 1)
                added = added + (total_[r * P + p] + z,)
                if TOP:
                    better = z > best[r * P + p]
                    higher = higher + (tl.where(better, z, best[r * P + p]),)
                    found = found + (tl.where(better, c, index[r * P + p]),)
        total_ = added
        if TOP:
            best, index = higher, found
        c += 1
    for r in tl.static_range(R):
        for p in tl.static_range(P):
            spot = ((y + r) * WO + column + p) * G * N
            real = here & (y + r < HO) & (column + p < WO)
            tl.store(total + spot, total_[r * P + p], mask=real)
            if TOP:
                tl.store(top + spot, best[r * P + p], mask=real)
                tl.store(which + spot, index[r * P + p].to(tl.int16), mask=real)
