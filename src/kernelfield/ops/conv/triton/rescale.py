"""Divide signals by their largest values before products in float16. All passes are limited by memory bandwidth."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["largest_kernel", "shrink_kernel", "shrink_rows_kernel", "tables_kernel"]


@triton.jit
def largest_kernel(x_ptr, tops, length, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """(signals, length) -> (signals,): the largest absolute value of each. ``tops`` must be zero beforehand."""
    signal = tl.program_id(0)
    start = tl.program_id(1) * (STEPS * BLOCK)
    x_ptr += signal.to(tl.int64) * length
    top = tl.full((BLOCK,), 0.0, tl.float32)
    for step in range(STEPS):
        n = start + step * BLOCK + tl.arange(0, BLOCK)
        top = tl.maximum(top, tl.abs(tl.load(x_ptr + n, mask=n < length, other=0.0).to(tl.float32)))
    # Non-negative floats are ordered like the integers of the same bits, for which there is an atomic maximum.
    tl.atomic_max(tops + signal, tl.max(top).to(tl.int32, bitcast=True))


@triton.jit
def shrink_kernel(x_ptr, out_ptr, tops, channels, stride, tops_stride, length, outer, BLOCK: tl.constexpr):
    """Divide (batch, channels, length) by ``outer`` times the largest value of each signal; contiguous float16 output.

    Signal i is channel ``i % channels`` of batch entry ``i // channels``. Entries of the batch are ``stride`` apart.
    """
    i = tl.program_id(0)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    share = 1 / (outer * tl.load(tops + (i // channels) * tops_stride + i % channels))
    source = x_ptr + (i // channels).to(tl.int64) * stride + (i % channels).to(tl.int64) * length
    x = tl.load(source + n, mask=n < length, other=0.0).to(tl.float32) * share
    tl.store(out_ptr + i.to(tl.int64) * length + n, x.to(out_ptr.dtype.element_ty), mask=n < length)


@triton.jit
def shrink_rows_kernel(x_ptr, out_ptr, tops, channels, stride, rows, BLOCK: tl.constexpr):
    """Divide (batch, channels, rows, BLOCK) by the largest value of each row; write these values, (signals, rows).

    Signals are laid out as in :func:`shrink_kernel`, but read once.
    """
    i, row = tl.program_id(0), tl.program_id(1)
    n = row * BLOCK + tl.arange(0, BLOCK)
    length = rows * BLOCK
    source = x_ptr + (i // channels).to(tl.int64) * stride + (i % channels).to(tl.int64) * length
    x = tl.load(source + n).to(tl.float32)
    top = tl.maximum(tl.max(tl.abs(x)), 1e-30)
    tl.store(tops + i.to(tl.int64) * rows + row, top)
    tl.store(out_ptr + i.to(tl.int64) * length + n, (x * (1 / top)).to(out_ptr.dtype.element_ty))


@triton.jit
def tables_kernel(
    row_tops, table, out_ptr, tops, channels, tops_stride, height, width, outer, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """Write a table (height, width) per signal, with columns multiplied by the divisors of the rows, and ``tops``.

    The table is divided by ``outer`` and by the largest value of the signal, which is written to ``tops``.
    """
    i, m, k = tl.program_id(0), tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)
    own = tl.load(row_tops + i.to(tl.int64) * width + k, mask=k < width, other=0.0)
    top = tl.max(own)
    tl.store(tops + (i // channels) * tops_stride + i % channels, top)
    there = (m < height) & (k < width)[None, :]
    w = tl.load(table + m * width + k[None, :], mask=there, other=0.0) * (own * (1 / (outer * top)))[None, :]
    tl.store(out_ptr + (i.to(tl.int64) * height + m) * width + k[None, :], w.to(out_ptr.dtype.element_ty), mask=there)
