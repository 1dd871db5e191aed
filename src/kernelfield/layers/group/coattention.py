"""Attention over the elements of a group at every position (chapter 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..._arguments import checked
from ..._kinds import Choice
from ..._module_state import ComputedBuffers, keep_geometry
from ...fields import Table
from .correlate import convolve
from .gconv import GroupConv
from .kernel import GroupKernel
from .neighborhood import check_complete
from .projection import ProjectionConv
from .signal import SIGNAL, GroupSignal, as_signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...groups import Group
    from .gconv import LiftingConv

__all__ = ["CoAttentive", "CyclicSelfAttention"]

FORMS = ("group", "blocks", "free")
PER = ("channel", "filter")


class CyclicSelfAttention(ComputedBuffers):
    r"""Attention between the responses of one channel at one position (chapter 7, Eq. 6 to 9).

    .. math:: y = \frac{\tilde a}{\max \tilde a} \odot x, \qquad \tilde a = \mathrm{softmax}(x A / n), \qquad
        A_{gh} = a(h^{-1} g)

    for the n = |H| responses x of a channel. A commutes with the action of the group on them: for a cyclic group it is
    circulant. It has n learned numbers for each channel. They are initialised like the weights of the layer whose
    responses they weight, except a(e) = 1, so A starts close to the identity (chapter 7, section 4).

    Args:
        channels: number of channels.
        group: a finite group.
        form: "group" for the matrix above. "blocks" for the circulant blocks [[B, C], [C, B]] of chapter 7, Eq. 11, on
            a group of rotations and the mirror; they commute with the mirror but not with rotations. "free" for n² free
            numbers. The last two serve for comparison and are not equivariant, except "blocks" on a cyclic group, where
            there is a single circulant block.
        fan_in: number of terms that a response sums over, which sets the scale of the initial numbers; by default
            channels · n, as in a layer with as many input channels and one point in space.

    >>> from kernelfield.groups import Cyclic
    >>> attention = CyclicSelfAttention(3, group=Cyclic(4))
    >>> attention(torch.randn(2, 3, 4, 8, 8)).shape
    torch.Size([2, 3, 4, 8, 8])
    >>> attention.matrix().shape
    torch.Size([3, 4, 4])
    """

    @checked(form=Choice(*FORMS))
    def __init__(self, channels: int, *, group: Group, form: str = "group", fan_in: int | None = None) -> None:
        super().__init__()
        if group.order is None:
            raise ValueError(f"group must be finite for attention over its elements, got {group}")
        self.group, self.channels, self.form = group, channels, form
        n = group.order
        terms = channels * n if fan_in is None else fan_in
        if form == "group":
            self.kernel: GroupKernel | None = GroupKernel(
                group, Table, channels, 1, kernel_size=1, on_space=False, fan_in=terms
            )
            self.weight: nn.Parameter | None = None
        else:
            self.kernel = None
            self.weight = nn.Parameter(torch.randn(channels, n * n if form == "free" else n) / terms**0.5)
            keep_geometry(self, "group")
            self.register_computed("index", _entries(n, form, _mirrored(group)))
        self._set_diagonal()

    def matrix(self) -> Tensor:
        """Return A of every channel: (channels, n, n), with responses as rows and their weights as columns."""
        if self.kernel is not None:
            return self.kernel().flatten(1).unflatten(1, (self.group.order or 1, -1)).mT
        assert self.weight is not None
        return self.weight[:, self.get_buffer("index")]

    def weights(self, x: Tensor) -> Tensor:
        """Return the weights of (batch, channels, n, *space) responses; the largest at each position is 1."""
        flat = x.flatten(3) if x.dim() > 3 else x.unsqueeze(3)
        scores = torch.matmul(self.matrix().mT.to(flat.dtype), flat) / x.shape[2]
        # A softmax divided by its maximum equals exp(score - largest score).
        return (scores - scores.amax(dim=2, keepdim=True)).exp().view(x.shape).to(x.dtype)

    @checked(x=SIGNAL)
    def forward(self, x: Tensor | GroupSignal) -> GroupSignal:
        r"""Weight the responses of a signal of values (batch, channels, group, \*space) at all elements."""
        signal = check_complete(as_signal(x, self.group, self.channels))
        return signal.map(lambda values: self.weights(values) * values)

    @torch.no_grad()
    def _set_diagonal(self) -> None:
        """Set the diagonal of the matrix to one."""
        if self.kernel is None:
            assert self.weight is not None
            self.weight[:, self.get_buffer("index").diagonal()] = 1.0
            return
        table = self.kernel.field
        assert isinstance(table, Table)
        node = 0  # the row of the table at which the identity lies
        for at, n in zip(self.group.chart(self.group.identity()).tolist(), self.group.table_size or (), strict=True):
            node = node * n + round((at + 1) * (n - 1) / 2)
        table.coefficients[node] = 1.0

    def extra_repr(self) -> str:
        return f"{self.channels}, group={self.group}, form={self.form!r}"


class CoAttentive(ComputedBuffers):
    r"""A convolution followed by attention between its responses (chapter 7, section 3).

    A group convolution has one filter for each relative element s = h⁻¹h̃, and sums their responses

    .. math:: z_{os}(x, h) = \sum_i \int \psi_{oi}\big(h^{-1}(x - \tilde x), s\big)\, f_i(\tilde x, hs)\, d\tilde x

    over s. With ``per="channel"`` attention acts on the sums, with |H| learned numbers for each channel. With
    ``per="filter"`` it acts on each :math:`z_{os}` before the sum, with |H|² numbers for each channel; the published
    parameter counts of a-DREN, a-r-NIN and a-r-ResNet-20 are of this kind. Both are equivariant. A lifting convolution
    has one filter for each channel, so both are the same. Responses of a :class:`ProjectionConv` are weighted before it
    sums over the group.

    Args:
        conv: a lifting, group or projection convolution on all elements of a finite group.
        form: form of the attention matrix; see :class:`CyclicSelfAttention`.
        per: whether each "channel" or each "filter" has its own attention matrix.

    >>> from kernelfield.groups import Cyclic
    >>> from kernelfield.layers import GroupConv, LiftingConv
    >>> CoAttentive(LiftingConv(1, 4, group=Cyclic(4)))(torch.randn(2, 1, 8, 8)).shape
    torch.Size([2, 4, 4, 8, 8])
    >>> layer = CoAttentive(GroupConv(4, 3, group=Cyclic(4)), per="filter")
    >>> layer.attention.matrix().shape  # 3 channels of 4 filters
    torch.Size([12, 4, 4])
    """

    @checked(form=Choice(*FORMS), per=Choice(*PER))
    def __init__(
        self, conv: LiftingConv | GroupConv | ProjectionConv, form: str = "group", per: str = "channel"
    ) -> None:
        super().__init__()
        self.conv, self.per = conv, per
        self.before_sum = isinstance(conv, ProjectionConv) or (isinstance(conv, GroupConv) and per == "filter")
        n = conv.group.order or 1
        filters = n if self.before_sum and isinstance(conv, GroupConv) else 1
        terms = conv.kernel.fan_in // n if self.before_sum else conv.kernel.fan_in
        self.attention = CyclicSelfAttention(conv.out_channels * filters, group=conv.group, form=form, fan_in=terms)
        if self.before_sum and isinstance(conv, GroupConv):
            h = conv.group.elements(torch.float64)
            steps = conv.group.distance(conv.group.product(h[:, None], h[None])[..., None, :], h).argmin(dim=-1)
            self.register_computed("steps", steps)

    @checked(x=SIGNAL)
    def forward(self, x: Tensor | GroupSignal) -> GroupSignal | Tensor:
        r"""Convolve a signal that the convolution takes; return a signal, or a tensor from a projection."""
        conv = self.conv
        if not self.before_sum:
            return self.attention(conv(x))
        if isinstance(conv, ProjectionConv):
            signal = check_complete(as_signal(x, conv.group, conv.in_channels))
            return conv.add_bias(self.attention(conv.responses(signal)).values.sum(dim=2))
        assert isinstance(conv, GroupConv)
        z = self.attention(
            self._filter_responses(check_complete(as_signal(x, conv.group, conv.in_channels)), conv)
        ).values
        y = z.unflatten(1, (conv.out_channels, -1)).sum(dim=2)
        return GroupSignal(
            y if conv.bias is None else y + conv.bias.to(y.dtype).view(-1, *[1] * (y.dim() - 2)), group=conv.group
        )

    def _filter_responses(self, signal: GroupSignal, conv: GroupConv) -> Tensor:
        """Return the responses of every filter, (batch, out · filters, group, *space)."""
        kernel = conv.kernel().movedim(3, 0)  # input element first
        n, out, _, into, *points = kernel.shape
        values = signal.values.transpose(1, 2).flatten(1, 2)
        y = convolve(values, kernel.reshape(n * out * n, into, *points), conv.boundary, groups=n)
        y = y.unflatten(1, (n, out, n))
        # Response (h̃, h) is that of filter s = h⁻¹h̃: read it at h̃ = hs.
        steps = self.get_buffer("steps")
        rows = torch.arange(n, device=y.device)[:, None]
        return y.movedim((1, 3), (0, 1))[steps, rows].movedim((0, 1), (3, 2)).flatten(1, 2)


def _mirrored(group: Group) -> bool:
    return (
        any(factor.coords == 1 and factor.identity_coords == (1.0,) for factor in group.factors)
        and (group.order or 0) > 2
    )


def _entries(n: int, form: str, mirrored: bool) -> Tensor:
    """Return the index of the learned number at each entry of the matrix."""
    if form == "free":
        return torch.arange(n * n).view(n, n)
    size = n // 2 if mirrored else n
    step: Sequence[int] = range(size)
    circulant = torch.tensor([[(i - j) % size for j in step] for i in step])
    if not mirrored:
        return circulant
    other = circulant + size
    blocks = torch.cat([torch.cat([circulant, other], dim=1), torch.cat([other, circulant], dim=1)])
    # The chapter rotates first and then mirrors; elements of the group here mirror first and then rotate.
    order = torch.tensor([*step, *(size + (-i) % size for i in step)])
    return blocks[order][:, order]
