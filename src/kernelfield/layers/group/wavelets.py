"""Lifting convolutions as wavelet transforms (chapter 10, sections 5.2.3 and 5.3)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..._arguments import checked
from .gconv import BaseGroupConv, LiftingConv

if TYPE_CHECKING:
    from .kernel import GroupKernel

__all__ = ["WaveletTransform", "wavelet_loss"]


class WaveletTransform(nn.Module):
    r"""The wavelet transform whose wavelets are the kernels of a lifting convolution (chapter 10, Eq. 16).

    .. math:: W[f](t, s) = \int f(\tau)\, \tfrac{1}{\sqrt s}\, \psi^*\big(\tfrac{\tau - t}{s}\big)\, d\tau
              = \sqrt{s}\; (f *_\uparrow \psi)(t, s)

    The lifting convolution divides by s and the wavelet transform by √s, hence the factor √s. A convolution's kernel is
    the reflected wavelet, :math:`\psi^*(-t)`, which for a :class:`~kernelfield.fields.Morlet` is the wavelet itself.
    The channel pairs of a field in quadrature become complex coefficients. The transform subtracts the bias.

    Args:
        lift: lifting convolution on dilations of the line; the transform shares its weights.
        normalize: whether to divide by the norm of the kernel at dilation 1, so that every wavelet has unit energy.

    >>> from kernelfield.fields import Morlet
    >>> from kernelfield.groups import Scale
    >>> lift = LiftingConv(1, 2, group=Scale(5), field=Morlet, kernel_size=65)
    >>> WaveletTransform(lift)(torch.randn(1, 1, 500)).dtype
    torch.complex64
    """

    @checked()
    def __init__(self, lift: LiftingConv, *, normalize: bool = True) -> None:
        super().__init__()
        if lift.group.convolution != "filter_bank" or not lift.group.finite or lift.group.dim != 1:
            raise ValueError(
                f"lift must be a LiftingConv on a finite window of dilations of the line, got {lift.group}"
            )
        if not lift.distribution.complete:
            raise ValueError(f"lift must compute all dilations of {lift.group}, got {lift.distribution}")
        self.lift = lift
        self.normalize = normalize
        self.quadrature = lift.kernel.field.quadrature and lift.out_channels % 2 == 0 and lift.in_channels == 1

    def scales(self) -> Tensor:
        """Return the dilations: (scales,)."""
        like = self._like()
        return self.lift.group.matrix(self.lift.group.elements(like.dtype, like.device))[:, 0, 0]

    def forward(self, x: Tensor) -> Tensor:
        """Return the coefficients of (batch, in, time): (batch, out, scales, time).

        For a field in quadrature they are complex, and pairs of channels become one: (batch, out / 2, scales, time).
        """
        signal = self.lift(x)
        values = signal.values
        if self.lift.bias is not None:
            values = values - self.lift.bias.to(values.dtype).view(-1, 1, 1)
        s = self.lift.group.matrix(signal.elements)[:, 0, 0]
        values = values * s.sqrt().to(values.dtype).view(-1, 1)
        if self.normalize:
            values = values / self._norm().to(values.dtype).view(-1, 1, 1)
        if not self.quadrature:
            return values
        # torch has no complex dtype with the range of bfloat16.
        values = values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
        return torch.complex(values[:, ::2], values[:, 1::2])

    def scalogram(self, x: Tensor) -> Tensor:
        """Return the squared absolute value of the coefficients, in their shape."""
        return self(x).abs().square()

    def _norm(self) -> Tensor:
        """Return the norm of each output's wavelet, (out,); both channels of a pair have the same."""
        one = self._like()[:1].reshape(1, 1) * 0
        energy = self.lift.kernel.render(one, one, 1.0).square().flatten(1).sum(dim=1)
        if self.quadrature:
            energy = energy.view(-1, 2).sum(dim=1).repeat_interleave(2)
        return energy.sqrt()

    def _like(self) -> Tensor:
        return next(self.lift.kernel.parameters()).flatten()


@checked()
def wavelet_loss(model: nn.Module, *, per_scale: bool = False) -> Tensor:
    r"""Return the squared mean of kernels on dilations, which is zero for wavelets (chapter 10, Eq. 15).

    .. math:: \sum_d \frac{1}{C_o C_i} \sum_{o, i} \Big(\sum_{\varsigma} \int \psi_{d, oi}(t, \varsigma)\, dt\Big)^2

    The integral, a sum over samples, takes the place of the mean, because it does not shrink with the size of the
    kernel. Layers whose kernel has one point and layers that are not on dilations are skipped.

    Args:
        model: any module.
        per_scale: whether to penalise each relative dilation separately instead of their sum.

    >>> from kernelfield.groups import Scale
    >>> from kernelfield.fields import BSpline
    >>> lift = LiftingConv(1, 4, group=Scale(3), field=BSpline, kernel_size=9)
    >>> bool(wavelet_loss(lift) > 0)
    True
    """
    terms = []
    for layer in penalised_wavelets(model):
        first, *rest = map(_integral, layer.kernel_factors())  # out, in, dilations
        total = functools.reduce(torch.mul, rest, first)
        total = total if per_scale else total.sum(dim=-1, keepdim=True)
        terms.append(total.square().sum(dim=-1).mean())
    return torch.stack(terms).sum() if terms else torch.zeros(())


def penalised_wavelets(model: nn.Module) -> list[BaseGroupConv]:
    """Return the layers that :func:`wavelet_loss` counts: those on dilations whose kernel has two or more points."""
    on_group = [m for m in model.modules() if isinstance(m, BaseGroupConv)]
    return [m for m in on_group if m.group.convolution == "filter_bank" and m.kernel_size > 1]


def _integral(kernel: GroupKernel) -> Tensor:
    """Return the integral over space of the kernel at dilation 1, for each relative dilation: (out, in, dilations)."""
    parameter = next(kernel.parameters())
    here = parameter.new_zeros(1, 1)
    n = kernel.group.window
    span = range(kernel.interactions) if kernel.interactions is not None else range(1 - n, n)
    span = span if kernel.on_group else range(1)
    there = torch.arange(span.start, span.stop, dtype=parameter.dtype, device=parameter.device)[:, None]
    return kernel.render(here, there, 1.0).flatten(3).sum(dim=-1)
