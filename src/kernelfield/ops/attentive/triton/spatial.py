r"""Spatial attention in Triton: every pair of output and input element has its own kernels on sum and maximum.

.. math:: s = \psi^0 * t + \psi^1 * m, \qquad y = \sum_g \sigma(s_g)\, t_g

Signals are (b, H, W, G, N), with the outputs N last in memory and on lanes; kernels are (A, A, 2, G, N). Signals are
zero beyond the map. torch's grouped convolutions would launch one kernel per group.
"""

# mypy: disable-error-code="no-untyped-def, assignment"
from __future__ import annotations

import triton
import triton.language as tl

from ...attention.triton.forward import zeros

__all__ = ["attend", "filters", "gate_grad", "spread"]

SIZES = ["B", "each", "G", "N", "H", "W", "across", "count"]


@triton.jit
def line(base, row, column, H, W, stride, mask, COUNT: tl.constexpr):
    """Return ``COUNT`` adjacent samples of a row, zero beyond the edge."""
    found = ()
    for i in tl.static_range(COUNT):
        at = column + i
        real = mask & (row >= 0) & (row < H) & (at >= 0) & (at < W)
        found = found + (tl.load(base + (row * W + at) * stride, mask=real, other=0.0),)
    return found


@triton.jit(do_not_specialize=SIZES)
def attend(
    total, top, psi, gate, out, G, N, H, W, across, A: tl.constexpr, P: tl.constexpr, L: tl.constexpr
):  # fmt: skip
    """Write the gates σ(s), (b, H, W, G, N), and the gated sum, (b, H, W, N)."""
    pid = tl.program_id(0)
    b, y, column = (pid // (across * H)).to(tl.int64), pid // across % H, pid % across * P
    n = tl.program_id(1) * L + tl.arange(0, L)
    here = n < N
    base = b * (H * W) * G * N + n
    ys = zeros(L, P)
    g = 0
    while g < G:
        spot = base + g * N
        s = zeros(L, P)
        for i in range(A):
            totals = line(total + spot, y + i - A // 2, column - A // 2, H, W, G * N, here, P + A - 1)
            tops = line(top + spot, y + i - A // 2, column - A // 2, H, W, G * N, here, P + A - 1)
            for j in tl.static_range(A):
                kernel = psi + ((i * A + j) * 2 * G + g) * N + n
                one = tl.load(kernel, mask=here, other=0.0)
                two = tl.load(kernel + G * N, mask=here, other=0.0)
                new = ()
                for p in tl.static_range(P):
                    new = new + (s[p] + one * totals[p + j] + two * tops[p + j],)
                s = new
        centre = line(total + spot, y, column, H, W, G * N, here, P)
        new = ()
        for p in tl.static_range(P):
            open_ = 1.0 / (1.0 + tl.exp(-s[p]))
            tl.store(gate + spot + (y * W + column + p) * G * N, open_, mask=here & (column + p < W))
            new = new + (ys[p] + open_ * centre[p],)
        ys = new
        g += 1
    for p in tl.static_range(P):
        tl.store(out + (b * (H * W) + y * W + column + p) * N + n, ys[p], mask=here & (column + p < W))


@triton.jit(do_not_specialize=SIZES)
def gate_grad(total, gate, dout, ds, G, N, count, L: tl.constexpr):
    """Write the gradient of s."""
    at = tl.program_id(0).to(tl.int64) * L + tl.arange(0, L)
    here = at < count
    open_ = tl.load(gate + at, mask=here, other=0.0)
    slope = tl.load(dout + at // (G * N) * N + at % N, mask=here, other=0.0)
    tl.store(ds + at, slope * tl.load(total + at, mask=here, other=0.0) * open_ * (1.0 - open_), mask=here)


@triton.jit(do_not_specialize=SIZES)
def spread(
    gate, dout, ds, psi, dtotal, dtop, G, N, H, W, across, A: tl.constexpr, P: tl.constexpr, L: tl.constexpr
):  # fmt: skip
    """Write the gradients of sums and maxima from those of s and of the gated sum, (b, H · W + 1, G, N)."""
    pid = tl.program_id(0)
    b, y, column = (pid // (across * H)).to(tl.int64), pid // across % H, pid % across * P
    blocks = tl.cdiv(N, L)
    g, n = tl.program_id(1) // blocks, tl.program_id(1) % blocks * L + tl.arange(0, L)
    here = n < N
    base = (b * (H * W) * G + g) * N + n
    dtotal += b * G * N  # each sample before this one has one extra position
    dtop += b * G * N
    ones, twos = zeros(L, P), zeros(L, P)
    for i in range(A):
        slopes = line(ds + base, y + A // 2 - i, column - A // 2, H, W, G * N, here, P + A - 1)
        for j in tl.static_range(A):
            kernel = psi + ((i * A + j) * 2 * G + g) * N + n
            one = tl.load(kernel, mask=here, other=0.0)
            two = tl.load(kernel + G * N, mask=here, other=0.0)
            first, second = (), ()
            for p in tl.static_range(P):
                first = first + (ones[p] + one * slopes[p + A - 1 - j],)
                second = second + (twos[p] + two * slopes[p + A - 1 - j],)
            ones, twos = first, second
    for p in tl.static_range(P):
        place = y * W + column + p
        real = here & (column + p < W)
        slope = tl.load(dout + (b * (H * W) + place) * N + n, mask=real, other=0.0)
        open_ = tl.load(gate + base + place * G * N, mask=real, other=0.0)
        tl.store(dtotal + base + place * G * N, ones[p] + slope * open_, mask=real)
        tl.store(dtop + base + place * G * N, twos[p], mask=real)


@triton.jit(do_not_specialize=SIZES)
def filters(total, top, ds, dpsi, B, each, G, N, H, W, A: tl.constexpr, P: tl.constexpr, L: tl.constexpr):
    """Write the gradient of the kernels, (splits, A, A, 2, G, N); one program sums one row of kernel points."""
    blocks = tl.cdiv(N, L)
    g, n = tl.program_id(0) // blocks, tl.program_id(0) % blocks * L + tl.arange(0, L)
    here = n < N
    i = tl.program_id(1)
    found = zeros(L, 2 * A)
    b = tl.program_id(2) * each
    last = tl.minimum(b + each, B)
    while b < last:
        base = (b.to(tl.int64) * (H * W) * G + g) * N + n
        y = tl.maximum(0, A // 2 - i)
        end = tl.minimum(H, H + A // 2 - i)
        while y < end:
            column = 0
            while column < W:
                slopes = line(ds + base, y, column, H, W, G * N, here, P)
                totals = line(total + base, y + i - A // 2, column - A // 2, H, W, G * N, here, P + A - 1)
                tops = line(top + base, y + i - A // 2, column - A // 2, H, W, G * N, here, P + A - 1)
                new = ()
                for j in tl.static_range(A):
                    one, two = found[2 * j], found[2 * j + 1]
                    for p in tl.static_range(P):
                        one += slopes[p] * totals[p + j]
                        two += slopes[p] * tops[p + j]
                    new = new + (one, two)
                found = new
                column += P
            y += 1
        b += 1
    target = dpsi + ((tl.program_id(2) * A + i).to(tl.int64) * A * 2 * G + g) * N + n
    for j in tl.static_range(2 * A):
        tl.store(target + j * G * N, found[j], mask=here)
