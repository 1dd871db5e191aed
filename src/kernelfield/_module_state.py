"""What modules keep when they are moved, cast, saved and loaded.

:class:`ComputedBuffers` keeps buffers that follow from the arguments of a module, such as the elements of its group.
They are no part of its state. Loading a state does not restore them, so they keep their values where a module loses
those of its parameters: in :meth:`torch.nn.Module.to_empty`, which moves a module to another device before its weights
are loaded.

:func:`in_full_precision` keeps parts of a module in float32 when the module is cast to half precision.

:func:`keep_geometry` saves attributes with a state dict, such as the size of a kernel or the frequency scale of a
field, and warns when the weights of another size or group are loaded. The parameters of a field do not depend on the
size of its kernel: weights of ``size=64`` fit a layer of ``size=128``, where the same kernel is twice as long. Weights
on mirror images fit a layer on half turns, and those of one ``omega_0`` a SIREN of any other. These attributes are
stored in the metadata of a state dict, which :func:`torch.save` keeps and which adds no key. Formats without metadata,
such as safetensors, are not checked; runs and pretrained weights store the arguments of their networks instead.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ComputedBuffers", "in_full_precision", "keep_geometry", "keep_values"]

_HALF = (torch.bfloat16, torch.float16)
#: key of the metadata of a state dict under which the geometry is stored
_KEY = "kernelfield_geometry"


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


def in_full_precision(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Wrap a function for ``Module._apply`` so that it moves tensors but does not cast them to half precision.

    In half precision, neighbouring offsets of a long kernel round to the same number, and a frequency rounded to eight
    bits gives a phase that is off by radians at the kernel's end. Tensors already in half precision are passed to
    ``change`` as they are.

    Args:
        change: the function that ``Module._apply`` applies to parameters and buffers.

    >>> weight = torch.tensor([1.0009765625])
    >>> in_full_precision(lambda t: t.bfloat16())(weight) is weight
    True
    >>> in_full_precision(lambda t: t.double())(weight).dtype
    torch.float64
    """
    if change(torch.empty(0)).dtype not in _HALF:
        return change

    def changed(tensor: Tensor) -> Tensor:
        found = change(tensor)
        if found.dtype in _HALF and tensor.is_floating_point() and tensor.dtype not in _HALF:
            return tensor.to(found.device, torch.float32)
        return found

    return changed


def keep_geometry(layer: nn.Module, *names: str) -> None:
    """Write attributes of a layer to the metadata of its state dicts, and warn if loaded weights had other values.

    Args:
        layer: a layer with a kernel, or a field.
        names: attributes that change the function but not the shapes of its parameters.

    >>> import kernelfield as kf
    >>> short, long = kf.CKConv(1, 1, size=8), kf.CKConv(1, 1, size=16)
    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always")
    ...     _ = long.load_state_dict(short.state_dict())
    >>> str(seen[0].message).partition(", which")[0]
    'weights of size=(8,) were loaded into CKConv of size=(16,)'
    """
    layer._geometry = names  # type: ignore[assignment]  # noqa: SLF001
    layer.register_state_dict_post_hook(_write)
    layer.register_load_state_dict_pre_hook(_compare)


def _write(layer: nn.Module, _: dict[str, Any], __: str, metadata: dict[str, Any]) -> None:
    metadata[_KEY] = _geometry(layer)


def _compare(layer: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *_: Any) -> None:
    before, now = metadata.get(_KEY, {}), _geometry(layer)
    other = [name for name in now if name in before and before[name] != now[name]]
    if not other or not any(key.startswith(prefix) for key in state):
        return
    old, new = (", ".join(f"{name}={values[name]}" for name in other) for values in (before, now))
    warnings.warn(
        f"weights of {old} were loaded into {type(layer).__name__} of {new}, which is now a different function. "
        "Build the network with the arguments that it was trained with",
        stacklevel=2,
    )


def _geometry(layer: nn.Module) -> dict[str, Any]:
    values = {name: getattr(layer, name) for name in layer._geometry}  # type: ignore[union-attr]  # noqa: SLF001
    # Files without code hold plain values only, so a group is stored by the name of its convention.
    return {name: getattr(value, "kind", value) for name, value in values.items()}
