"""The readable reference of group attention: all scores at once, a softmax, a weighted sum."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..._arguments import checked, with_arguments_of
from .check import KINDS, check_attention
from .windows import Neighborhood, cropped, neighbor_index, neighborhoods

__all__ = ["group_attention_reference"]


@checked(**KINDS)
@with_arguments_of(Neighborhood.of)
def group_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, elements: Tensor, *, keep: Tensor | None = None, **around: Any
) -> Tensor:
    """Compute :func:`~kernelfield.ops.group_attention` by its formula (chapter 9, Eq. 16).

    The arguments are the same, but codes of elements may also depend on the query's element: (out_elements, query
    elements, elements, b).

    >>> from kernelfield.ops import group_attention
    >>> q, k, v = torch.randn(3, 2, 4, 6, 6, 5)
    >>> codes = torch.randn(7, 3, 3, 3), torch.randn(7, 4, 2)
    >>> fast = group_attention(q, k, v, *codes, neighborhood=(3, 3))
    >>> torch.allclose(fast, group_attention_reference(q, k, v, *codes, neighborhood=(3, 3)), atol=1e-4)
    True
    """
    neighborhood, dilation, crop, valid = Neighborhood.of(**around)
    if not torch.compiler.is_compiling():
        check_attention(q, positions, elements, neighborhood, crop)
    space, a = q.shape[2:-1], positions.shape[-1]
    q = cropped(q, crop)
    inner = q.shape[2:-1]
    q = q.flatten(2, -2)
    if neighborhood is None:
        seen = [t.flatten(2, -2).unsqueeze(1) for t in (k, v)]
        codes = positions
    else:
        seen = [neighborhoods(t, neighborhood, dilation, crop) for t in (k, v)]
        codes = positions.flatten(1, -2).unsqueeze(1)
        valid = neighbor_index(space, neighborhood, dilation, q.device, crop) >= 0
    keys, values = (t.expand(-1, q.shape[2], -1, -1, -1) for t in seen)
    codes = codes.expand(-1, q.shape[2], -1, -1)
    relative = elements if elements.dim() == 4 else elements.unsqueeze(1).expand(-1, q.shape[1], -1, -1)
    scores = torch.einsum("ngpc,npmjc->npgmj", q, keys).unsqueeze(2)
    scores = scores + torch.einsum("ngpa,hpja->nphgj", q[..., :a], codes).unsqueeze(-2)
    scores = scores + torch.einsum("ngpb,hgmb->nphgm", q[..., a : a + relative.shape[-1]], relative).unsqueeze(-1)
    if valid is not None:
        scores = scores.masked_fill(~valid[:, None, None, None], -math.inf)
    weights = scores.flatten(-2).softmax(dim=-1).unflatten(-1, scores.shape[-2:])
    if keep is not None:
        weights = weights * keep[:, :, None, None]
    return torch.einsum("nphgmj,npmjc->nhpc", weights, values).unflatten(2, inner)
