"""Readable references of the operators, of the same signatures. Slow, small, and what the fast paths are held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["conv_reference", "resample_reference"]


def conv_reference(
    x: Tensor,
    kernel: Tensor,
    *,
    causal: bool = False,
    boundary: str | Sequence[str] = "zero",
    groups: int = 1,
) -> Tensor:
    r"""Return :math:`y_o(t) = \sum_i \sum_j k_{oi}(j)\, x_i(t + c - j)` as one einsum; see :func:`conv`.

    Each axis has a 0/1 tensor that says which sample s meets which kernel point j at which output t.

    >>> conv_reference(torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[[1.0, 10.0]]]), causal=True)
    tensor([[[ 1., 12., 23.]]])
    """
    dim = x.dim() - 2
    boundaries = [boundary] * dim if isinstance(boundary, str) else boundary
    operands: list[Tensor] = [x.unflatten(1, (groups, -1)), kernel.unflatten(0, (groups, -1))]
    terms = ["bgi" + "stu"[:dim], "goi" + "jkl"[:dim]]
    for d, name in enumerate(boundaries):
        length, points = x.shape[2 + d], kernel.shape[2 + d]
        centre = 0 if causal else (points - 1) // 2
        out, point, sample = torch.arange(length)[:, None, None], torch.arange(points)[:, None], torch.arange(length)
        meets = out + centre - point - sample
        meet = (meets % length == 0 if name == "periodic" else meets == 0).to(x)
        # An output sees all of the kernel if each of its points meets a sample.
        operands.append(meet[meet.sum(dim=(1, 2)) == points] if name == "valid" else meet)
        terms.append("xyz"[d] + "jkl"[d] + "stu"[d])
    return torch.einsum(f"{','.join(terms)}->bgo{'xyz'[:dim]}", *operands).flatten(1, 2)


def resample_reference(x: Tensor, size: int | Sequence[int]) -> Tensor:
    r"""Return the trigonometric interpolant of ``x`` at ``size`` points per axis; see :func:`resample`.

    Along one axis of N samples, resampled to M, with n the smaller of the two,

    .. math:: y(m) = \frac1N \sum_{s} x(s) \sum_{|f| \le n/2} w_f \cos\big(2\pi f (m/M - s/N)\big)

    where :math:`w_f` is 1, but 1/2 at :math:`|f| = n/2`, the frequency that an even grid cannot tell from its negative.
    Sampled down, that frequency counts twice, so that it keeps its energy.

    >>> resample_reference(torch.tensor([1.0, 0.0, -1.0, 0.0]), 2)
    tensor([ 1., -1.])
    """
    sizes = (size,) if isinstance(size, int) else tuple(size)
    for d, new in enumerate(sizes, start=x.dim() - len(sizes)):
        old = x.shape[d]
        least = min(old, new)
        f = torch.arange(-(least // 2), least // 2 + 1, dtype=x.dtype)
        edge = 1.0 if new < old else 0.5
        weight = torch.where(2 * f.abs() == least, edge, 1.0).to(x)
        m, s = torch.arange(new, dtype=x.dtype) / new, torch.arange(old, dtype=x.dtype) / old
        waves = torch.cos(2 * torch.pi * f * (m[:, None, None] - s[:, None]))
        x = torch.movedim(torch.einsum("...s,msf,f->...m", x.movedim(d, -1), waves, weight.to(waves)) / old, -1, d)
    return x
