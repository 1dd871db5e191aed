"""How much of a masked kernel need be sampled: known without asking the device.

A mask's size is a learned tensor, but the number of points to sample must be a Python int, and reading the one into the
other makes the host wait for the device. So it is read outside of ``forward``: after each step of any optimiser, all
masks of a device together, once. ``forward`` finds the number ready, and torch.compile finds a constant.

The number is rounded up to one of a few, so that a mask that grows or shrinks a little every step does not mean a new
shape, and perhaps a compilation, every step. It is never too small: what is cut is zero.

A step that is replayed as a CUDA graph must not wait for the device at all. :class:`LateReading` has the reach copied
to the host behind the step, looks at it two steps later, and samples a little further than it says.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from ..._steps import after_steps, held, is_held

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from ...masks import Mask

__all__ = ["Crop", "LateReading", "bucket", "drop_crops", "held", "refresh"]


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
        return not is_held() and self._seen != self._state()

    def reach(self) -> Tensor:
        """Return how far the mask reaches from the origin along each axis, (dim,), where the mask lies."""
        low, high = self.mask.support()
        return torch.maximum(low.abs(), high.abs())

    def take(self, reaches: Iterable[float], slack: float = 0.0) -> None:
        """Set the steps from the reach along each axis, as read, and ``slack`` more."""
        # A point at the very edge of the support belongs to it, whichever way its coordinate was rounded.
        self.steps = tuple(_count((r + slack) * n * (1 + 1e-6), n) for r, n in zip(reaches, self.size, strict=True))

    def _state(self) -> list[tuple[int, int]]:
        return [(id(t), t._version) for t in (*self.mask.parameters(), *self.mask.buffers())]  # noqa: SLF001


@torch.no_grad()
def refresh(crops: Iterable[Crop]) -> None:
    """Read the masks of ``crops``, one wait for all of them on each device."""
    by_device: dict[Any, list[tuple[Crop, Tensor]]] = {}
    for crop in crops:
        reach = crop.reach()
        by_device.setdefault(reach.device, []).append((crop, reach))
        crop._seen = crop._state()  # noqa: SLF001
    for entries in by_device.values():
        flat = torch.cat([reach.double() for _, reach in entries]).tolist()
        _share_out([crop for crop, _ in entries], flat)


class LateReading:
    """The crops of a network, read without waiting for the device.

    After each step :meth:`measure` has the reach of every mask copied to the host, behind the step's own work. Before
    each step :meth:`take` sets the crops from the copy made two steps ago, which has long arrived. In two steps a mask
    may have grown, so kernels are sampled ``slack`` further than was read; what that adds is zero for a mask that has
    not.

    Args:
        network: whose crops to keep.
        slack: how much further to sample, in units of the layer's size.
        delay: how many steps late a reading is used.
    """

    def __init__(self, network: nn.Module, slack: float = 0.02, delay: int = 2) -> None:
        own = {id(p) for p in network.parameters()}
        self.crops = [crop for crop in _crops if any(id(p) in own for p in crop.mask.parameters())]
        self.slack, self.delay = slack, delay
        self._under_way: deque[tuple[Tensor, Any]] = deque()
        self.catch_up()

    @property
    def steps(self) -> tuple[tuple[int, ...], ...]:
        """What the shapes of kernels depend on."""
        return tuple(crop.steps for crop in self.crops)

    @torch.no_grad()
    def reach(self) -> Tensor | None:
        """Return the reach of all masks as one tensor on their device; None if there are none."""
        return torch.cat([crop.reach() for crop in self.crops]) if self.crops else None

    def measure(self, reach: Tensor | None) -> None:
        """Have ``reach``, as the method of that name returned it, copied to the host."""
        if reach is None:
            return
        if reach.device.type != "cuda":
            self._under_way.append((reach.clone(), None))
            return
        host = torch.empty(reach.shape, dtype=reach.dtype, pin_memory=True)
        host.copy_(reach, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._under_way.append((host, arrived))

    def take(self) -> None:
        """Set the crops from the reading of ``delay`` steps ago, if there is one."""
        while len(self._under_way) >= self.delay:
            host, arrived = self._under_way.popleft()
            if arrived is not None:
                arrived.synchronize()
            _share_out(self.crops, host.tolist(), self.slack)

    def catch_up(self) -> None:
        """Read the masks as they are now, waiting for the device; forget what is under way."""
        self._under_way.clear()
        reach = self.reach()
        if reach is not None:
            _share_out(self.crops, reach.tolist(), self.slack)


def drop_crops(network: nn.Module) -> None:
    """Have all kernels of a network sampled whole from now on, whatever their masks."""
    for module in network.modules():
        if isinstance(getattr(module, "crop", None), Crop):
            module.crop = None  # type: ignore[assignment]


def _share_out(crops: list[Crop], flat: list[float], slack: float = 0.0) -> None:
    values = iter(flat)
    for crop in crops:
        crop.take([next(values) for _ in crop.size], slack)


def _count(reach: float, size: int) -> int:
    if not math.isfinite(reach):
        return size  # training has diverged; the loss will say so
    return min(size, bucket(math.floor(reach) + 1))


_crops = after_steps(lambda crop: crop.mask.parameters(), refresh)
