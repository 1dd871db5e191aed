"""Dropout of whole channels of signals on a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F

from ..._arguments import checked
from ..._kinds import PROBABILITY
from .signal import ValueLayer

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GroupDropout"]


class GroupDropout(ValueLayer):
    r"""Dropout of whole channels, at all elements and positions together.

    ``nn.Dropout`` drops single values instead. This layer takes a :class:`GroupSignal` or a tensor,
    (batch, channels, group, \*space), and returns the same type.

    Args:
        p: probability to drop a channel.

    >>> import torch
    >>> y = GroupDropout(0.5)(torch.ones(2, 8, 4, 5, 5))
    >>> sorted(set(y.amax(dim=(2, 3, 4)).flatten().tolist())) == sorted(set(y.amin(dim=(2, 3, 4)).flatten().tolist()))
    True
    """

    @checked(p=PROBABILITY)
    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def transform(self, x: Tensor) -> Tensor:
        return F.dropout1d(x.flatten(2), self.p, self.training).view_as(x)

    def extra_repr(self) -> str:
        return f"p={self.p}"
