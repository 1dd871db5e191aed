"""Scatter a kernel's points to their offsets on the periodic grid of an outer transform, and gather them back.

Along the first axis, point i has offset o = i - c. If o >= 0, it goes to part 0 at q = o. If o < 0, it goes to part 1,
the imaginary part, at q = o + outer, since z^-N = i there. With REAL there is one part, which takes both. The other
axes are periodic and long enough for all offsets. A line is a single axis of outer · inner samples.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["gather_kernel", "scatter_kernel"]

#: arguments that do not trigger recompilation
POINTS = ["outer", "p1", "p2", "p3", "c1", "c2", "c3"]


@triton.jit(do_not_specialize=POINTS)
def scatter_kernel(
    kernel_ptr, placed, outer, inner, m2, p1, p2, p3, c1, c2, c3,
    DIM: tl.constexpr, REAL: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """(channels, points) -> (channels, parts, outer, inner), with zeros where there is no point."""
    PARTS: tl.constexpr = 1 if REAL else 2
    q = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    n = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    channel = tl.program_id(2).to(tl.int64)
    known = (q < outer) & (n < inner)
    if DIM == 1:
        ahead = q * inner + n + c1
        behind = ahead - outer * inner
        last = p1
    else:
        if DIM == 2:
            column = n + c2
            at = tl.where(column < p2, column, column - inner)
            there = at >= 0
        else:
            row, column = n // m2 + c2, n % m2 + c3
            row = tl.where(row < p2, row, row - inner // m2)
            column = tl.where(column < p3, column, column - m2)
            there = (row >= 0) & (column >= 0)
            at = row * p3 + column
        known &= there
        ahead = (q + c1) * (p2 * p3) + at
        behind = ahead - outer * (p2 * p3)
        last = p1 * p2 * p3
    base = kernel_ptr + channel * p1 * p2 * p3
    a = tl.load(base + ahead, mask=known & (ahead < last), other=0.0)
    b = tl.load(base + behind, mask=known & (behind >= 0), other=0.0)
    target = placed + channel * (PARTS * outer * inner) + q * inner + n
    if REAL:
        # At most one point of a kernel belongs at each position.
        tl.store(target, tl.where(behind >= 0, b, a), mask=(q < outer) & (n < inner))
    else:
        tl.store(target, a, mask=(q < outer) & (n < inner))
        tl.store(target + outer * inner, b, mask=(q < outer) & (n < inner))


@triton.jit(do_not_specialize=POINTS)
def gather_kernel(
    placed, out_ptr, outer, inner, m2, p1, p2, p3, c1, c2, c3,
    DIM: tl.constexpr, REAL: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """(channels, parts, outer, inner) -> (channels, points), the inverse; zero for points off the grid."""
    PARTS: tl.constexpr = 1 if REAL else 2
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    channel = tl.program_id(2).to(tl.int64)
    if DIM == 1:
        offset, total, width = j - c1, outer * inner, p1
        at = j * 0
        inside = (i < 1) & (j < p1)
        plane = 1
    else:
        width = p2 * p3
        inside = (i < p1) & (j < width)
        offset, total, plane = i - c1, outer, inner
        if DIM == 2:
            at = tl.where(j >= c2, j - c2, j - c2 + inner)
        else:
            row, column = j // p3 - c2, j % p3 - c3
            row = tl.where(row >= 0, row, row + inner // m2)
            column = tl.where(column >= 0, column, column + m2)
            at = row * m2 + column
    ahead = offset >= 0
    q = tl.where(ahead, offset, offset + total)
    if not REAL:
        at = tl.where(ahead, at, at + outer * inner)
    known = inside & (q >= 0) & (q < total)
    value = tl.load(placed + channel * (PARTS * outer * inner) + q * plane + at, mask=known, other=0.0)
    tl.store(out_ptr + channel * p1 * p2 * p3 + i * width + j, value, mask=inside)
