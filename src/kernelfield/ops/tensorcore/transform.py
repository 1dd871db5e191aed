"""The inner transform: one read of the signals, four products with small tables, one write.

A program holds tiles of ``S`` channels and walks through ``EACH`` entries of the batch, and does so for ``TILES`` such
stacks. Rows of its matrices are (channel, column) or (channel, row of the spectrum), so that every product has a
constant table on its right:

    signal (s n2, n1) · a1 -> (s n2, k1), twiddle, turn -> (s k1, n2) · a2 -> spectrum (s k1, k2)

and back by the same steps in reverse. Where the spectrum has 64 rows or more, as many as one matrix instruction, it is
done *upright*, with the first table on the left, and nothing has to be turned:

    a1 · signal (n1, s n2) -> (k1, s n2), twiddle, as (s k1, n2) · a2 -> spectrum (s k1, k2)

``docs/long-convolutions.md`` draws the indices. Constants of all kernels:

- S channels of tiles of N1 × N2 samples and K1 × K2 frequencies;
- COMPLEX signals have two parts, TWIDDLE says that rows follow each other on a line;
- READY: the kernel comes as its spectrum; else a program makes the spectrum of its channels' kernels itself;
- REAL: a kernel has no imaginary part, since nothing is behind its offset zero or the first axis is periodic;
- HOLD: a ready spectrum stays in registers, rather than being read again for every signal;
- SCALED: products are of float16, as precise as tf32 but of a smaller range, and every tile is divided by its largest
  value first; tables then hold no factors of the inverse transform.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from .spectra import made_spectrum, unit_spectrum, write_points
from .stages import forward, indices, inverse, largest, load_tables, operand, pair, signal, spread

__all__ = ["conv_kernel", "grads_kernel"]

#: numbers that a kernel is not compiled anew for
SIZES = ["batch", "channels", "p2", "c2"]


@triton.jit
def _unit(re, im, S: tl.constexpr, ROWS: tl.constexpr, REAL_SCALED: tl.constexpr):
    """Return a real tile over its largest value, twice, and that value for each channel; or what came, and one."""
    top = 1.0
    if REAL_SCALED:
        top = largest(re, re, S, False)
        re = re.to(tl.float32) * spread(1 / top, S, ROWS)
        im = re
    return re, im, top


@triton.jit
def _scale(pointer, first, channels, S: tl.constexpr):
    """Load one number for each of S > 1 channels, or the only one."""
    at = first
    if S > 1:
        at += tl.arange(0, S)
    return tl.load(pointer + at, mask=at < channels, other=0.0)


@triton.jit
def _kernel(
    kernel_ptr, scales, k_base, k_at, k_inside, first, channels, m1, m2, p1, p2, c1, c2, a1r, a1i, a2r, a2i, tr, ti,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, READY: tl.constexpr,
    REAL: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the spectrum of a stack's kernels, and what it is to be multiplied by, if that is done here."""
    unit = 1.0
    if READY:
        kr, ki = pair(k_base, k_at, K1 * K2, k_inside)
        if SCALED and not COMPLEX:
            unit = _scale(scales, first, channels, S)
    else:
        kr, ki = made_spectrum(
            kernel_ptr, first, channels, m1, m2, p1, p2, c1, c2, a1r, a1i, a2r, a2i, tr, ti,
            S, N1, N2, K1, K2, REAL, TWIDDLE, UPRIGHT, SCALED, PRECISION,
        )  # fmt: skip
        kr, ki, unit = unit_spectrum(kr, ki, m1, S, K1, SCALED)
        kr, ki = kr.to(a1r.dtype), ki.to(a1r.dtype)
    return kr, ki, unit


@triton.jit
def _write(
    base, at, yr, yi, factor, m2, length, there,
    S: tl.constexpr, ROWS: tl.constexpr, COMPLEX: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Store a tile; SCALED: with what is left of the inverse transform's factor, and its own."""
    if SCALED:
        if COMPLEX:
            yr, yi = yr / m2, yi / m2
        else:
            yr *= spread(factor / m2, S, ROWS)
    tl.store(base + at, yr.to(base.dtype.element_ty), mask=there)
    if COMPLEX:
        tl.store(base + at + length, yi.to(base.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=SIZES)
def conv_kernel(
    x_ptr, kernel_ptr, y_ptr, tables, scales,
    batch, channels, rows, cols, length, m1, m2, p1, p2, c1, c2,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, READY: tl.constexpr, HOLD: tl.constexpr,
    REAL: tl.constexpr, CONJUGATE: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
    EACH: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Convolve: y = inverse(kernel's spectrum · forward(x)), CONJUGATE: with the conjugate of the spectrum.

    x and y are (batch, channels, parts, length). SCALED: the spectrum of a channel is to be multiplied by ``scales``;
    if COMPLEX, it is y that is.
    """
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    ROWS: tl.constexpr = N1 if UPRIGHT else N2
    s, n1, n2 = indices(N1, N2, S, UPRIGHT)
    n = n1 * cols + n2
    at = s * (PARTS * length) + n
    a1r, a1i, a2r, a2i, b2r, b2i, b1r, b1i, tr, ti, cr, ci = load_tables(tables, N1, N2, K1, K2, S, TWIDDLE, UPRIGHT)
    row = tl.arange(0, S * K1)[:, None]
    k_at = (row // K1) * (2 * K1 * K2) + (row % K1) * K2 + tl.arange(0, K2)[None, :]
    b = tl.program_id(1) * EACH
    step = channels.to(tl.int64) * (PARTS * length)
    for tile in range(TILES):
        first = (tl.program_id(0) * TILES + tile) * S
        inside = (n1 < rows) & (n2 < cols) & (n < length) & (first + s < channels)
        k_inside = first + row // K1 < channels
        k_base = kernel_ptr + first.to(tl.int64) * (2 * K1 * K2)
        kr, ki, unit = _kernel(
            kernel_ptr, scales, k_base, k_at, k_inside, first, channels, m1, m2, p1, p2, c1, c2,
            a1r, a1i, a2r, a2i, tr, ti,
            S, N1, N2, K1, K2, COMPLEX, TWIDDLE, UPRIGHT, READY, REAL, SCALED, PRECISION,
        )  # fmt: skip
        start = b.to(tl.int64) * channels + first
        x_base = x_ptr + start * (PARTS * length)
        y_base = y_ptr + start * (PARTS * length)
        next_re, next_im = signal(x_base, at, length, inside & (b < batch), COMPLEX)
        for turn in range(EACH):
            there = inside & (b + turn < batch)
            next_re, next_im, top = _unit(next_re, next_im, S, ROWS, SCALED and not COMPLEX)
            re, im = operand(next_re, a1r, PRECISION), operand(next_im, a1r, PRECISION)
            # Asked for now, needed in the next turn.
            x_base += step
            next_re, next_im = signal(x_base, at, length, inside & (b + turn + 1 < batch) & (turn + 1 < EACH), COMPLEX)
            vr, vi = forward(re, im, a1r, a1i, a2r, a2i, tr, ti, S, N2, K1, COMPLEX, TWIDDLE, UPRIGHT, PRECISION)
            if READY and not HOLD:
                kr, ki = pair(k_base, k_at, K1 * K2, k_inside)
            if CONJUGATE:
                vr, vi = vr * kr + vi * ki, vi * kr - vr * ki
            else:
                vr, vi = vr * kr - vi * ki, vi * kr + vr * ki
            yr, yi = inverse(vr, vi, b2r, b2i, b1r, b1i, cr, ci, S, N2, K1, COMPLEX, TWIDDLE, UPRIGHT, PRECISION)
            _write(y_base, at, yr, yi, top * unit, m2, length, there, S, ROWS, COMPLEX, SCALED)
            y_base += step


@triton.jit
def _add(sr, si, gr, gi, vr, vi, weight, S: tl.constexpr, K1: tl.constexpr, SCALED: tl.constexpr):
    """Add the product of one spectrum with the conjugate of another, SCALED: times the weight of each channel."""
    pr, pi = gr * vr + gi * vi, gi * vr - gr * vi
    if SCALED:
        column = spread(weight, S, K1)
        pr, pi = pr * column, pi * column
    return sr + pr, si + pi


@triton.jit(do_not_specialize=SIZES)
def grads_kernel(
    grad_ptr, x_ptr, kernel_ptr, out_ptr, sums_ptr, tables, scales, weights,
    batch, channels, rows, cols, length, m1, m2, p1, p2, c1, c2,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, READY: tl.constexpr, HOLD: tl.constexpr,
    SPECTRAL: tl.constexpr, REAL: tl.constexpr, NEED_X: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
    EACH: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Both gradients of a convolution: that of x if NEED_X, and the kernel's, summed over EACH of the batch.

    The sums are in float32: SPECTRAL (parts of the batch, channels, 2, K1, K2), else (parts, channels, points).
    SCALED and COMPLEX: the product of x and grad is to be multiplied by ``weights`` (batch, channels).
    """
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    ROWS: tl.constexpr = N1 if UPRIGHT else N2
    s, n1, n2 = indices(N1, N2, S, UPRIGHT)
    n = n1 * cols + n2
    at = s * (PARTS * length) + n
    a1r, a1i, a2r, a2i, b2r, b2i, b1r, b1i, tr, ti, cr, ci = load_tables(tables, N1, N2, K1, K2, S, TWIDDLE, UPRIGHT)
    row = tl.arange(0, S * K1)[:, None]
    k_at = (row // K1) * (2 * K1 * K2) + (row % K1) * K2 + tl.arange(0, K2)[None, :]
    b = tl.program_id(1) * EACH
    step = channels.to(tl.int64) * (PARTS * length)
    for tile in range(TILES):
        first = (tl.program_id(0) * TILES + tile) * S
        inside = (n1 < rows) & (n2 < cols) & (n < length) & (first + s < channels)
        k_inside = first + row // K1 < channels
        k_base = kernel_ptr + first.to(tl.int64) * (2 * K1 * K2)
        if NEED_X:
            kr, ki, unit = _kernel(
                kernel_ptr, scales, k_base, k_at, k_inside, first, channels, m1, m2, p1, p2, c1, c2,
                a1r, a1i, a2r, a2i, tr, ti,
                S, N1, N2, K1, K2, COMPLEX, TWIDDLE, UPRIGHT, READY, REAL, SCALED, PRECISION,
            )  # fmt: skip
        sr = tl.full((S * K1, K2), 0.0, tl.float32)
        si = tl.full((S * K1, K2), 0.0, tl.float32)
        start = b.to(tl.int64) * channels + first
        x_base = x_ptr + start * (PARTS * length)
        grad_base = grad_ptr + start * (PARTS * length)
        out_base = out_ptr + start * (PARTS * length)
        next_re, next_im = signal(x_base, at, length, inside & (b < batch), COMPLEX)
        for turn in range(EACH):
            there = inside & (b + turn < batch)
            next_re, next_im, weight = _unit(next_re, next_im, S, ROWS, SCALED and not COMPLEX)
            re, im = operand(next_re, a1r, PRECISION), operand(next_im, a1r, PRECISION)
            next_re, next_im = signal(grad_base, at, length, there, COMPLEX)
            vr, vi = forward(re, im, a1r, a1i, a2r, a2i, tr, ti, S, N2, K1, COMPLEX, TWIDDLE, UPRIGHT, PRECISION)
            # Half the registers while the other spectrum is made.
            vr, vi = vr.to(a1r.dtype), vi.to(a1r.dtype)
            next_re, next_im, top = _unit(next_re, next_im, S, ROWS, SCALED and not COMPLEX)
            re, im = operand(next_re, a1r, PRECISION), operand(next_im, a1r, PRECISION)
            x_base += step
            next_re, next_im = signal(x_base, at, length, inside & (b + turn + 1 < batch) & (turn + 1 < EACH), COMPLEX)
            gr, gi = forward(re, im, a1r, a1i, a2r, a2i, tr, ti, S, N2, K1, COMPLEX, TWIDDLE, UPRIGHT, PRECISION)
            weight *= top
            if SCALED and COMPLEX:
                known = channels * (b + turn < batch)
                weight = _scale(weights + (b + turn).to(tl.int64) * channels, first, known, S)
            sr, si = _add(sr, si, gr, gi, vr, vi, weight, S, K1, SCALED)
            if NEED_X:
                if READY and not HOLD:
                    kr, ki = pair(k_base, k_at, K1 * K2, k_inside)
                gr, gi = gr * kr + gi * ki, gi * kr - gr * ki
                yr, yi = inverse(gr, gi, b2r, b2i, b1r, b1i, cr, ci, S, N2, K1, COMPLEX, TWIDDLE, UPRIGHT, PRECISION)
                _write(out_base, at, yr, yi, top * unit, m2, length, there, S, ROWS, COMPLEX, SCALED)
            grad_base += step
            out_base += step

        stack = tl.program_id(1).to(tl.int64) * channels + first
        if SPECTRAL:
            s_base = sums_ptr + stack * (2 * K1 * K2)
            tl.store(s_base + k_at, sr, mask=k_inside)
            tl.store(s_base + k_at + K1 * K2, si, mask=k_inside)
        else:
            write_points(
                sums_ptr + stack * p1 * p2, sr, si, first, channels, m1, m2, p1, p2, c1, c2, b2r, b2i, b1r, b1i, cr, ci,
                S, N1, N2, K1, K2, TWIDDLE, UPRIGHT, REAL, SCALED, PRECISION,
            )  # fmt: skip
