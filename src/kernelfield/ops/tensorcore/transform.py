"""The inner transform: one read of the signals, four products with small tables, one write.

A program holds tiles of ``S`` channels and walks through ``EACH`` entries of the batch. Rows of its matrices are
(channel, column) or (channel, row of the spectrum), so that every product has a constant table on its right:

    signal (s n2, n1) · a1 -> (s n2, k1), twiddle, turn -> (s k1, n2) · a2 -> spectrum (s k1, k2)

and back by the same steps in reverse. Where the spectrum has 64 rows or more, as many as one matrix instruction, it is
done *upright*, with the first table on the left, and nothing has to be turned:

    a1 · signal (n1, s n2) -> (k1, s n2), twiddle, as (s k1, n2) · a2 -> spectrum (s k1, k2)

``docs/long-convolutions.md`` draws the indices. Constants of all kernels:

- S channels of tiles of N1 × N2 samples and K1 × K2 frequencies;
- COMPLEX signals have two parts, TWIDDLE says that rows follow each other on a line;
- READY: the kernel comes as its spectrum; else a program makes the spectrum of its channels' kernels itself;
- REAL: a kernel has no imaginary part, since nothing is behind its offset zero or the first axis is periodic;
- HOLD: a ready spectrum stays in registers, rather than being read again for every signal.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["conv_kernel", "gradient_kernel", "grads_kernel", "spectrum_kernel"]

#: numbers that a kernel is not compiled anew for
SIZES = ["batch", "channels", "parts", "m1", "m2", "p1", "p2", "c1", "c2"]


@triton.jit
def _pair(pointer, at, distance, inside):
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
def _tables(
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
def _indices(N1: tl.constexpr, N2: tl.constexpr, S: tl.constexpr, UPRIGHT: tl.constexpr):
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
def _operand(a, like, PRECISION: tl.constexpr):
    """Cast to what a table is multiplied with; tf32, which the hardware would cut off, is rounded."""
    a = a.to(like.dtype)
    if PRECISION == "tf32" and like.dtype == tl.float32:
        a = ((a.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return a


@triton.jit
def _product(ar, ai, br, bi, PRECISION: tl.constexpr):
    """Complex matrix product."""
    real = tl.dot(ar, br, input_precision=PRECISION)
    real = tl.dot(-ai, bi, real, input_precision=PRECISION)
    imag = tl.dot(ar, bi, input_precision=PRECISION)
    imag = tl.dot(ai, br, imag, input_precision=PRECISION)
    return real, imag


@triton.jit
def _forward(
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
    ur, ui = _operand(ur, re, PRECISION), _operand(ui, re, PRECISION)
    if UPRIGHT:
        ur, ui = _stack(ur, S, K1, N2), _stack(ui, S, K1, N2)
    else:
        ur, ui = _turn(ur, S, N2, K1), _turn(ui, S, N2, K1)
    return _product(ur, ui, a2r, a2i, PRECISION)


@triton.jit
def _inverse(
    vr, vi, b2r, b2i, b1r, b1i, cr, ci,
    S: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Spectrum (s k1, k2) -> signal."""
    vr, vi = _operand(vr, b2r, PRECISION), _operand(vi, b2r, PRECISION)
    wr, wi = _product(vr, vi, b2r, b2i, PRECISION)
    if UPRIGHT:
        wr, wi = _unstack(wr, S, K1, N2), _unstack(wi, S, K1, N2)
    if TWIDDLE:
        wr, wi = wr * cr + wi * ci, wi * cr - wr * ci
    wr, wi = _operand(wr, b2r, PRECISION), _operand(wi, b2r, PRECISION)
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
def _signal(pointer, at, length, inside, COMPLEX: tl.constexpr):
    """Load a signal's parts; of a real one the same twice."""
    re = tl.load(pointer + at, mask=inside, other=0.0)
    im = re
    if COMPLEX:
        im = tl.load(pointer + at + length, mask=inside, other=0.0)
    return re, im


@triton.jit
def _points(n1, n2, m1, m2, p1, p2, c1, c2, TWIDDLE: tl.constexpr):
    """Return where the kernel's points of offset (n1, n2) and (n1 - m1, n2) are, and whether they exist.

    On a line the rows follow each other, and the second is m1 rows, all of the line, behind.
    """
    known = (n1 < m1) & (n2 < m2)
    if TWIDDLE:
        ahead = n1 * m2 + n2 + c1
        behind = ahead - m1 * m2
        return ahead, known & (ahead < p1), behind, known & (behind >= 0)
    column = n2 + c2
    column = tl.where(column < p2, column, column - m2)  # columns are a circle
    known = known & (column >= 0)
    ahead = n1 + c1
    behind = ahead - m1
    return ahead * p2 + column, known & (ahead < p1), behind * p2 + column, known & (behind >= 0)


@triton.jit
def _spectrum(
    pointer, first, channels, m1, m2, p1, p2, c1, c2,
    a1r, a1i, a2r, a2i, tr, ti,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    REAL: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the spectrum of the kernels of ``S`` channels, (s k1, k2).

    What lies behind offset zero along a first axis followed by zeros is the imaginary part: z^-N = i. A kernel with
    more columns than the signal (K2 = 2 N2) is transformed in two halves, the second of which counts (-1)^k2.
    """
    base = pointer + first.to(tl.int64) * p1 * p2
    s, n1, n2 = _indices(N1, N2, S, UPRIGHT)
    for half in tl.static_range(K2 // N2 if K2 > N2 else 1):
        ahead, here, behind, there = _points(n1, n2 + half * N2, m1, m2, p1, p2, c1, c2, TWIDDLE)
        mine = first + s < channels
        re = tl.load(base + s * (p1 * p2) + ahead, mask=here & mine, other=0.0).to(a1r.dtype)
        im = tl.load(base + s * (p1 * p2) + behind, mask=there & mine, other=0.0).to(a1r.dtype)
        if REAL:
            re = (re.to(tl.float32) + im.to(tl.float32)).to(a1r.dtype)
        vr, vi = _forward(re, im, a1r, a1i, a2r, a2i, tr, ti, S, N2, K1, not REAL, TWIDDLE, UPRIGHT, PRECISION)
        if half == 0:
            kr, ki = vr, vi
        else:
            sign = (1 - 2 * (tl.arange(0, K2) % 2)).to(tl.float32)[None, :]
            kr += vr * sign
            ki += vi * sign
    return kr.to(a1r.dtype), ki.to(a1r.dtype)


@triton.jit(do_not_specialize=SIZES)
def spectrum_kernel(
    kernel_ptr, out_ptr, tables,
    channels, m1, m2, p1, p2, c1, c2,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, REAL: tl.constexpr,
    PRECISION: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """(channels, points), or COMPLEX (channels, 2, m1 m2), -> (channels, 2, K1, K2), the spectra of kernels."""
    a1r, a1i, a2r, a2i, b2r, b2i, b1r, b1i, tr, ti, cr, ci = _tables(tables, N1, N2, K1, K2, S, TWIDDLE, UPRIGHT)
    for tile in range(TILES):
        first = (tl.program_id(0) * TILES + tile) * S
        kr, ki = _given_or_made(
            kernel_ptr, first, channels, m1, m2, p1, p2, c1, c2, a1r, a1i, a2r, a2i, tr, ti,
            S, N1, N2, K1, K2, COMPLEX, TWIDDLE, UPRIGHT, REAL, PRECISION,
        )  # fmt: skip
        row = tl.arange(0, S * K1)[:, None]
        at = (row // K1) * (2 * K1 * K2) + (row % K1) * K2 + tl.arange(0, K2)[None, :]
        base = out_ptr + first.to(tl.int64) * (2 * K1 * K2)
        tl.store(base + at, kr.to(out_ptr.dtype.element_ty), mask=first + row // K1 < channels)
        tl.store(base + at + K1 * K2, ki.to(out_ptr.dtype.element_ty), mask=first + row // K1 < channels)


@triton.jit
def _given_or_made(
    kernel_ptr, first, channels, m1, m2, p1, p2, c1, c2, a1r, a1i, a2r, a2i, tr, ti,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, REAL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the spectra of kernels from their outer transform (COMPLEX) or from their points."""
    if COMPLEX:
        s, n1, n2 = _indices(N1, N2, S, UPRIGHT)
        base = kernel_ptr + first.to(tl.int64) * (2 * m1 * m2)
        for half in tl.static_range(K2 // N2 if K2 > N2 else 1):
            at = s * (2 * m1 * m2) + n1 * m2 + n2 + half * N2
            inside = (n1 < m1) & (n2 + half * N2 < m2) & (first + s < channels)
            re, im = _pair(base, at, m1 * m2, inside)
            vr, vi = _forward(
                re.to(a1r.dtype), im.to(a1r.dtype), a1r, a1i, a2r, a2i, tr, ti,
                S, N2, K1, True, TWIDDLE, UPRIGHT, PRECISION,
            )  # fmt: skip
            if half == 0:
                kr, ki = vr, vi
            else:
                sign = (1 - 2 * (tl.arange(0, K2) % 2)).to(tl.float32)[None, :]
                kr += vr * sign
                ki += vi * sign
    else:
        kr, ki = _spectrum(
            kernel_ptr, first, channels, m1, m2, p1, p2, c1, c2, a1r, a1i, a2r, a2i, tr, ti,
            S, N1, N2, K1, K2, REAL, TWIDDLE, UPRIGHT, PRECISION,
        )  # fmt: skip
    return kr, ki


@triton.jit(do_not_specialize=SIZES)
def gradient_kernel(
    sums_ptr, out_ptr, tables,
    parts, channels, m1, m2, p1, p2, c1, c2,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, REAL: tl.constexpr,
    PRECISION: tl.constexpr, EACH: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """(parts, channels, 2, K1, K2) -> (channels, points), or COMPLEX (channels, 2, m1 m2): add up, transform back."""
    a1r, a1i, a2r, a2i, b2r, b2i, b1r, b1i, tr, ti, cr, ci = _tables(tables, N1, N2, K1, K2, S, TWIDDLE, UPRIGHT)
    for tile in range(TILES):
        _back(
            sums_ptr, out_ptr, (tl.program_id(0) * TILES + tile) * S, parts, channels, m1, m2, p1, p2, c1, c2,
            b2r, b2i, b1r, b1i, cr, ci,
            S, N1, N2, K1, K2, COMPLEX, TWIDDLE, UPRIGHT, REAL, PRECISION, EACH,
        )  # fmt: skip


@triton.jit
def _back(
    sums_ptr, out_ptr, first, parts, channels, m1, m2, p1, p2, c1, c2,
    b2r, b2i, b1r, b1i, cr, ci,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, REAL: tl.constexpr,
    PRECISION: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """One tile of :func:`gradient_kernel`."""
    row = tl.arange(0, S * K1)[:, None]
    k_at = (row // K1) * (2 * K1 * K2) + (row % K1) * K2 + tl.arange(0, K2)[None, :]
    sr = tl.full((S * K1, K2), 0.0, tl.float32)
    si = tl.full((S * K1, K2), 0.0, tl.float32)
    for part in range(EACH):
        base = sums_ptr + (first.to(tl.int64) + part * channels) * (2 * K1 * K2)
        re, im = _pair(base, k_at, K1 * K2, (first + row // K1 < channels) & (part < parts))
        sr += re
        si += im
    s, n1, n2 = _indices(N1, N2, S, UPRIGHT)
    mine = first + s < channels
    for half in tl.static_range(K2 // N2 if K2 > N2 else 1):
        if half == 1:
            sign = (1 - 2 * (tl.arange(0, K2) % 2)).to(tl.float32)[None, :]
            sr, si = sr * sign, si * sign
        dr, di = _inverse(
            sr, si, b2r, b2i, b1r, b1i, cr, ci, S, N2, K1, COMPLEX or not REAL, TWIDDLE, UPRIGHT, PRECISION
        )
        if COMPLEX:
            base = out_ptr + first.to(tl.int64) * (2 * m1 * m2)
            at = s * (2 * m1 * m2) + n1 * m2 + n2 + half * N2
            inside = (n1 < m1) & (n2 + half * N2 < m2) & mine
            tl.store(base + at, dr.to(out_ptr.dtype.element_ty), mask=inside)
            tl.store(base + at + m1 * m2, di.to(out_ptr.dtype.element_ty), mask=inside)
        else:
            base = out_ptr + first.to(tl.int64) * p1 * p2
            ahead, here, behind, beyond = _points(n1, n2 + half * N2, m1, m2, p1, p2, c1, c2, TWIDDLE)
            tl.store(base + s * (p1 * p2) + ahead, dr.to(out_ptr.dtype.element_ty), mask=here & mine)
            tl.store(base + s * (p1 * p2) + behind, di.to(out_ptr.dtype.element_ty), mask=beyond & mine)


@triton.jit(do_not_specialize=SIZES)
def conv_kernel(
    x_ptr, kernel_ptr, y_ptr, tables,
    batch, channels, rows, cols, length, m1, m2, p1, p2, c1, c2,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, READY: tl.constexpr, HOLD: tl.constexpr,
    REAL: tl.constexpr, CONJUGATE: tl.constexpr, PRECISION: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Convolve: y = inverse(kernel's spectrum · forward(x)), CONJUGATE: with the conjugate of the spectrum.

    x and y are (batch, channels, parts, length).
    """
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    first = tl.program_id(0) * S
    s, n1, n2 = _indices(N1, N2, S, UPRIGHT)
    n = n1 * cols + n2
    inside = (n1 < rows) & (n2 < cols) & (n < length) & (first + s < channels)
    at = s * (PARTS * length) + n
    a1r, a1i, a2r, a2i, b2r, b2i, b1r, b1i, tr, ti, cr, ci = _tables(tables, N1, N2, K1, K2, S, TWIDDLE, UPRIGHT)
    row = tl.arange(0, S * K1)[:, None]
    k_at = (row // K1) * (2 * K1 * K2) + (row % K1) * K2 + tl.arange(0, K2)[None, :]
    k_inside = first + row // K1 < channels
    k_base = kernel_ptr + first.to(tl.int64) * (2 * K1 * K2)
    if not READY:
        kr, ki = _spectrum(
            kernel_ptr, first, channels, m1, m2, p1, p2, c1, c2, a1r, a1i, a2r, a2i, tr, ti,
            S, N1, N2, K1, K2, REAL, TWIDDLE, UPRIGHT, PRECISION,
        )  # fmt: skip
    elif HOLD:
        kr, ki = _pair(k_base, k_at, K1 * K2, k_inside)

    b = tl.program_id(1) * EACH
    start = b.to(tl.int64) * channels + first
    x_base = x_ptr + start * (PARTS * length)
    y_base = y_ptr + start * (PARTS * length)
    step = channels.to(tl.int64) * (PARTS * length)
    next_re, next_im = _signal(x_base, at, length, inside & (b < batch), COMPLEX)
    for turn in range(EACH):
        there = inside & (b + turn < batch)
        re, im = _operand(next_re, a1r, PRECISION), _operand(next_im, a1r, PRECISION)
        # Asked for now, needed in the next turn.
        x_base += step
        next_re, next_im = _signal(x_base, at, length, inside & (b + turn + 1 < batch) & (turn + 1 < EACH), COMPLEX)
        vr, vi = _forward(re, im, a1r, a1i, a2r, a2i, tr, ti, S, N2, K1, COMPLEX, TWIDDLE, UPRIGHT, PRECISION)
        if READY and not HOLD:
            kr, ki = _pair(k_base, k_at, K1 * K2, k_inside)
        if CONJUGATE:
            vr, vi = vr * kr + vi * ki, vi * kr - vr * ki
        else:
            vr, vi = vr * kr - vi * ki, vi * kr + vr * ki
        yr, yi = _inverse(vr, vi, b2r, b2i, b1r, b1i, cr, ci, S, N2, K1, COMPLEX, TWIDDLE, UPRIGHT, PRECISION)
        tl.store(y_base + at, yr.to(y_ptr.dtype.element_ty), mask=there)
        if COMPLEX:
            tl.store(y_base + at + length, yi.to(y_ptr.dtype.element_ty), mask=there)
        y_base += step


@triton.jit(do_not_specialize=SIZES)
def grads_kernel(
    grad_ptr, x_ptr, kernel_ptr, out_ptr, sums_ptr, tables,
    batch, channels, rows, cols, length, m1, m2, p1, p2, c1, c2,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, READY: tl.constexpr, HOLD: tl.constexpr,
    SPECTRAL: tl.constexpr, REAL: tl.constexpr, NEED_X: tl.constexpr, PRECISION: tl.constexpr,
    EACH: tl.constexpr,
):  # fmt: skip
    """Both gradients of a convolution: that of x if NEED_X, and the kernel's, summed over EACH of the batch.

    The sums are in float32: SPECTRAL (parts of the batch, channels, 2, K1, K2), else (parts, channels, points).
    """
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    first = tl.program_id(0) * S
    s, n1, n2 = _indices(N1, N2, S, UPRIGHT)
    n = n1 * cols + n2
    inside = (n1 < rows) & (n2 < cols) & (n < length) & (first + s < channels)
    at = s * (PARTS * length) + n
    a1r, a1i, a2r, a2i, b2r, b2i, b1r, b1i, tr, ti, cr, ci = _tables(tables, N1, N2, K1, K2, S, TWIDDLE, UPRIGHT)
    row = tl.arange(0, S * K1)[:, None]
    k_at = (row // K1) * (2 * K1 * K2) + (row % K1) * K2 + tl.arange(0, K2)[None, :]
    k_inside = first + row // K1 < channels
    k_base = kernel_ptr + first.to(tl.int64) * (2 * K1 * K2)
    if NEED_X:
        if READY and HOLD:
            kr, ki = _pair(k_base, k_at, K1 * K2, k_inside)
        elif not READY:
            kr, ki = _spectrum(
                kernel_ptr, first, channels, m1, m2, p1, p2, c1, c2, a1r, a1i, a2r, a2i, tr, ti,
                S, N1, N2, K1, K2, REAL, TWIDDLE, UPRIGHT, PRECISION,
            )  # fmt: skip
    sr = tl.full((S * K1, K2), 0.0, tl.float32)
    si = tl.full((S * K1, K2), 0.0, tl.float32)
    b = tl.program_id(1) * EACH
    start = b.to(tl.int64) * channels + first
    x_base = x_ptr + start * (PARTS * length)
    grad_base = grad_ptr + start * (PARTS * length)
    out_base = out_ptr + start * (PARTS * length)
    step = channels.to(tl.int64) * (PARTS * length)
    next_re, next_im = _signal(x_base, at, length, inside & (b < batch), COMPLEX)
    for turn in range(EACH):
        there = inside & (b + turn < batch)
        re, im = _operand(next_re, a1r, PRECISION), _operand(next_im, a1r, PRECISION)
        next_re, next_im = _signal(grad_base, at, length, there, COMPLEX)
        vr, vi = _forward(re, im, a1r, a1i, a2r, a2i, tr, ti, S, N2, K1, COMPLEX, TWIDDLE, UPRIGHT, PRECISION)
        # Half the registers while the other spectrum is made.
        vr, vi = vr.to(a1r.dtype), vi.to(a1r.dtype)
        re, im = _operand(next_re, a1r, PRECISION), _operand(next_im, a1r, PRECISION)
        x_base += step
        next_re, next_im = _signal(x_base, at, length, inside & (b + turn + 1 < batch) & (turn + 1 < EACH), COMPLEX)
        gr, gi = _forward(re, im, a1r, a1i, a2r, a2i, tr, ti, S, N2, K1, COMPLEX, TWIDDLE, UPRIGHT, PRECISION)
        sr += gr * vr + gi * vi
        si += gi * vr - gr * vi
        if NEED_X:
            if READY and not HOLD:
                kr, ki = _pair(k_base, k_at, K1 * K2, k_inside)
            gr, gi = gr * kr + gi * ki, gi * kr - gr * ki
            yr, yi = _inverse(gr, gi, b2r, b2i, b1r, b1i, cr, ci, S, N2, K1, COMPLEX, TWIDDLE, UPRIGHT, PRECISION)
            tl.store(out_base + at, yr.to(out_ptr.dtype.element_ty), mask=there)
            if COMPLEX:
                tl.store(out_base + at + length, yi.to(out_ptr.dtype.element_ty), mask=there)
        grad_base += step
        out_base += step

    if SPECTRAL:
        s_base = sums_ptr + (tl.program_id(1).to(tl.int64) * channels + first) * (2 * K1 * K2)
        tl.store(s_base + k_at, sr, mask=k_inside)
        tl.store(s_base + k_at + K1 * K2, si, mask=k_inside)
    else:
        s_base = sums_ptr + (tl.program_id(1).to(tl.int64) * channels + first) * p1 * p2
        for half in tl.static_range(K2 // N2 if K2 > N2 else 1):
            if half == 1:
                sign = (1 - 2 * (tl.arange(0, K2) % 2)).to(tl.float32)[None, :]
                sr, si = sr * sign, si * sign
            dr, di = _inverse(sr, si, b2r, b2i, b1r, b1i, cr, ci, S, N2, K1, not REAL, TWIDDLE, UPRIGHT, PRECISION)
            ahead, here, behind, beyond = _points(n1, n2 + half * N2, m1, m2, p1, p2, c1, c2, TWIDDLE)
            mine = first + s < channels
            tl.store(s_base + s * (p1 * p2) + ahead, dr, mask=here & mine)
            tl.store(s_base + s * (p1 * p2) + behind, di, mask=beyond & mine)
