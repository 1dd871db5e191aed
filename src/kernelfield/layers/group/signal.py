"""A signal on a group, and the elements at which it was sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ...groups import Group

__all__ = ["GroupSignal", "check_elements", "elements_of"]


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


def elements_of(group: Group, elements: Tensor) -> Tensor:
    """Note on elements whose they are, for :func:`check_elements`; a compiled program has no such notes."""
    if not torch.compiler.is_compiling():
        elements._group_kind = group.kind  # type: ignore[attr-defined]  # noqa: SLF001
    return elements


def check_elements(group: Group, elements: Tensor) -> None:
    """Refuse elements that are known to be another group's: their numbers mean something else.

    >>> from kernelfield.groups import SO2, Cyclic
    >>> check_elements(SO2(), elements_of(Cyclic(8), Cyclic(8).elements()))
    Traceback (most recent call last):
    ValueError: elements must be those of SO2(), got those of Cyclic(8): a signal stays on its group
    """
    if torch.compiler.is_compiling():
        return
    kind = getattr(elements, "_group_kind", None)
    if kind not in (None, group.kind):
        raise ValueError(f"elements must be those of {group}, got those of {kind}: a signal stays on its group")
