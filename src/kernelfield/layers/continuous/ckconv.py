"""CKConv: a convolution whose kernel is a field (chapter 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._arguments import checked, with_arguments_of
from ..._checks import check_options
from ...fields import SIREN, Field
from .continuous_conv import ContinuousConv, ConvOptions
from .sampled_kernel import SampledKernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Unpack

__all__ = ["CKConv"]


class CKConvOptions(ConvOptions, total=False):
    """Options of :class:`CKConv`."""

    dim: int
    causal: bool


class CKConv(ContinuousConv):
    r"""A convolution whose kernel is a field, so its length does not affect the parameter count (chapter 2, Eq. 4).

    .. math:: (x * \psi)(t) = \sum_c \sum_\tau x_c(\tau)\, \psi_c(t - \tau)

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        dim: number of spatial dimensions, 1 to 3.
        size: reach of the kernel in training steps, one for all axes or one per axis; the input's length gives a
            global kernel.
        field: makes the kernel's field from ``(dim, channels)``: a class of :mod:`kernelfield.fields`, a partial of
            one, or a field.
        causal: whether outputs depend only on present and past inputs; needs dim 1.
        options: options of every continuous convolution, described in :class:`ContinuousConv`: bias, depthwise,
            boundary, smooth, neighbors, method, gain, kernel_dropout, point_method, tolerance.

    >>> import torch
    >>> layer = CKConv(4, 8, dim=2, size=16)
    >>> layer(torch.randn(2, 4, 16, 16)).shape
    torch.Size([2, 8, 16, 16])
    >>> layer(torch.randn(2, 4, 40, 40), step=0.4).shape
    torch.Size([2, 8, 40, 40])
    >>> layer(torch.randn(2, 4, 50), coords=16 * torch.rand(2, 50, 2)).shape
    torch.Size([2, 8, 50])
    """

    @checked()
    @with_arguments_of(ContinuousConv.__init__, SampledKernel.__init__, without=("kernel", "mask", "crop", "spread"))
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        field: Callable[..., Field] | Field = SIREN,
        **options: Unpack[CKConvOptions],
    ) -> None:
        check_options(self, options, CKConvOptions.__annotations__)
        super().__init__(in_channels, out_channels, field=field, **options)
