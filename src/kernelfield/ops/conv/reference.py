"""The readable reference of the convolution, with the arguments of the fast one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._arguments import checked
from .shape import KINDS, check_conv

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["conv_reference"]


@checked(**KINDS)
def conv_reference(
    x: Tensor, kernel: Tensor, *, causal: bool = False, boundary: str | Sequence[str] = "zero", groups: int = 1
) -> Tensor:
    r"""Return :math:`y_o(t) = \sum_i \sum_j k_{oi}(j)\, x_i(t + c - j)` as one einsum; see :func:`conv`.

    For each axis a tensor has entry 1 where sample s meets kernel point j at output t, and 0 elsewhere.

    Args:
        x: (batch, in, \*space) signal.
        kernel: (out, in / groups, \*points) kernel.
        causal: whether outputs depend only on present and past inputs; 1D only.
        boundary: "zero", "periodic" or "valid"; one for all axes or one per axis.
        groups: number of groups of channels.

    Returns:
        (batch, out, \*space) signal.

    >>> conv_reference(torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[[1.0, 10.0]]]), causal=True)
    tensor([[[ 1., 12., 23.]]])
    """
    dim, boundaries = x.dim() - 2, check_conv(x, kernel, causal, boundary, groups)
    operands: list[Tensor] = [x.unflatten(1, (groups, -1)), kernel.unflatten(0, (groups, -1))]
    terms = ["bgi" + "stu"[:dim], "goi" + "jkl"[:dim]]
    for d, name in enumerate(boundaries):
        length, points = x.shape[2 + d], kernel.shape[2 + d]
        centre = 0 if causal else (points - 1) // 2
        out, point, sample = torch.arange(length)[:, None, None], torch.arange(points)[:, None], torch.arange(length)
        meets = out + centre - point - sample
        meet = (meets % length == 0 if name == "periodic" else meets == 0).to(x)
        # At a valid output every kernel point meets a sample.
        operands.append(meet[meet.sum(dim=(1, 2)) == points] if name == "valid" else meet)
        terms.append("xyz"[d] + "jkl"[d] + "stu"[d])
    return torch.einsum(f"{','.join(terms)}->bgo{'xyz'[:dim]}", *operands).flatten(1, 2)
