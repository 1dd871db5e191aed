"""The inner transform: one read of the signals, four products with small tables, one write.

A program holds a stack of tiles of ``S`` channels and loops over ``EACH`` entries of the batch, for ``TILES`` stacks
one after the other. Rows of its matrices are (channel, column) or (channel, row of the spectrum), so the right factor
of every product is a constant table:

    signal (s n2, n1) · a1 -> (s n2, k1), twiddle, transpose -> (s k1, n2) · a2 -> spectrum (s k1, k2)

The inverse takes the same steps in reverse. If the spectrum has at least 64 rows, as many as a matrix instruction, the
layout is *upright*: the first table is the left factor, and no transposition is needed:

    a1 · signal (n1, s n2) -> (k1, s n2), twiddle, as (s k1, n2) · a2 -> spectrum (s k1, k2)

*Slim* programs of one or two warps, for tiles of 16 columns (K1 < 64), are upright too.

``docs/internals/long-convolutions.md`` draws the indices. Constants of all kernels:

- S channels per stack, ``hop`` signals apart, with tiles of N1 × N2 samples and K1 × K2 frequencies;
- COMPLEX: signals have a real and an imaginary part;
- TWIDDLE: rows are consecutive parts of a line;
- SHARED: the inverse uses the table of the transform, read transposed, which the hardware supports in half precision
  only;
- READY: the kernel is given by its spectrum; otherwise each program computes the spectra of its channels' kernels;
- REAL: the kernel has no imaginary part, because it has no negative offsets or the first axis is periodic;
- HOLD: a given spectrum stays in registers instead of being read again for every signal;
- SCALED: products are in float16, which is as precise as tf32 but has a smaller range, so every tile is first divided
  by its largest value. Tables then do not include the factor of the inverse transform.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from .spectra import spectrum_of_kernels, write_parts, write_points, write_scales
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
    packed,
    parts,
    second_step,
    spectral_indices,
    spread,
    third_step,
    times,
    unpacked,
)  # fmt: skip

__all__ = ["conv_kernel", "grads_kernel"]

#: arguments that do not trigger recompilation
SIZES = ["batch", "channels", "p2", "c2"]


@triton.jit
def _unit(x, S: tl.constexpr, N2: tl.constexpr, UPRIGHT: tl.constexpr, REAL_SCALED: tl.constexpr):
    """Return a real tile divided by its largest value per channel, and these values; or the tile unchanged, and 1."""
    top = 1.0
    if REAL_SCALED:
        top = largest(x, S, UPRIGHT)
        x = x.to(tl.float32) * spread(1 / top, S, N2, UPRIGHT)
    return x, top


@triton.jit
def _scale(pointer, first, hop, channels, S: tl.constexpr):
    """Load one value per channel if S > 1, or a single value."""
    at = first
    if S > 1:
        at += tl.arange(0, S) * hop
    return tl.load(pointer + at, mask=at < channels, other=0.0)


@triton.jit
def _kernel(
    kernel_ptr, scales, points_scales, k_base, k_at, k_inside, first, hop, channels,
    m1, m2, p1, p2, c1, c2, a1, a2, tr, ti,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, READY: tl.constexpr, HOLD: tl.constexpr,
    REAL: tl.constexpr, SCALED: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the spectrum of a stack's kernels, and its factor if the launch applies it."""
    unit = 1.0
    if READY:
        kr, ki = parts(tl.load(k_base + k_at, mask=k_inside, other=0.0))
        if PACKED and HOLD:
            kr, ki = packed(kr, ki)
        if SCALED and not COMPLEX:
            unit = _scale(scales, first, hop, channels, S)
    else:
        kr, ki, unit = spectrum_of_kernels(
            kernel_ptr, first, hop, channels, m1, m2, p1, p2, c1, c2, a1, a2, tr, ti,
            S, N1, N2, K1, K2, COMPLEX, REAL, TWIDDLE, UPRIGHT, SCALED, PACKED, PRECISION,
        )  # fmt: skip
        if SCALED and COMPLEX:
            write_scales(scales, points_scales, unit, first, hop, channels, S, True)
        kr, ki = kr.to(a1.dtype), ki.to(a1.dtype)
        if PACKED and HOLD:
            kr, ki = packed(kr, ki)
    return kr, ki, unit


@triton.jit
def _multiply_and_invert(
    vr, vi, kr, ki, b2, b1, cr, ci, zero,
    S: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, CONJUGATE: tl.constexpr,
    TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, SHARED: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Multiply a spectrum by a kernel's spectrum, and transform back."""
    vr, vi = times(vr, vi, kr, ki, CONJUGATE)
    wr, wi = third_step(vr, vi, b2, K1, UPRIGHT, SHARED, PRECISION)
    return last_step(wr, wi, b1, cr, ci, zero, S, N2, K1, False, TWIDDLE, UPRIGHT, SHARED, PACKED, PRECISION)


@triton.jit
def _write(
    base, at, y, factor, m2, there,
    S: tl.constexpr, N2: tl.constexpr, COMPLEX: tl.constexpr, UPRIGHT: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Store a tile; SCALED: multiplied by the rest of the inverse transform's factor and by its own."""
    if SCALED:
        if COMPLEX:
            y *= 1.0 / m2  # one division, not one per entry
        else:
            y *= spread(factor / m2, S, N2, UPRIGHT)
    tl.store(base + at, y.to(base.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=SIZES)
def conv_kernel(
    x_ptr, kernel_ptr, y_ptr, tables, scales, points_scales,
    batch, channels, hop, rows, cols, length, m1, m2, p1, p2, c1, c2,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, SHARED: tl.constexpr,
    READY: tl.constexpr, HOLD: tl.constexpr, REAL: tl.constexpr, CONJUGATE: tl.constexpr,
    SCALED: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr, EACH: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Convolve: y = inverse(kernel's spectrum · forward(x)), CONJUGATE: with the conjugate of the spectrum.

    x and y are (batch, channels, parts, length). SCALED: ``scales`` are the factors of the spectra; if COMPLEX, they
    apply to y and are left to the caller.
    """
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    s, n1, n2, c = indices(N1, N2, S, COMPLEX, UPRIGHT)
    s *= hop
    n = n1 * cols + n2
    at = (s * PARTS + c) * length + n
    own = tl.program_id(0) % hop
    a1, b1, tr, ti, cr, ci = load_tables(tables, own, N1, N2, K1, K2, S, COMPLEX, TWIDDLE, UPRIGHT, SHARED, PACKED)
    a2, b2 = load_columns(tables, 0, N2, K2, K2, SHARED)
    k_s, k_at = spectral_indices(hop, 0, S, K1, K2, K2)
    b = tl.program_id(1) * EACH
    step = channels.to(tl.int64) * (PARTS * length)
    for tile in range(TILES):
        first = first_of(tl.program_id(0), tile, hop, S, TILES)
        inside = (n1 < rows) & (n2 < cols) & (n < length) & (first + s < channels)
        k_inside = first + k_s < channels
        k_base = kernel_ptr + first.to(tl.int64) * (2 * K1 * K2)
        kr, ki, unit = _kernel(
            kernel_ptr, scales, points_scales, k_base, k_at, k_inside, first, hop, channels,
            m1, m2, p1, p2, c1, c2, a1, a2, tr, ti,
            S, N1, N2, K1, K2, COMPLEX, TWIDDLE, UPRIGHT, READY, HOLD, REAL, SCALED, PACKED, PRECISION,
        )  # fmt: skip
        start = b.to(tl.int64) * channels + first
        x_base = x_ptr + start * (PARTS * length)
        y_base = y_ptr + start * (PARTS * length)
        coming = tl.load(x_base + at, mask=inside & (b < batch), other=0.0)
        for turn in range(EACH):
            zero = (turn + channels) >> 30
            there = inside & (b + turn < batch)
            coming, top = _unit(coming, S, N2, UPRIGHT, SCALED and not COMPLEX)
            x = operand(coming, a1, PRECISION)
            # Prefetch the next signal.
            x_base += step
            coming = tl.load(x_base + at, mask=inside & (b + turn + 1 < batch) & (turn + 1 < EACH), other=0.0)
            ur, ui = first_step(x, a1, tr, ti, zero, TWIDDLE, UPRIGHT, PACKED, PRECISION)
            vr, vi = second_step(ur, ui, a2, S, N2, K1, UPRIGHT, PRECISION)
            if READY and not HOLD:
                kr, ki = parts(tl.load(k_base + k_at, mask=k_inside, other=0.0))
            fr, fi = unpacked(kr, ki, zero, a1, PACKED and HOLD)
            y = _multiply_and_invert(
                vr, vi, fr, fi, b2, b1, cr, ci, zero,
                S, N2, K1, CONJUGATE, TWIDDLE, UPRIGHT, SHARED, PACKED, PRECISION,
            )  # fmt: skip
            _write(y_base, at, y, top * unit, m2, there, S, N2, COMPLEX, UPRIGHT, SCALED)
            y_base += step


@triton.jit(do_not_specialize=SIZES)
def grads_kernel(
    grad_ptr, x_ptr, kernel_ptr, out_ptr, sums_ptr, tables, scales, points_scales, weights, sums_scales,
    batch, channels, hop, rows, cols, length, m1, m2, p1, p2, c1, c2,
    S: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr, C: tl.constexpr,
    COMPLEX: tl.constexpr, TWIDDLE: tl.constexpr, UPRIGHT: tl.constexpr, SHARED: tl.constexpr,
    READY: tl.constexpr, HOLD: tl.constexpr, SPECTRAL: tl.constexpr, REAL: tl.constexpr, NEED_X: tl.constexpr,
    SCALED: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr, EACH: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of x if NEED_X, and the kernel's gradient summed over EACH entries of the batch.

    The sums are in float32: SPECTRAL (parts of the batch, channels, K1, 2, K2), else (parts, channels, points), or
    COMPLEX, of the whole batch, (channels, 2, m1 m2) with ``sums_scales`` as :func:`gradient_kernel` writes it. Without
    NEED_X a program may compute only C of the K2 columns of a spectrum.
    SCALED and COMPLEX: ``weights`` (batch, channels) are factors of the products of x and grad.
    """
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    s, n1, n2, c = indices(N1, N2, S, COMPLEX, UPRIGHT)
    s *= hop
    n = n1 * cols + n2
    at = (s * PARTS + c) * length + n
    own = tl.program_id(0) % hop
    a1, b1, tr, ti, cr, ci = load_tables(tables, own, N1, N2, K1, K2, S, COMPLEX, TWIDDLE, UPRIGHT, SHARED, PACKED)
    column = tl.program_id(2) * C
    a2, b2 = load_columns(tables, column, N2, K2, C, SHARED)
    k_s, k_at = spectral_indices(hop, column, S, K1, K2, C)
    b = tl.program_id(1) * EACH
    step = channels.to(tl.int64) * (PARTS * length)
    for tile in range(TILES):
        first = first_of(tl.program_id(0), tile, hop, S, TILES)
        inside = (n1 < rows) & (n2 < cols) & (n < length) & (first + s < channels)
        k_inside = first + k_s < channels
        k_base = kernel_ptr + first.to(tl.int64) * (2 * K1 * K2)
        if NEED_X:
            kr, ki, unit = _kernel(
                kernel_ptr, scales, points_scales, k_base, k_at, k_inside, first, hop, channels,
                m1, m2, p1, p2, c1, c2, a1, a2, tr, ti,
                S, N1, N2, K1, K2, COMPLEX, TWIDDLE, UPRIGHT, READY, HOLD, REAL, SCALED, PACKED, PRECISION,
            )  # fmt: skip
        sr = tl.full((S * K1, C), 0.0, tl.float32)
        si = tl.full((S * K1, C), 0.0, tl.float32)
        start = b.to(tl.int64) * channels + first
        x_base = x_ptr + start * (PARTS * length)
        grad_base = grad_ptr + start * (PARTS * length)
        out_base = out_ptr + start * (PARTS * length)
        coming = tl.load(x_base + at, mask=inside & (b < batch), other=0.0)
        for turn in range(EACH):
            zero = (turn + channels) >> 30
            there = inside & (b + turn < batch)
            coming, weight = _unit(coming, S, N2, UPRIGHT, SCALED and not COMPLEX)
            x = operand(coming, a1, PRECISION)
            coming = tl.load(grad_base + at, mask=there, other=0.0)
            ur, ui = first_step(x, a1, tr, ti, zero, TWIDDLE, UPRIGHT, PACKED, PRECISION)
            vr, vi = second_step(ur, ui, a2, S, N2, K1, UPRIGHT, PRECISION)
            vr, vi = vr.to(a1.dtype), vi.to(a1.dtype)  # half the registers while the other spectrum is computed
            coming, top = _unit(coming, S, N2, UPRIGHT, SCALED and not COMPLEX)
            x = operand(coming, a1, PRECISION)
            x_base += step
            coming = tl.load(x_base + at, mask=inside & (b + turn + 1 < batch) & (turn + 1 < EACH), other=0.0)
            ur, ui = first_step(x, a1, tr, ti, zero, TWIDDLE, UPRIGHT, PACKED, PRECISION)
            gr, gi = second_step(ur, ui, a2, S, N2, K1, UPRIGHT, PRECISION)
            pr, pi = times(gr, gi, vr, vi, True)
            if SCALED:
                weight *= top
                if COMPLEX:
                    known = channels * (b + turn < batch)
                    weight = _scale(weights + (b + turn).to(tl.int64) * channels, first, hop, known, S)
                weight = spread(weight, S, K1, False)
                pr, pi = pr * weight, pi * weight
            sr += pr
            si += pi
            if NEED_X:
                if READY and not HOLD:
                    kr, ki = parts(tl.load(k_base + k_at, mask=k_inside, other=0.0))
                fr, fi = unpacked(kr, ki, zero, a1, PACKED and HOLD)
                y = _multiply_and_invert(
                    gr, gi, fr, fi, b2, b1, cr, ci, zero,
                    S, N2, K1, True, TWIDDLE, UPRIGHT, SHARED, PACKED, PRECISION,
                )  # fmt: skip
                _write(out_base, at, y, top * unit, m2, there, S, N2, COMPLEX, UPRIGHT, SCALED)
            grad_base += step
            out_base += step

        stack = tl.program_id(1).to(tl.int64) * channels + first
        if SPECTRAL:
            tl.store(sums_ptr + stack * (2 * K1 * K2) + k_at, beside(sr, si), mask=k_inside)
        elif COMPLEX:
            write_parts(
                sums_ptr, sums_scales, sr, si, first, hop, channels, m1, m2, b2, b1, cr, ci,
                S, N1, N2, K1, K2, TWIDDLE, UPRIGHT, SHARED, SCALED, PACKED, PRECISION,
            )  # fmt: skip
        else:
            write_points(
                sums_ptr + stack * p1 * p2, sr, si, first, channels, m1, m2, p1, p2, c1, c2, b2, b1, cr, ci,
                S, N1, N2, K1, K2, TWIDDLE, UPRIGHT, SHARED, REAL, SCALED, PACKED, PRECISION,
            )  # fmt: skip
