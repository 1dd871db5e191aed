"""Convolutions whose kernel is sampled from a field (chapters 2 and 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._checks import check_dim
from ...fields import SIREN, Field, MAGNet, bind_start
from ...masks import GaussianMask
from .continuous_conv import ContinuousConv

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["CKConv", "FlexConv"]


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
        bias: whether to add one, initially zero.
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


class FlexConv(ContinuousConv):
    r"""A convolution that learns how large its kernel is: a field under a Gaussian mask (chapter 5, section 3.1).

    .. math:: \psi(x) = \mathrm{MAGNet}(x) \cdot m_\mathrm{gauss}(x; \mu, \sigma)

    Only the mask's support is sampled and convolved, and it is never read from the device inside ``forward``.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        dim: number of spatial dimensions, 1 to 3.
        size: the largest reach of the kernel in training steps, one for all axes or one per axis.
        field: makes the kernel's field from ``(dim, channels)``; it begins with chapter 5's starting values unless it
            has others bound.
        sigma: initial width of the mask, where 1 is ``size`` steps.
        threshold: below this the mask is zero.
        learn_mean: whether the mask's centre, initially at offset zero, is learned too.
        learn_sigma: whether the mask's width is learned.
        isotropic: one width for all axes.
        crop: sample only the mask's support. False keeps the kernel's full reach, whatever the mask: the same numbers
            in shapes that never change, for CUDA graphs.
        causal: the output depends on no later input; dim 1.
        bias: whether to add one, initially zero.
        depthwise: one kernel per channel, and no mixing of channels.
        boundary: what lies beyond the signal, "zero" or "periodic".
        smooth: at steps finer than the training's, blur the kernel over a training step.
        neighbors: with ``coords``, meet only this many nearest points.
        method: how to convolve; see :func:`kernelfield.ops.conv`.
        gain: as in :class:`CKConv`.
        kernel_dropout: probability to set a value of the sampled kernel to zero, in training, on grids.

    >>> import torch
    >>> layer = FlexConv(4, 8, dim=1, size=784, causal=True, sigma=0.04)
    >>> layer(torch.randn(2, 4, 784)).shape
    torch.Size([2, 8, 784])
    >>> layer.kernel().shape[-1]        # 2.15 · 0.04 · 784 = 67.3 steps, in a bucket of 80
    80
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        dim: int = 1,
        size: int | Sequence[int],
        field: Callable[..., Field] | Field = MAGNet,
        sigma: float | Sequence[float] = 0.0375,
        threshold: float = 0.1,
        learn_mean: bool = True,
        learn_sigma: bool = True,
        isotropic: bool = False,
        crop: bool = True,
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
        mask = GaussianMask(
            check_dim(dim),
            sigma,
            threshold=threshold,
            learn_mean=learn_mean,
            learn_sigma=learn_sigma,
            isotropic=isotropic,
            domain=(0.0, 1.0) if causal else (-1.0, 1.0),
        )
        # Envelopes start where the mask leaves something to see of them: the authors' 1.667 widths around its centre.
        spread = min(1.0, 1.667 * float(mask.sigma.detach().max()))
        super().__init__(
            in_channels,
            out_channels,
            dim=dim,
            size=size,
            field=field if isinstance(field, Field) else bind_start(field, "flexconv"),
            mask=mask,
            crop=crop,
            causal=causal,
            depthwise=depthwise,
            bias=bias,
            boundary=boundary,
            smooth=smooth,
            neighbors=neighbors,
            method=method,
            gain=gain,
            kernel_dropout=kernel_dropout,
            mean_range=(0.0 if causal else -spread, spread),
        )
