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
        gates: (group,) numbers that weight the elements wherever the group axis is summed over or reduced, or None.
            They are 1, and carry the gradient to the distribution that chose the elements.
    """

    values: Tensor
    elements: Tensor
    gates: Tensor | None = None
