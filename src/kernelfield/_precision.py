"""Parts of modules that stay in float32 when their module is cast to half precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["in_full_precision"]

_HALF = (torch.bfloat16, torch.float16)


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
