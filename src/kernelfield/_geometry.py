"""Attributes that travel with a state dict: a kernel is saved with its size, and a field with its frequency scale.

:func:`keep_geometry` warns when the weights of another size or group are loaded. The parameters of a field do not
depend on the size of its kernel: weights of ``size=64`` fit a layer of ``size=128``, where the same kernel is twice as
long. Weights on mirror images fit a layer on half turns, and those of one ``omega_0`` a SIREN of any other. These
attributes are stored in the metadata of a state dict, which :func:`torch.save` keeps and which adds no key. Formats
without metadata, such as safetensors, are not checked; runs and pretrained weights store the arguments of their
networks instead.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

__all__ = ["keep_geometry"]

_KEY = "kernelfield_geometry"


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
