"""Hooks of modules whose weights are read without calling them.

Fast paths read the weights of a kernel's field and never call its parts. A hook must be called all the same. Pruning
and the older weight and spectral norms of torch compute the weight in a hook before each call, so without that call
they would use the weight of an earlier step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["has_hooks", "weight_of", "with_hooks_of"]

_FORWARD_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def has_hooks(*modules: nn.Module | None) -> bool:
    """Return whether one of the modules, or a part of one, has hooks, so that it must be called itself.

    >>> module = torch.nn.Sequential(torch.nn.Identity())
    >>> handle = module[0].register_forward_hook(print)
    >>> has_hooks(module)
    True
    """
    waiting = list(modules)  # a loop instead of a recursion: this runs for every layer at every forward pass
    while waiting:
        module = waiting.pop()
        if module is not None:
            forward = module._forward_hooks or module._forward_pre_hooks  # noqa: SLF001
            if forward or module._backward_hooks or module._backward_pre_hooks:  # noqa: SLF001
                return True
            waiting += module._modules.values()  # noqa: SLF001
    return False


def weight_of(linear: nn.Module) -> Tensor:
    """Return the weight of a linear map without a bias, (out, in); a map with hooks is called.

    >>> weight_of(torch.nn.Linear(2, 3, bias=False)).shape
    torch.Size([3, 2])
    """
    weight: Any = linear.weight
    if not has_hooks(linear):
        return weight
    return linear(torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)).mT


def with_hooks_of(module: nn.Module, replacement: nn.Module) -> nn.Module:
    """Return ``replacement`` with the forward hooks of the module whose place it takes.

    >>> module = torch.nn.Identity()
    >>> handle = module.register_forward_hook(lambda module, inputs, output: 2 * output)
    >>> with_hooks_of(module, torch.nn.ReLU())(torch.tensor(3.0))
    tensor(6.)
    """
    for name in _FORWARD_HOOKS:
        getattr(replacement, name).update(getattr(module, name))
    return replacement
