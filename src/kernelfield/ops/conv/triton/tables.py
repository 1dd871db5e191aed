"""Tables of small discrete Fourier transforms, computed once in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ...graph_cache import graph_cache
from .outer_chain import digit_shifts

if TYPE_CHECKING:
    from torch import Tensor

    from .plan import Plan

__all__ = ["inner_tables", "outer_products", "outer_tables"]


def waves(rows: int, cols: int, length: int, shift: float = 0.0) -> Tensor:
    r"""Return :math:`e^{-2\pi i\, (k + \text{shift})\, n / \text{length}}` as (rows k, cols n) in complex128."""
    # Full turns are removed before taking the cosine, exactly, because 4 k n is an integer.
    turns = (4 * torch.arange(rows)[:, None] + round(4 * shift)) * torch.arange(cols) % (4 * length)
    return torch.polar(torch.ones(rows, cols, dtype=torch.float64), turns.double() * (-2 * math.pi / (4 * length)))


def _fill(table: Tensor, rows: int, cols: int) -> Tensor:
    """Pad complex tables (..., ·, ·) with zeros; return the real and then the imaginary parts."""
    filled = table.new_zeros(2, *table.shape[:-2], rows, cols, dtype=torch.float64)
    filled[..., : table.shape[-2], : table.shape[-1]] = torch.stack([table.real, table.imag])
    return filled


def _cast(table: Tensor, plan: Plan, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a table in the dtype of the products, rounded to tf32 if needed, since the hardware would truncate."""
    table = table.to(dtype)
    if plan.element == 4:
        table = ((table.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return table.to(device)


def _both_parts(table: Tensor, rows: int, cols: int, inputs: int) -> Tensor:
    """Return the real table for parts side by side, (..., inputs · rows, 2 cols); see :mod:`.tile_ops`."""
    re, im = _fill(table, rows, cols)
    upper, lower = torch.cat([re, im], -1), torch.cat([-im, re], -1)
    return torch.cat([upper, lower][:inputs], -2)


@graph_cache(64)
def inner_tables(plan: Plan, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a2, a1 and the twiddle tables in one flat tensor, as :mod:`.tile_ops` reads them.

    If matrix instructions cannot read a table transposed, the transposed table is included too. In the upright layout
    a1 is transposed. Consecutive blocks of a line need twiddle factors of the outer transform. These are separable: a1
    contains those of rows and the twiddle tables those of columns, so each outer frequency has its own tables. The
    factor 1 / (m1 m2) of the inverse transform is not included.
    """
    n1, n2, k1, k2 = plan.tile
    shared = plan.element == 2
    shift = 0.0 if plan.complex else plan.shift
    # The rows and columns of the tile, because a kernel may have more than the signal.
    first = waves(plan.m1, min(n1, plan.m1), plan.m1, shift).T[None]
    second = waves(plan.m2, min(n2, plan.m2), plan.m2)
    twiddle = waves(plan.m1, plan.m2, plan.m1 * plan.m2, shift)[None]
    a2 = _both_parts(second.T, n2, k2, 2)
    tables = [_cast(table.flatten(), plan, dtype, device) for table in ([a2] if shared else [a2, a2.T])]
    # Some outer frequencies at a time, because all of them can take gigabytes in float64.
    for phases in (_phases(plan) if plan.phase else torch.ones(1, plan.m1 * plan.m2)).split(256):
        a1, factors = first, twiddle
        if plan.phase:
            a1, factors = first * phases[:, :: plan.m2, None], twiddle * phases[:, None, : plan.m2]
        a1 = _both_parts(a1, n1, k1, 2 if plan.complex else 1)
        own = [a1.mT] if plan.upright else [a1] if shared else [a1, a1.mT]
        if plan.twiddle:
            both = [_fill(factors, k1, n2)] if plan.upright else [_fill(factors.mT, n2, k1), _fill(factors, k1, n2)]
            own += [table.movedim(0, 2) for table in both]
        rows = torch.cat([table.flatten(1) for table in own], 1)
        tables.append(_cast(rows.flatten(), plan, dtype, device))
    return torch.cat(tables)


def _phases(plan: Plan) -> Tensor:
    """Return the twiddle factors of the outer transform along a line, (tables, samples of a block), in complex128."""
    if not plan.digits:
        return waves(plan.outer, plan.outer_step, plan.outer * plan.outer_step, plan.shift)
    line, shift = ((plan.second,), 0.0) if plan.second > 1 else (plan.digits, plan.shift)
    turns = digit_shifts(line, shift)[:, None] * torch.arange(plan.outer_step) / plan.outer_step
    return torch.polar(torch.ones_like(turns), -2 * math.pi * turns)


@graph_cache(64)
def outer_tables(
    plan: Plan, blocks: int, r: int, q: int, dtype: torch.dtype, device: torch.device, scaled: bool
) -> tuple[Tensor, Tensor]:
    """Return the tables of ``split`` (r, q) and of ``merge`` (q, r), padded to these sides."""
    table = waves(plan.outer, blocks, plan.outer, plan.shift)
    # Re(conj(w) z) = Re(w) Re(z) + Im(w) Im(z), so merge needs no conjugate.
    forward, inverse = _fill(table, r, q), _fill(table.T / (1 if scaled else plan.outer), q, r)
    return _cast(forward, plan, dtype, device), _cast(inverse, plan, dtype, device)


@graph_cache(16)
def outer_products(plan: Plan, inputs: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the outer transform and its inverse as real matrices; the first is (outer · 2, inputs · outer).

    Args:
        plan: the layout.
        inputs: number of parts of the input: 1 if it is real, 2 if it is complex.
        dtype: dtype of the matrices.
        device: device of the matrices.
    """
    table = waves(plan.outer, plan.outer, plan.outer, plan.shift)
    both = _both_parts(table.T, plan.outer, plan.outer, inputs)  # (inputs · q, 2 · r)
    both = both.view(-1, 2, plan.outer).mT.flatten(1)
    return both.T.contiguous().to(device, dtype), (both / plan.outer).to(device, dtype)
