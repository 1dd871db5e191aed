"""Networks of group self-attention (chapter 9)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F

from .._arguments import checked
from .._kinds import RATE, Choice, Int, ListOf
from ..groups import Cyclic, Dihedral, Group, Mirror, Trivial
from ..layers.group import GroupPool, GroupSignal, LiftingSelfAttention, SelfAttentionBlock, SpatialPool
from ..layers.pointwise import Pointwise, make_norm
from ..ops.attention import METHODS
from .classifier import GroupNetwork
from .registry import register

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["GSANet"]

READOUTS = ("mean-max", "max-mean", "sum-max")


class GSANet(GroupNetwork):
    r"""A network of self-attention alone, equivariant to a group (chapter 9, figure 4 and section 6).

    It consists of lifting attention with norm and swish, stages of
    :class:`~kernelfield.layers.group.SelfAttentionBlock` with max-pooling between them, a linear map to the classes and
    a reduction over space and the group.

    Args:
        in_channels: channels of the input.
        out_channels: number of classes.
        group: a finite group; ``Trivial()`` gives the network that the chapter calls Z2.
        channels: number of channels of the lifting layer.
        widths: numbers of channels of the blocks in each stage.
        crops: number of positions that each block crops at each end of each axis; 0 if not given.
        pool_last: whether to pool after the last stage too.
        norm_after: whether each block ends with a norm and swish.
        heads: number of heads.
        neighborhood: number of positions along each axis that a query attends to, odd; None for all of them.
        size: length of the input along each axis, for a global neighbourhood only.
        dropout: probability to drop an attention weight, and a value after attention.
        dropout_in: probability to drop a value of the input.
        dropout_pool: probability to drop a value after each pooling.
        readout: reduction of the logits. "mean-max": mean over space, then maximum over the group. "max-mean": maximum
            over the group, then mean over space, as in the figure's caption. "sum-max": sum over space, then maximum
            over the group, as in the authors' code.
        chunk: number of pairs of sample and head that attention computes at once.
        method: how to compute attention; see ``kernelfield.ops.attention.group_attention``.

    >>> import torch
    >>> net = GSANet(1, 10, group=Cyclic(4), channels=4, widths=((4,), (6,)), heads=2, neighborhood=3)
    >>> net(torch.randn(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    last_name = "classify"
    classify: nn.Module

    @checked(
        widths=ListOf(ListOf(Int(1), least=0)),
        crops=ListOf(Int(0)) | None,
        neighborhood=Int(1, odd=True) | None,
        dropout=RATE,
        dropout_in=RATE,
        dropout_pool=RATE,
        readout=Choice(*READOUTS),
        method=Choice(*METHODS),
    )
    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 10,
        *,
        group: Group,
        channels: int = 20,
        widths: Sequence[Sequence[int]] = ((20, 20), (20, 20, 20)),
        crops: Sequence[int] | None = None,
        pool_last: bool = False,
        norm_after: bool = False,
        heads: int = 9,
        neighborhood: int | None = 5,
        size: int | None = None,
        dropout: float = 0.1,
        dropout_in: float = 0.0,
        dropout_pool: float = 0.0,
        readout: str = "mean-max",
        chunk: int | None = None,
        method: str = "auto",
    ) -> None:
        super().__init__()
        count = sum(map(len, widths))
        left = list(crops) if crops is not None else [0] * count
        if len(left) != count:
            raise ValueError(f"crops must have one entry for each of {count} blocks, got {len(left)}")
        attention: Callable[..., dict[str, Any]] = functools.partial(
            dict, group=group, heads=heads, neighborhood=neighborhood, dropout=dropout, chunk=chunk, method=method
        )
        length = size
        self.lift = LiftingSelfAttention(in_channels, channels, **attention(size=length))
        self.norm = make_norm("layer", channels)
        self.stages = nn.ModuleList()
        width = channels
        for stage in widths:
            blocks = nn.Sequential()
            for wide in stage:
                crop = left.pop(0)
                options = attention(size=length, value_dropout=dropout, crop=crop, norm_after=norm_after)
                blocks.append(SelfAttentionBlock(width, wide, **options))
                width = wide
                length = None if length is None else length - 2 * crop
            self.stages.append(blocks)
            length = None if length is None else -(-length // 2)
        self.pool = SpatialPool(2, dim=group.dim)
        self.pool_last = pool_last
        self.dropout_in, self.dropout_pool = nn.Dropout(dropout_in), nn.Dropout(dropout_pool)
        self._set_last(functools.partial(Pointwise, bias=False), width, out_channels)
        self.readout = readout
        self.space = GroupPool("mean" if readout == "mean-max" else "sum", "space")
        self.head = GroupPool("max", "group")

    def forward_features(self, x: Tensor) -> GroupSignal:
        """Return the features of the last stage, a signal on the group."""
        signal = self.lift(self.dropout_in(x)).map(lambda values: F.silu(self.norm(values)))
        for i, stage in enumerate(self.stages, start=1):
            signal = stage(signal)
            if i < len(self.stages) or self.pool_last:
                signal = self.dropout_pool(self.pool(signal))
        return signal

    def forward_head(self, features: Tensor | GroupSignal, *, pre_logits: bool = False) -> Tensor:
        """Return predictions from a signal on the group, or its invariant pooled features."""
        assert isinstance(features, GroupSignal)
        classify = nn.Identity() if pre_logits else self.classify
        if self.readout == "max-mean":
            return self.head(features.map(classify)).flatten(2).mean(dim=2)
        # The map to the classes is linear, and it is cheaper after the reduction over space than before it.
        return self.head(self.space(features).map(classify))


_ROTMNIST: dict[str, Any] = {"channels": 20, "widths": ((20, 20), (20, 20, 20)), "crops": (2, 0, 2, 1, 1)}
_CIFAR: dict[str, Any] = {
    "in_channels": 3,
    "channels": 96,
    "widths": ((96, 96), (192, 192), (192, 192)),
    "norm_after": True,
}
_CIFAR |= {"dropout_in": 0.2, "dropout_pool": 0.3}
_PCAM: dict[str, Any] = {
    "in_channels": 3,
    "out_channels": 2,
    "channels": 12,
    "widths": ((), (24,), (48, 48), (96,)),
    "crops": (0, 2, 1, 1),
    "norm_after": True,
}
_PCAM |= {"pool_last": True}
_GROUPS: dict[str, Group] = {"z2": Trivial(), "r4": Cyclic(4), "r8": Cyclic(8), "r12": Cyclic(12), "r16": Cyclic(16)}
_GROUPS |= {"m": Mirror(), "r4m": Dihedral(4)}
for _data, _summary, _arguments, _names in (
    ("rotmnist", "rotated MNIST", _ROTMNIST, ("z2", "r4", "r8", "r12", "r16")),
    ("cifar10", "CIFAR-10", _CIFAR, ("z2", "m")),
    ("pcam", "PCam", _PCAM, ("z2", "r4", "r8", "r4m")),
):
    register(
        f"gsanet_{_data}", GSANet, f"chapter 9: group self-attention for {_summary}", group=Cyclic(4), **_arguments
    )
    for _name in _names:
        _line = f"chapter 9: {_name.upper()} self-attention for {_summary}"
        register(f"gsanet_{_data}_{_name}", GSANet, _line, group=_GROUPS[_name], **_arguments)
