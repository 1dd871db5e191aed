"""A sum of products of three tensors, computed without a tensor that has all four indices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["contract"]

# The indices are those of group attention: g the query's element, h the output's, m the key's, j the key's position.
# Each tensor has three of them: gmj, ghj, ghm, and hmj of the result.


class _Contract(torch.autograd.Function):
    """The sum over g as an autograd function. Its gradients are sums of the same kind over other indices."""

    @staticmethod
    def forward(ctx: Any, gmj: Tensor, ghj: Tensor, ghm: Tensor) -> Tensor:
        ctx.save_for_backward(gmj, ghj, ghm)
        return _over_g(gmj, ghj, ghm)

    @staticmethod
    def backward(ctx: Any, hmj: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gmj, ghj, ghm = ctx.saved_tensors
        # Each gradient is the same sum, with the other tensors transposed into the roles of (gmj, ghj, ghm).
        d_gmj = _over_g(hmj, ghj.transpose(-3, -2), ghm.transpose(-3, -2))
        d_ghj = _over_g(hmj.transpose(-3, -2), gmj.transpose(-3, -2), ghm.movedim(-1, -3))
        d_ghm = _over_last(gmj, ghj, hmj)
        return d_gmj, d_ghj, d_ghm


def _over_g(gmj: Tensor, ghj: Tensor, ghm: Tensor) -> Tensor:
    """Return Σ_g gmj · ghj · ghm, with indices hmj, one term of the sum at a time."""
    total: Tensor | None = None
    for g in range(gmj.shape[-3]):
        term = gmj.select(-3, g).unsqueeze(-3) * ghj.select(-3, g).unsqueeze(-2)
        weight = ghm.select(-3, g).unsqueeze(-1)
        total = term.mul_(weight) if total is None else total.addcmul_(term, weight)
    assert total is not None
    return total


def _over_last(gmj: Tensor, ghj: Tensor, hmj: Tensor) -> Tensor:
    """Return Σ_j gmj · ghj · hmj, with indices ghm."""
    rows = [
        (gmj * hmj.select(-3, h).unsqueeze(-3)).mul_(ghj.select(-2, h).unsqueeze(-2)).sum(dim=-1)
        for h in range(hmj.shape[-3])
    ]
    return torch.stack(rows, dim=-2)


def contract(gmj: Tensor, ghj: Tensor, ghm: Tensor) -> Tensor:
    r"""Return :math:`a_{hmj} = \sum_g x_{gmj}\, y_{ghj}\, w_{ghm}`.

    Terms are added one at a time, so the product with all four indices never exists, not even in the backward pass.

    Args:
        gmj: (…, g, m, j) tensor.
        ghj: (…, g, h, j) tensor.
        ghm: (…, g, h, m) tensor.

    Returns:
        (…, h, m, j) tensor.

    >>> x, y, w = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6, 5), torch.randn(2, 3, 6, 4)
    >>> torch.allclose(contract(x, y, w), torch.einsum("agmj,aghj,aghm->ahmj", x, y, w), atol=1e-5)
    True
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():  # noqa: SLF001
        # A compiler fuses product and sum, so no tensor with four indices is written; torch.func can transform them.
        return (gmj.unsqueeze(-3) * ghj.unsqueeze(-2) * ghm.unsqueeze(-1)).sum(dim=-4)
    return _Contract.apply(gmj, ghj, ghm)
