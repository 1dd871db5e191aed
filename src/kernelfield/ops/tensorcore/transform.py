"""The inner transform: one read of the signals, four products with small tables, one write.

A program holds tiles of ``S`` channels and walks through ``EACH`` entries of the batch, ``TILES`` times. Rows of its matrices are
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
- HOLD: a ready spectrum stays in registers, rather than being read again for every signal;
- SCALED: products are of float16, as precise as tf32 but of a smaller range, and every tile is divided by its largest
  value first; tables then hold no factors of the inverse transform.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from .spectra import made_spectrum, points_of, unit_spectrum
from .stages import forward, indices, inverse, largest, load_tables, pair, signal, spread

__all__ = ["conv_kernel", "grads_kernel"]

#: numbers that a kernel is not compiled anew for
SIZES = ["batch", "channels", "p2", "c2"]


@triton.jit
def _unit(re, S: tl.constexpr, ROWS: tl.constexpr):
    """Return a real tile over its largest value, twice, and that value for each channel."""
    top = largest(re, re, S, False)
    re = re.to(tl.float32) * spread(1 / top, S, ROWS)
    return re, re, top


@triton.jit
def _scale(pointer, first, channels, S: tl.constexpr):
    """Load one number for each of S > 1 channels, or the only one."""
    at = first
    if S > 1:
        at += tl.arange(0, S)
    return tl.load(pointer + at, mask=at < channels, other=0.0)


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
        if not READY:
            kr, ki = made_spectrum(
                kernel_ptr, first, channels, m1, m2, p1, p2, c1, c2, a1r, a1i, a2r, a2i, tr, ti,
                S, N1, N2, K1, K2, REAL, TWIDDLE, UPRIGHT, SCALED, PRECISION,
            )  # fmt: skip
            kr, ki, unit = unit_spectrum(kr, ki, m1, S, K1, SCALED)
            kr, ki = kr.to(a1r.dtype), ki.to(a1r.dtype)
        elif HOLD:
            kr, ki = pair(k_base, k_at, K1 * K2, k_inside)
        if SCALED and READY and not COMPLEX:
            unit = _scale(scales, first, channels, S)
        start = b.to(tl.int64) * channels + first
        x_base = x_ptr + start * (PARTS * length)
        y_base = y_ptr + start * (PARTS * length)
        next_re, next_im = signal(x_base, at, length, inside & (b < batch), COMPLEX)
        for turn in range(EACH):
            there = inside & (b + turn < batch)
            if SCALED and not COMPLEX:
                next_re, next_im, top = _unit(next_re, S, N1 if UPRIGHT else N2)
            re, im = next_re.to(a1r.dtype), next_im.to(a1r.dtype)
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
            if SCALED:
                if COMPLEX:
                    yr, yi = yr / m2, yi / m2
                else:
                    yr *= spread(top * unit / m2, S, N1 if UPRIGHT else N2)
            tl.store(y_base + at, yr.to(y_ptr.dtype.element_ty), mask=there)
            if COMPLEX:
                tl.store(y_base + at + length, yi.to(y_ptr.dtype.element_ty), mask=there)
            y_base += step


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
            if READY and HOLD:
                kr, ki = pair(k_base, k_at, K1 * K2, k_inside)
            elif not READY:
                kr, ki = made_spectrum(
                    kernel_ptr, first, channels, m1, m2, p1, p2, c1, c2, a1r, a1i, a2r, a2i, tr, ti,
                    S, N1, N2, K1, K2, REAL, TWIDDLE, UPRIGHT, SCALED, PRECISION,
                )  # fmt: skip
                kr, ki, unit = unit_spectrum(kr, ki, m1, S, K1, SCALED)
                kr, ki = kr.to(a1r.dtype), ki.to(a1r.dtype)
            if SCALED and READY and not COMPLEX:
                unit = _scale(scales, first, channels, S)
        sr = tl.full((S * K1, K2), 0.0, tl.float32)
        si = tl.full((S * K1, K2), 0.0, tl.float32)
        start = b.to(tl.int64) * channels + first
        x_base = x_ptr + start * (PARTS * length)
        grad_base = grad_ptr + start * (PARTS * length)
        out_base = out_ptr + start * (PARTS * length)
        next_re, next_im = signal(x_base, at, length, inside & (b < batch), COMPLEX)
        for turn in range(EACH):
            there = inside & (b + turn < batch)
            if SCALED and not COMPLEX:
                next_re, next_im, weight = _unit(next_re, S, N1 if UPRIGHT else N2)
            re, im = next_re.to(a1r.dtype), next_im.to(a1r.dtype)
            next_re, next_im = signal(grad_base, at, length, there, COMPLEX)
            vr, vi = forward(re, im, a1r, a1i, a2r, a2i, tr, ti, S, N2, K1, COMPLEX, TWIDDLE, UPRIGHT, PRECISION)
            # Half the registers while the other spectrum is made.
            vr, vi = vr.to(a1r.dtype), vi.to(a1r.dtype)
            if SCALED and not COMPLEX:
                next_re, next_im, top = _unit(next_re, S, N1 if UPRIGHT else N2)
                weight *= top
            re, im = next_re.to(a1r.dtype), next_im.to(a1r.dtype)
            x_base += step
            next_re, next_im = signal(x_base, at, length, inside & (b + turn + 1 < batch) & (turn + 1 < EACH), COMPLEX)
            gr, gi = forward(re, im, a1r, a1i, a2r, a2i, tr, ti, S, N2, K1, COMPLEX, TWIDDLE, UPRIGHT, PRECISION)
            if SCALED:
                if COMPLEX:
                    weight = _scale(
                        weights + (b + turn).to(tl.int64) * channels, first, channels * (b + turn < batch), S
                    )
                weight = spread(weight, S, K1)
                sr += (gr * vr + gi * vi) * weight
                si += (gi * vr - gr * vi) * weight
            else:
                sr += gr * vr + gi * vi
                si += gi * vr - gr * vi
            if NEED_X:
                if READY and not HOLD:
                    kr, ki = pair(k_base, k_at, K1 * K2, k_inside)
                gr, gi = gr * kr + gi * ki, gi * kr - gr * ki
                yr, yi = inverse(gr, gi, b2r, b2i, b1r, b1i, cr, ci, S, N2, K1, COMPLEX, TWIDDLE, UPRIGHT, PRECISION)
                if SCALED:
                    if COMPLEX:
                        yr, yi = yr / m2, yi / m2
                    else:
                        yr *= spread(top * unit / m2, S, N1 if UPRIGHT else N2)
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
            if SCALED:
                total = largest(sr, si, S, True)
                sr, si = sr * spread(1 / total, S, K1), si * spread(1 / total, S, K1)
            for half in tl.static_range(K2 // N2 if K2 > N2 else 1):
                if half == 1:
                    sign = (1 - 2 * (tl.arange(0, K2) % 2)).to(tl.float32)[None, :]
                    sr, si = sr * sign, si * sign
                dr, di = inverse(sr, si, b2r, b2i, b1r, b1i, cr, ci, S, N2, K1, not REAL, TWIDDLE, UPRIGHT, PRECISION)
                if SCALED:
                    back = spread(total / (m1 * m2), S, N1 if UPRIGHT else N2)
                    dr, di = dr * back, di * back
                ahead, here, behind, beyond = points_of(n1, n2 + half * N2, m1, m2, p1, p2, c1, c2, TWIDDLE)
                mine = first + s < channels
                tl.store(s_base + s * (p1 * p2) + ahead, dr, mask=here & mine)
                tl.store(s_base + s * (p1 * p2) + behind, di, mask=beyond & mine)
