r"""Outer transforms that are too long for one product: a chain of torch's matrix products.

A transform of length N = a b takes two products, over the digits of q = q₁ b + q₂. With frequencies r = r₁ + a r₂ + s,
where s is the shift,

.. math:: (r_1 + a r_2 + s)\, q / N = (r_1 + s)\, q_1 / a + (r_2 + (r_1 + s) / a)\, q_2 / b \pmod 1 .

The second product is therefore a transform of length b with the shift (r₁ + s) / a. It has a table for every r₁ and
needs no twiddle factors. Frequencies stay in the order (r₁, r₂). A second axis follows with its own product.

The operand of each product is (signals, frequencies, parts · samples of this digit, all other samples), contiguous
before and after. The first product along a padded axis leaves out the zeros.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...graph_cache import graph_cache

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["chain_forward", "chain_inverse", "chain_tables", "digit_shifts", "digit_table", "repeated_product"]

#: matrices per batched product; larger batches are split, since the last axis of a CUDA grid has at most 65,535 entries
MOST_PRODUCTS = 1 << 15
#: number of values from which signals are multiplied one by one; smaller signals each get a copy of all tables
LARGE = 1 << 22


def digit_shifts(digits: tuple[int, ...], shift: float) -> Tensor:
    """Return the shift that remains after the digits of a transform, for each frequency in memory order.

    >>> digit_shifts((2, 2), 0.0)
    tensor([0.0000, 0.5000, 0.2500, 0.7500], dtype=torch.float64)
    """
    shifts = torch.tensor([shift], dtype=torch.float64)
    for size in digits:
        shifts = ((shifts[:, None] + torch.arange(size)) / size).flatten()
    return shifts


def digit_table(shifts: Tensor, size: int, inputs: int, parts: int) -> Tensor:
    """Return the real tables of one digit, (shifts, size · 2, parts · inputs).

    Rows are (frequency, part) and columns (part, sample).
    """
    turns = (torch.arange(size, dtype=torch.float64)[:, None] + shifts[:, None, None]) * torch.arange(inputs) / size
    angle = (turns % 1) * (-2 * math.pi)
    re, im = angle.cos(), angle.sin()
    rows = torch.stack([torch.cat([re, -im], -1), torch.cat([im, re], -1)], 2)
    return rows.flatten(1, 2)[..., : parts * inputs]


@graph_cache(32)
def chain_tables(
    plan: Plan, kernel: bool, parts: int, dtype: torch.dtype, device: torch.device, scaled: bool
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the tables of a chain and of its inverse, in the order in which they are used.

    Args:
        plan: the layout.
        kernel: whether the input is a kernel, which fills the transform, or a signal, which may be shorter.
        parts: 1 if the input is real, 2 if it is complex.
        dtype: dtype of the tables.
        device: device of the tables.
        scaled: whether the chain divides by the transform's length, except for its first digit; otherwise the inverse
            divides.
    """
    first, second = (plan.first, plan.second) if kernel else plan.valid
    forward, inverse, rest = [], [], plan.first
    shifts = torch.tensor([plan.shift], dtype=torch.float64)
    sizes = [(size, False) for size in plan.digits] + ([(plan.second, True)] if plan.second > 1 else [])
    for i, (size, last) in enumerate(sizes):
        rest //= 1 if last else size
        inputs = second if last else -(-first // rest) if i == 0 else size
        table = digit_table(
            torch.zeros(1, dtype=torch.float64) if last else shifts, size, inputs, parts if i == 0 else 2
        )
        if not last:
            shifts = ((shifts[:, None] + torch.arange(size)) / size).flatten()
        forward.append((table / (size if scaled and i else 1)).to(device, dtype))
        inverse.append((table.mT / (1 if scaled else size)).contiguous().to(device, dtype))
    return tuple(forward), tuple(reversed(inverse))


def repeated_product(tables: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """Multiply (signals · tables, columns, n) by tables (tables, rows, columns), repeating the tables.

    >>> repeated_product(torch.tensor([[[1.0]], [[10.0]]]), torch.ones(4, 1, 1)).flatten()
    tensor([ 1., 10.,  1., 10.])
    """
    count, rows, _ = tables.shape
    if out is None:
        out = x.new_empty((len(x), rows, x.shape[2]))
    if count == 1:
        step, tables = MOST_PRODUCTS, tables.expand(min(len(x), MOST_PRODUCTS), -1, -1)
    elif count * x[0].numel() >= LARGE:
        step = count
    else:
        signals = min(len(x) // count, max(1, MOST_PRODUCTS // count))
        step, tables = signals * count, tables.repeat(signals, 1, 1)
    for start in range(0, len(x), step):
        some = x[start : start + step]
        torch.bmm(tables[: len(some)], some, out=out[start : start + step])
    return out


def chain_forward(tables: tuple[Tensor, ...], x: Tensor, out: Tensor) -> None:
    """(signals, parts · samples) -> (signals, frequencies, 2, step); ``x`` has the dtype of the tables."""
    width = out.shape[3] * math.prod(table.shape[2] // 2 for table in tables[1:])
    with torch.autocast(x.device.type, enabled=False):
        for i, table in enumerate(tables):
            _, rows, columns = table.shape
            width //= columns // 2 if i else 1
            target = out.view(-1, rows, width) if i == len(tables) - 1 else None
            x = repeated_product(table, x.reshape(-1, columns, width), target)


def chain_inverse(tables: tuple[Tensor, ...], z: Tensor, out: Tensor) -> None:
    """(signals, frequencies, 2, step) -> (signals, parts · samples), the inverse of :func:`chain_forward`."""
    width = z.shape[3]
    with torch.autocast(z.device.type, enabled=False):
        for i, table in enumerate(tables):
            _, rows, columns = table.shape
            z = z.reshape(-1, columns, width)
            target = out.view(-1, rows, width) if i == len(tables) - 1 else None
            z = repeated_product(table, z, target)
            width *= rows // 2
