"""The outer transform of long and large signals: over blocks, rows or slices, by one product with a table.

``split`` writes, for every frequency r of the outer transform, one complex signal of the inner length; ``merge`` reads
them back. Both walk through (batch, channel) with their tables in registers. ``split_points`` and ``merge_points`` do
the same for kernels: they find every point at its offset on the circles of the transform.

SCALED: a signal is divided by the outer length and its largest value, ``tops``, so that its parts are at most one. On
the way back every frequency has a factor of its own, ``scales``: that of the kernel's spectrum.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["merge_kernel", "merge_points_kernel", "split_kernel", "split_points_kernel"]

#: numbers that a kernel is not compiled anew for
POINTS = ["outer", "p2", "p3", "c2", "c3"]


@triton.jit
def split_kernel(
    x_ptr, out_ptr, table, phases, tops,
    signals, channels, stride, tops_stride, blocks, outer, step, length,
    R: tl.constexpr, Q: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_N: tl.constexpr,
    PHASE: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """(signals, length) -> (signals, outer, 2, step): out[r, n] = phase[r, n] Σ_q table[r, q] x[q step + n].

    Signal i is channel ``i % channels`` of batch entry ``i // channels``, ``stride`` samples after the one before.
    The table is (2, ·, Q), filled up with zeros; the phases are (2, outer, step).
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    r = tl.program_id(1) * R + tl.arange(0, R)[:, None]
    part = tl.num_programs(1) * R * Q
    inside = (r < outer) & (n < step)
    if PHASE:
        pr = tl.load(phases + r * step + n, mask=inside, other=0.0)
        pi = tl.load(phases + (outer + r) * step + n, mask=inside, other=0.0)
    for turn in range(EACH):
        i = tl.program_id(2) * EACH + turn
        known = i < signals
        source = x_ptr + (i // channels).to(tl.int64) * stride + (i % channels).to(tl.int64) * length
        if SCALED:
            share = 1 / (outer * tl.load(tops + (i // channels) * tops_stride + i % channels, mask=known, other=1.0))
        ur = tl.full((R, BLOCK_N), 0.0, tl.float32)
        ui = tl.full((R, BLOCK_N), 0.0, tl.float32)
        for q0 in tl.static_range(0, Q, BLOCK_Q):
            q = q0 + tl.arange(0, BLOCK_Q)
            wr = tl.load(table + r * Q + q[None, :])
            wi = tl.load(table + part + r * Q + q[None, :])
            at = q[:, None] * step + n
            x = tl.load(source + at, mask=known & (q[:, None] < blocks) & (n < step) & (at < length), other=0.0)
            if SCALED:
                x = x.to(tl.float32) * share
            x = x.to(wr.dtype)
            ur = tl.dot(wr, x, ur, input_precision=PRECISION)
            ui = tl.dot(wi, x, ui, input_precision=PRECISION)
        if PHASE:
            ur, ui = ur * pr - ui * pi, ur * pi + ui * pr
        target = out_ptr + (i.to(tl.int64) * outer + r) * (2 * step) + n
        tl.store(target, ur.to(out_ptr.dtype.element_ty), mask=inside & known)
        tl.store(target + step, ui.to(out_ptr.dtype.element_ty), mask=inside & known)


@triton.jit
def _most(scales, outer, R: tl.constexpr):
    """Return the largest factor of a channel's frequencies."""
    r = tl.arange(0, R)
    return tl.maximum(tl.max(tl.load(scales + r, mask=r < outer, other=0.0)), 1e-30)


@triton.jit
def merge_kernel(
    z_ptr, y_ptr, table, phases, tops, scales,
    signals, channels, stride, tops_stride, blocks, outer, step, length,
    R: tl.constexpr, BLOCK_R: tl.constexpr, Q: tl.constexpr, BLOCK_N: tl.constexpr,
    PHASE: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """(signals, outer, 2, step) -> (signals, length): y[q step + n] = Re Σ_r table[q, r] conj(phase[r, n]) z[r, n].

    The table is (2, ·, R), its imaginary part negated.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    q = tl.program_id(1) * Q + tl.arange(0, Q)[:, None]
    part = tl.num_programs(1) * Q * R
    at = q * step + n
    inside = (q < blocks) & (n < step) & (at < length)
    for turn in range(EACH):
        i = tl.program_id(2) * EACH + turn
        known = i < signals
        y = tl.full((Q, BLOCK_N), 0.0, tl.float32)
        if SCALED:
            most = _most(scales + (i % channels) * outer, outer, R)
        for r0 in tl.static_range(0, R, BLOCK_R):
            r = r0 + tl.arange(0, BLOCK_R)
            vr = tl.load(table + q * R + r[None, :])
            vi = tl.load(table + part + q * R + r[None, :])
            there = known & (r[:, None] < outer) & (n < step)
            source = z_ptr + (i.to(tl.int64) * outer + r[:, None]) * (2 * step) + n
            zr = tl.load(source, mask=there, other=0.0)
            zi = tl.load(source + step, mask=there, other=0.0)
            if SCALED:
                share = tl.load(scales + (i % channels) * outer + r, mask=r < outer, other=0.0)[:, None] / most
                zr, zi = zr * share, zi * share
            if PHASE:
                pr = tl.load(phases + r[:, None] * step + n, mask=there, other=0.0).to(tl.float32)
                pi = tl.load(phases + (outer + r[:, None]) * step + n, mask=there, other=0.0).to(tl.float32)
                zr, zi = zr * pr + zi * pi, zi * pr - zr * pi
            y = tl.dot(vr, zr.to(vr.dtype), y, input_precision=PRECISION)
            y = tl.dot(vi, zi.to(vr.dtype), y, input_precision=PRECISION)
        if SCALED:
            y *= most * tl.load(tops + (i // channels) * tops_stride + i % channels, mask=known, other=0.0)
        target = y_ptr + (i // channels).to(tl.int64) * stride + (i % channels).to(tl.int64) * length
        tl.store(target + at, y.to(y_ptr.dtype.element_ty), mask=inside & known)


@triton.jit
def _points(q, n, outer, inner, m2, p1, p2, p3, c1, c2, c3, DIM: tl.constexpr):
    """Return where the kernel's points of outer offsets q and q - outer are, at inner offset n, if they exist."""
    known = (q < outer) & (n < inner)
    if DIM == 1:
        ahead = q * inner + n + c1
        behind = ahead - outer * inner
        return ahead, known & (ahead < p1), behind, known & (behind >= 0)
    if DIM == 2:
        column = n + c2
        at = tl.where(column < p2, column, column - inner)
        known = known & (at >= 0)
        plane = p2
    else:
        m1 = inner // m2
        row, column = n // m2 + c2, n % m2 + c3
        row = tl.where(row < p2, row, row - m1)
        column = tl.where(column < p3, column, column - m2)
        known = known & (row >= 0) & (column >= 0)
        at = row * p3 + column
        plane = p2 * p3
    ahead = q + c1
    behind = ahead - outer
    return ahead * plane + at, known & (ahead < p1), behind * plane + at, known & (behind >= 0)


@triton.jit(do_not_specialize=POINTS)
def split_points_kernel(
    kernel_ptr, out_ptr, table, phases, tops,
    outer, inner, m2, p1, p2, p3, c1, c2, c3,
    R: tl.constexpr, Q: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_N: tl.constexpr,
    DIM: tl.constexpr, REAL: tl.constexpr, PHASE: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(channels, points) -> (channels, outer, 2, inner); what is behind offset zero is the imaginary part."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    r = tl.program_id(1) * R + tl.arange(0, R)[:, None]
    channel = tl.program_id(2).to(tl.int64)
    part = tl.num_programs(1) * R * Q
    base = kernel_ptr + channel * p1 * p2 * p3
    ur = tl.full((R, BLOCK_N), 0.0, tl.float32)
    ui = tl.full((R, BLOCK_N), 0.0, tl.float32)
    for q0 in tl.static_range(0, Q, BLOCK_Q):
        q = q0 + tl.arange(0, BLOCK_Q)
        wr = tl.load(table + r * Q + q[None, :])
        wi = tl.load(table + part + r * Q + q[None, :])
        ahead, here, behind, there = _points(q[:, None], n, outer, inner, m2, p1, p2, p3, c1, c2, c3, DIM)
        a = tl.load(base + ahead, mask=here, other=0.0).to(tl.float32)
        b = tl.load(base + behind, mask=there, other=0.0).to(tl.float32)
        if SCALED:
            share = 1 / (outer * tl.load(tops + channel))
            a, b = a * share, b * share
        if REAL:
            a += b
        else:
            ur = tl.dot(wi, (-b).to(wr.dtype), ur, input_precision=PRECISION)
            ui = tl.dot(wr, b.to(wr.dtype), ui, input_precision=PRECISION)
        ur = tl.dot(wr, a.to(wr.dtype), ur, input_precision=PRECISION)
        ui = tl.dot(wi, a.to(wr.dtype), ui, input_precision=PRECISION)
    inside = (r < outer) & (n < inner)
    if PHASE:
        pr = tl.load(phases + r * inner + n, mask=inside, other=0.0)
        pi = tl.load(phases + (outer + r) * inner + n, mask=inside, other=0.0)
        ur, ui = ur * pr - ui * pi, ur * pi + ui * pr
    target = out_ptr + (channel * outer + r) * (2 * inner) + n
    tl.store(target, ur.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(target + inner, ui.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=POINTS)
def merge_points_kernel(
    z_ptr, out_ptr, table, phases, scales,
    outer, inner, m2, p1, p2, p3, c1, c2, c3,
    R: tl.constexpr, BLOCK_R: tl.constexpr, Q: tl.constexpr, BLOCK_N: tl.constexpr,
    DIM: tl.constexpr, REAL: tl.constexpr, PHASE: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(channels, outer, 2, inner) -> (channels, points), the way back of :func:`split_points_kernel`."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    q = tl.program_id(1) * Q + tl.arange(0, Q)[:, None]
    channel = tl.program_id(2).to(tl.int64)
    part = tl.num_programs(1) * Q * R
    dr = tl.full((Q, BLOCK_N), 0.0, tl.float32)
    di = tl.full((Q, BLOCK_N), 0.0, tl.float32)
    if SCALED:
        most = _most(scales + channel * outer, outer, R)
    for r0 in tl.static_range(0, R, BLOCK_R):
        r = r0 + tl.arange(0, BLOCK_R)
        vr = tl.load(table + q * R + r[None, :])
        vi = tl.load(table + part + q * R + r[None, :])
        there = (r[:, None] < outer) & (n < inner)
        source = z_ptr + (channel * outer + r[:, None]) * (2 * inner) + n
        zr = tl.load(source, mask=there, other=0.0).to(tl.float32)
        zi = tl.load(source + inner, mask=there, other=0.0).to(tl.float32)
        if SCALED:
            share = tl.load(scales + channel * outer + r, mask=r < outer, other=0.0)[:, None] / most
            zr, zi = zr * share, zi * share
        if PHASE:
            pr = tl.load(phases + r[:, None] * inner + n, mask=there, other=0.0).to(tl.float32)
            pi = tl.load(phases + (outer + r[:, None]) * inner + n, mask=there, other=0.0).to(tl.float32)
            zr, zi = zr * pr + zi * pi, zi * pr - zr * pi
        dr = tl.dot(vr, zr.to(vr.dtype), dr, input_precision=PRECISION)
        dr = tl.dot(vi, zi.to(vr.dtype), dr, input_precision=PRECISION)
        if not REAL:
            di = tl.dot(vr, zi.to(vr.dtype), di, input_precision=PRECISION)
            di = tl.dot(vi, (-zr).to(vr.dtype), di, input_precision=PRECISION)
    if SCALED:
        dr, di = dr * (most / outer), di * (most / outer)
    if REAL:
        di = dr
    base = out_ptr + channel * p1 * p2 * p3
    ahead, here, behind, there = _points(q, n, outer, inner, m2, p1, p2, p3, c1, c2, c3, DIM)
    tl.store(base + ahead, dr.to(out_ptr.dtype.element_ty), mask=here)
    tl.store(base + behind, di.to(out_ptr.dtype.element_ty), mask=there)
