"""How much of what is masked need be computed: known without asking the device.

A mask's size is a learned tensor, but a number of points, channels or blocks must be a Python int, and reading the one
into the other makes the host wait for the device. So it is read outside of ``forward``: after each step of any
optimiser, all masks of a device together, once. ``forward`` finds the numbers ready, and torch.compile finds constants.

How far a kernel reaches is rounded up to one of a few numbers, so that a mask that grows or shrinks a little every step
does not mean a new shape, and perhaps a compilation, every step. It is never too small: what is cut is zero.

A step that is replayed as a CUDA graph must not wait for the device at all. :class:`LateReading` has the numbers copied
to the host behind the step, looks at them two steps later, and samples a little further than they say.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from ..._step_hooks import after_steps, held, is_held

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor, nn

    from ...masks import Mask

__all__ = ["Crop", "LateReading", "Reading", "bucket", "drop_crops", "held", "refresh"]


def bucket(n: int) -> int:
    """Return ``n`` rounded up to a number of at most three binary digits and zeros.

    >>> [bucket(n) for n in (1, 5, 8, 9, 13, 100)]
    [1, 5, 8, 10, 14, 112]
    """
    grain = 1 << max(0, n.bit_length() - 3)
    return math.ceil(n / grain) * grain


class Reading:
    """Python numbers that follow learned masks.

    A subclass gives :meth:`ask`, :meth:`take` and :attr:`shapes`, and calls :func:`refresh` once it can be read.

    Args:
        masks: what the numbers depend on.
    """

    def __init__(self, masks: Sequence[Mask]) -> None:
        self.masks = tuple(masks)
        self._seen: Any = None
        _limited.add(self)
        _readings.add(self)

    def ask(self) -> Tensor | None:
        """Return the (n,) numbers to be read, on the masks' device; None for none."""
        raise NotImplementedError

    def take(self, numbers: Sequence[float], slack: float = 0.0) -> None:
        """Take the numbers that :meth:`ask` asked for; with ``slack`` they are late, and a little more is kept."""
        raise NotImplementedError

    @property
    def shapes(self) -> Any:
        """What the shapes of tensors depend on, to be compared."""
        raise NotImplementedError

    def limit(self) -> None:
        """Bring masks that an optimiser has moved too far back to their limits; there are none by default."""

    @property
    def stale(self) -> bool:
        """Whether the masks' parameters were changed, or replaced, since they were last read."""
        return not is_held() and self._seen != self._state()

    def _state(self) -> list[tuple[int, int]]:
        return [
            (id(t), t._version)  # noqa: SLF001
            for mask in self.masks
            for t in (*mask.parameters(), *mask.buffers())
        ]


class Crop(Reading):
    """The reach of a mask, in training steps per axis, as Python ints.

    Args:
        mask: the mask.
        size: reach of the whole kernel in training steps.
    """

    def __init__(self, mask: Mask, size: tuple[int, ...]) -> None:
        super().__init__([mask])
        self.mask, self.size = mask, size
        self.steps = size
        self._late = (0,) * len(size)
        refresh([self])

    def __deepcopy__(self, memo: dict[int, Any]) -> Crop:
        import copy  # noqa: PLC0415

        return Crop(copy.deepcopy(self.mask, memo), self.size)

    def __reduce__(self) -> tuple[Any, ...]:
        return Crop, (self.mask, self.size)

    def ask(self) -> Tensor:
        """Return how far the mask reaches from the origin along each axis, (dim,), where the mask lies."""
        low, high = self.mask.support()
        return torch.maximum(low.abs(), high.abs())

    def take(self, numbers: Sequence[float], slack: float = 0.0) -> None:
        """Set the steps from the reach along each axis, as read, and ``slack`` more.

        With slack the steps stay what they were while they are enough and not twice too many: each change of them
        means another CUDA graph.
        """
        # A point at the very edge of the support belongs to it, whichever way its coordinate was rounded.
        need = tuple(_count((r + slack) * n * (1 + 1e-6), n) for r, n in zip(numbers, self.size, strict=True))
        if slack:
            grown = tuple(min(n, bucket(steps + steps // 4)) for steps, n in zip(need, self.size, strict=True))
            kept = zip(self._late, need, grown, strict=True)
            need = self._late = tuple(
                late if least <= late <= max(2 * least, most) else most for late, least, most in kept
            )
        self.steps = need

    @property
    def shapes(self) -> tuple[int, ...]:
        return self.steps


@torch.no_grad()
def refresh(readings: Iterable[Reading]) -> None:
    """Read the masks of ``readings``, one wait for all of them on each device."""
    by_device: dict[Any, list[tuple[Reading, Tensor]]] = {}
    for reading in readings:
        asked = reading.ask()
        if asked is not None:
            by_device.setdefault(asked.device, []).append((reading, asked))
        reading._seen = reading._state()  # noqa: SLF001
    for entries in by_device.values():
        flat = torch.cat([asked.double() for _, asked in entries]).tolist()
        _share_out([(reading, len(asked)) for reading, asked in entries], flat)


class LateReading:
    """The crops, and what else follows the masks, of a network, read without waiting for the device.

    After each step :meth:`measure` has the reach of every mask copied to the host, behind the step's own work. Before
    each step :meth:`take` sets the crops from the copy made two steps ago, which has long arrived. In two steps a mask
    may have grown, so kernels are sampled ``slack`` further than was read; what that adds is zero for a mask that has
    not.

    Args:
        network: whose readings to keep.
        slack: how much further to sample, in units of the layer's size.
        delay: how many steps late a reading is used.
    """

    def __init__(self, network: nn.Module, slack: float = 0.02, delay: int = 2) -> None:
        own = {id(p) for p in network.parameters()}
        found = [r for r in _readings if any(id(p) in own for mask in r.masks for p in mask.parameters())]
        asked = [(reading, reading.ask()) for reading in found]
        self.readings = [(reading, len(numbers)) for reading, numbers in asked if numbers is not None]
        self.slack, self.delay = slack, delay
        self._under_way: deque[tuple[Tensor, Any]] = deque()
        self.catch_up()

    @property
    def steps(self) -> tuple[Any, ...]:
        """What the shapes of tensors depend on."""
        return tuple(reading.shapes for reading, _ in self.readings)

    @torch.no_grad()
    def reach(self) -> Tensor | None:
        """Return the numbers of all masks as one tensor on their device; None if there are none."""
        asked = [reading.ask() for reading, _ in self.readings]
        # In float64 where one of them is; in float32 a reach is exact to a millionth.
        return torch.cat([a for a in asked if a is not None]) if asked else None

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
            _share_out(self.readings, host.tolist(), self.slack)

    def catch_up(self) -> None:
        """Read the masks as they are now, waiting for the device; forget what is under way."""
        self._under_way.clear()
        reach = self.reach()
        if reach is not None:
            _share_out(self.readings, reach.tolist(), self.slack)


def drop_crops(network: nn.Module) -> None:
    """Have all kernels of a network sampled whole from now on, whatever their masks."""
    for module in network.modules():
        if isinstance(getattr(module, "crop", None), Crop):
            module.crop = None  # type: ignore[assignment]


def _share_out(readings: Sequence[tuple[Reading, int]], flat: list[float], slack: float = 0.0) -> None:
    values = iter(flat)
    for reading, count in readings:
        reading.take([next(values) for _ in range(count)], slack)


def _count(reach: float, size: int) -> int:
    if not math.isfinite(reach):
        return size  # training has diverged; the loss will say so
    return min(size, bucket(math.floor(reach) + 1))


def _parameters(reading: Reading) -> list[nn.Parameter]:
    return [p for mask in reading.masks for p in mask.parameters()]


def _limit(readings: Iterable[Reading]) -> None:
    for reading in readings:
        reading.limit()


# Limits before any mask is read, and even where none may be: they ask nothing of the device.
_limited = after_steps(_parameters, _limit, even_held=True)
_readings = after_steps(_parameters, refresh)
