"""Buffers that follow from the arguments of a module, such as the elements of its group. They are no part of its state.

Loading a state does not restore them, so they keep their values where a module loses those of its parameters: in
:meth:`torch.nn.Module.to_empty`, which moves a module to another device before its weights are loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ComputedBuffers", "keep_values"]


class ComputedBuffers(nn.Module):
    """Base class of modules with computed buffers.

    >>> class Steps(ComputedBuffers):
    ...     def __init__(self) -> None:
    ...         super().__init__()
    ...         self.register_computed("steps", torch.arange(3))
    >>> Steps().to_empty(device="cpu").steps, Steps().state_dict()
    (tensor([0, 1, 2]), OrderedDict())
    """

    def register_computed(self, name: str, value: Tensor | None) -> None:
        """Register a buffer that is no part of the state."""
        if value is not None and value.is_meta:
            raise ValueError(
                f"{type(self).__name__} must be built on a device that holds data, got meta: "
                f"{name} follows from its arguments, and no weights restore it"
            )
        self.register_buffer(name, value, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ComputedBuffers:
        before = {name: self._buffers[name] for name in self._non_persistent_buffers_set}
        super()._apply(fn, recurse)
        for name, value in before.items():
            if self._buffers[name] is not value:
                keep_values(name, value, self._buffers[name])
        return self

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *args: Any) -> None:
        # Weights that are assigned to a module on the meta device leave its other tensors without values. Torch reads
        # those on a CPU as whatever lies in memory.
        if metadata.get("assign_to_params_buffers"):
            for name in self._non_persistent_buffers_set:
                _check_has_values(name, self._buffers[name])
        super()._load_from_state_dict(state, prefix, metadata, *args)


@torch.no_grad()
def keep_values(name: str, before: Tensor | None, after: Tensor | None) -> None:
    """Copy a computed buffer into what ``Module._apply`` made of it, which is empty after ``to_empty``."""
    if before is None or after is None or after is before or after.is_meta:
        return
    _check_has_values(name, before)
    after.copy_(before)


def _check_has_values(name: str, value: Tensor | None) -> None:
    if value is not None and value.is_meta:
        raise ValueError(f"{name} must be on a device that holds data, got meta: build the module again instead")
