"""Attention between the samples of a signal on a group (chapter 9).

``reference.py`` has the formula, ``chunked.py`` the torch path and ``triton/`` the kernels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._arguments import checked
from ..._kinds import Choice
from ..backend import unavailable, use_triton
from ..kernel_operator import use_kernel_operator
from .check import KINDS, check_attention
from .chunked import attention_map, chunked_attention
from .reference import group_attention_reference
from .windows import Neighborhood, cropped, neighbor_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["METHODS", "attention_map", "group_attention", "group_attention_reference"]

METHODS = ("auto", "triton", "chunked", "reference")
#: largest number of channels per head for which "auto" uses Triton: a thread holds all channels of a few elements
TRITON_CHANNELS = 32


@checked(**KINDS, method=Choice(*METHODS))
def group_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    elements: Tensor,
    *,
    neighborhood: Sequence[int] | None = None,
    dilation: int = 1,
    crop: int = 0,
    valid: Tensor | None = None,
    keep: Tensor | None = None,
    chunk: int | None = None,
    method: str = "auto",
) -> Tensor:
    r"""Attend to all elements and positions around each position, once for every output element (chapter 9, Eq. 16).

    .. math::
        y(x, h) = \sum_{\tilde h} \sum_{\hat h, y} \sigma_{\hat h, y}\big(\langle q(x, \tilde h),\, k(y, \hat h)\rangle
            + \langle q_1(x, \tilde h),\, p_h(y - x)\rangle
            + \langle q_2(x, \tilde h),\, e(h^{-1} \hat h)\rangle\big)\, v(y, \hat h)

    where :math:`q = (q_1, q_2)` is split along its channels at the widths of the codes p and e.

    A score is the sum of three terms, none of which depends on all of (h, h̃, ĥ, y). The fast methods compute the first
    term, the content, once for all output elements, and sum the weights over h̃ before they multiply values. They hold
    no tensor that is indexed by h, h̃, ĥ and a key's position at once. They multiply values |H| times less often than
    the formula.

    Args:
        q: (n, elements, \*space, channels) queries, already scaled; n counts samples and heads.
        k: (n, elements, \*space, channels) keys.
        v: (n, elements, \*space, channels) values.
        positions: (out_elements, \*neighborhood, a) codes of the offset of a key from its query; (out_elements,
            queries or 1, keys or 1, a) for a global neighbourhood. a may be zero.
        elements: (out_elements, elements, b) codes of a key's element relative to the output's. b may be zero.
        neighborhood: number of positions along each axis, odd; all positions by default.
        dilation: distance between the positions of a neighbourhood.
        crop: number of positions at each end of each axis that get no output.
        valid: (queries, keys) bool, True for the keys that each query of a global neighbourhood attends to; all by
            default.
        keep: (n, positions, elements, keys) factors on the weights, such as a dropout mask.
        chunk: number of samples and heads that "chunked" computes at once. By default intermediate tensors take at most
            64 MiB (256 MiB on a GPU) or four times the inputs, whichever is more.
        method: "triton" for kernels that store no scores, one forward and three backward; "chunked" for matrix products
            and softmaxes, recomputed in the backward pass; "reference" for the formula. "auto" uses Triton on a GPU for
            heads of up to 32 channels in float32 or less, unless ``chunk`` is given, and otherwise "chunked".

    Returns:
        (n, out_elements, \*space, channels) sums, over h̃ too, so weights add up to the number of elements.

    >>> q, k, v = torch.randn(3, 2, 4, 6, 6, 5)
    >>> y = group_attention(q, k, v, torch.randn(7, 3, 3, 3), torch.randn(7, 4, 2), neighborhood=(3, 3))
    >>> y.shape
    torch.Size([2, 7, 6, 6, 5])
    """
    if not torch.compiler.is_compiling():
        check_attention(q, positions, elements, neighborhood, crop)
    if neighborhood is None and positions.shape[2] == 1:  # one code for all keys
        positions = positions.expand(-1, -1, math.prod(k.shape[2:-1]), -1)
    options: dict[str, Any] = {"neighborhood": neighborhood, "dilation": dilation, "crop": crop, "valid": valid}
    if method == "reference":
        return group_attention_reference(q, k, v, positions, elements, keep=keep, **options)
    around = Neighborhood.of(**options)
    if method == "triton" and (reason := unavailable(q.device)):
        raise ValueError(f"method must be 'auto', 'chunked' or 'reference' here, got 'triton', which {reason}")
    if method == "triton" or (method == "auto" and chunk is None and _prefers_triton(q, keep)):
        return _triton_attention(q, k, v, (positions, elements), around, keep)
    return chunked_attention(q, k, v, (positions, elements), around, keep, chunk)


def _prefers_triton(q: Tensor, keep: Tensor | None) -> bool:
    fits = q.shape[-1] <= TRITON_CHANNELS and (keep is None or keep.dtype == torch.bool)
    return fits and (use_kernel_operator(q) or use_triton(q))


def _triton_attention(
    q: Tensor, k: Tensor, v: Tensor, codes: tuple[Tensor, Tensor], around: Neighborhood, keep: Tensor | None
) -> Tensor:
    from .triton.launch import fused_attention  # noqa: PLC0415

    positions, elements = codes
    space, pairs = tuple(q.shape[2:-1]), around.points is None
    q = cropped(q, around.crop)
    inner = q.shape[2:-1]
    # Channels come first, as in the outputs of projections, so positions are adjacent in memory.
    q, k, v = (t.movedim(-1, 1).flatten(3) for t in (q, k, v))
    if around.points is None:
        place = positions.permute(0, 3, 2, 1).expand(-1, -1, -1, q.shape[-1])
        index, inverse = _pair_tables(q.shape[-1], k.shape[-1], around.valid, q.device)
    else:
        place = positions.flatten(1, -2).transpose(1, 2).unsqueeze(-1)
        index, inverse = neighbor_tables(space, around.points, around.dilation, around.crop, q.device)
    y = fused_attention(q, k, v, place, elements, index, inverse, keep, pairs)
    return y.movedim(1, -1).unflatten(2, inner)


def _pair_tables(queries: int, keys: int, valid: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the positions of each query's keys, and of each key's queries; -1 for pairs that are not valid.

    The shapes are (keys, queries or 1) and (queries, keys or 1).
    """
    index, inverse = (torch.arange(n, dtype=torch.int32, device=device)[:, None] for n in (keys, queries))
    if valid is None:
        return index, inverse
    return torch.where(valid.mT, index, -1).contiguous(), torch.where(valid, inverse, -1).contiguous()
