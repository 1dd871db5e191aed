"""Checks for finite coordinates. Those of padding may be NaN or infinite; those of points and queries may not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..._hooks import is_vmapped
from ..graph_cache import capturing

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["check_finite", "check_seen_finite", "fill_padding", "may_read"]


def may_read(coords: Tensor, *, wait: bool = False) -> bool:
    """Return whether the host can read values without waiting for a device, outside of traced graphs and modes.

    Under a TorchDispatchMode, such as FakeTensorMode, tensors may have no values; under :func:`torch.vmap` they have
    several.

    Args:
        coords: the tensor to read.
        wait: whether the host may wait for a GPU, unless it captures a CUDA graph.
    """
    if torch.compiler.is_compiling():
        return False
    if coords.device.type != "cpu" and not (wait and coords.is_cuda and not capturing()):
        return False
    return torch._C._len_torch_dispatch_stack() == 0 and not is_vmapped([coords])  # noqa: SLF001


def check_finite(**coords: Tensor | None) -> None:
    """Raise a ValueError if coordinates, given by argument name, are not finite.

    Nothing is checked if the host cannot read values; see :func:`may_read`.

    >>> check_finite(coords=torch.tensor([0.0, torch.nan]), at=None)
    Traceback (most recent call last):
    ValueError: coords must be finite, got NaN or infinity at 1 of 2 entries
    """
    for name, given in coords.items():
        if given is None or not may_read(given):
            continue
        finite = given.isfinite()
        if not bool(finite.all()):
            wrong = int((~finite).sum())
            raise ValueError(f"{name} must be finite, got NaN or infinity at {wrong} of {finite.numel()} entries")


def check_seen_finite(mask: Tensor | None, **coords: Tensor) -> None:
    """Raise a ValueError if coordinates that are not padding are not finite; see :func:`check_finite`.

    Args:
        mask: (batch, points), True for points, False for padding, or None.
        coords: (batch or 1, points, dim) coordinates, by argument name.

    >>> check_seen_finite(torch.tensor([[True, False]]), coords=torch.tensor([[[3.0], [torch.nan]]]))
    """
    check_finite(**{name: fill_padding(given, mask) for name, given in coords.items() if may_read(given)})


def fill_padding(coords: Tensor, mask: Tensor | None) -> Tensor:
    """Replace coordinates of padding that are not finite by those of a corner of the cloud.

    Finite coordinates do not change, because outputs at unseen samples are outputs at their own coordinates.

    Args:
        coords: (batch or 1, points, dim) coordinates.
        mask: (batch, points), True for points, False for padding, or None.

    >>> fill_padding(torch.tensor([[[3.0], [torch.nan]]]), torch.tensor([[True, False]])).flatten()
    tensor([3., 3.])
    """
    if mask is None or coords.shape[1] == 0:
        return coords
    # If samples share coordinates, a point that any of them has seen is not padding.
    seen = (mask if coords.shape[0] == mask.shape[0] else mask.any(dim=0, keepdim=True)).unsqueeze(-1)
    with torch.no_grad():
        low = torch.where(seen, coords, torch.inf).amin(dim=1, keepdim=True)
        low = torch.where(low.isfinite(), low, 0.0)
    return torch.where(seen | coords.isfinite(), coords, low)
