"""Group convolutions whose kernel is a product of a part over the group and a part over space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._arguments import checked, with_arguments_of
from ..._checks import check_options
from ..._kinds import Choice
from ...fields import Field, Table
from .correlate import convolve
from .gconv import BaseGroupConv, GroupOptions, element_weight, folded, weighted
from .kernel import GroupKernel
from .signal import SIGNAL, GroupSignal, as_signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from typing_extensions import Unpack

__all__ = ["SeparableGroupConv"]


class SeparableGroupConv(BaseGroupConv):
    r"""A group convolution with a kernel factored into H and space.

    .. math::
        \psi_{oi}(x, h) = a_{oi}(h)\, k_o(x) \quad \text{("pointwise")}, \qquad
        \psi_{oi}(x, h) = \delta_{oi}\, a_o(h)\, k_o(x) \quad \text{("depthwise")}

    The first factor mixes elements, and also channels if "pointwise". The second convolves in space, each channel by
    itself. For C channels, :math:`K^d` kernel points and n input and output elements, a pointwise layer needs
    :math:`n_{out} n_{in} C^2 + n_{out} C K^d` products per position instead of :math:`n_{out} n_{in} C^2 K^d`.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output; equal to ``in_channels`` for ``form="depthwise"``.
        group: the group.
        field: builds the fields of both parts from (dim, channels).
        form: "pointwise" mixes channels, "depthwise" does not.
        options: kernel_size, samples, boundary, bias and distribution, as in :class:`LiftingConv`.

    >>> import torch
    >>> from kernelfield.groups import Dihedral
    >>> conv = SeparableGroupConv(6, 10, group=Dihedral(4), kernel_size=5)
    >>> conv(torch.randn(2, 6, 8, 9, 9)).values.shape
    torch.Size([2, 10, 8, 9, 9])
    """

    @checked(form=Choice("pointwise", "depthwise"))
    @with_arguments_of(BaseGroupConv.__init__)
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        field: Callable[..., Field] = Table,
        form: str = "pointwise",
        **options: Unpack[GroupOptions],
    ) -> None:
        check_options(self, options, GroupOptions.__annotations__)
        super().__init__(in_channels, out_channels, **options)
        self.form, group = form, self.group
        if form == "depthwise" and in_channels != out_channels:
            raise ValueError(
                f"out_channels must equal in_channels={in_channels} for form='depthwise', got {out_channels}"
            )
        mixed = in_channels if form == "pointwise" else 1
        terms = mixed * (group.order or 1)
        self.mix = GroupKernel(group, field, out_channels, mixed, kernel_size=1, on_space=False, fan_in=terms)
        self.space = GroupKernel(group, field, out_channels, 1, kernel_size=self.kernel_size, on_group=False)

    def kernel_factors(self) -> tuple[GroupKernel, ...]:
        return self.mix, self.space

    @checked(x=SIGNAL)
    def forward(self, x: Tensor | GroupSignal) -> GroupSignal:
        r"""Convolve a signal on the group; see :class:`GroupConv`."""
        signal = as_signal(x, self.group, self.in_channels)
        into = None if signal.complete else signal.elements
        if self.distribution.per_sample:
            raise ValueError("per_sample must be False for a separable convolution, got a distribution with True")
        out, gates = self._draw(signal.values)
        values = weighted(signal.values, element_weight(self.group, signal), signal.gates)
        groups = 1 if self.form == "pointwise" else self.in_channels
        y = convolve(values.flatten(1, 2), folded(self.mix(out, into)), "zero", groups)
        y = convolve(y, folded(self.space(out, out)), self.boundary, y.shape[1])
        return self._output(y, out, gates, self.group)
