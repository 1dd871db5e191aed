"""Lifting and group convolutions (chapter 8, section 2; chapter 11, sections 2 and 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..._checks import check_bool, check_choice, check_int
from ...fields import Field, Table
from ...groups import Distribution, Group, Scale, Uniform
from .correlate import BOUNDARIES, check_even, correlate
from .kernel import GroupKernel, check_interactions
from .scale_conv import group_bank, lift_bank, out_group
from .signal import GroupSignal, check_elements, elements_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .wavelets import WaveletTransform

__all__ = ["GroupConv", "LiftingConv"]


class BaseGroupConv(nn.Module):
    """Base class of convolutions to a group: the elements of their outputs, and the bias."""

    #: whether kernels are rendered reversed, as a correlation takes them
    reverses = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        group: Group,
        kernel_size: int,
        samples: int | None,
        boundary: str,
        bias: bool,
        distribution: Distribution | None,
    ) -> None:
        super().__init__()
        if not isinstance(group, Group):
            raise TypeError(f"group must be a kernelfield.groups.Group, got {type(group).__name__}")
        self.group = group
        self.in_channels = check_int("in_channels", in_channels)
        self.out_channels = check_int("out_channels", out_channels)
        self.kernel_size = check_int("kernel_size", kernel_size)
        self.boundary = check_choice("boundary", boundary, BOUNDARIES)
        check_even(kernel_size, boundary)
        self.distribution = Uniform(group, samples) if distribution is None else distribution
        self.bias = nn.Parameter(torch.zeros(out_channels)) if check_bool("bias", bias) else None

    def _finish(self, y: Tensor, elements: Tensor, gates: Tensor | None) -> GroupSignal:
        if y.dim() == self.group.dim + 2:  # the elements are among the channels
            y = y.unflatten(1, (self.out_channels, len(elements)))
        if self.bias is not None:
            y = y + self.bias.to(y.dtype).view(-1, 1, *[1] * self.group.dim)
        return GroupSignal(y, elements_of(self.group, elements), gates)

    def _whole(self) -> bool:
        """Whether the outputs lie at all elements of a finite group, in order."""
        return self.group.finite and isinstance(self.distribution, Uniform)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, group={self.group}, kernel_size={self.kernel_size}, "
            f"boundary={self.boundary!r}"
        )


class LiftingConv(BaseGroupConv):
    r"""A convolution from space to a group (chapter 8, section 2; chapter 11, Eq. 3).

    .. math:: y_o(x, h) = |\det h|^{-1} \sum_i \int \psi_{oi}\big(h^{-1}(x - \tilde x)\big)\, f_i(\tilde x)\, d\tilde x

    One rendering of the kernel at all elements, and one convolution with the elements among its output channels. On
    dilations, :class:`~kernelfield.groups.Scale`, each kernel has its own length instead and is convolved by
    :func:`kernelfield.ops.conv_bank`; this is chapter 10's Eq. 8, the factor 1/s its Haar measure.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output, at every element.
        group: the group.
        field: what the kernel is, built from (dim, channels).
        kernel_size: points of the kernel along each axis of space; an even number for ``boundary="valid"`` only.
        samples: number of elements of a continuous group, drawn anew at every forward pass of training.
        boundary: "zero", "periodic", or "valid", which keeps the outputs whose window lies within the input.
        bias: whether to add a learned number to each output channel.

    >>> from kernelfield.groups import Cyclic
    >>> lift = LiftingConv(3, 8, group=Cyclic(4), kernel_size=3)
    >>> signal = lift(torch.randn(2, 3, 9, 9))
    >>> signal.values.shape, signal.elements.shape
    (torch.Size([2, 8, 4, 9, 9]), torch.Size([4, 1]))
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        group: Group,
        field: Callable[..., Field] = Table,
        kernel_size: int = 3,
        samples: int | None = None,
        boundary: str = "zero",
        bias: bool = True,
        distribution: Distribution | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, group, kernel_size, samples, boundary, bias, distribution)
        self.kernel = GroupKernel(
            *(group, field, out_channels, in_channels),
            kernel_size=kernel_size,
            on_group=False,
            reverse=self.reverses,
        )

    def forward(self, x: Tensor) -> GroupSignal:
        r"""Return (batch, in_channels, \*space) lifted to (batch, out_channels, group, \*space), and its elements."""
        if x.dim() != self.group.dim + 2 or x.shape[1] != self.in_channels:
            raise ValueError(
                f"x must have shape (batch, {self.in_channels}, *space) with {self.group.dim} spatial axes, "
                f"got {tuple(x.shape)}"
            )
        elements, gates = self.distribution(next(self.kernel.parameters()))
        if isinstance(self.group, Scale) and self._whole():
            y = lift_bank(self.kernel, self.group, x, self.boundary)
        else:
            kernel = self.kernel.reversed() if self._whole() else self.kernel.reversed(elements, elements)
            y = correlate(x, folded(kernel), self.boundary)
        return self._finish(y, elements, gates)

    def as_wavelet_transform(self, *, normalize: bool = True) -> WaveletTransform:
        r"""Return the wavelet transform with this layer's kernels as wavelets (chapter 10, section 4.3).

        .. math:: W[f](t, s) = \int f(\tau)\, \tfrac{1}{\sqrt s}\, \psi^*\big(\tfrac{\tau - t}{s}\big)\, d\tau
                  = \sqrt{s}\; (f *_\uparrow \psi)(t, s)

        Args:
            normalize: divide by the norm of the kernel, so that every wavelet has unit energy.

        >>> from kernelfield.fields import Morlet
        >>> from kernelfield.groups import Scale
        >>> lift = LiftingConv(1, 2, group=Scale(5), field=Morlet, kernel_size=65, bias=False)
        >>> transform = lift.as_wavelet_transform()
        >>> transform(torch.randn(1, 1, 500)).shape, transform.scalogram(torch.randn(1, 1, 500)).shape
        (torch.Size([1, 1, 5, 500]), torch.Size([1, 1, 5, 500]))
        """
        from .wavelets import WaveletTransform  # noqa: PLC0415

        return WaveletTransform(self, normalize=normalize)


class GroupConv(BaseGroupConv):
    r"""A convolution from a group to itself (chapter 8, Eq. 7; chapter 11, Eq. 2 and 4).

    .. math::
        y_o(x, h) = \sum_i \sum_{\tilde h} \mu(\tilde h) \int |\det h|^{-1}\,
            \psi_{oi}\big(h^{-1}(x - \tilde x),\, h^{-1} \tilde h\big)\, f_i(\tilde x, \tilde h)\, d\tilde x

    Over a finite group this is the exact sum, :math:`\mu = 1`. Over a continuous one it is the Monte-Carlo estimate of
    the integral with total measure 1: :math:`\mu = 1/n`, and the output elements are drawn anew at every forward pass
    of training, so that the layer is equivariant in expectation.

    One rendering of the kernel for all pairs of elements, and one convolution with both group axes among the channels.

    On dilations, :class:`~kernelfield.groups.Scale`, this is chapter 10's Eq. 7 on its exponential grid of scales: each
    output dilation has a kernel of its own length, and reads ``interactions`` input dilations, itself and coarser ones.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        group: the group.
        field: what the kernel is, built from (dim, channels) with dim = ``group.chart_size + group.dim``, or
            ``group.chart_size`` for kernel_size 1.
        kernel_size: points of the kernel along each axis of space; an even number for ``boundary="valid"`` only.
        samples: number of output elements of a continuous group.
        resample: draw output elements; otherwise they are the input's, or those given to :meth:`forward`.
        boundary: "zero", "periodic" or "valid".
        bias: whether to add a learned number to each output channel.
        distribution: where the output elements come from, instead of all of the group.
        reduction: of a continuous group, "mean" over the input's elements, which has the total measure 1; or "sum",
            without division by their number.
        interactions: of dilations, how many of them a kernel spans, from the output's own on; all if not given.
        scale_boundary: what a kernel sees beyond the coarsest dilation: "zero"; or "valid", nothing, for outputs that
            would see it are left out, the ``interactions`` - 1 coarsest.

    >>> from kernelfield.groups import Cyclic, SO2
    >>> from kernelfield.fields import SIREN
    >>> conv = GroupConv(8, 5, group=Cyclic(4), kernel_size=3)
    >>> conv(torch.randn(2, 8, 4, 9, 9)).values.shape
    torch.Size([2, 5, 4, 9, 9])
    >>> lift = LiftingConv(1, 4, group=SO2(), field=SIREN, kernel_size=5, samples=6)
    >>> conv = GroupConv(4, 3, group=SO2(), field=SIREN, kernel_size=5, samples=8)
    >>> conv(*lift(torch.randn(2, 1, 9, 9))).values.shape
    torch.Size([2, 3, 8, 9, 9])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        group: Group,
        field: Callable[..., Field] = Table,
        kernel_size: int = 3,
        samples: int | None = None,
        resample: bool = True,
        boundary: str = "zero",
        bias: bool = True,
        distribution: Distribution | None = None,
        interactions: int | None = None,
        scale_boundary: str = "zero",
        reduction: str = "mean",
    ) -> None:
        # A layer that draws nothing has no use for samples, but its distribution asks for some.
        drawn = samples if check_bool("resample", resample) or group.finite else 1
        outputs = out_group(group, check_interactions(group, interactions), scale_boundary)
        distribution = Uniform(outputs, drawn) if distribution is None else distribution
        super().__init__(in_channels, out_channels, group, kernel_size, drawn, boundary, bias, distribution)
        self.resample = resample
        self.reduction = check_choice("reduction", reduction, ("mean", "sum"))
        if interactions == 1 and resample and not group.finite:
            raise ValueError("interactions must be at least 2 where elements are drawn: no two of them meet, got 1")
        summed = samples if reduction == "sum" and samples else 1
        terms = in_channels * kernel_size**group.dim * (interactions or group.order or summed)
        self.kernel = GroupKernel(
            group,
            field,
            out_channels,
            in_channels,
            kernel_size=kernel_size,
            on_space=kernel_size > 1,
            fan_in=terms,
            interactions=interactions,
            reverse=self.reverses,
        )

    def forward(
        self,
        x: Tensor,
        elements: Tensor | None = None,
        gates: Tensor | None = None,
        *,
        out_elements: Tensor | None = None,
    ) -> GroupSignal:
        r"""Return the convolved signal and its elements.

        Args:
            x: (batch, in_channels, group, \*space) signal.
            elements: (group, coords) elements at which it is sampled; all of a finite group if not given.
            gates: (group,) weights of these elements in the sum; see :class:`GroupSignal`.
            out_elements: (n, coords) elements at which the output is wanted, instead of those of the distribution.
        """
        check_group_signal(x, elements, self.group, self.in_channels)
        chosen_gates = None
        whole = elements is None and out_elements is None
        if out_elements is not None:
            chosen = out_elements
        elif self.resample:
            chosen, chosen_gates = self.distribution(next(self.kernel.parameters()))
            whole = whole and self._whole()
        else:
            chosen = self.distribution.group.elements(x.dtype, x.device) if elements is None else elements
        if whole and gates is None and isinstance(self.group, Scale) and self.kernel.on_space:
            y = group_bank(self.kernel, self.group, x, self.boundary, len(chosen))
            return self._finish(y, chosen, chosen_gates)
        whole = whole and self.distribution.group.order == self.group.order
        kernel = self.kernel.reversed() if whole else self.kernel.reversed(chosen, elements)
        # A kernel that meets each element with itself alone sums over nothing.
        alone = self.kernel.interactions == 1
        measure = 1.0 if alone or self.reduction == "sum" else self.group.weight(x.shape[2])
        x = weighted(x, measure, gates)
        y = correlate(x.flatten(1, 2), folded(kernel), self.boundary)
        return self._finish(y, chosen, chosen_gates)


def folded(kernel: Tensor) -> Tensor:
    r"""Return the kernel (out, n_out, in, n_in, \*points) with its group axes among the channels."""
    out, n_out, into, n_in, *points = kernel.shape
    return kernel.reshape(out * n_out, into * n_in, *points)


def weighted(x: Tensor, measure: float, gates: Tensor | None) -> Tensor:
    r"""Return the signal (batch, in, group, \*space) times the measure of its elements.

    The signal rather than the kernel, which has as many numbers for each pair of elements.
    """
    if gates is not None:
        return x * (measure * gates.to(x.dtype)).view(-1, *[1] * (x.dim() - 3))
    return x if measure == 1.0 else x * measure


def check_group_signal(x: Tensor, elements: Tensor | None, group: Group, channels: int) -> None:
    """Check a signal on a group against its elements, the group and the channels a layer expects."""
    if isinstance(x, GroupSignal):
        raise TypeError("x must be a tensor, got a GroupSignal: call the layer with its parts, layer(*signal)")
    if x.dim() != group.dim + 3 or x.shape[1] != channels:
        raise ValueError(
            f"x must have shape (batch, {channels}, group, *space) with {group.dim} spatial axes, got {tuple(x.shape)}"
        )
    if elements is None:
        if group.order is None:
            raise ValueError(f"elements must be given for {group}, which cannot be listed, got None")
        if x.shape[2] != group.order:
            raise ValueError(
                f"x must have a group axis of {group.order} for {group} without elements, got {x.shape[2]}"
            )
    elif elements.dim() != 2 or elements.shape != (x.shape[2], group.coords):
        raise ValueError(
            f"elements must have shape ({x.shape[2]}, {group.coords}), one for each of x's group axis, "
            f"got {tuple(elements.shape)}"
        )
    else:
        check_elements(group, elements)
