"""Attention on the input of a group convolution (chapter 8, section 3.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..backend import use_triton
from .reference import input_attention_maps

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["input_attention"]


def input_attention(
    x: Tensor, squeeze: Tensor, excite: Tensor, psi: Tensor, *, lifting: bool = False, dilation: int = 1
) -> Tensor:
    r"""Attend to the channels and positions of a signal on a group, as a residual (chapter 8, Eq. 20).

    .. math::
        \alpha_C(h) &= \sigma\big(W_2 [W_1 \bar f]^+ + W_2 [W_1 \hat f]^+\big), \\
        \alpha_X(x, h) &= \sigma\big([\overline{\alpha_C f}, \widehat{\alpha_C f}] * \psi\big), \qquad
        f \mapsto (1 - \alpha_X \alpha_C)\, f

    Bars denote the mean and hats the maximum, over space in α_C and over channels in α_X.

    Args:
        x: (batch, c, g, \*space) signal; g is 1 if ``lifting``.
        squeeze: (hidden, c·g) matrix W₁.
        excite: (c·g, hidden) matrix W₂.
        psi: (g, 2·g, \*points) kernels ψ on mean and maximum over the channels, points odd; (h, 2, \*points) if
            ``lifting``.
        lifting: whether the signal lives on space; α_X is then the maximum over the h elements of ψ.
        dilation: distance between the points of ψ.

    Returns:
        (batch, c, g, \*space) signal, with the memory layout of ``x``.

    >>> x, w = torch.randn(2, 3, 4, 9, 9), torch.randn(5, 12)
    >>> input_attention(x, w, w.mT, torch.randn(4, 8, 7, 7)).shape
    torch.Size([2, 3, 4, 9, 9])
    """
    if not lifting and x.dim() == 5 and use_triton(x):
        from .triton.input_launch import attend_to_input  # noqa: PLC0415

        with torch.autocast(x.device.type, enabled=False):
            return attend_to_input(x, squeeze, excite, psi.flip((2, 3)), dilation)
    channel, space = input_attention_maps(x, squeeze, excite, psi, lifting=lifting, dilation=dilation)
    return x - space * channel * x
