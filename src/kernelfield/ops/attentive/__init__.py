"""Attentive group convolutions (chapter 8).

``reference.py`` computes all responses at once, ``chunked.py`` a few at a time, and the kernels in ``triton/`` write no
response to memory. ``input_attention.py`` has the attention that depends on the input alone.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

import torch

from ..backend import use_triton
from ..kernel_operator import use_kernel_operator
from .chunked import chunked_residual
from .input_attention import input_attention
from .reference import attend_responses, input_attention_maps, responses

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["attend_responses", "attentive_residual", "input_attention", "input_attention_maps", "responses"]


def attentive_residual(
    x: Tensor,
    kernel: Tensor,
    maps: tuple[Tensor | None, Tensor | None, Tensor | None],
    boundary: str,
    chunk: int | None = None,
    *,
    is_flipped: bool = False,
) -> Tensor:
    r"""Return the part of a group convolution's output that attention removes (chapter 8, Eq. 14 to 19).

    .. math::
        \sum_{c, \tilde h} \alpha_X(x, h, \tilde h)\, \alpha_C(h, \tilde h)_c\, \tilde f_{oc}(x, h, \tilde h),
        \qquad \tilde f_{oc} = \mathcal{L}_h \psi_{oc} * f_c

    For planes on a GPU, Triton kernels write no response to memory. Otherwise responses are computed for a few samples
    and output channels at a time, and again in the backward pass.

    Args:
        x: (batch, c, h̃, \*space) signal.
        kernel: (out, h, c, h̃, \*points) kernel.
        maps: W₁ (out, hidden, h, c, h̃) and W₂ (out, c, h, hidden, h̃) of channel attention, and ψ (out, h, 2, h̃,
            \*points) of spatial attention; each may be None.
        boundary: "zero", "periodic" or "valid".
        chunk: number of output channels, of all samples, whose responses are in memory at once, also on a GPU.
        is_flipped: whether the kernel and ψ are already flipped along the axes of space.

    Returns:
        (batch, out, h, \*space) sums, to be subtracted from the convolution.

    >>> x, kernel, psi = torch.randn(2, 3, 4, 9, 9), torch.randn(5, 4, 3, 4, 3, 3), torch.randn(5, 4, 2, 4, 7, 7)
    >>> attentive_residual(x, kernel, (None, None, psi), "zero").shape
    torch.Size([2, 5, 4, 9, 9])
    """
    # The Triton kernels add the gradients of maxima over space in no fixed order, so they are not deterministic.
    ordered = torch.are_deterministic_algorithms_enabled()
    if chunk is None and x.dim() == 5 and not ordered:
        if use_kernel_operator(x):
            from .triton.planes import planes_residual  # noqa: PLC0415

            return planes_residual(x, kernel, maps, boundary, is_flipped)
        if use_triton(x):
            return _planes().planes_residual(x, kernel, maps, boundary, is_flipped)
    return chunked_residual(x, kernel, maps, boundary, chunk, is_flipped)


@functools.cache
def _planes() -> Any:
    """Return the module that launches Triton kernels for planes, imported at the first call."""
    return importlib.import_module(".triton.planes", __name__)
