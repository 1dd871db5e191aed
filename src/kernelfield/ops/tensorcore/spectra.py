"""Kernels and their spectra: the inner transform of what a signal is convolved with, and the way back for gradients.

:mod:`.transform` says what the constants mean.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from .stages import forward, indices, inverse, largest, load_tables, pair, spread

__all__ = ["gradient_kernel", "made_spectrum", "spectrum_kernel", "unit_spectrum", "write_points"]

#: numbers that a kernel is not compiled anew for
SIZES = ["channels", "parts", "p2", "c2"]


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
def made_spectrum(
    pointer, first, channels, m1, m2, p1, p2, c1, c2,
    a1r, a1i, a2r, a2i, tr, ti,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    REAL: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the spectrum of the kernels of ``S`` channels, (s k1, k2), in float32.

    What lies behind offset zero along a first axis followed by zeros is the imaginary part: z^-N = i. A kernel with
    more columns than the signal (K2 = 2 N2) is transformed in two halves, the second of which counts (-1)^k2.
    """
    base = pointer + first.to(tl.int64) * p1 * p2
    s, n1, n2 = indices(N1, N2, S, UPRIGHT)
    for half in tl.static_range(K2 // N2 if K2 > N2 else 1):
        ahead, here, behind, there = _points(n1, n2 + half * N2, m1, m2, p1, p2, c1, c2, TWIDDLE)
        mine = first + s < channels
        re = tl.load(base + s * (p1 * p2) + ahead, mask=here & mine, other=0.0).to(tl.float32)
        im = tl.load(base + s * (p1 * p2) + behind, mask=there & mine, other=0.0).to(tl.float32)
        if REAL:
            re += im
        if SCALED:
            top = largest(re, im, S, not REAL)
            share = spread(1 / top, S, N1 if UPRIGHT else N2)
            re, im = re * share, im * share
        re, im = re.to(a1r.dtype), im.to(a1r.dtype)
        vr, vi = forward(re, im, a1r, a1i, a2r, a2i, tr, ti, S, N2, K1, not REAL, TWIDDLE, UPRIGHT, PRECISION)
        if SCALED:
            vr, vi = vr * spread(top, S, K1), vi * spread(top, S, K1)
        if half == 0:
            kr, ki = vr, vi
        else:
            sign = (1 - 2 * (tl.arange(0, K2) % 2)).to(tl.float32)[None, :]
            kr += vr * sign
            ki += vi * sign
    return kr, ki


@triton.jit
def unit_spectrum(kr, ki, m1, S: tl.constexpr, K1: tl.constexpr, SCALED: tl.constexpr):
    """Return a spectrum as it is multiplied with; SCALED: over its largest value and m1; and that value, (s).

    With a factor 1 / m1 of the inverse transform neither the product of two spectra nor what is between the two steps
    of its transform leaves the range of float16, whatever the signal.
    """
    top = 1.0
    if SCALED:
        top = largest(kr, ki, S, True)
        share = spread(1 / (top * m1), S, K1)
        kr, ki = kr * share, ki * share
    return kr, ki, top


@triton.jit(do_not_specialize=SIZES)
def spectrum_kernel(
    kernel_ptr, out_ptr, tables, points_scales, scales,
    channels, m1, m2, p1, p2, c1, c2,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, REAL: tl.constexpr,
    SCALED: tl.constexpr, PRECISION: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """(channels, points), or COMPLEX (channels, 2, m1 m2), -> (channels, 2, K1, K2), the spectra of kernels.

    SCALED: what a spectrum is to be multiplied by is written to ``scales`` (channels); that of parts is in
    ``points_scales``.
    """
    a1r, a1i, a2r, a2i, b2r, b2i, b1r, b1i, tr, ti, cr, ci = load_tables(tables, N1, N2, K1, K2, S, TWIDDLE, UPRIGHT)
    for tile in range(TILES):
        first = (tl.program_id(0) * TILES + tile) * S
        kr, ki = _given_or_made(
            kernel_ptr, first, channels, m1, m2, p1, p2, c1, c2, a1r, a1i, a2r, a2i, tr, ti,
            S, N1, N2, K1, K2, COMPLEX, TWIDDLE, UPRIGHT, REAL, SCALED, PRECISION,
        )  # fmt: skip
        kr, ki, top = unit_spectrum(kr, ki, m1, S, K1, SCALED)
        if SCALED:
            at = first + tl.arange(0, S)
            if S == 1:
                top = tl.full((1,), 0.0, tl.float32) + top
            if COMPLEX:
                top *= tl.load(points_scales + at, mask=at < channels, other=0.0)
            tl.store(scales + at, top, mask=at < channels)
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
    SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the spectra of kernels from their outer transform (COMPLEX) or from their points."""
    if COMPLEX:
        s, n1, n2 = indices(N1, N2, S, UPRIGHT)
        base = kernel_ptr + first.to(tl.int64) * (2 * m1 * m2)
        for half in tl.static_range(K2 // N2 if K2 > N2 else 1):
            at = s * (2 * m1 * m2) + n1 * m2 + n2 + half * N2
            inside = (n1 < m1) & (n2 + half * N2 < m2) & (first + s < channels)
            re, im = pair(base, at, m1 * m2, inside)
            vr, vi = forward(
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
        kr, ki = made_spectrum(
            kernel_ptr, first, channels, m1, m2, p1, p2, c1, c2, a1r, a1i, a2r, a2i, tr, ti,
            S, N1, N2, K1, K2, REAL, TWIDDLE, UPRIGHT, SCALED, PRECISION,
        )  # fmt: skip
    return kr, ki


@triton.jit(do_not_specialize=SIZES)
def gradient_kernel(
    sums_ptr, out_ptr, tables, scales,
    parts, channels, m1, m2, p1, p2, c1, c2,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, REAL: tl.constexpr,
    SCALED: tl.constexpr, PRECISION: tl.constexpr, EACH: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """(parts, channels, 2, K1, K2) -> (channels, points), or COMPLEX (channels, 2, m1 m2): add up, transform back.

    SCALED and COMPLEX: what the parts of a channel are to be multiplied by is written to ``scales`` (channels).
    """
    a1r, a1i, a2r, a2i, b2r, b2i, b1r, b1i, tr, ti, cr, ci = load_tables(tables, N1, N2, K1, K2, S, TWIDDLE, UPRIGHT)
    for tile in range(TILES):
        _back(
            sums_ptr, out_ptr, scales, (tl.program_id(0) * TILES + tile) * S, parts, channels, m1, m2, p1, p2, c1, c2,
            b2r, b2i, b1r, b1i, cr, ci,
            S, N1, N2, K1, K2, COMPLEX, TWIDDLE, UPRIGHT, REAL, SCALED, PRECISION, EACH,
        )  # fmt: skip


@triton.jit
def _back(
    sums_ptr, out_ptr, scales, first, parts, channels, m1, m2, p1, p2, c1, c2,
    b2r, b2i, b1r, b1i, cr, ci,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, REAL: tl.constexpr,
    SCALED: tl.constexpr, PRECISION: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """One tile of :func:`gradient_kernel`."""
    row = tl.arange(0, S * K1)[:, None]
    k_at = (row // K1) * (2 * K1 * K2) + (row % K1) * K2 + tl.arange(0, K2)[None, :]
    sr = tl.full((S * K1, K2), 0.0, tl.float32)
    si = tl.full((S * K1, K2), 0.0, tl.float32)
    for part in range(EACH):
        base = sums_ptr + (first.to(tl.int64) + part * channels) * (2 * K1 * K2)
        re, im = pair(base, k_at, K1 * K2, (first + row // K1 < channels) & (part < parts))
        sr += re
        si += im
    if COMPLEX:
        _write_parts(
            out_ptr, scales, sr, si, first, channels, m1, m2, b2r, b2i, b1r, b1i, cr, ci,
            S, N1, N2, K1, K2, TWIDDLE, UPRIGHT, SCALED, PRECISION,
        )  # fmt: skip
    else:
        write_points(
            out_ptr + first.to(tl.int64) * p1 * p2, sr, si, first, channels, m1, m2, p1, p2, c1, c2,
            b2r, b2i, b1r, b1i, cr, ci,
            S, N1, N2, K1, K2, TWIDDLE, UPRIGHT, REAL, SCALED, PRECISION,
        )  # fmt: skip


@triton.jit
def _over_largest(sr, si, m1, m2, S: tl.constexpr, K1: tl.constexpr, SCALED: tl.constexpr):
    """Return a spectrum; SCALED: over its largest value, and what its inverse transform is to be multiplied by, (s)."""
    back = 1.0
    if SCALED:
        top = largest(sr, si, S, True)
        sr, si = sr * spread(1 / top, S, K1), si * spread(1 / top, S, K1)
        back = top / (m1 * m2)
    return sr, si, back


@triton.jit
def _in_second_half(sr, si, K2: tl.constexpr):
    """Return a spectrum whose inverse transform begins in the middle of the columns."""
    sign = (1 - 2 * (tl.arange(0, K2) % 2)).to(tl.float32)[None, :]
    return sr * sign, si * sign


@triton.jit
def _write_parts(
    out_ptr, scales, sr, si, first, channels, m1, m2, b2r, b2i, b1r, b1i, cr, ci,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the inverse transform of a spectrum as (channels, 2, m1 m2)."""
    sr, si, back = _over_largest(sr, si, m1, m2, S, K1, SCALED)
    if SCALED:
        at = first + tl.arange(0, S)
        tl.store(scales + at, tl.full((S,), 0.0, tl.float32) + back, mask=at < channels)
    s, n1, n2 = indices(N1, N2, S, UPRIGHT)
    base = out_ptr + first.to(tl.int64) * (2 * m1 * m2)
    for half in tl.static_range(K2 // N2 if K2 > N2 else 1):
        if half == 1:
            sr, si = _in_second_half(sr, si, K2)
        dr, di = inverse(sr, si, b2r, b2i, b1r, b1i, cr, ci, S, N2, K1, True, TWIDDLE, UPRIGHT, PRECISION)
        at = s * (2 * m1 * m2) + n1 * m2 + n2 + half * N2
        inside = (n1 < m1) & (n2 + half * N2 < m2) & (first + s < channels)
        tl.store(base + at, dr.to(out_ptr.dtype.element_ty), mask=inside)
        tl.store(base + at + m1 * m2, di.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def write_points(
    base, sr, si, first, channels, m1, m2, p1, p2, c1, c2, b2r, b2i, b1r, b1i, cr, ci,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, REAL: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the inverse transform of a spectrum to the points of the kernels of a stack, which begin at ``base``."""
    sr, si, back = _over_largest(sr, si, m1, m2, S, K1, SCALED)
    s, n1, n2 = indices(N1, N2, S, UPRIGHT)
    mine = first + s < channels
    for half in tl.static_range(K2 // N2 if K2 > N2 else 1):
        if half == 1:
            sr, si = _in_second_half(sr, si, K2)
        dr, di = inverse(sr, si, b2r, b2i, b1r, b1i, cr, ci, S, N2, K1, not REAL, TWIDDLE, UPRIGHT, PRECISION)
        if SCALED:
            column = spread(back, S, N1 if UPRIGHT else N2)
            dr, di = dr * column, di * column
        ahead, here, behind, beyond = _points(n1, n2 + half * N2, m1, m2, p1, p2, c1, c2, TWIDDLE)
        tl.store(base + s * (p1 * p2) + ahead, dr.to(base.dtype.element_ty), mask=here & mine)
        tl.store(base + s * (p1 * p2) + behind, di.to(base.dtype.element_ty), mask=beyond & mine)
