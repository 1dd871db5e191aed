"""Attention on an input in Triton: each kernel reads the signal once and computes all its outputs.

A signal is f (b, q, x), with channels and elements q = (c, g), g fastest, and positions x; the strides tell whether q
or x is last in memory. The maps are α (b, q) over channels and s (b, g, x) over space. The statistics over channels,
mean and maximum, are (b, 2, g, x); another tensor has the channel of the maximum.
"""

# mypy: disable-error-code="no-untyped-def, assignment"
from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["channel_slopes", "over_channels", "over_space", "signal_slopes", "space_slopes", "subtract"]

# Strides are specialised, because a stride of 1 tells the compiler in which order to read.
SIZES = ["Q", "X", "C", "G", "sb", "db"]


@triton.jit(do_not_specialize=SIZES)
def over_space(x, mean, peak, place, Q, X, sb, sq, sp, QB: tl.constexpr, PB: tl.constexpr):
    """Write mean, maximum and the first position of the maximum of each q."""
    b, q = tl.program_id(0).to(tl.int64), tl.program_id(1) * QB + tl.arange(0, QB)
    total = tl.zeros((QB, PB), dtype=tl.float32)
    best = tl.full((QB, PB), float("-inf"), dtype=tl.float32)
    at = tl.zeros((QB, PB), dtype=tl.int32)
    start = 0
    while start < X:
        p = start + tl.arange(0, PB)
        real = (q < Q)[:, None] & (p < X)[None, :]
        v = tl.load(x + b * sb + q[:, None] * sq + p[None, :] * sp, mask=real, other=0.0).to(tl.float32)
        total += v
        better = real & (v > best)
        best = tl.where(better, v, best)
        at = tl.where(better, p[None, :], at)
        start += PB
    highest = tl.max(best, axis=1)
    first = tl.min(tl.where(best == highest[:, None], at, 2147483647), axis=1)
    tl.store(mean + b * Q + q, tl.sum(total, axis=1) / X, mask=q < Q)
    tl.store(peak + b * Q + q, highest, mask=q < Q)
    tl.store(place + b * Q + q, first, mask=q < Q)


@triton.jit
def _lane(G, X, LAST: tl.constexpr, L: tl.constexpr):
    """Return the elements and positions of a program's lanes, adjacent in memory, and a mask of those that exist."""
    m = tl.program_id(1) * L + tl.arange(0, L)
    if LAST:
        return m % G, m // G, m < G * X
    return m // X, m % X, m < G * X


@triton.jit(do_not_specialize=SIZES)
def over_channels(
    x, alpha, found, which, C, G, X, sb, sq, sp, LAST: tl.constexpr, L: tl.constexpr, UNROLL: tl.constexpr
):
    """Write mean and maximum over channels of αf, and the first channel that attains the maximum."""
    b = tl.program_id(0).to(tl.int64)
    g, p, here = _lane(G, X, LAST, L)
    x += b * sb + g * sq + p * sp
    alpha += b * C * G + g
    total = tl.zeros((L,), dtype=tl.float32)
    best = tl.full((L,), float("-inf"), dtype=tl.float32)
    at = tl.zeros((L,), dtype=tl.int32)
    c = 0
    while c < C:
        for i in tl.static_range(UNROLL):
            real = here & (c + i < C)
            v = tl.load(x + (c + i) * G * sq, mask=real, other=0.0).to(tl.float32)
            v = v * tl.load(alpha + (c + i) * G, mask=real, other=0.0)
            total += v
            better = real & (v > best)
            best = tl.where(better, v, best)
            at = tl.where(better, c + i, at)
        c += UNROLL
    spot = b * 2 * G * X + g * X + p
    tl.store(found + spot, total / C, mask=here)
    tl.store(found + spot + G * X, best, mask=here)
    tl.store(which + b * G * X + g * X + p, at.to(tl.int16), mask=here)


@triton.jit(do_not_specialize=SIZES)
def subtract(x, alpha, s, y, Q, G, X, sb, sq, sp, QB: tl.constexpr, PB: tl.constexpr):
    """Write f - sαf."""
    b, q = tl.program_id(0).to(tl.int64), tl.program_id(1) * QB + tl.arange(0, QB)
    p = tl.program_id(2) * PB + tl.arange(0, PB)
    real = (q < Q)[:, None] & (p < X)[None, :]
    spot = b * sb + q[:, None] * sq + p[None, :] * sp
    v = tl.load(x + spot, mask=real, other=0.0).to(tl.float32)
    a = tl.load(alpha + b * Q + q, mask=q < Q, other=0.0)
    open_ = tl.load(s + b * G * X + (q % G)[:, None] * X + p[None, :], mask=real, other=0.0)
    tl.store(y + spot, (v - open_ * a[:, None] * v).to(y.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=SIZES)
def space_slopes(x, alpha, s, dy, dt, C, G, X, sb, sq, sp, LAST: tl.constexpr, L: tl.constexpr, UNROLL: tl.constexpr):
    """Write the gradient of the argument of the sigmoid s."""
    b = tl.program_id(0).to(tl.int64)
    g, p, here = _lane(G, X, LAST, L)
    base = b * sb + g * sq + p * sp
    alpha += b * C * G + g
    total = tl.zeros((L,), dtype=tl.float32)
    c = 0
    while c < C:
        for i in tl.static_range(UNROLL):
            real = here & (c + i < C)
            v = tl.load(x + base + (c + i) * G * sq, mask=real, other=0.0).to(tl.float32)
            d = tl.load(dy + base + (c + i) * G * sq, mask=real, other=0.0).to(tl.float32)
            total += v * d * tl.load(alpha + (c + i) * G, mask=real, other=0.0)
        c += UNROLL
    spot = b * G * X + g * X + p
    open_ = tl.load(s + spot, mask=here, other=0.0)
    tl.store(dt + spot, -total * open_ * (1.0 - open_), mask=here)


@triton.jit
def _slope(q, p, dfound, which, base, C, G, X, real):
    """Return the gradient that αf gets through the statistics over channels."""
    spot = (q % G)[:, None] * X + p[None, :]
    mean = tl.load(dfound + 2 * base + spot, mask=real, other=0.0)
    peak = tl.load(dfound + 2 * base + G * X + spot, mask=real, other=0.0)
    owner = tl.load(which + base + spot, mask=real, other=-1).to(tl.int32)
    return mean / C + tl.where(owner == (q // G)[:, None], peak, 0.0)


@triton.jit(do_not_specialize=SIZES)
def channel_slopes(
    x, alpha, s, dy, dfound, which, da, Q, C, G, X, sb, sq, sp, QB: tl.constexpr, PB: tl.constexpr
):  # fmt: skip
    """Write the gradient of the argument of the sigmoid α."""
    b, q = tl.program_id(0).to(tl.int64), tl.program_id(1) * QB + tl.arange(0, QB)
    total = tl.zeros((QB, PB), dtype=tl.float32)
    start = 0
    while start < X:
        p = start + tl.arange(0, PB)
        real = (q < Q)[:, None] & (p < X)[None, :]
        spot = b * sb + q[:, None] * sq + p[None, :] * sp
        v = tl.load(x + spot, mask=real, other=0.0).to(tl.float32)
        d = tl.load(dy + spot, mask=real, other=0.0).to(tl.float32)
        open_ = tl.load(s + b * G * X + (q % G)[:, None] * X + p[None, :], mask=real, other=0.0)
        total += v * (_slope(q, p, dfound, which, b * G * X, C, G, X, real) - d * open_)
        start += PB
    a = tl.load(alpha + b * Q + q, mask=q < Q, other=0.0)
    tl.store(da + b * Q + q, tl.sum(total, axis=1) * a * (1.0 - a), mask=q < Q)


@triton.jit(do_not_specialize=SIZES)
def signal_slopes(
    alpha, s, dy, dfound, which, dmean, dpeak, place, dx, Q, C, G, X, sb, sq, sp, QB: tl.constexpr, PB: tl.constexpr
):
    """Write the gradient of f."""
    b, q = tl.program_id(0).to(tl.int64), tl.program_id(1) * QB + tl.arange(0, QB)
    p = tl.program_id(2) * PB + tl.arange(0, PB)
    real = (q < Q)[:, None] & (p < X)[None, :]
    spot = b * sb + q[:, None] * sq + p[None, :] * sp
    d = tl.load(dy + spot, mask=real, other=0.0).to(tl.float32)
    open_ = tl.load(s + b * G * X + (q % G)[:, None] * X + p[None, :], mask=real, other=0.0)
    a = tl.load(alpha + b * Q + q, mask=q < Q, other=0.0)
    mean = tl.load(dmean + b * Q + q, mask=q < Q, other=0.0) / X
    peak = tl.load(dpeak + b * Q + q, mask=q < Q, other=0.0)
    at = tl.load(place + b * Q + q, mask=q < Q, other=-1)
    inner = _slope(q, p, dfound, which, b * G * X, C, G, X, real) - d * open_
    slope = d + a[:, None] * inner + mean[:, None] + tl.where(at[:, None] == p[None, :], peak[:, None], 0.0)
    tl.store(dx + spot, slope.to(dx.dtype.element_ty), mask=real)
