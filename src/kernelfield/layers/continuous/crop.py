"""How much of a masked kernel need be sampled: known without asking the device.

A mask's size is a learned tensor, but the number of points to sample must be a Python int, and reading the one into the
other makes the host wait for the device. So it is read outside of ``forward``: after each step of any optimiser, all
masks of a device together, once. ``forward`` finds the number ready, and torch.compile finds a constant.

The number is rounded up to one of a few, so that a mask that grows or shrinks a little every step does not mean a new
shape, and perhaps a compilation, every step. It is never too small: what is cut is zero.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...masks import Mask

__all__ = ["Crop", "bucket"]

_crops: weakref.WeakSet[Crop] = weakref.WeakSet()


def bucket(n: int) -> int:
    """Return ``n`` rounded up to a number of at most three binary digits and zeros.

    >>> [bucket(n) for n in (1, 5, 8, 9, 13, 100)]
    [1, 5, 8, 10, 14, 112]
    """
    grain = 1 << max(0, n.bit_length() - 3)
    return math.ceil(n / grain) * grain


class Crop:
    """The reach of a mask, in training steps per axis, as Python ints.

    Args:
        mask: the mask.
        size: reach of the whole kernel in training steps.
    """

    def __init__(self, mask: Mask, size: tuple[int, ...]) -> None:
        self.mask, self.size = mask, size
        self.steps = size
        self._seen: Any = None
        _crops.add(self)
        refresh([self])

    def __deepcopy__(self, memo: dict[int, Any]) -> Crop:
        import copy  # noqa: PLC0415

        return Crop(copy.deepcopy(self.mask, memo), self.size)

    def __reduce__(self) -> tuple[Any, ...]:
        return Crop, (self.mask, self.size)

    @property
    def stale(self) -> bool:
        """Whether the mask's parameters were changed, or replaced, since they were last read."""
        return self._seen != self._state()

    def _state(self) -> list[tuple[int, int]]:
        return [(id(t), t._version) for t in (*self.mask.parameters(), *self.mask.buffers())]  # noqa: SLF001


@torch.no_grad()
def refresh(crops: Iterable[Crop]) -> None:
    """Read the masks of ``crops``, one wait for all of them on each device."""
    by_device: dict[Any, list[tuple[Crop, torch.Tensor]]] = {}
    for crop in crops:
        low, high = crop.mask.support()
        reach = torch.maximum(low.abs(), high.abs())
        by_device.setdefault(reach.device, []).append((crop, reach))
        crop._seen = crop._state()  # noqa: SLF001
    for entries in by_device.values():
        for (crop, _), reaches in zip(entries, _rows([r for _, r in entries]), strict=True):
            # A point at the very edge of the support belongs to it, whichever way its coordinate was rounded.
            crop.steps = tuple(_count(r * n * (1 + 1e-6), n) for r, n in zip(reaches, crop.size, strict=True))


def _count(reach: float, size: int) -> int:
    if not math.isfinite(reach):
        return size  # training has diverged; the loss will say so
    return min(size, bucket(math.floor(reach) + 1))


def _rows(tensors: list[torch.Tensor]) -> list[list[float]]:
    flat = iter(torch.cat([t.double() for t in tensors]).tolist())
    return [[next(flat) for _ in range(len(t))] for t in tensors]


def _after_optimiser_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    # Whether a mask was changed is not asked: fused optimisers change parameters without counting versions.
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    moved = [crop for crop in _crops if any(id(p) in stepped for p in crop.mask.parameters())]
    if moved:
        refresh(moved)


register_optimizer_step_post_hook(_after_optimiser_step)
