"""Whether parameters have changed since the host last read them.

Version counters count changes in place, but not those through ``.data``: averages of weights that are written by hand,
``vector_to_parameters``. Nor do they tell two tensors apart that take turns as one parameter, as in
:func:`torch.func.functional_call`. On the CPU the values themselves are compared; the parameters in question are a few
numbers each. On a GPU that would make the host wait, so the memory address takes the place of the values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["State", "differs", "has_values", "is_vmapped", "state_of"]

#: identity, version and content of each tensor
State: TypeAlias = "list[tuple[int, int, Any]]"

#: values of larger tensors are not compared
_MOST = 4096
_PLAIN = (Tensor, nn.Parameter)


class _Address(int):
    """The memory address of a tensor whose values are not compared."""


def state_of(tensors: Iterable[Tensor]) -> State:
    """Return the state of tensors, to compare with a later one by :func:`differs`."""
    # This runs for every mask at every forward pass. A NaN is not equal to itself, so a mask with a NaN is read again.
    plain = not (torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack())  # noqa: SLF001
    return [
        (
            id(t),
            -1 if t.is_inference() else t._version,  # noqa: SLF001
            t.tolist() if plain and t.is_cpu and type(t) in _PLAIN and t.numel() <= _MOST else _content(t),
        )
        for t in tensors
    ]


def differs(before: State | None, now: State) -> bool:
    """Return whether a tensor was replaced or changed between two states; true if there is no earlier one.

    >>> x = torch.zeros(2)
    >>> before = state_of([x])
    >>> _ = x.data.fill_(1.0)
    >>> differs(before, state_of([x]))
    True
    """
    if before == now:
        return False
    if before is None or len(before) != len(now):
        return True
    # The content is None where it cannot be read, such as under a mode of torch's dispatcher.
    return any(a[:2] != b[:2] or (a[2] != b[2] and None not in (a[2], b[2])) for a, b in zip(before, now, strict=True))


def has_values(state: State) -> bool:
    """Return whether a state holds the values of all its tensors: then no change of them can go unnoticed.

    >>> has_values(state_of([torch.zeros(2)])), has_values(state_of([torch.zeros(10_000)]))
    (True, False)
    """
    return all(content is not None and type(content) is not _Address for *_, content in state)


def _content(tensor: Tensor) -> Any:
    """Return the values of a tensor on the CPU, or the address of another one; None if neither can be known."""
    plain = _unwrapped(tensor)
    if type(plain) not in _PLAIN or torch._C._len_torch_dispatch_stack():  # noqa: SLF001
        return None
    if plain.device.type != "cpu":
        return _Address(plain.data_ptr())
    return plain.tolist() if plain.numel() <= _MOST else _Address(plain.data_ptr())


def is_vmapped(tensors: Iterable[Tensor]) -> bool:
    """Return whether one of the tensors has a value for each sample of :func:`torch.vmap`.

    >>> torch.vmap(lambda x: x * is_vmapped([x]))(torch.ones(2))
    tensor([1., 1.])
    """
    return torch._C._are_functorch_transforms_active() and any(_unwrapped(t) is None for t in tensors)  # noqa: SLF001


def _unwrapped(tensor: Tensor) -> Any:
    """Return the tensor behind the wrappers of torch.func; None if :func:`torch.vmap` has batched it."""
    if not torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return tensor
    functorch = torch._C._functorch  # noqa: SLF001
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return None
        tensor = functorch.get_unwrapped(tensor)
    return tensor
