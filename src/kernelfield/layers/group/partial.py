"""Group convolutions whose output lives on a learned subset of the group (chapter 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._arguments import checked, with_arguments_of
from ..._checks import check_options
from ..._kinds import Choice
from ...fields import SIREN, Field
from ...groups import learned
from .gconv import GroupConv, KernelOptions
from .scale import SCALE_BOUNDARIES, out_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...groups import Group

__all__ = ["PartialGroupConv"]


class PartialGroupConv(GroupConv):
    r"""A group convolution whose output elements come from a learned distribution p(u) (chapter 11, Eq. 6).

    .. math::
        y(u) = \int_{S^{(1)}} p(u)\, \psi(u^{-1} v)\, f(v)\, d\mu(v), \qquad u \in S^{(2)} = \mathrm{supp}\, p

    For continuous factors of the group, p(u) is uniform on a learned interval of the Lie algebra. For discrete factors
    it keeps each element with a learned probability; see :func:`kernelfield.groups.learned`. At first it covers the
    whole group, and the layer equals a :class:`GroupConv`. If it shrinks to the identity, the layer is an ordinary
    convolution. Only elements of the support are computed, so the cost is proportional to the support.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        group: the group.
        samples: largest number of output elements of a continuous group, including reflected ones.
        field: builds the kernel's field from (dim, channels).
        kernel_size: points of the kernel along each axis of space; even numbers with ``boundary="valid"`` only.
        boundary: "zero", "periodic" or "valid".
        bias: whether to add a learned number to each output channel.
        interactions: number of neighbouring elements that a kernel spans; see :class:`GroupConv`.
        scale_boundary: treatment of the end of an ordered group, "zero" or "valid"; see :class:`GroupConv`.
        reduction: "mean" or "sum" over the input's elements; see :class:`GroupConv`.

    >>> import torch
    >>> from kernelfield.groups import SO2
    >>> from kernelfield.layers import GroupSignal
    >>> conv = PartialGroupConv(4, 6, group=SO2(), samples=8, kernel_size=5)
    >>> signal = GroupSignal(torch.randn(2, 4, 3, 9, 9), SO2().sample(3, stratified=True), group=SO2())
    >>> conv(signal).shape
    torch.Size([2, 6, 8, 9, 9])
    >>> with torch.no_grad():
    ...     _ = conv.distribution.width.fill_(0.25)
    >>> conv.eval()(signal).shape
    torch.Size([2, 6, 2, 9, 9])
    """

    @checked(scale_boundary=Choice(*SCALE_BOUNDARIES))
    @with_arguments_of(GroupConv.__init__, without=("resample", "distribution"))
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        group: Group,
        samples: int | None = None,
        field: Callable[..., Field] = SIREN,
        interactions: int | None = None,
        scale_boundary: str = "zero",
        **options: Any,
    ) -> None:
        check_options(self, options, ("reduction", *KernelOptions.__annotations__))
        super().__init__(
            *(in_channels, out_channels),
            group=group,
            samples=None if group.finite else samples,
            field=field,
            distribution=learned(out_group(group, interactions, scale_boundary), samples),
            interactions=interactions,
            scale_boundary=scale_boundary,
            **options,
        )
