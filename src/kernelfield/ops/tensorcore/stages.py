"""The steps of the inner transform: one tile of a signal to its spectrum and back, by products with small tables.

:mod:`.transform` says how tiles are laid out, and what the constants mean.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["forward", "indices", "inverse", "largest", "load_tables", "operand", "pair", "signal", "spread"]


@triton.jit
def pair(pointer, at, distance, inside):
    """Load real and imaginary parts that lie ``distance`` apart."""
    return tl.load(pointer + at, mask=inside, other=0.0), tl.load(pointer + at + distance, mask=inside, other=0.0)


@triton.jit
def _table(tables, start, ROWS: tl.constexpr, COLS: tl.constexpr, S: tl.constexpr, DOWN: tl.constexpr):
    """Load the real and the imaginary part of a table, ``S`` times below each other (DOWN) or side by side."""
    if DOWN:
        row, col = tl.arange(0, S * ROWS) % ROWS, tl.arange(0, COLS)
    else:
        row, col = tl.arange(0, ROWS), tl.arange(0, S * COLS) % COLS
    at = start + row[:, None] * COLS + col[None, :]
    return tl.load(tables + at), tl.load(tables + at + ROWS * COLS)


@triton.jit
def load_tables(
    tables, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr, S: tl.constexpr,
    TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr,
):  # fmt: skip
    """Load a1, a2, b2, b1 and the twiddle factors of both ways; the imaginary part of b1 is negated."""
    A2: tl.constexpr = 2 * N1 * K1
    B2: tl.constexpr = A2 + 2 * N2 * K2
    B1: tl.constexpr = B2 + 2 * N2 * K2
    T: tl.constexpr = B1 + 2 * N1 * K1
    a2r, a2i = _table(tables, A2, N2, K2, 1, True)
    b2r, b2i = _table(tables, B2, K2, N2, 1, True)
    if UPRIGHT:
        a1r, a1i = _table(tables, 0, K1, N1, 1, True)
        b1r, b1i = a1r, a1i  # to be transposed where it is used: the same shared memory
    else:
        a1r, a1i = _table(tables, 0, N1, K1, 1, True)
        b1r, b1i = _table(tables, B1, K1, N1, 1, True)
    tr, ti, cr, ci = 0.0, 0.0, 0.0, 0.0
    if TWIDDLE:
        if UPRIGHT:
            tr, ti = _table(tables, T, K1, N2, S, False)
            cr, ci = tr, ti
        else:
            tr, ti = _table(tables, T, N2, K1, S, True)
            cr, ci = _table(tables, T + 2 * N2 * K1, K1, N2, S, True)
    return a1r, a1i, a2r, a2i, b2r, b2i, b1r, b1i, tr, ti, cr, ci


@triton.jit
def indices(N1: tl.constexpr, N2: tl.constexpr, S: tl.constexpr, UPRIGHT: tl.constexpr):
    """Return channel, row and column of every sample of a tile."""
    m = tl.arange(0, S * N2)
    if UPRIGHT:
        n1, m = tl.arange(0, N1)[:, None], m[None, :]
    else:
        n1, m = tl.arange(0, N1)[None, :], m[:, None]
    return m // N2, n1, m % N2


@triton.jit
def _turn(a, S: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """(s rows, cols) -> (s cols, rows)."""
    return tl.reshape(tl.permute(tl.reshape(a, (S, ROWS, COLS)), (0, 2, 1)), (S * COLS, ROWS))


@triton.jit
def _stack(a, S: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """(rows, s cols) -> (s rows, cols)."""
    return tl.reshape(tl.permute(tl.reshape(a, (ROWS, S, COLS)), (1, 0, 2)), (S * ROWS, COLS))


@triton.jit
def _unstack(a, S: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """(s rows, cols) -> (rows, s cols)."""
    return tl.reshape(tl.permute(tl.reshape(a, (S, ROWS, COLS)), (1, 0, 2)), (ROWS, S * COLS))


@triton.jit
def operand(a, like, PRECISION: tl.constexpr):
    """Cast to what a table is multiplied with; tf32, which the hardware would cut off, is rounded."""
    a = a.to(like.dtype)
    if PRECISION == "tf32" and like.dtype == tl.float32:
        a = ((a.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return a


@triton.jit
def largest(re, im, S: tl.constexpr, COMPLEX: tl.constexpr):
    """(s rows, cols) -> the largest absolute value of every one of S > 1 channels, (s), or of the only one."""
    top = tl.abs(re).to(tl.float32)
    if COMPLEX:
        top = tl.maximum(top, tl.abs(im).to(tl.float32))
    if S > 1:
        top = tl.max(top, 1)
        channel = tl.arange(0, top.shape[0]) // (top.shape[0] // S)
        tops = tl.full((S,), 0.0, tl.float32)
        for s in tl.static_range(S):
            tops = tl.where(tl.arange(0, S) == s, tl.max(tl.where(channel == s, top, 0.0)), tops)
    else:
        tops = tl.max(top)
    return tl.maximum(tops, 1e-30)  # something to divide by


@triton.jit
def spread(a, S: tl.constexpr, ROWS: tl.constexpr):
    """One number for each of S > 1 channels -> a column (s rows, 1)."""
    if S > 1:
        # A reshaped tensor would bring its layout along, and all that it is multiplied with into it.
        channel = tl.arange(0, S * ROWS)[:, None] // ROWS
        column = tl.full((S * ROWS, 1), 0.0, tl.float32)
        for s in tl.static_range(S):
            column = tl.where(channel == s, tl.sum(tl.where(tl.arange(0, S) == s, a, 0.0)), column)
    else:
        column = a
    return column


@triton.jit
def _product(ar, ai, br, bi, PRECISION: tl.constexpr):
    """Complex matrix product."""
    real = tl.dot(ar, br, input_precision=PRECISION)
    real = tl.dot(-ai, bi, real, input_precision=PRECISION)
    imag = tl.dot(ar, bi, input_precision=PRECISION)
    imag = tl.dot(ai, br, imag, input_precision=PRECISION)
    return real, imag


@triton.jit
def forward(
    re, im, a1r, a1i, a2r, a2i, tr, ti,
    S: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Signal -> spectrum (s k1, k2)."""
    if UPRIGHT:
        ur = tl.dot(a1r, re, input_precision=PRECISION)
        ui = tl.dot(a1i, re, input_precision=PRECISION)
        if COMPLEX:
            ur -= tl.dot(a1i, im, input_precision=PRECISION)
            ui = tl.dot(a1r, im, ui, input_precision=PRECISION)
    elif COMPLEX:
        ur, ui = _product(re, im, a1r, a1i, PRECISION)
    else:
        ur = tl.dot(re, a1r, input_precision=PRECISION)
        ui = tl.dot(re, a1i, input_precision=PRECISION)
    if TWIDDLE:
        ur, ui = ur * tr - ui * ti, ur * ti + ui * tr
    ur, ui = operand(ur, re, PRECISION), operand(ui, re, PRECISION)
    if UPRIGHT:
        ur, ui = _stack(ur, S, K1, N2), _stack(ui, S, K1, N2)
    else:
        ur, ui = _turn(ur, S, N2, K1), _turn(ui, S, N2, K1)
    return _product(ur, ui, a2r, a2i, PRECISION)


@triton.jit
def inverse(
    vr, vi, b2r, b2i, b1r, b1i, cr, ci,
    S: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Spectrum (s k1, k2) -> signal."""
    vr, vi = operand(vr, b2r, PRECISION), operand(vi, b2r, PRECISION)
    wr, wi = _product(vr, vi, b2r, b2i, PRECISION)
    if UPRIGHT:
        wr, wi = _unstack(wr, S, K1, N2), _unstack(wi, S, K1, N2)
    if TWIDDLE:
        wr, wi = wr * cr + wi * ci, wi * cr - wr * ci
    wr, wi = operand(wr, b2r, PRECISION), operand(wi, b2r, PRECISION)
    if UPRIGHT:
        real = tl.dot(tl.trans(b1r), wr, input_precision=PRECISION)
        real = tl.dot(tl.trans(b1i), wi, real, input_precision=PRECISION)
    else:
        wr, wi = _turn(wr, S, K1, N2), _turn(wi, S, K1, N2)
        real = tl.dot(wr, b1r, input_precision=PRECISION)
        real = tl.dot(wi, b1i, real, input_precision=PRECISION)
    imag = real
    if COMPLEX:
        if UPRIGHT:
            imag = tl.dot(tl.trans(b1r), wi, input_precision=PRECISION)
            imag -= tl.dot(tl.trans(b1i), wr, input_precision=PRECISION)
        else:
            imag = tl.dot(wi, b1r, input_precision=PRECISION)
            imag = tl.dot(-wr, b1i, imag, input_precision=PRECISION)
    return real, imag


@triton.jit
def signal(pointer, at, length, inside, COMPLEX: tl.constexpr):
    """Load a signal's parts; of a real one the same twice."""
    re = tl.load(pointer + at, mask=inside, other=0.0)
    im = re
    if COMPLEX:
        im = tl.load(pointer + at + length, mask=inside, other=0.0)
    return re, im
