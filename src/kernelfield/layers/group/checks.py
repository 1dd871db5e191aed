"""Checks of the arguments of a signal on a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._arguments import checked
from ..._object_kinds import TensorOf

if TYPE_CHECKING:
    from ...groups import Group

__all__ = ["check_elements", "check_signal"]


# A separate function, because torch.compile cannot trace a decorated constructor of a class that is not a module.
@checked(
    values=TensorOf("float", "batch, channels, group, …"),
    elements=TensorOf("float", "…, group, coords") | None,
    gates=TensorOf("float", "group") | None,
)
def check_signal(values: Tensor, elements: Tensor | None, gates: Tensor | None, group: Group, gated: bool) -> None:
    """Check the arguments of a :class:`GroupSignal`."""


@torch.no_grad()
def check_elements(elements: Tensor, group: Group) -> None:
    """Raise if elements on the host lie between those of a finite group, such as angles in place of indices.

    >>> from kernelfield.groups import Cyclic
    >>> check_elements(torch.tensor([[0.0], [1.5]]), Cyclic(4))
    Traceback (most recent call last):
    ValueError: elements must be elements of Cyclic(4), such as [2.0], got [1.5]
    """
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()  # noqa: SLF001
    if transformed or type(elements) is not Tensor or not elements.is_cpu:  # reading others would wait for a device
        return
    if all(factor.order is None for factor in group.factors):
        return
    try:
        nearest = group.exp(group.log(elements))  # rounds discrete coordinates
    except NotImplementedError:  # layers need neither for a group of one's own
        return
    wrong = group.distance(elements, nearest) > 1e-4  # not after a training that has diverged, whose angles are NaN
    if bool(wrong.any()):
        first, found = nearest[wrong][0].tolist(), elements[wrong][0].tolist()
        raise ValueError(f"elements must be elements of {group}, such as {first}, got {found}")
