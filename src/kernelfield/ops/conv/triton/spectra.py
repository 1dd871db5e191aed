"""The inner transform of kernels to their spectra, and its inverse for gradients.

:mod:`.transform` explains the constants.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from .tile_ops import (
    beside,
    first_of,
    first_step,
    indices,
    largest,
    last_step,
    load_columns,
    load_tables,
    operand,
    parts,
    second_step,
    spectral_indices,
    spread,
    third_step,
)  # fmt: skip

__all__ = [
    "gradient_kernel", "spectrum_kernel", "spectrum_of_kernels", "write_parts",
    "write_points", "write_scales",
]  # fmt: skip

#: arguments that do not trigger recompilation
SIZES = ["channels", "count", "p2", "c2"]


@triton.jit
def _points(n1, n2, m1, m2, p1, p2, c1, c2, TWIDDLE: tl.constexpr):
    """Return the indices of the kernel's points at offsets (n1, n2) and (n1 - m1, n2), and whether they exist.

    On a line, rows are consecutive, and the second point lies m1 rows, the length of the line, before the first.
    """
    known = (n1 < m1) & (n2 < m2)
    if TWIDDLE:
        ahead = n1 * m2 + n2 + c1
        behind = ahead - m1 * m2
        return ahead, known & (ahead < p1), behind, known & (behind >= 0)
    column = n2 + c2
    column = tl.where(column < p2, column, column - m2)  # columns are periodic
    known = known & (column >= 0)
    ahead = n1 + c1
    behind = ahead - m1
    return ahead * p2 + column, known & (ahead < p1), behind * p2 + column, known & (behind >= 0)


@triton.jit
def _signs(N: tl.constexpr):
    """Return (-1)^k, the phase factors of a signal that begins halfway along a periodic axis."""
    return (1 - 2 * (tl.arange(0, N) % 2)).to(tl.float32)


@triton.jit
def spectrum_from_points(
    pointer, first, channels, m1, m2, p1, p2, c1, c2, a1, a2, tr, ti,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    REAL: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, SCALED: tl.constexpr,
    PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the spectrum of the kernels of ``S`` channels, real and imaginary parts (s k1, k2), in float32.

    Along a first axis that is not periodic, points at negative offsets form the imaginary part, as z^-N = i. A kernel
    with more columns than the signal (K2 = 2 N2) is transformed in two halves, the second with a factor (-1)^k2.
    """
    base = pointer + first.to(tl.int64) * p1 * p2
    s, n1, n2, _ = indices(N1, N2, S, False, UPRIGHT)
    for half in tl.static_range(K2 // N2 if K2 > N2 else 1):
        ahead, here, behind, there = _points(n1, n2 + half * N2, m1, m2, p1, p2, c1, c2, TWIDDLE)
        mine = first + s < channels
        re = tl.load(base + s * (p1 * p2) + ahead, mask=here & mine, other=0.0).to(tl.float32)
        im = tl.load(base + s * (p1 * p2) + behind, mask=there & mine, other=0.0).to(tl.float32)
        if REAL:
            re += im
        if SCALED:
            top = largest(re, S, UPRIGHT)
            if not REAL:
                top = tl.maximum(top, largest(im, S, UPRIGHT))
            share = spread(1 / top, S, N2, UPRIGHT)
            re, im = re * share, im * share
        ur, ui = first_step(operand(re, a1, PRECISION), a1, tr, ti, 0, TWIDDLE, UPRIGHT, PACKED, PRECISION)
        if not REAL:  # the transform of i times the imaginary part
            wr, wi = first_step(operand(im, a1, PRECISION), a1, tr, ti, 0, TWIDDLE, UPRIGHT, PACKED, PRECISION)
            ur, ui = ur - wi, ui + wr
        vr, vi = second_step(ur, ui, a2, S, N2, K1, UPRIGHT, PRECISION)
        if SCALED:
            vr, vi = vr * spread(top, S, K1, False), vi * spread(top, S, K1, False)
        if half == 0:
            kr, ki = vr, vi
        else:
            kr += vr * _signs(K2)[None, :]
            ki += vi * _signs(K2)[None, :]
    return kr, ki


@triton.jit
def unit_spectrum(kr, ki, m1, m2, S: tl.constexpr, K1: tl.constexpr, SCALED: tl.constexpr):
    """Return a spectrum divided by m1 m2, or if SCALED by m1 and its largest value, and that value.

    With the factor 1 / m1 of the inverse transform, neither the product of two spectra nor the values between the two
    steps of its inverse leave the range of float16, for any signal.
    """
    top = 1.0
    if SCALED:
        top = tl.maximum(largest(kr, S, False), largest(ki, S, False))
        share = spread(1 / (top * m1), S, K1, False)
    else:
        share = 1.0 / (m1 * m2)
    return kr * share, ki * share, top


@triton.jit
def write_scales(scales, points_scales, top, first, hop, channels, S: tl.constexpr, COMPLEX: tl.constexpr):
    """Write the factors by which to multiply the spectra of a stack."""
    at = first + tl.arange(0, S) * hop
    if S == 1:
        top = tl.full((1,), 0.0, tl.float32) + top
    if COMPLEX:
        top *= tl.load(points_scales + at, mask=at < channels, other=0.0)
    tl.store(scales + at, top, mask=at < channels)


@triton.jit(do_not_specialize=SIZES)
def spectrum_kernel(
    kernel_ptr, out_ptr, tables, points_scales, scales,
    channels, hop, m1, m2, p1, p2, c1, c2,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, SHARED: tl.constexpr, REAL: tl.constexpr,
    SCALED: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """(channels, points), or COMPLEX (channels, 2, m1 m2), -> (channels, K1, 2, K2), the spectra of kernels.

    SCALED: the factors of the spectra are written to ``scales`` (channels); those of the input parts are read from
    ``points_scales``.
    """
    own = tl.program_id(0) % hop
    a1, b1, tr, ti, cr, ci = load_tables(tables, own, N1, N2, K1, K2, S, COMPLEX, TWIDDLE, UPRIGHT, SHARED, PACKED)
    a2, b2 = load_columns(tables, 0, N2, K2, K2, SHARED)
    for tile in range(TILES):
        first = first_of(tl.program_id(0), tile, hop, S, TILES)
        kr, ki, top = spectrum_of_kernels(
            kernel_ptr, first, hop, channels, m1, m2, p1, p2, c1, c2, a1, a2, tr, ti,
            S, N1, N2, K1, K2, COMPLEX, REAL, TWIDDLE, UPRIGHT, SCALED, PACKED, PRECISION,
        )  # fmt: skip
        if SCALED:
            write_scales(scales, points_scales, top, first, hop, channels, S, COMPLEX)
        s, at = spectral_indices(hop, 0, S, K1, K2, K2)
        target = out_ptr + first.to(tl.int64) * (2 * K1 * K2) + at
        tl.store(target, beside(kr, ki).to(out_ptr.dtype.element_ty), mask=first + s < channels)


@triton.jit
def spectrum_from_parts(
    kernel_ptr, first, hop, channels, m1, m2, a1, a2, tr, ti,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the spectra of kernels from their outer transform."""
    s, n1, n2, c = indices(N1, N2, S, True, UPRIGHT)
    s *= hop
    base = kernel_ptr + first.to(tl.int64) * (2 * m1 * m2)
    for half in tl.static_range(K2 // N2 if K2 > N2 else 1):
        for down in tl.static_range(K1 // N1 if K1 > N1 else 1):
            at = (s * 2 + c) * (m1 * m2) + (n1 + down * N1) * m2 + n2 + half * N2
            inside = (n1 + down * N1 < m1) & (n2 + half * N2 < m2) & (first + s < channels)
            x = operand(tl.load(base + at, mask=inside, other=0.0), a1, PRECISION)
            wr, wi = first_step(x, a1, tr, ti, 0, TWIDDLE, UPRIGHT, PACKED, PRECISION)
            if down == 0:
                ur, ui = wr, wi
            else:
                ur += wr * _signs(K1)[:, None]
                ui += wi * _signs(K1)[:, None]
        vr, vi = second_step(ur, ui, a2, S, N2, K1, UPRIGHT, PRECISION)
        if half == 0:
            kr, ki = vr, vi
        else:
            kr += vr * _signs(K2)[None, :]
            ki += vi * _signs(K2)[None, :]
    return kr, ki


@triton.jit
def spectrum_of_kernels(
    kernel_ptr, first, hop, channels, m1, m2, p1, p2, c1, c2, a1, a2, tr, ti,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, REAL: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr,
    SCALED: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the spectra of kernels, COMPLEX: from their outer transform, and the factors of :func:`unit_spectrum`."""
    if COMPLEX:
        kr, ki = spectrum_from_parts(
            kernel_ptr, first, hop, channels, m1, m2, a1, a2, tr, ti,
            S, N1, N2, K1, K2, TWIDDLE, UPRIGHT, PACKED, PRECISION,
        )  # fmt: skip
    else:
        kr, ki = spectrum_from_points(
            kernel_ptr, first, channels, m1, m2, p1, p2, c1, c2, a1, a2, tr, ti,
            S, N1, N2, K1, K2, REAL, TWIDDLE, UPRIGHT, SCALED, PACKED, PRECISION,
        )  # fmt: skip
    kr, ki, top = unit_spectrum(kr, ki, m1, m2, S, K1, SCALED)
    return kr, ki, top


@triton.jit(do_not_specialize=SIZES)
def gradient_kernel(
    sums_ptr, out_ptr, tables, scales,
    count, channels, hop, m1, m2, p1, p2, c1, c2,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, SHARED: tl.constexpr, REAL: tl.constexpr,
    SCALED: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr, EACH: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """(count, channels, K1, 2, K2) -> (channels, points), or COMPLEX (channels, 2, m1 m2): sum over count, then invert.

    SCALED and COMPLEX: the factors of the parts of each channel are written to ``scales`` (channels).
    """
    own = tl.program_id(0) % hop
    a1, b1, tr, ti, cr, ci = load_tables(tables, own, N1, N2, K1, K2, S, COMPLEX, TWIDDLE, UPRIGHT, SHARED, PACKED)
    a2, b2 = load_columns(tables, 0, N2, K2, K2, SHARED)
    s, k_at = spectral_indices(hop, 0, S, K1, K2, K2)
    for tile in range(TILES):
        first = first_of(tl.program_id(0), tile, hop, S, TILES)
        sums = tl.full((S * K1, 2 * K2), 0.0, tl.float32)
        for part in range(EACH):
            base = sums_ptr + (first.to(tl.int64) + part * channels) * (2 * K1 * K2)
            sums += tl.load(base + k_at, mask=(first + s < channels) & (part < count), other=0.0)
        sr, si = parts(sums)
        if COMPLEX:
            write_parts(
                out_ptr, scales, sr, si, first, hop, channels, m1, m2, b2, b1, cr, ci,
                S, N1, N2, K1, K2, TWIDDLE, UPRIGHT, SHARED, SCALED, PACKED, PRECISION,
            )  # fmt: skip
        else:
            write_points(
                out_ptr + first.to(tl.int64) * p1 * p2, sr, si, first, channels, m1, m2, p1, p2, c1, c2,
                b2, b1, cr, ci,
                S, N1, N2, K1, K2, TWIDDLE, UPRIGHT, SHARED, REAL, SCALED, PACKED, PRECISION,
            )  # fmt: skip


@triton.jit
def _over_largest(sr, si, m1, m2, S: tl.constexpr, K1: tl.constexpr, SCALED: tl.constexpr):
    """Return a spectrum divided by m1 m2, or if SCALED by its largest value, and the factor of its inverse."""
    back = 1.0
    if SCALED:
        top = tl.maximum(largest(sr, S, False), largest(si, S, False))
        share = spread(1 / top, S, K1, False)
        back = top / (m1 * m2)
    else:
        share = 1.0 / (m1 * m2)
    return sr * share, si * share, back


@triton.jit
def _inverse_first_step(
    sr, si, b2, half,
    K1: tl.constexpr, K2: tl.constexpr, UPRIGHT: tl.constexpr, SHARED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the first step of the inverse of a spectrum; ``half`` = 1 selects the second half of the columns."""
    if half == 1:
        sr, si = sr * _signs(K2)[None, :], si * _signs(K2)[None, :]
    return third_step(sr, si, b2, K1, UPRIGHT, SHARED, PRECISION)


@triton.jit
def write_parts(
    out_ptr, scales, sr, si, first, hop, channels, m1, m2, b2, b1, cr, ci,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, SHARED: tl.constexpr, SCALED: tl.constexpr,
    PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the inverse transform of a spectrum as (channels, 2, m1 m2)."""
    sr, si, back = _over_largest(sr, si, m1, m2, S, K1, SCALED)
    if SCALED:
        at = first + tl.arange(0, S) * hop
        tl.store(scales + at, tl.full((S,), 0.0, tl.float32) + back, mask=at < channels)
    s, n1, n2, c = indices(N1, N2, S, True, UPRIGHT)
    s *= hop
    base = out_ptr + first.to(tl.int64) * (2 * m1 * m2)
    for half in tl.static_range(K2 // N2 if K2 > N2 else 1):
        wr, wi = _inverse_first_step(sr, si, b2, half, K1, K2, UPRIGHT, SHARED, PRECISION)
        for down in tl.static_range(K1 // N1 if K1 > N1 else 1):
            if down == 1:
                row = _signs(S * K1)[:, None]  # K1 is even
                wr, wi = wr * row, wi * row
            d = last_step(wr, wi, b1, cr, ci, 0, S, N2, K1, False, TWIDDLE, UPRIGHT, SHARED, PACKED, PRECISION)
            at = (s * 2 + c) * (m1 * m2) + (n1 + down * N1) * m2 + n2 + half * N2
            inside = (n1 + down * N1 < m1) & (n2 + half * N2 < m2) & (first + s < channels)
            tl.store(base + at, d.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def write_points(
    base, sr, si, first, channels, m1, m2, p1, p2, c1, c2, b2, b1, cr, ci,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, SHARED: tl.constexpr, REAL: tl.constexpr,
    SCALED: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the inverse transform of a spectrum to the points of the kernels of a stack, starting at ``base``."""
    sr, si, back = _over_largest(sr, si, m1, m2, S, K1, SCALED)
    s, n1, n2, _ = indices(N1, N2, S, False, UPRIGHT)
    mine = first + s < channels
    for half in tl.static_range(K2 // N2 if K2 > N2 else 1):
        wr, wi = _inverse_first_step(sr, si, b2, half, K1, K2, UPRIGHT, SHARED, PRECISION)
        re = last_step(wr, wi, b1, cr, ci, 0, S, N2, K1, False, TWIDDLE, UPRIGHT, SHARED, PACKED, PRECISION)
        im = re
        if not REAL:
            im = last_step(wr, wi, b1, cr, ci, 0, S, N2, K1, True, TWIDDLE, UPRIGHT, SHARED, PACKED, PRECISION)
        if SCALED:
            factor = spread(back, S, N2, UPRIGHT)
            re, im = re * factor, im * factor
        ahead, here, behind, beyond = _points(n1, n2 + half * N2, m1, m2, p1, p2, c1, c2, TWIDDLE)
        tl.store(base + s * (p1 * p2) + ahead, re.to(base.dtype.element_ty), mask=here & mine)
        tl.store(base + s * (p1 * p2) + behind, im.to(base.dtype.element_ty), mask=beyond & mine)
