"""A check of layers whose matrices have one row for each element of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .signal import GroupSignal

__all__ = ["check_complete"]


def check_complete(signal: GroupSignal) -> GroupSignal:
    """Return a signal that holds all elements of its group in order, without gates; raise if it does not.

    >>> import torch
    >>> from kernelfield.groups import Cyclic
    >>> from kernelfield.layers import GroupSignal
    >>> signal = GroupSignal(torch.randn(2, 3, 4, 8, 8), Cyclic(4).elements().flip(0), group=Cyclic(4))
    >>> check_complete(signal)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: x must hold all elements of Cyclic(4) in order and no gates, got GroupSignal((2, 3, 4, 8, 8), ...
    """
    if not signal.complete or signal.gates is not None:
        raise ValueError(f"x must hold all elements of {signal.group} in order and no gates, got {signal}")
    return signal
