"""The steps of the inner transform of a tile and of its inverse, which are products with small tables.

A complex matrix is stored as a real one with twice the columns, the real part left of the imaginary part. A complex
product is then one product of real matrices:

    [ur ui] · [[ar, ai], [-ai, ar]] = [ur ar - ui ai, ur ai + ui ar]

The table of the inverse transform is the transposed table of the transform. :mod:`.transform` explains the layout of
tiles and the constants.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "beside", "first_of", "first_step", "indices", "largest", "last_step", "load_columns", "load_tables", "operand",
    "packed", "parts", "second_step", "spectral_indices", "spread", "third_step", "times", "unpacked",
]  # fmt: skip


@triton.jit
def beside(re, im):
    """Two (rows, cols) -> (rows, 2 cols)."""
    return tl.reshape(tl.permute(tl.join(re, im), (0, 2, 1)), (re.shape[0], 2 * re.shape[1]))


@triton.jit
def parts(a):
    """(rows, 2 cols) -> two of (rows, cols)."""
    return tl.split(tl.permute(tl.reshape(a, (a.shape[0], 2, a.shape[1] // 2)), (0, 2, 1)))


@triton.jit
def _halves(a):
    """(2 rows, cols) -> two of (rows, cols)."""
    return tl.split(tl.permute(tl.reshape(a, (2, a.shape[0] // 2, a.shape[1])), (1, 2, 0)))


@triton.jit
def packed(re, im):
    """Pack half-precision complex numbers into 32 bits each; return the packed tensor twice."""
    if re.dtype != tl.float32:
        re = re.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        im = im.to(tl.int16, bitcast=True).to(tl.int32) << 16
        re |= im
        im = re
    return re, im


@triton.jit
def _square(tables, start, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Load a table."""
    return tl.load(tables + start + tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :])


@triton.jit
def _twiddle(
    tables, start, ROWS: tl.constexpr, COLS: tl.constexpr, S: tl.constexpr, DOWN: tl.constexpr, PACKED: tl.constexpr
):
    """Load real and imaginary parts of twiddle factors, repeated ``S`` times vertically (DOWN) or horizontally."""
    row, col = tl.arange(0, ROWS), tl.arange(0, S * COLS)
    if DOWN:
        row, col = tl.arange(0, S * ROWS) % ROWS, tl.arange(0, COLS)
    at = start + row[:, None] * (2 * COLS)
    if PACKED:
        # Both are loaded as one tensor, so that it is converted to the layout of products here and not at each use.
        both = tl.arange(0, 2 * col.shape[0])
        both = (both // col.shape[0]) * COLS + both % COLS
        tr, ti = parts(tl.load(tables + at + both[None, :]))
        tr, ti = packed(tr, ti)
    else:
        at += col[None, :] % COLS
        tr, ti = tl.load(tables + at), tl.load(tables + at + COLS)
    return tr, ti


@triton.jit
def load_tables(
    tables, own, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr, S: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, SHARED: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Load a1, b1 and the twiddle factors of both directions, for outer frequency ``own`` if tables depend on it."""
    COPIES: tl.constexpr = 1 if SHARED else 2
    TURNS: tl.constexpr = (1 if UPRIGHT else 2) if TWIDDLE else 0
    A1: tl.constexpr = 2 * K1 * (2 * N1 if COMPLEX else N1)
    P: tl.constexpr = A1 // (2 * K1)
    T: tl.constexpr = COPIES * A1
    tables += COPIES * 4 * N2 * K2 + own * (T + TURNS * 2 * N2 * K1)
    if UPRIGHT:
        a1 = _square(tables, 0, 2 * K1, P)
    else:
        a1 = _square(tables, 0, P, 2 * K1)
    b1 = a1
    if not SHARED:
        b1 = _square(tables, A1, 2 * K1, P)
    tr, ti, cr, ci = 0.0, 0.0, 0.0, 0.0
    if TWIDDLE:
        if UPRIGHT:
            tr, ti = _twiddle(tables, T, K1, N2, S, False, PACKED)
            cr, ci = tr, ti
        else:
            tr, ti = _twiddle(tables, T, N2, K1, S, True, PACKED)
            cr, ci = _twiddle(tables, T + 2 * N2 * K1, K1, N2, S, True, PACKED)
    return a1, b1, tr, ti, cr, ci


@triton.jit
def load_columns(tables, start, N2: tl.constexpr, K2: tl.constexpr, C: tl.constexpr, SHARED: tl.constexpr):
    """Load ``C`` columns of a2 and as many rows of b2, starting at ``start``."""
    n, k = tl.arange(0, 2 * N2), tl.arange(0, 2 * C)
    k = (k // C) * K2 + start + k % C
    a2 = tl.load(tables + n[:, None] * (2 * K2) + k[None, :])
    b2 = a2
    if not SHARED:
        b2 = tl.load(tables + 4 * N2 * K2 + k[:, None] * (2 * N2) + n[None, :])
    return a2, b2


@triton.jit
def first_of(program, tile, hop, S: tl.constexpr, TILES: tl.constexpr):
    """Return the first signal of a stack; the others follow at distances of ``hop``.

    ``hop`` is the number of tables. Programs cover all outer frequencies of S channels, then those of the next S.
    """
    return ((program // hop * TILES + tile) * S) * hop + program % hop


@triton.jit
def indices(N1: tl.constexpr, N2: tl.constexpr, S: tl.constexpr, COMPLEX: tl.constexpr, UPRIGHT: tl.constexpr):
    """Return channel, row, column and part (0: real, 1: imaginary) of each entry of a tile."""
    m, n = tl.arange(0, S * N2), tl.arange(0, 2 * N1 if COMPLEX else N1)
    if UPRIGHT:
        n, m = n[:, None], m[None, :]
    else:
        n, m = n[None, :], m[:, None]
    return m // N2, n % N1, m % N2, n // N1


@triton.jit
def spectral_indices(hop, start, S: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr, C: tl.constexpr):
    """Return signal and index of the entries of ``C`` columns, from ``start``, of a stack of spectra (K1, 2, K2)."""
    row, k = tl.arange(0, S * K1)[:, None], tl.arange(0, 2 * C)[None, :]
    s = row // K1 * hop
    return s, s * (2 * K1 * K2) + row % K1 * (2 * K2) + k // C * K2 + start + k % C


@triton.jit
def operand(a, like, PRECISION: tl.constexpr):
    """Cast to the dtype of the tables, rounded to tf32 if needed, since the hardware would truncate."""
    a = a.to(like.dtype)
    if PRECISION == "tf32" and like.dtype == tl.float32:
        a = ((a.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return a


@triton.jit
def largest(a, S: tl.constexpr, UPRIGHT: tl.constexpr):
    """Return the largest magnitude of each of S channels, in rows or UPRIGHT columns; a single value if S = 1."""
    top = tl.abs(a).to(tl.float32)
    if S > 1:
        if UPRIGHT:
            top = tl.max(top, 0)
        else:
            top = tl.max(top, 1)
        channel = tl.arange(0, top.shape[0]) // (top.shape[0] // S)
        tops = tl.full((S,), 0.0, tl.float32)
        for s in tl.static_range(S):
            tops = tl.where(tl.arange(0, S) == s, tl.max(tl.where(channel == s, top, 0.0)), tops)
    else:
        tops = tl.max(top)
    return tl.maximum(tops, 1e-30)  # avoid division by zero


@triton.jit
def spread(a, S: tl.constexpr, N: tl.constexpr, UPRIGHT: tl.constexpr):
    """One value per channel, S > 1 -> a column (s n, 1), UPRIGHT: a row (1, s n)."""
    if S > 1:
        # A reshape would impose its layout on all tensors that it is multiplied with.
        channel = tl.arange(0, S * N) // N
        column = tl.full((S * N,), 0.0, tl.float32)
        for s in tl.static_range(S):
            column = tl.where(channel == s, tl.sum(tl.where(tl.arange(0, S) == s, a, 0.0)), column)
        if UPRIGHT:
            column = column[None, :]
        else:
            column = column[:, None]
    else:
        column = a
    return column


@triton.jit
def unpacked(re, im, zero, like, PACKED: tl.constexpr):
    """Unpack to float32 at the point of use.

    The compiler would move the conversion out of the loop and use twice the registers. The dependence on ``zero``,
    which the compiler does not know to be constant, prevents that.
    """
    if PACKED and like.dtype != tl.float32:
        both = re ^ zero
        if like.dtype == tl.bfloat16:
            re, im = both << 16, both & -65536
            re, im = re.to(tl.float32, bitcast=True), im.to(tl.float32, bitcast=True)
        else:
            re, im = both.to(tl.int16), (both >> 16).to(tl.int16)
            re, im = re.to(tl.float16, bitcast=True).to(tl.float32), im.to(tl.float16, bitcast=True).to(tl.float32)
    return re, im


@triton.jit
def times(ar, ai, br, bi, CONJUGATE: tl.constexpr):
    """Multiply two complex numbers, or if CONJUGATE the first by the conjugate of the second."""
    if CONJUGATE:
        return ar * br + ai * bi, ai * br - ar * bi
    return ar * br - ai * bi, ar * bi + ai * br


@triton.jit
def _quarter(a):
    """Return the two parts of a table [[a, b], [-b, a]] or of its transpose."""
    upper, _ = _halves(a)
    return parts(upper)


@triton.jit
def first_step(
    x, a1, tr, ti, zero,
    TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Signal (s n2, n1) -> (s n2, k1), UPRIGHT: (n1, s n2) -> (k1, s n2), real and imaginary, in float32."""
    if UPRIGHT:
        ur, ui = _halves(tl.dot(a1, x, input_precision=PRECISION))
    else:
        ur, ui = parts(tl.dot(x, a1, input_precision=PRECISION))
    if TWIDDLE:
        tr, ti = unpacked(tr, ti, zero, a1, PACKED)
        ur, ui = times(ur, ui, tr, ti, False)
    return ur, ui


@triton.jit
def _stacked(u, S: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr):
    """UPRIGHT (k1, s n2) -> (s k1, n2)."""
    return tl.reshape(tl.permute(tl.reshape(u, (K1, S, N2)), (1, 0, 2)), (S * K1, N2))


@triton.jit
def _abreast(w, S: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr):
    """(s k1, n2) -> UPRIGHT (k1, s n2)."""
    return tl.reshape(tl.permute(tl.reshape(w, (S, K1, N2)), (1, 0, 2)), (K1, S * N2))


@triton.jit
def second_step(
    ur, ui, a2, S: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, UPRIGHT: tl.constexpr, PRECISION: tl.constexpr
):
    """Result of the first step -> spectrum, real and imaginary parts (s k1, k2), in float32."""
    ur, ui = operand(ur, a2, PRECISION), operand(ui, a2, PRECISION)
    if UPRIGHT and K1 < 64:
        # In slim programs each part of a product is already in the register layout that the next product reads.
        re, im = _quarter(a2)
        ur, ui = _stacked(ur, S, N2, K1), _stacked(ui, S, N2, K1)
        vr = tl.dot(-ui, im, tl.dot(ur, re, input_precision=PRECISION), input_precision=PRECISION)
        vi = tl.dot(ui, re, tl.dot(ur, im, input_precision=PRECISION), input_precision=PRECISION)
    else:
        u = tl.join(ur, ui)
        if UPRIGHT:
            u = tl.permute(tl.reshape(u, (K1, S, N2, 2)), (1, 0, 3, 2))
        else:
            u = tl.permute(tl.reshape(u, (S, N2, K1, 2)), (0, 2, 3, 1))
        vr, vi = parts(tl.dot(tl.reshape(u, (S * K1, 2 * N2)), a2, input_precision=PRECISION))
    return vr, vi


@triton.jit
def third_step(vr, vi, b2, K1: tl.constexpr, UPRIGHT: tl.constexpr, SHARED: tl.constexpr, PRECISION: tl.constexpr):
    """Spectrum -> input of the second step, real and imaginary parts (s k1, n2), in float32."""
    vr, vi = operand(vr, b2, PRECISION), operand(vi, b2, PRECISION)
    if UPRIGHT and K1 < 64:
        re, im = _quarter(b2)  # b2 is a2, read transposed
        re, im = tl.trans(re), tl.trans(im)
        wr = tl.dot(vi, im, tl.dot(vr, re, input_precision=PRECISION), input_precision=PRECISION)
        wi = tl.dot(-vr, im, tl.dot(vi, re, input_precision=PRECISION), input_precision=PRECISION)
    else:
        if SHARED:
            b2 = tl.trans(b2)
        wr, wi = parts(tl.dot(beside(vr, vi), b2, input_precision=PRECISION))
    return wr, wi


@triton.jit
def last_step(
    wr, wi, b1, cr, ci, zero,
    S: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, IMAGINARY: tl.constexpr,
    TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, SHARED: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Result of the third step -> signal; IMAGINARY: its imaginary part, in a plan for real signals."""
    if UPRIGHT and S > 1:
        wr, wi = _abreast(wr, S, N2, K1), _abreast(wi, S, N2, K1)
    if TWIDDLE:
        cr, ci = unpacked(cr, ci, zero, b1, PACKED)
        wr, wi = times(wr, wi, cr, ci, True)
    if IMAGINARY:
        wr, wi = wi, -wr
    wr, wi = operand(wr, b1, PRECISION), operand(wi, b1, PRECISION)
    if UPRIGHT and K1 < 64:
        re, im = _halves(b1)  # b1 is a1, read transposed
        y = tl.dot(tl.trans(re), wr, input_precision=PRECISION)
        y = tl.dot(tl.trans(im), wi, y, input_precision=PRECISION)
    else:
        w = tl.join(wr, wi)
        if SHARED:
            b1 = tl.trans(b1)
        if UPRIGHT:
            w = tl.reshape(tl.permute(w, (2, 0, 1)), (2 * K1, S * N2))
            y = tl.dot(b1, w, input_precision=PRECISION)
        else:
            w = tl.reshape(tl.permute(tl.reshape(w, (S, K1, N2, 2)), (0, 2, 3, 1)), (S * N2, 2 * K1))
            y = tl.dot(w, b1, input_precision=PRECISION)
    return y
