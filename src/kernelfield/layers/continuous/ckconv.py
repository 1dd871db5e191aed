"""CKConv: a convolution whose kernel is a field (chapter 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...fields import SIREN, Field
from .continuous_conv import ContinuousConv

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["CKConv"]


class CKConv(ContinuousConv):
    r"""A convolution whose kernel is a field, as long as the input at any number of parameters (chapter 2).

    .. math:: (x * \psi)(t) = \sum_c \sum_\tau x_c(\tau)\, \psi_c(t - \tau)

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        dim: number of spatial dimensions, 1 to 3.
        size: reach of the kernel in training steps, one for all axes or one per axis; the input's length makes it
            global.
        field: makes the kernel's field from ``(dim, channels)``: a class of :mod:`kernelfield.fields`, a partial of
            one, or a field.
        causal: the output depends on no later input; dim 1.
        bias: whether to add a bias, initially zero.
        depthwise: one kernel per channel, and no mixing of channels.
        boundary: what lies beyond the signal, "zero" or "periodic".
        smooth: at steps finer than the training's, blur the kernel over a training step, which removes frequencies
            that training never saw (chapter 2, appendix "Dealing with high-frequency components").
        neighbors: with ``coords``, meet only this many nearest points.
        method: how to convolve; see :func:`kernelfield.ops.conv`.
        gain: "start" scales the kernel as the publication did whose starting values the field has
            (:mod:`kernelfield.fields.start`). With a number, the layer maps white noise of variance 1 to variance
            gain² at initialisation (chapter 3, section 3.3). None leaves the field as it was drawn.
        kernel_dropout: probability to set a value of the sampled kernel to zero, in training, on grids.

    >>> import torch
    >>> layer = CKConv(4, 8, dim=2, size=16)
    >>> layer(torch.randn(2, 4, 16, 16)).shape
    torch.Size([2, 8, 16, 16])
    >>> layer(torch.randn(2, 4, 40, 40), step=0.4).shape
    torch.Size([2, 8, 40, 40])
    >>> layer(torch.randn(2, 4, 50), coords=16 * torch.rand(2, 50, 2)).shape
    torch.Size([2, 8, 50])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        dim: int = 1,
        size: int | Sequence[int],
        field: Callable[..., Field] | Field = SIREN,
        causal: bool = False,
        bias: bool = True,
        depthwise: bool = False,
        boundary: str = "zero",
        smooth: bool = False,
        neighbors: int | None = None,
        method: str = "auto",
        gain: float | str | None = "start",
        kernel_dropout: float = 0.0,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            dim=dim,
            size=size,
            field=field,
            mask=None,
            crop=False,
            causal=causal,
            depthwise=depthwise,
            bias=bias,
            boundary=boundary,
            smooth=smooth,
            neighbors=neighbors,
            method=method,
            gain=gain,
            kernel_dropout=kernel_dropout,
            mean_range=(0.0 if causal else -1.0, 1.0),
        )
