"""Separable continuous convolutions (chapter 3, section 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..._arguments import checked, with_arguments_of
from ..._checks import check_options
from ..._kinds import POSITIVE, PROBABILITY, Choice, PerAxis
from ..._object_kinds import TensorOf
from ...fields import Field, MAGNet, bind_start
from ..pointwise import Pointwise
from .ckconv import CKConv
from .continuous_conv import ContinuousConv, ConvOptions
from .flexconv import FlexConv

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...masks import Mask
    from .active_slice import ActiveSlice

__all__ = ["SeparableConv"]

#: options that describe a mask; only :class:`FlexConv` takes them
_MASK_OPTIONS = ("threshold", "learn_sigma", "isotropic", "crop")
_OPTIONS = (
    "dim",
    "causal",
    *_MASK_OPTIONS,
    *(name for name in ConvOptions.__annotations__ if name not in ("size", "bias", "depthwise")),
)


class SeparableConv(nn.Module):
    r"""A depthwise continuous convolution followed by a linear map of the channels (chapter 3, section 4.1).

    .. math:: y(t) = W \Big[b + \sum_\tau \psi(t - \tau) \odot x(\tau)\Big] + c

    The kernel network has one output per input channel instead of one per pair of input and output channels, so
    networks can be several times as wide.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        size: the largest reach of the kernel in training steps, one for all axes or one per axis.
        field: makes the kernel's field from ``(dim, channels)``, with chapter 3's starting values unless others are
            bound to it.
        sigma: initial width of a Gaussian mask on the kernel, where 1 is ``size`` steps; None for no mask.
        mask: another mask in place of the Gaussian; see :class:`FlexConv`.
        learn_mean: whether the mask's centre is learned too.
        bias: whether both parts add a bias, initially zero.
        options: further arguments of :class:`FlexConv`, or of :class:`CKConv` if there is no mask: dim, causal,
            threshold, learn_sigma, isotropic, crop, boundary, smooth, neighbors, method, gain, kernel_dropout,
            point_method, tolerance. Those that describe a mask have no effect without one.

    >>> import torch
    >>> layer = SeparableConv(6, 16, dim=3, size=8)
    >>> layer(torch.randn(2, 6, 8, 8, 8)).shape
    torch.Size([2, 16, 8, 8, 8])
    """

    @checked(sigma=PerAxis(POSITIVE) | None)
    @with_arguments_of(FlexConv.__init__, without=("depthwise",))
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        size: int | Sequence[int],
        field: Callable[..., Field] | Field = MAGNet,
        sigma: float | Sequence[float] | None = 0.0375,
        mask: Callable[..., Mask] | Mask | None = None,
        learn_mean: bool = False,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_options(self, options, _OPTIONS)
        started = field if isinstance(field, Field) else bind_start(field, "ccnn")
        options |= {"size": size, "field": started, "bias": bias, "depthwise": True}
        self.depthwise: ContinuousConv
        if sigma is None and mask is None:
            options = {name: value for name, value in options.items() if name not in _MASK_OPTIONS}
            self.depthwise = CKConv(in_channels, in_channels, **options)
        else:
            options |= {"sigma": 0.0375 if sigma is None else sigma, "mask": mask, "learn_mean": learn_mean}
            self.depthwise = FlexConv(in_channels, in_channels, **options)
        self.pointwise = Pointwise(in_channels, out_channels, bias=bias)

    @checked(
        x=TensorOf("float", "batch, channels, *space", empty=False),
        activation=Choice("relu", "gelu") | None,
        dropout=PROBABILITY,
        residual=TensorOf("float", "batch, out, *space") | None,
    )
    def forward(
        self,
        x: Tensor,
        *,
        active: ActiveSlice | None = None,
        activation: str | None = None,
        dropout: float = 0.0,
        dropout_channels: bool = False,
        residual: Tensor | None = None,
        **sampling: Any,
    ) -> Tensor:
        """Convolve, map the channels, and apply activation, dropout and residual.

        Args:
            x: (batch, in, *space) signal, or (batch, in, points) values.
            active: the input and output channels in use; all if not given.
            activation: "relu", "gelu" or None; see :func:`kernelfield.ops.fused.linear`.
            dropout: probability to set a value to zero, after the activation.
            dropout_channels: whether to drop whole channels.
            residual: (batch, out, *space) signal to add at the end.
            sampling: step, coords, mask, density and kernel, as in :meth:`ContinuousConv.forward`.
        """
        x = self.depthwise(x, active=active, add_bias=False, **sampling)
        return self.pointwise(
            x,
            offset=self.depthwise.bias,
            active=active,
            activation=activation,
            dropout=dropout,
            dropout_channels=dropout_channels,
            residual=residual,
        )

    def kernel(self, step: float | Sequence[float] = 1.0, *, measured: bool = True) -> Tensor:
        """Return the depthwise kernel sampled at ``step``, (in, 1, *points); see :meth:`ContinuousConv.kernel`."""
        return self.depthwise.kernel(step, measured=measured)

    def freeze(self, step: float | Sequence[float] = 1.0) -> SeparableConv:
        """Sample the kernel for ``step`` once; see :meth:`ContinuousConv.freeze`."""
        self.depthwise.freeze(step)
        return self

    def unfreeze(self) -> SeparableConv:
        """Drop frozen kernels."""
        self.depthwise.unfreeze()
        return self
