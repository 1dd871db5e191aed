"""Large outer transforms by torch's matrix products, and the scaling of float32 signals before them."""

from __future__ import annotations

import torch
from torch import Tensor

from .plan import power
from .rescale import largest_kernel, shrink_kernel, shrink_rows_kernel, tables_kernel

__all__ = ["largest_values", "multiply", "shrunk", "shrunk_by_rows"]

#: values per program, and rows of a table per program
WIDE, ROWS = 4096, 32


def multiply(table: Tensor, x: Tensor, out: Tensor) -> None:
    """Multiply every signal by a matrix: (i, j) times (batch, channels, j · length).

    The products are written to ``out``, (batch, channels, i · length). The table is one matrix for all signals, or one
    per signal, (batch, channels, i, j). Channels may be a slice of a larger tensor. Signals are neither copied nor
    transposed.
    """
    if x.is_contiguous() and out.is_contiguous():  # one product for all signals
        x, out = x.flatten(0, 1)[None], out.flatten(0, 1)[None]
        table = table if table.dim() == 2 else table.flatten(0, 1)[None]
    with torch.autocast(table.device.type, enabled=False):  # always in the table's dtype
        for left, some, target in zip(table.expand(*x.shape[:2], -1, -1), x, out, strict=True):
            matrices = some.reshape(len(some), table.shape[-1], -1)
            products = target.view(len(some), table.shape[-2], -1)
            if matrices.dtype == products.dtype == table.dtype:
                torch.bmm(left, matrices, out=products)
            else:
                products.copy_(torch.bmm(left, matrices.to(table.dtype)))


def largest_values(x: Tensor) -> Tensor:
    """Return the largest absolute value of each signal, (batch, channels), at least 1e-30 to divide by."""
    tops = x.new_zeros(x.shape[:2], dtype=torch.int32)
    length = x[0, 0].numel()
    steps = 16 if length > 16 * WIDE else 1
    largest_kernel[(tops.numel(), -(-length // (steps * WIDE)))](x, tops, length, STEPS=steps, BLOCK=WIDE)
    return tops.view(torch.float32).clamp_(min=1e-30)


def shrunk(x: Tensor, tops: Tensor, outer: int, dtype: torch.dtype) -> Tensor:
    """Return a copy of (batch, channels, ·) divided by its largest values and the outer length."""
    out = x.new_empty(x.shape, dtype=dtype)
    length = x[0, 0].numel()
    shrink_kernel[(x.shape[0] * x.shape[1], -(-length // WIDE))](
        *(x, out, tops, x.shape[1], x.stride(0), tops.stride(0), length, outer), BLOCK=WIDE
    )
    return out


def shrunk_by_rows(x: Tensor, tops: Tensor, outer: int, table: Tensor) -> tuple[Tensor, Tensor]:
    """Return a copy with each row divided by its largest value, and a table per signal that compensates for this.

    The product of the two equals the product of ``table`` and the signal, divided by the signal's largest value and the
    outer length. The largest values are written to ``tops``. A signal has as many rows as the table has columns.
    """
    (height, width), signals = table.shape, x.shape[0] * x.shape[1]
    out, tables = x.new_empty(x.shape, dtype=table.dtype), table.new_empty((*x.shape[:2], height, width))
    rows = x.new_empty((signals, width), dtype=torch.float32)
    shrink_rows_kernel[(signals, width)](
        *(x, out, rows, x.shape[1], x.stride(0), width), BLOCK=x[0, 0].numel() // width
    )
    tables_kernel[(signals, -(-height // ROWS))](
        *(rows, table, tables, tops, x.shape[1], tops.stride(0), height, width, outer), ROWS=ROWS, COLS=power(width)
    )
    return out, tables
