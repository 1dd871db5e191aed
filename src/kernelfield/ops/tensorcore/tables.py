"""The tables that signals are multiplied by: small discrete Fourier transforms, made once in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ..kept import kept

if TYPE_CHECKING:
    from torch import Tensor

    from .plan import Plan

__all__ = ["inner_tables", "outer_tables", "phases"]


def waves(rows: int, cols: int, length: int, shift: float = 0.0) -> Tensor:
    r"""Return :math:`e^{-2\pi i\, (k + \text{shift})\, n / \text{length}}` as (rows k, cols n) in complex128."""
    # Whole turns are taken off before the cosine: 4 k n stays an exact integer.
    turns = (4 * torch.arange(rows)[:, None] + round(4 * shift)) * torch.arange(cols) % (4 * length)
    return torch.polar(torch.ones(rows, cols, dtype=torch.float64), turns.double() * (-2 * math.pi / (4 * length)))


def _fill(table: Tensor, rows: int, cols: int) -> Tensor:
    """Fill a complex table up with zeros; return its real and imaginary part, one after the other."""
    filled = table.new_zeros(2, rows, cols, dtype=torch.float64)
    filled[:, : table.shape[0], : table.shape[1]] = torch.stack([table.real, table.imag])
    return filled


def _cast(table: Tensor, plan: Plan, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a table in the dtype of the products; tf32 is rounded here, since the hardware would cut it off."""
    table = table.to(dtype)
    if plan.element == 4:
        table = ((table.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return table.to(device)


def _both_parts(table: Tensor, rows: int, cols: int, inputs: int) -> Tensor:
    """Return what parts side by side are multiplied by, (inputs · rows, 2 cols); see :mod:`.stages`."""
    re, im = _fill(table, rows, cols)
    upper, lower = torch.cat([re, im], 1), torch.cat([-im, re], 1)
    return torch.cat([upper, lower][:inputs])


@kept(64)
def inner_tables(plan: Plan, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a1, a2, both transposed, and the twiddle tables in one row, as :mod:`.stages` reads them.

    Upright a1 comes transposed first. The factor 1 / (m1 m2) of the inverse transform is left to others.
    """
    n1, n2, k1, k2 = plan.tile
    shift = 0.0 if plan.complex else plan.shift
    first = waves(plan.m1, min(n1, plan.m1), plan.m1, shift)
    # As many rows and columns as the tile has: a kernel may have more than the signal.
    second = waves(plan.m2, min(n2, plan.m2), plan.m2)
    a1 = _both_parts(first.T, n1, k1, 2 if plan.complex else 1)
    a2 = _both_parts(second.T, n2, k2, 2)
    tables = [a1.T, a2, a1, a2.T] if plan.upright else [a1, a2, a1.T, a2.T]
    if plan.twiddle:
        twiddle = waves(plan.m1, plan.m2, plan.m1 * plan.m2, shift)
        both = [_fill(twiddle, k1, n2)] if plan.upright else [_fill(twiddle.T, n2, k1), _fill(twiddle, k1, n2)]
        tables += [table.movedim(0, 1) for table in both]
    return _cast(torch.cat([t.flatten() for t in tables]), plan, dtype, device)


@kept(64)
def outer_tables(
    plan: Plan, blocks: int, r: int, q: int, dtype: torch.dtype, device: torch.device, scaled: bool
) -> tuple[Tensor, Tensor]:
    """Return the tables of ``split`` (r, q) and of ``merge`` (q, r), filled up to these sides."""
    table = waves(plan.outer, blocks, plan.outer, plan.shift)
    # Re(conj(w) z) = Re(w) Re(z) + Im(w) Im(z): merge needs no conjugate.
    ahead, back = _fill(table, r, q), _fill(table.T / (1 if scaled else plan.outer), q, r)
    return _cast(ahead, plan, dtype, device), _cast(back, plan, dtype, device)


@kept(16)
def phases(plan: Plan, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the twiddle factors of the outer transform, (2, outer, step)."""
    table = waves(plan.outer, plan.outer_step, plan.outer * plan.outer_step, plan.shift)
    return torch.stack([table.real, table.imag]).to(device, dtype)
