"""Convolve short lines by products with the kernel's Toeplitz matrix, without a transform.

    y[b, i] = Σ_j x[b, j] w[j, i],   w[j, i] = k[i - j + c]

The batch is one side of every product. A tile of the Toeplitz matrix, built from the kernel when needed, therefore
serves up to 64 signals. A training step takes three products:

- forward, y = x · w: a program computes one block of outputs and loops over the inputs that affect it;
- input gradient: the same with the transposed matrix;
- kernel gradient, Σ_j Σ_b x[b, j] g[b, j + o]: the product xᵀ g is a matrix whose diagonals o are summed. A program
  computes the W offsets o0 … o0 + W - 1 and loops over blocks of TJ inputs, each with the TJ + W gradients it needs.

``docs/internals/long-convolutions.md`` draws the indices. Constants of all kernels: BM signals and BK terms of the
sum per step.
COPIES: the kernel is given as eight copies, each shifted by one more sample and padded with zeros, so that all rows of
a tile are read 16 bytes at a time without a mask. STEPS and ROUNDS: loop counts for the interpreter, which supports
only constant ones; 0 if they are computed at run time.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["copies_kernel", "toeplitz_grads_kernel", "toeplitz_kernel"]

#: arguments that do not trigger recompilation
SIZES = ["batch", "channels", "points", "centre", "zeros", "blocks", "outputs"]


@triton.jit
def _operand(a, PRECISION: tl.constexpr):
    """Return ``a`` as an operand, rounded to tf32, since the hardware would truncate, or in float32 for "ieee"."""
    if PRECISION == "ieee":
        a = a.to(tl.float32)
    elif PRECISION == "tf32" and a.dtype == tl.float32:
        a = ((a.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return a


@triton.jit
def _lines(pointer, b, n, batch, stride, length):
    """Load samples n of signals b of one channel, (b, n)."""
    inside = (b[:, None] < batch) & (n[None, :] >= 0) & (n[None, :] < length)
    return tl.load(pointer + b[:, None].to(tl.int64) * stride + n[None, :], mask=inside, other=0.0)


@triton.jit
def _band(kernel_ptr, j, i, points, centre, row, COPIES: tl.constexpr):
    """Return w[j, i] = k[i - j + centre]; with COPIES, ``centre`` includes the zeros before the first point."""
    if COPIES:
        behind = centre - j
        return tl.load(kernel_ptr + (behind % 8)[:, None] * row + ((behind // 8) * 8)[:, None] + i[None, :])
    at = i[None, :] - j[:, None] + centre
    return tl.load(kernel_ptr + at, mask=(at >= 0) & (at < points), other=0.0)


@triton.jit(do_not_specialize=["points"])
def copies_kernel(kernel_ptr, out_ptr, points, row, zeros, BLOCK: tl.constexpr):
    """(channels, points) -> (channels, 8, row): copy p has point n at index n + zeros - p, and zeros elsewhere."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    p = tl.arange(0, 8)[:, None]
    channel = tl.program_id(1).to(tl.int64)
    at = n + p - zeros
    value = tl.load(kernel_ptr + channel * points + at, mask=(at >= 0) & (at < points), other=0.0)
    tl.store(out_ptr + (channel * 8 + p) * row + n, value, mask=n < row)


@triton.jit
def _product(
    x_ptr, kernel_ptr, y_ptr, channel, block, part,
    batch, channels, length, points, centre, row, zeros,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BACK: tl.constexpr, COPIES: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Compute one block of outputs y = x · w, or with BACK of the gradient of x, g · wᵀ."""
    stride = channels.to(tl.int64) * length
    b = part * BM + tl.arange(0, BM)
    n = block * BN + tl.arange(0, BN)
    base = x_ptr + channel.to(tl.int64) * length
    if COPIES:
        taps = kernel_ptr + channel.to(tl.int64) * (8 * row)
    else:
        taps = kernel_ptr + channel.to(tl.int64) * points
    middle = centre + zeros
    # Range of inputs that affect these outputs.
    if BACK:
        low, high = block * BN - centre, block * BN + BN - centre + points - 1
    else:
        low, high = block * BN + centre - points + 1, block * BN + BN + centre
    low = tl.maximum(low, 0) // BK
    high = tl.cdiv(tl.minimum(high, length), BK)
    if STEPS > 0:
        low, high = 0, STEPS
    acc = tl.full((BM, BN), 0.0, tl.float32)
    for step in tl.range(low, high, num_stages=STAGES):
        m = step * BK + tl.arange(0, BK)
        x = _operand(_lines(base, b, m, batch, stride, length), PRECISION)
        if BACK:
            w = tl.trans(_band(taps, n, m, points, middle, row, COPIES))
        else:
            w = _band(taps, m, n, points, middle, row, COPIES)
        acc = tl.dot(x, _operand(w, PRECISION), acc, input_precision=PRECISION)
    target = y_ptr + channel.to(tl.int64) * length + b[:, None].to(tl.int64) * stride + n[None, :]
    tl.store(target, acc.to(y_ptr.dtype.element_ty), mask=(b[:, None] < batch) & (n[None, :] < length))


@triton.jit
def _diagonals(
    grad_ptr, x_ptr, out_ptr, channel, block,
    batch, channels, length, points, centre, first,
    BM: tl.constexpr, TJ: tl.constexpr, W: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the points at W offsets, starting at ``first + block W``: Σ_j (xᵀ g)[j, j + o]."""
    stride = channels.to(tl.int64) * length
    offset = first + block * W
    x_base, g_base = x_ptr + channel.to(tl.int64) * length, grad_ptr + channel.to(tl.int64) * length
    acc = tl.full((TJ, TJ + W), 0.0, tl.float32)
    low = tl.maximum(0, -(offset + W - 1)) // TJ
    high = tl.cdiv(tl.minimum(length, length - offset), TJ)
    parts = tl.cdiv(batch, BM)
    low, high = low * parts, high * parts
    if ROUNDS > 0:
        low, high = 0, ROUNDS
    for step in tl.range(low, high, num_stages=STAGES):
        b = (step % parts) * BM + tl.arange(0, BM)
        j = (step // parts) * TJ + tl.arange(0, TJ)
        i = (step // parts) * TJ + offset + tl.arange(0, TJ + W)
        x = _operand(_lines(x_base, b, j, batch, stride, length), PRECISION)
        g = _operand(_lines(g_base, b, i, batch, stride, length), PRECISION)
        acc = tl.dot(tl.trans(x), g, acc, input_precision=PRECISION)
    # Row j is shifted by j, so that diagonals become columns. Columns beyond the last belong to other programs.
    w = tl.arange(0, TJ + W)
    at = tl.minimum(tl.arange(0, TJ)[:, None] + w[None, :], TJ + W - 1)
    sums = tl.sum(tl.gather(acc, at, 1), 0)
    m = offset + w + centre
    target = out_ptr + channel.to(tl.int64) * points + m
    tl.store(target, sums.to(out_ptr.dtype.element_ty), mask=(w < W) & (m >= 0) & (m < points))


@triton.jit(do_not_specialize=SIZES)
def toeplitz_kernel(
    x_ptr, kernel_ptr, y_ptr,
    batch, channels, length, points, centre, row, zeros,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, COPIES: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Convolve: (batch, channels, length) with (channels, points), or (channels, 8, row) COPIES of them."""
    # The last outputs of a causal kernel depend on the most inputs, so their programs start first.
    block = tl.num_programs(2) - 1 - tl.program_id(2)
    _product(
        x_ptr, kernel_ptr, y_ptr, tl.program_id(0), block, tl.program_id(1),
        batch, channels, length, points, centre, row, zeros,
        BM, BN, BK, False, COPIES, PRECISION, STAGES, STEPS,
    )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def toeplitz_grads_kernel(
    grad_ptr, x_ptr, kernel_ptr, grad_x_ptr, grad_kernel_ptr,
    batch, channels, length, points, centre, row, zeros, first, blocks, outputs,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TJ: tl.constexpr, W: tl.constexpr,
    COPIES: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, STEPS: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """Compute both gradients; per channel, ``blocks`` programs compute the kernel's, the others that of x."""
    turn = tl.program_id(1)
    if turn < blocks:
        _diagonals(
            grad_ptr, x_ptr, grad_kernel_ptr, tl.program_id(0), turn,
            batch, channels, length, points, centre, first,
            BM, TJ, W, PRECISION, STAGES, ROUNDS,
        )  # fmt: skip
    else:
        part = (turn - blocks) // outputs
        _product(
            grad_ptr, kernel_ptr, grad_x_ptr, tl.program_id(0), (turn - blocks) % outputs, part,
            batch, channels, length, points, centre, row, zeros,
            BM, BN, BK, True, COPIES, PRECISION, STAGES, STEPS,
        )  # fmt: skip
