"""Lifting and group convolutions (chapter 8, section 2; chapter 11, sections 2 and 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from ..._arguments import checked, with_arguments_of
from ..._checks import check_options
from ..._hooks import has_own_hooks
from ..._kinds import Choice
from ..._object_kinds import TensorOf
from ...fields import Field, Table
from ...groups import Distribution, Group, Uniform
from .correlate import BOUNDARIES, check_even, convolve, correlate
from .kernel import GroupKernel
from .scale import SCALE_BOUNDARIES, group_bank, lift_bank, out_group
from .signal import SIGNAL, GroupSignal, as_signal, made_signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Required, Unpack

    from .wavelets import WaveletTransform

__all__ = ["GroupConv", "LiftingConv"]


class KernelOptions(TypedDict, total=False):
    """Options of every convolution with a kernel on a group, described in :class:`LiftingConv`."""

    kernel_size: int
    boundary: str
    bias: bool


class GroupOptions(KernelOptions, total=False):
    """Options of every convolution to a group, described in :class:`LiftingConv`."""

    group: Required[Group]
    samples: int | None
    distribution: Distribution | None


class BaseGroupConv(nn.Module):
    """Base class of convolutions to a group: common arguments, output elements and bias."""

    #: whether the elements of the output may be a shorter window of the group than the input's
    shortens: ClassVar[bool] = False
    kernel: GroupKernel

    @checked(boundary=Choice(*BOUNDARIES))
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        group: Group,
        kernel_size: int = 3,
        samples: int | None = None,
        boundary: str = "zero",
        bias: bool = True,
        distribution: Distribution | None = None,
    ) -> None:
        super().__init__()
        self.group, self.in_channels, self.out_channels = group, in_channels, out_channels
        self.kernel_size, self.boundary = kernel_size, boundary
        check_even(kernel_size, boundary)
        self.distribution = Uniform(group, samples) if distribution is None else distribution
        self._check_distribution(samples)
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def kernel_factors(self) -> tuple[GroupKernel, ...]:
        """Return the kernels whose product is the kernel of the convolution."""
        return (self.kernel,)

    def _check_distribution(self, samples: int | None) -> None:
        """Raise if the distribution is over another group, or has another number of elements than ``samples``."""
        over, group = self.distribution.group, self.group
        shorter = self.shortens and group.ordered and None not in (over.order, group.order)
        fits = (over.order or 0) <= (group.order or 0) if shorter else over.order == group.order
        if over.kind != group.kind or not fits:
            raise ValueError(f"distribution must be over {group}, the group of the layer, got one over {over}")
        number = over.order if over.finite else getattr(self.distribution, "samples", self.distribution.size())
        if samples is not None and number not in (None, samples):
            raise ValueError(
                f"samples must be None or that of distribution, which has {number} elements, got {samples}"
            )

    def _draw(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the output elements for a batch and their gates; None for all elements of a finite group."""
        if self.distribution.complete:
            return None, None
        like: Tensor = next(self.parameters())
        if like.dtype in (torch.bfloat16, torch.float16):
            like = like.detach().float()  # in half precision neighbouring angles would round to one number
        if self.distribution.per_sample and self.distribution.random:
            return self.distribution.draw_each(like, x.shape[0]), None
        return self.distribution(like)

    def _output(self, y: Tensor, elements: Tensor | None, gates: Tensor | None, group: Group) -> GroupSignal:
        """Return the signal of (batch, out·n, *space) or (batch, out, n, *space) values, with the bias."""
        if y.dim() == group.dim + 2:  # the elements are among the channels
            y = y.unflatten(1, (self.out_channels, -1))
        if self.bias is not None:
            y = y + self.bias.to(y.dtype).view(-1, 1, *[1] * group.dim)
        gated = gates is not None and self.distribution.gated
        return made_signal(y, elements, gates, group, gated, is_checked=True)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, group={self.group}, kernel_size={self.kernel_size}, "
            f"boundary={self.boundary!r}"
        )


class LiftingConv(BaseGroupConv):
    r"""A convolution from space to a group (chapter 8, section 2; chapter 11, Eq. 3).

    .. math:: y_o(x, h) = |\det h|^{-1} \sum_i \int \psi_{oi}\big(h^{-1}(x - \tilde x)\big)\, f_i(\tilde x)\, d\tilde x

    The kernel is sampled once for all elements, and one convolution computes them all, as output channels. On a group
    that is convolved by a filter bank, such as :class:`~kernelfield.groups.Scale`, the kernel of each element has its
    own length, and :func:`kernelfield.ops.conv_bank` convolves with them. This is Eq. 12 of chapter 10, with 1/s as the
    Haar measure.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output, at every element.
        group: the group.
        field: builds the kernel's field from (dim, channels).
        kernel_size: points of the kernel along each axis of space; even numbers with ``boundary="valid"`` only.
        samples: number of elements of a continuous group, drawn at every forward pass of training.
        boundary: "zero", "periodic", or "valid", which keeps the outputs whose window lies within the input.
        bias: whether to add a learned number to each output channel.
        distribution: distribution of the output elements; by default uniform over the group.

    >>> from kernelfield.groups import Cyclic
    >>> lift = LiftingConv(3, 8, group=Cyclic(4), kernel_size=3)
    >>> signal = lift(torch.randn(2, 3, 9, 9))
    >>> signal.values.shape, signal.elements.shape
    (torch.Size([2, 8, 4, 9, 9]), torch.Size([4, 1]))
    """

    @checked()
    @with_arguments_of(BaseGroupConv.__init__)
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        field: Callable[..., Field] = Table,
        **options: Unpack[GroupOptions],
    ) -> None:
        check_options(self, options, GroupOptions.__annotations__)
        super().__init__(in_channels, out_channels, **options)
        shape = out_channels, in_channels
        self.kernel = GroupKernel(self.group, field, *shape, kernel_size=self.kernel_size, on_group=False, flip=True)

    @checked(x=TensorOf("float", "batch, .in_channels, *space", empty=False))
    def forward(self, x: Tensor) -> GroupSignal:
        r"""Lift (batch, in_channels, \*space) to a signal of values (batch, out_channels, group, \*space)."""
        self._check_axes(x)
        elements, gates = self._draw(x)
        if elements is not None and elements.dim() == 3:
            y = convolve_each(self.kernel, x, elements, elements, self.boundary)
        elif elements is None and self.group.convolution == "filter_bank" and not has_own_hooks(self.kernel):
            y = lift_bank(self.kernel, x, self.boundary)
        else:
            y = correlate(x, folded(self.kernel.flipped(elements, elements)), self.boundary)
        return self._output(y, elements, gates, self.group)

    def _check_axes(self, x: Tensor) -> None:
        if x.dim() != self.group.dim + 2 or x.shape[1] != self.in_channels:
            raise ValueError(
                f"x must have shape (batch, {self.in_channels}, *space) with {self.group.dim} spatial axes, "
                f"got {tuple(x.shape)}"
            )

    def as_wavelet_transform(self, *, normalize: bool = True) -> WaveletTransform:
        r"""Return the wavelet transform with this layer's kernels as wavelets (chapter 10, section 5.3, Eq. 16).

        .. math:: W[f](t, s) = \int f(\tau)\, \tfrac{1}{\sqrt s}\, \psi^*\big(\tfrac{\tau - t}{s}\big)\, d\tau
                  = \sqrt{s}\; (f *_\uparrow \psi)(t, s)

        Args:
            normalize: whether to divide by the norm of the kernel, so that every wavelet has unit energy.

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
    r"""A convolution from a group to itself (chapter 8, Eq. 8; chapter 11, Eq. 2 and 4).

    .. math::
        y_o(x, h) = \sum_i \sum_{\tilde h} \mu(\tilde h) \int |\det h|^{-1}\,
            \psi_{oi}\big(h^{-1}(x - \tilde x),\, h^{-1} \tilde h\big)\, f_i(\tilde x, \tilde h)\, d\tilde x

    Over a finite group this is the exact sum, with :math:`\mu = 1`. Over a continuous group it is the Monte-Carlo
    estimate of the integral with total measure 1, so :math:`\mu = 1/n`. Training draws the output elements at every
    forward pass, so the layer is equivariant in expectation.

    The kernel is sampled once for all pairs of elements, and one convolution has both group axes folded into channels.

    On dilations, :class:`~kernelfield.groups.Scale`, this is Eq. 11 of chapter 10 on its exponential grid of scales.
    The kernel of each output dilation has its own length and reads ``interactions`` input dilations, the same and
    coarser ones.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        group: the group.
        field: builds the kernel's field from (dim, channels) with dim = ``group.chart_size + group.dim``, or
            ``group.chart_size`` for kernel_size 1.
        kernel_size: points of the kernel along each axis of space; even numbers with ``boundary="valid"`` only.
        samples: number of output elements of a continuous group.
        resample: whether to draw output elements; otherwise they are the input's, or those given to :meth:`forward`.
        boundary: "zero", "periodic" or "valid".
        bias: whether to add a learned number to each output channel.
        distribution: distribution of the output elements; by default uniform over the group.
        reduction: for a continuous group, "mean" over the input's elements, which corresponds to total measure 1, or
            "sum", which does not divide by their number.
        interactions: for an ordered group such as dilations, the number of neighbouring elements that a kernel spans,
            beginning with the output's own; all by default.
        scale_boundary: treatment of the end of an ordered group. "zero" pads with zeros beyond the last element.
            "valid" leaves out the last ``interactions`` - 1 output elements, which would read beyond it.

    >>> from kernelfield.groups import Cyclic, SO2
    >>> from kernelfield.fields import SIREN
    >>> conv = GroupConv(8, 5, group=Cyclic(4), kernel_size=3)
    >>> conv(torch.randn(2, 8, 4, 9, 9)).values.shape
    torch.Size([2, 5, 4, 9, 9])
    >>> lift = LiftingConv(1, 4, group=SO2(), field=SIREN, kernel_size=5, samples=6)
    >>> conv = GroupConv(4, 3, group=SO2(), field=SIREN, kernel_size=5, samples=8)
    >>> conv(lift(torch.randn(2, 1, 9, 9))).values.shape
    torch.Size([2, 3, 8, 9, 9])
    """

    shortens = True

    @checked(scale_boundary=Choice(*SCALE_BOUNDARIES), reduction=Choice("mean", "sum"))
    @with_arguments_of(BaseGroupConv.__init__)
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        group: Group,
        field: Callable[..., Field] = Table,
        samples: int | None = None,
        resample: bool = True,
        distribution: Distribution | None = None,
        interactions: int | None = None,
        scale_boundary: str = "zero",
        reduction: str = "mean",
        **options: Unpack[KernelOptions],
    ) -> None:
        check_options(self, options, KernelOptions.__annotations__)
        # A layer that does not draw elements ignores the samples, but its distribution needs a number.
        drawn = samples if resample or group.finite else 1
        outputs = out_group(group, interactions, scale_boundary)
        distribution = Uniform(outputs, drawn) if distribution is None else distribution
        super().__init__(in_channels, out_channels, group=group, samples=drawn, distribution=distribution, **options)
        self.resample, self.reduction = resample, reduction
        if interactions == 1 and resample and not group.finite:
            raise ValueError("interactions must be at least 2 if elements are drawn, since no two are equal, got 1")
        summed = samples if reduction == "sum" and samples else 1
        terms = in_channels * self.kernel_size**group.dim * (interactions or group.order or summed)
        sizes = {"kernel_size": self.kernel_size, "on_space": self.kernel_size > 1, "fan_in": terms}
        self.kernel = GroupKernel(
            group, field, out_channels, in_channels, interactions=interactions, flip=True, **sizes
        )

    @checked(x=SIGNAL, out_elements=TensorOf("float", "…, n, coords") | None)
    def forward(self, x: Tensor | GroupSignal, *, out_elements: Tensor | None = None) -> GroupSignal:
        r"""Convolve a signal on the group.

        Args:
            x: signal of values (batch, in_channels, group, \*space); or these values, at all elements of the group.
            out_elements: (n, coords) elements at which to compute the output, instead of those of the distribution; or
                (batch, n, coords), those of each sample.
        """
        signal = as_signal(x, self.group, self.in_channels, per_sample=True)
        into = None if signal.complete else signal.elements
        group = self.distribution.group
        if out_elements is not None and (out_elements.dim() > 3 or out_elements.shape[-1] != group.coords):
            raise ValueError(
                f"out_elements must have shape (n, {group.coords}) or (batch, n, {group.coords}) for {group}, "
                f"got {tuple(out_elements.shape)}"
            )
        out, gates = into if out_elements is None else out_elements, None
        if out_elements is None and self.resample:
            out, gates = self._draw(signal.values)
        complete = into is None and out is None and not has_own_hooks(self.kernel)  # a bank samples no whole kernel
        if complete and self.group.convolution == "filter_bank" and self.kernel.on_space and signal.gates is None:
            y = group_bank(self.kernel, signal.values, self.boundary, group.order or 1)
            return self._output(y, None, None, group)
        values = weighted(signal.values, self._measure(signal), signal.gates)
        if (out is not None and out.dim() == 3) or (into is not None and into.dim() == 3):
            y = convolve_each(self.kernel, values.flatten(1, 2), out, into, self.boundary)
            return self._output(y, out, gates, group)
        kernel = self._sample(out, into, group)
        y = correlate(values.flatten(1, 2), folded(kernel), self.boundary)
        return self._output(y, out, gates, group)

    def _sample(self, out: Tensor | None, into: Tensor | None, group: Group) -> Tensor:
        """Return the kernel from elements ``into`` to elements ``out`` of ``group``, None for all."""
        if out is None and group is not self.group and group.order != self.group.order:
            parameter = next(self.kernel.parameters())  # fewer outputs than inputs
            out = group.elements(parameter.dtype, parameter.device)
            kernel = self.kernel.flipped(out, into)
            # Without the margins that the left out dilations need: a filter bank keeps more outputs if "valid".
            longest = self.kernel.points(group.stretch())
            for axis in range(4, kernel.dim()):
                kernel = kernel.narrow(axis, (kernel.shape[axis] - longest) // 2, longest)
            return kernel
        return self.kernel.flipped(out, into)

    def _measure(self, signal: GroupSignal) -> float | Tensor:
        """Return the measure of one input element; 1 for a kernel that spans one element and so needs no sum."""
        if self.group.order is not None or self.reduction == "sum" or self.kernel.interactions == 1:
            return 1.0
        return element_weight(self.group, signal)


def convolve_each(kernel: GroupKernel, x: Tensor, out: Tensor | None, into: Tensor | None, boundary: str) -> Tensor:
    r"""Convolve each sample with the kernel at its own elements, in one convolution grouped by sample.

    Args:
        kernel: the kernel; it is sampled once for every sample of the batch.
        x: (batch, in · n, \*space) values.
        out: (batch, n_out, coords) output elements, or (n_out, coords) for all samples.
        into: (batch, n, coords) input elements, or (n, coords) for all samples, or None for all of a finite group.
        boundary: "zero", "periodic" or "valid".
    """

    def of(elements: Tensor | None, sample: int) -> Tensor | None:
        return elements[sample] if elements is not None and elements.dim() == 3 else elements

    kernels = [folded(kernel(of(out, i), of(into, i))) for i in range(len(x))]
    y = convolve(x.flatten(0, 1)[None], torch.cat(kernels), boundary, groups=len(x))
    return y[0].unflatten(0, (len(x), -1))


def folded(kernel: Tensor) -> Tensor:
    r"""Fold the group axes of a kernel (out, n_out, in, n_in, \*points) into its channels."""
    out, n_out, into, n_in, *points = kernel.shape
    return kernel.reshape(out * n_out, into * n_in, *points)


def element_weight(group: Group, signal: GroupSignal) -> float | Tensor:
    """Return the Haar measure of each element that is present in a signal."""
    n = signal.shape[2]
    weight = group.weight(n)
    return weight if group.finite or not signal.gated else weight * n / signal.count()


def weighted(x: Tensor, measure: float | Tensor, gates: Tensor | None) -> Tensor:
    r"""Multiply values (batch, in, group, \*space) by the measure and the gates of their elements.

    Weighting the values is cheaper than weighting the kernel, which has entries for every pair of elements.
    """
    if gates is not None:
        return x * (measure * gates.to(x.dtype)).view(-1, *[1] * (x.dim() - 3))
    return x if measure == 1.0 else x * measure
