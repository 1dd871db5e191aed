"""A signal on a group, and the elements at which it was sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GroupSignal"]


class GroupSignal(NamedTuple):
    r"""What layers on a group give and take: ``y = conv(*lift(x))``.

    Args:
        values: (batch, channels, group, \*space) values.
        elements: (group, coords) elements of the group axis, in order.
    """

    values: Tensor
    elements: Tensor
