"""Invariance by a learned distribution over transformed inputs (chapter 11, section 5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from .._arguments import checked
from .._object_kinds import TensorOf
from ..groups import Distribution, learned, warp

if TYPE_CHECKING:
    from ..groups import Group

__all__ = ["Augerino"]


class Augerino(nn.Module):
    r"""Any network, averaged over inputs transformed by elements of a learned distribution.

    .. math:: y(x) = \frac1n \sum_{i=1}^n f(g_i\, x), \qquad g_i \sim p(g)

    The gradient reaches p(g) through the interpolation of the transformed inputs. A task's loss alone does not favour a
    wide p(g), so :meth:`regulariser` is added to it.

    Args:
        net: the network f.
        group: the group of transformations.
        samples: number of elements of a continuous group, mirrored ones included.

    >>> import torch
    >>> from kernelfield.groups import SO2
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    >>> Augerino(net, group=SO2(), samples=4)(torch.randn(2, 1, 8, 8)).shape
    torch.Size([2, 3])
    """

    @checked()
    def __init__(self, net: nn.Module, *, group: Group, samples: int | None = None) -> None:
        super().__init__()
        self.net, self.group = net, group
        self.distribution: Distribution = learned(group, samples)

    @checked(x=TensorOf("float", "batch, channels, *space", empty=False))
    def forward(self, x: Tensor) -> Tensor:
        """Return the average of the network's outputs over the drawn elements."""
        elements, gates = self.distribution(x)
        moved = warp(x, self.group.matrix(elements))
        y = self.net(moved.flatten(0, 1)).unflatten(0, moved.shape[:2])
        if gates is not None:
            y = y * gates.view(-1, *[1] * (y.dim() - 1))
        return y.mean(dim=0)

    def regulariser(self) -> Tensor:
        """Return minus the fraction of the group in the support, summed over its factors."""
        return -self.distribution.limits().sum()
