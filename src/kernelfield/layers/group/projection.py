"""Convolutions from a group back to space (chapter 7, section 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._arguments import checked, with_arguments_of
from ..._checks import check_options
from ...fields import Field, Table
from .correlate import convolve, correlate
from .gconv import BaseGroupConv, KernelOptions, element_weight, weighted
from .kernel import GroupKernel
from .signal import SIGNAL, GroupSignal, as_signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ...groups import Group

__all__ = ["ProjectionConv"]


class ProjectionConv(BaseGroupConv):
    r"""A convolution from a group to space, which sums over the group: the last layer of DREN (chapter 7, section 4).

    .. math:: y_o(x) = \sum_i \sum_{\tilde h} \mu(\tilde h) \int
        \psi_{oi}\big(\tilde h^{-1}(x - \tilde x)\big)\, f_i(\tilde x, \tilde h)\, d\tilde x

    The layer convolves the values at each input element with the same kernel, transformed by that element. The kernel
    depends on space alone, so it has |H| times fewer weights than the kernel of a group convolution. The layer is
    equivariant.

    Args:
        in_channels: channels of the input, at every element.
        out_channels: channels of the output.
        group: a group that preserves lengths.
        field: builds the kernel's field from (dim, channels).
        kernel_size: points of the kernel along each axis of space; even numbers with ``boundary="valid"`` only.
        boundary: "zero", "periodic" or "valid".
        bias: whether to add a learned number to each output channel.

    >>> import torch
    >>> from kernelfield.groups import Cyclic
    >>> ProjectionConv(8, 5, group=Cyclic(4), kernel_size=3)(torch.randn(2, 8, 4, 9, 9)).shape
    torch.Size([2, 5, 9, 9])
    """

    @checked()
    @with_arguments_of(BaseGroupConv.__init__, without=("samples", "distribution"))
    def __init__(
        self, in_channels: int, out_channels: int, *, group: Group, field: Callable[..., Field] = Table, **options: Any
    ) -> None:
        check_options(self, options, KernelOptions.__annotations__)
        if not group.isometric:
            raise ValueError(f"group must preserve lengths for a convolution to space, got {group}")
        # The layer draws no elements, but its distribution needs a number of them.
        super().__init__(in_channels, out_channels, group=group, samples=None if group.finite else 1, **options)
        terms = in_channels * self.kernel_size**group.dim * (group.order or 1)
        sizes = {"kernel_size": self.kernel_size, "fan_in": terms}
        self.kernel = GroupKernel(group, field, out_channels, in_channels, on_group=False, flip=True, **sizes)

    @checked(x=SIGNAL)
    def forward(self, x: Tensor | GroupSignal) -> Tensor:
        r"""Convolve a signal of values (batch, in_channels, group, \*space): (batch, out_channels, \*space)."""
        signal = as_signal(x, self.group, self.in_channels)
        into = None if signal.complete else signal.elements
        kernel = self.kernel.flipped(into, into).squeeze(3).transpose(1, 2)
        return self.add_bias(correlate(self._weighted(signal).flatten(1, 2), kernel.flatten(1, 2), self.boundary))

    def responses(self, x: Tensor | GroupSignal) -> Tensor:
        r"""Return the terms of the sum over the group, without the bias: (batch, out_channels, group, \*space)."""
        signal = as_signal(x, self.group, self.in_channels)
        into = None if signal.complete else signal.elements
        kernel = self.kernel(into, into).squeeze(3).transpose(0, 1)
        values = self._weighted(signal).transpose(1, 2)
        y = convolve(values.flatten(1, 2), kernel.flatten(0, 1), self.boundary, groups=values.shape[1])
        return y.unflatten(1, (values.shape[1], -1)).transpose(1, 2)

    def add_bias(self, y: Tensor) -> Tensor:
        r"""Add the bias to (batch, out_channels, \*space) sums."""
        return y if self.bias is None else y + self.bias.to(y.dtype).view(-1, *[1] * (y.dim() - 2))

    def _weighted(self, signal: GroupSignal) -> Tensor:
        measure = 1.0 if self.group.finite else element_weight(self.group, signal)
        return weighted(signal.values, measure, signal.gates)
