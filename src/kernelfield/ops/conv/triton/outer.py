"""The outer transform of large signals, over blocks, rows or slices: a product with a table.

``split`` writes one complex signal of the inner length for each frequency r of the outer transform. ``merge`` is its
inverse. Both loop over (batch, channel) with their tables in registers. ``split_points`` and ``merge_points`` do the
same for kernels whose points are already scattered (:mod:`.scatter`).

SCALED: a signal is divided by the outer length and its largest value, ``tops``, so that its transform is at most one.
In the inverse, each frequency has its own factor, ``scales``, from the kernel's spectrum.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["merge_kernel", "merge_points_kernel", "split_kernel", "split_points_kernel"]


@triton.jit
def _block(x_ptr, i, q, n, signals, channels, stride, blocks, step, length):
    """Load samples n of blocks q of signal i; zeros if i is out of range."""
    at = q[:, None] * step + n
    source = x_ptr + (i // channels).to(tl.int64) * stride + (i % channels).to(tl.int64) * length
    return tl.load(source + at, mask=(i < signals) & (q[:, None] < blocks) & (n < step) & (at < length), other=0.0)


@triton.jit
def _frequencies(z_ptr, i, r, n, signals, outer, step):
    """Load samples n of frequencies r of signal i; zeros if i is out of range."""
    there = (i < signals) & (r[:, None] < outer) & (n < step)
    source = z_ptr + (i.to(tl.int64) * outer + r[:, None]) * (2 * step) + n
    return tl.load(source, mask=there, other=0.0), tl.load(source + step, mask=there, other=0.0)


@triton.jit
def _table(table, first, q, part, R: tl.constexpr, Q: tl.constexpr, TIMES_I: tl.constexpr):
    """Load columns q of R rows of a table, starting at ``first``: (2 r, q), the imaginary part below the real part.

    TIMES_I: the table times i, for the imaginary part of the input.
    """
    r = tl.arange(0, 2 * R)[:, None]
    at = (first + r % R) * Q + q[None, :]
    if TIMES_I:
        w = tl.load(table + (1 - r // R) * part + at)
        w = tl.where(r < R, -w, w)
    else:
        w = tl.load(table + (r // R) * part + at)
    return w


@triton.jit
def _above_and_below(u):
    """(2 r, n) -> two of (r, n)."""
    return tl.split(tl.permute(tl.reshape(u, (2, u.shape[0] // 2, u.shape[1])), (1, 2, 0)))


@triton.jit
def _store(target, ur, ui, step, inside):
    tl.store(target, ur.to(target.dtype.element_ty), mask=inside)
    tl.store(target + step, ui.to(target.dtype.element_ty), mask=inside)


@triton.jit
def split_kernel(
    x_ptr, out_ptr, table, tops,
    signals, channels, stride, tops_stride, blocks, outer, step, length,
    R: tl.constexpr, Q: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_N: tl.constexpr,
    SCALED: tl.constexpr, PRECISION: tl.constexpr, EACH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """(signals, length) -> (signals, outer, 2, step): out[r, n] = Σ_q table[r, q] x[q step + n].

    Signal i is channel ``i % channels`` of batch entry ``i // channels``. Entries of the batch are ``stride`` apart.
    The table is (2, ·, Q), padded with zeros.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    first = tl.program_id(1) * R
    r = first + tl.arange(0, R)[:, None]
    part = tl.num_programs(1) * R * Q
    inside = (r < outer) & (n < step)
    if Q == BLOCK_Q:  # the table is read once
        w = _table(table, first, tl.arange(0, Q), part, R, Q, False)
        coming = _block(
            x_ptr, tl.program_id(2) * EACH, tl.arange(0, Q), n, signals, channels, stride, blocks, step, length
        )
    for turn in range(EACH):
        i = tl.program_id(2) * EACH + turn
        known = i < signals
        if SCALED:
            share = 1 / (outer * tl.load(tops + (i // channels) * tops_stride + i % channels, mask=known, other=1.0))
        if Q == BLOCK_Q:
            x = coming  # prefetch the next signal
            if EACH > 1:
                following = tl.where(turn + 1 < EACH, i + 1, signals)
                coming = _block(x_ptr, following, tl.arange(0, Q), n, signals, channels, stride, blocks, step, length)
            if SCALED:
                x = x.to(tl.float32) * share
            u = tl.dot(w, x.to(w.dtype), input_precision=PRECISION)
        else:
            u = tl.full((2 * R, BLOCK_N), 0.0, tl.float32)
            for q0 in tl.range(0, Q, BLOCK_Q, num_stages=STAGES):
                q = q0 + tl.arange(0, BLOCK_Q)
                w = _table(table, first, q, part, R, Q, False)
                x = _block(x_ptr, i, q, n, signals, channels, stride, blocks, step, length)
                if SCALED:
                    x = x.to(tl.float32) * share
                u = tl.dot(w, x.to(w.dtype), u, input_precision=PRECISION)
        ur, ui = _above_and_below(u)
        _store(out_ptr + (i.to(tl.int64) * outer + r) * (2 * step) + n, ur, ui, step, inside & known)


@triton.jit
def _columns(table, q, r, part, R: tl.constexpr):
    """Load columns r of rows q of the table of ``merge``, for real and for imaginary parts."""
    at = q * R + r[None, :]
    return tl.load(table + at), tl.load(table + part + at)


@triton.jit
def _rescaled(v, scales, r, most, outer):
    """Multiply columns r of a table by the factors of their frequencies; cheaper than multiplying the signal."""
    share = tl.load(scales + r, mask=r < outer, other=0.0) / most
    return (v * share[None, :]).to(v.dtype)


@triton.jit
def _largest_factor(scales, outer, R: tl.constexpr):
    """Return the largest factor over the frequencies of a channel."""
    r = tl.arange(0, R)
    return tl.maximum(tl.max(tl.load(scales + r, mask=r < outer, other=0.0)), 1e-30)


@triton.jit
def merge_kernel(
    z_ptr, y_ptr, table, tops, scales,
    signals, channels, stride, tops_stride, blocks, outer, step, length,
    R: tl.constexpr, BLOCK_R: tl.constexpr, Q: tl.constexpr, BLOCK_N: tl.constexpr,
    SCALED: tl.constexpr, PRECISION: tl.constexpr, EACH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """(signals, outer, 2, step) -> (signals, length): y[q step + n] = Re Σ_r conj(table[q, r]) z[r, n].

    The table is (2, ·, R), padded with zeros.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    q = tl.program_id(1) * Q + tl.arange(0, Q)[:, None]
    part = tl.num_programs(1) * Q * R
    at = q * step + n
    inside = (q < blocks) & (n < step) & (at < length)
    if R == BLOCK_R:  # the table is read once
        vr, vi = _columns(table, q, tl.arange(0, R), part, R)
        next_re, next_im = _frequencies(z_ptr, tl.program_id(2) * EACH, tl.arange(0, R), n, signals, outer, step)
    for turn in range(EACH):
        i = tl.program_id(2) * EACH + turn
        known = i < signals
        y = tl.full((Q, BLOCK_N), 0.0, tl.float32)
        if SCALED:
            most = _largest_factor(scales + (i % channels) * outer, outer, R)
        for r0 in tl.range(0, R, BLOCK_R, num_stages=STAGES):
            r = r0 + tl.arange(0, BLOCK_R)
            if R > BLOCK_R:
                vr, vi = _columns(table, q, r, part, R)
                zr, zi = _frequencies(z_ptr, i, r, n, signals, outer, step)
            else:
                zr, zi = next_re, next_im
                if EACH > 1:
                    following = tl.where(turn + 1 < EACH, i + 1, signals)
                    next_re, next_im = _frequencies(z_ptr, following, r, n, signals, outer, step)
            ur, ui = vr, vi
            if SCALED:
                own = scales + (i % channels) * outer
                ur, ui = _rescaled(vr, own, r, most, outer), _rescaled(vi, own, r, most, outer)
            y = tl.dot(ur, zr.to(vr.dtype), y, input_precision=PRECISION)
            y = tl.dot(ui, zi.to(vr.dtype), y, input_precision=PRECISION)
        if SCALED:
            y *= most * tl.load(tops + (i // channels) * tops_stride + i % channels, mask=known, other=0.0)
        target = y_ptr + (i // channels).to(tl.int64) * stride + (i % channels).to(tl.int64) * length
        tl.store(target + at, y.to(y_ptr.dtype.element_ty), mask=inside & known)


@triton.jit
def split_points_kernel(
    placed, out_ptr, table, tops,
    outer, inner,
    R: tl.constexpr, Q: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_N: tl.constexpr,
    REAL: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """(channels, parts, outer, inner) -> (channels, outer, 2, inner); REAL: there is no imaginary part."""
    PARTS: tl.constexpr = 1 if REAL else 2
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    first = tl.program_id(1) * R
    r = first + tl.arange(0, R)[:, None]
    channel = tl.program_id(2).to(tl.int64)
    part = tl.num_programs(1) * R * Q
    base = placed + channel * (PARTS * outer * inner)
    u = tl.full((2 * R, BLOCK_N), 0.0, tl.float32)
    for q0 in tl.range(0, Q, BLOCK_Q, num_stages=STAGES):
        q = q0 + tl.arange(0, BLOCK_Q)
        w = _table(table, first, q, part, R, Q, False)
        at, there = q[:, None] * inner + n, (q[:, None] < outer) & (n < inner)
        a = tl.load(base + at, mask=there, other=0.0)
        if SCALED:
            share = 1 / (outer * tl.load(tops + channel))
            a = a.to(tl.float32) * share
        u = tl.dot(w, a.to(w.dtype), u, input_precision=PRECISION)
        if not REAL:
            b = tl.load(base + outer * inner + at, mask=there, other=0.0)
            if SCALED:
                b = b.to(tl.float32) * share
            w = _table(table, first, q, part, R, Q, True)
            u = tl.dot(w, b.to(w.dtype), u, input_precision=PRECISION)
    ur, ui = _above_and_below(u)
    inside = (r < outer) & (n < inner)
    _store(out_ptr + (channel * outer + r) * (2 * inner) + n, ur, ui, inner, inside)


@triton.jit
def merge_points_kernel(
    z_ptr, placed, table, scales,
    outer, inner,
    R: tl.constexpr, BLOCK_R: tl.constexpr, Q: tl.constexpr, BLOCK_N: tl.constexpr,
    REAL: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """(channels, outer, 2, inner) -> (channels, parts, outer, inner), the inverse of :func:`split_points_kernel`."""
    PARTS: tl.constexpr = 1 if REAL else 2
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    q = tl.program_id(1) * Q + tl.arange(0, Q)[:, None]
    channel = tl.program_id(2).to(tl.int64)
    part = tl.num_programs(1) * Q * R
    dr = tl.full((Q, BLOCK_N), 0.0, tl.float32)
    di = tl.full((Q, BLOCK_N), 0.0, tl.float32)
    if SCALED:
        most = _largest_factor(scales + channel * outer, outer, R)
    for r0 in tl.range(0, R, BLOCK_R, num_stages=STAGES):
        r = r0 + tl.arange(0, BLOCK_R)
        vr, vi = _columns(table, q, r, part, R)
        there = (r[:, None] < outer) & (n < inner)
        source = z_ptr + (channel * outer + r[:, None]) * (2 * inner) + n
        zr = tl.load(source, mask=there, other=0.0)
        zi = tl.load(source + inner, mask=there, other=0.0)
        if SCALED:
            own = scales + channel * outer
            vr, vi = _rescaled(vr, own, r, most, outer), _rescaled(vi, own, r, most, outer)
        dr = tl.dot(vr, zr.to(vr.dtype), dr, input_precision=PRECISION)
        dr = tl.dot(vi, zi.to(vr.dtype), dr, input_precision=PRECISION)
        if not REAL:
            di = tl.dot(vr, zi.to(vr.dtype), di, input_precision=PRECISION)
            di = tl.dot(-vi, zr.to(vr.dtype), di, input_precision=PRECISION)
    if SCALED:
        dr, di = dr * (most / outer), di * (most / outer)
    base = placed + channel * (PARTS * outer * inner)
    at, there = q * inner + n, (q < outer) & (n < inner)
    tl.store(base + at, dr.to(placed.dtype.element_ty), mask=there)
    if not REAL:
        tl.store(base + outer * inner + at, di.to(placed.dtype.element_ty), mask=there)
