"""Learned sizes of masks as Python numbers, available without waiting for the device.

A mask's size is a learned tensor, but a number of points, channels or blocks must be a Python int. A
:class:`LearnedSize` keeps that int. A hook reads the masks after each optimiser step, with one wait for all masks of a
device (:mod:`kernelfield._hooks`). ``forward`` then finds the int ready, and torch.compile sees a constant. If a
mask changes in another way, the next ``forward`` notices and reads it. It misses two kinds of changes: those between
calls of a compiled program and, on a GPU, those through ``.data``. Masks are therefore also read when the mode is
switched, unless the host knows that their values are the same. Masks that show a change are read after each step of any
optimiser.

Compiled steps use few sizes, with room for masks to grow. If no eager code has used the sizes since the last step on a
GPU, the hook does not wait: it uses a copy of two steps ago.

Compiled code cannot read a mask that :func:`torch.func.functional_call` puts in the place of the layer's own. It sees
that the tensors are others (:meth:`LearnedSize.fits`) and must then use sizes that suit every mask.

A step that is replayed as a CUDA graph must not wait at all. :class:`DelayedSizes` queues a copy of the sizes to the
host behind the step's own work and uses it two steps later, with a margin because masks may have grown since.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..._hooks import State, differs, has_values, is_vmapped, on_optimizer_step, state_of, step_hooks_paused

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from ...masks import Mask

__all__ = ["DelayedSizes", "LearnedSize", "read_sizes"]


#: additional reach, in units of a layer's size, by which a mask may have grown since its numbers were copied
SLACK = 0.02

_is_leaf = attrgetter("is_leaf")


class LearnedSize:
    """Python numbers that follow learned masks.

    A subclass defines :meth:`measure`, :meth:`update` and :attr:`shapes`, and calls :meth:`read` at the end of its
    ``__init__``. Copies and pickles must build a new object, which then follows its own masks.

    Args:
        masks: the masks that the numbers depend on.

    >>> from kernelfield.masks import GaussianMask
    >>> class Reach(LearnedSize):
    ...     def __init__(self, mask):
    ...         super().__init__([mask])
    ...         self.read()
    ...     def measure(self):
    ...         return self.masks[0].reach_numbers()
    ...     def update(self, numbers, slack=0.0):
    ...         self.reach = self.masks[0].reach_from(numbers)[0]
    >>> round(Reach(GaussianMask(1, sigma=0.1)).reach, 3)
    0.215
    """

    def __init__(self, masks: Sequence[Mask]) -> None:
        self.masks = tuple(masks)
        #: state of the masks when they were last read
        self._read_at: State | None = None
        #: the tensors that were read; None if they may depend on others, whose graph would be kept with them
        self._read: list[Tensor] | None = None
        #: whether the masks were moved or cast since then, which replaces buffers but no parameters
        self.converted = False
        #: share of the full size that compiled code needs in training, and the largest one of all sizes read together;
        #: 0 if the masks do not matter to them
        self.share = self.common_share = 0.0
        #: whether an optimiser has moved the masks in this process
        self.is_trained = False
        #: whether eager code has used the sizes since the last step of an optimiser
        self.is_used = False
        #: whether an optimiser has moved the masks since they were read, and only the share follows them
        self.is_late = False
        #: copies of the numbers of sizes that only compiled code uses, in the first of those sizes
        self._late: HostCopies | None = None
        #: whether the sizes belong to this state and the state holds values, so that an equal state needs no new read
        self._is_exact = False
        if type(self).clamp_ is not LearnedSize.clamp_:
            _clamped.add(self)
        _sizes.add(self)

    def measure(self) -> Sequence[Tensor]:
        """Return the numbers to read, as 1-D tensors on the masks' device; the list may be empty."""
        raise NotImplementedError

    def update(self, numbers: Sequence[float], slack: float = 0.0) -> None:
        """Set the sizes from the values of :meth:`measure`; ``slack`` is above 0 if the values are a few steps old."""
        raise NotImplementedError

    def update_share(self, numbers: Sequence[float], slack: float) -> None:
        """Set the share of compiled code from values of :meth:`measure` that are a few steps old, and no other size."""

    def warn_if_cut(self, numbers: Sequence[float], compiled: bool) -> None:
        """Warn once if values of :meth:`measure`, a few steps old, show that the sizes in use were too small for them.

        Args:
            numbers: the values.
            compiled: whether compiled code used the sizes, or a CUDA graph.
        """

    def use_share(self, share: float) -> None:
        """Let compiled training steps use this share of the full size, in which all masks fit."""
        self.common_share = share

    @property
    def shapes(self) -> Any:
        """The sizes that tensor shapes depend on, as a value that can be compared."""
        raise NotImplementedError

    def clamp_(self) -> None:
        """Clamp masks that an optimiser has moved past their limits; by default there are no limits."""

    def cover_all(self) -> None:
        """Set sizes that suit every mask, because each sample of :func:`torch.vmap` has its own mask."""
        raise ValueError(f"masks of {type(self).__name__} must not be batched by torch.vmap: they determine shapes")

    def read(self) -> None:
        """Read the masks, waiting for the device."""
        if is_vmapped(self.tensors()):
            self.cover_all()
            self._read_at = self._read = None
        else:
            read_sizes([self])

    def refresh(self) -> None:
        """Read the masks if they have changed since they were last read, unless step hooks are paused."""
        self.is_used = True
        if self.stale:
            self.read()

    def read_again(self) -> None:
        """Read the masks, unless step hooks are paused or the host knows that no value has changed."""
        if torch.compiler.is_compiling() or (self._is_exact and state_of(self.tensors()) == self._read_at):
            return
        if not step_hooks_paused() and not any(t.is_meta for t in self.tensors()):
            self.read()

    @property
    def stale(self) -> bool:
        """Whether the masks have changed since they were last read; False while step hooks are paused."""
        # This runs for every layer at every forward pass. Equal states are the usual case.
        state = state_of(self.tensors())
        return state != self._read_at and not step_hooks_paused() and differs(self._read_at, state)

    def fits(self) -> bool:
        """Return whether the sizes are those of the tensors that the masks hold now, as far as traced code can tell."""
        if torch.compiler.is_exporting():  # which traces with stand-ins for all tensors
            return True
        read, now = self._read, self.tensors()
        if read is None or len(read) != len(now):
            return False
        return all(
            a is b or (self.converted and not isinstance(a, nn.Parameter)) for a, b in zip(read, now, strict=True)
        )

    def tensors(self) -> list[Tensor]:
        """Return the parameters and buffers of all masks."""
        found: list[Tensor | None] = []
        for mask in self.masks:
            if mask._modules:  # noqa: SLF001
                found += [*mask.parameters(), *mask.buffers()]
            else:  # without torch's generators, which look for submodules
                found += [*mask._parameters.values(), *mask._buffers.values()]  # noqa: SLF001
        return [t for t in found if t is not None]


@torch.no_grad()
def read_sizes(sizes: Iterable[LearnedSize], after_step: bool = False) -> None:
    """Read the masks of ``sizes``, waiting once for each device; ``after_step`` if an optimiser has moved them."""
    by_device: dict[Any, list[tuple[LearnedSize, Sequence[Tensor]]]] = {}
    sizes = list(sizes)
    follows = not torch._C._are_functorch_transforms_active()  # noqa: SLF001
    for size in sizes:
        numbers = size.measure()
        if numbers:
            by_device.setdefault(numbers[0].device, []).append((size, numbers))
        tensors = size.tensors()
        size._read_at = state_of(tensors)  # noqa: SLF001
        size._read = tensors if follows and all(map(_is_leaf, tensors)) else None  # noqa: SLF001
        size.converted = size.is_late = False
    for entries in by_device.values():
        # torch.cat returns float64 if one of the tensors is float64.
        flat = torch.cat([part for _, numbers in entries for part in numbers]).tolist()
        _update_all([(size, _count(numbers)) for size, numbers in entries], flat)
    for size in sizes:
        size._is_exact = size._read_at is not None and has_values(size._read_at)  # noqa: SLF001
        size.is_trained = size.is_trained or after_step
    _use_common_share(sizes)


def _use_common_share(sizes: Sequence[LearnedSize]) -> None:
    share = max([size.share for size in sizes], default=0.0)
    for size in sizes:
        if size.common_share != share:
            size.use_share(share)


class HostCopies:
    """Copies of numbers to the host, each used some steps after it was started, without waiting for the device.

    Args:
        delay: number of steps after which a copy is used.

    >>> copies = HostCopies(delay=2)
    >>> for step in (1.0, 2.0):
    ...     copies.start(torch.tensor([step]), ["a mask"])
    >>> copies.arrived()
    (['a mask'], [1.0])
    """

    def __init__(self, delay: int = 2) -> None:
        self.delay = delay
        self._copies: deque[tuple[Any, Tensor, Any]] = deque()

    def start(self, numbers: Tensor, sizes: Any = None) -> None:
        """Start the copy of ``numbers``, which belong to ``sizes``."""
        if numbers.device.type != "cuda":
            self._copies.append((sizes, numbers.clone(), None))
            return
        host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        host.copy_(numbers, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._copies.append((sizes, host, arrived))

    def arrived(self) -> tuple[Any, list[float]] | None:
        """Return the sizes and numbers of ``delay`` steps ago; None if there are none yet."""
        if len(self._copies) < self.delay:
            return None
        sizes, host, arrived = self._copies.popleft()
        if arrived is not None:
            arrived.synchronize()
        return sizes, host.tolist()

    def drop(self) -> None:
        """Forget the copies that were started."""
        self._copies.clear()


class DelayedSizes:
    """All learned sizes that depend on the given parameters, read without waiting for the device.

    After each step :meth:`copy_to_host` queues a copy of :meth:`measure` behind the step's own work. Before each step
    :meth:`update` uses the copy of ``delay`` steps ago, which has arrived by then. A mask may have grown since, so
    kernels are sampled ``slack`` beyond the size that was read. If the mask has not grown, the additional samples are
    zero.

    Args:
        parameters: parameters of a network, including those of its masks.
        slack: additional reach to sample, in units of the layer's size.
        delay: number of steps after which a copy is used.
    """

    def __init__(self, parameters: Iterable[Tensor], slack: float = SLACK, delay: int = 2) -> None:
        own = {id(p) for p in parameters}
        found = [size for size in _sizes if any(id(p) in own for p in _parameters(size))]
        counts = [(size, _count(size.measure())) for size in found]
        self.sizes = [(size, count) for size, count in counts if count]
        self.slack, self._copies = slack, HostCopies(delay)
        self.catch_up()

    @property
    def shapes(self) -> tuple[Any, ...]:
        """The sizes that tensor shapes depend on."""
        return tuple(size.shapes for size, _ in self.sizes)

    @torch.no_grad()
    def measure(self) -> Tensor | None:
        """Return the numbers of all masks as one tensor on their device; None if there are none."""
        measured = [part for size, _ in self.sizes for part in size.measure()]
        # torch.cat returns float64 if one of the tensors is. Float32 gives a reach to one part in a million.
        return torch.cat(measured) if measured else None

    def copy_to_host(self, numbers: Tensor | None) -> None:
        """Start the copy of ``numbers``, the result of :meth:`measure`."""
        if numbers is not None:
            self._copies.start(numbers)

    def update(self) -> None:
        """Set the sizes from the copy of ``delay`` steps ago, if there is one."""
        while (found := self._copies.arrived()) is not None:
            for size, numbers in _divided(self.sizes, found[1]):
                size.warn_if_cut(numbers, compiled=False)
            _update_all(self.sizes, found[1], self.slack)

    def was_read(self) -> bool:
        """Return whether a size was read in the ordinary way, without slack, since the last :meth:`catch_up`."""
        return any(size._read_at is not at for (size, _), at in zip(self.sizes, self._read_at, strict=True))  # noqa: SLF001

    def catch_up(self) -> None:
        """Read the masks now, waiting for the device, and drop pending copies."""
        self._copies.drop()
        self._read_at = [size._read_at for size, _ in self.sizes]  # noqa: SLF001
        numbers = self.measure()
        if numbers is not None:
            _update_all(self.sizes, numbers.tolist(), self.slack)


def _count(numbers: Sequence[Tensor]) -> int:
    return sum([part.shape[0] for part in numbers])


def _divided(sizes: Sequence[tuple[LearnedSize, int]], flat: list[float]) -> list[tuple[LearnedSize, list[float]]]:
    """Return the values that belong to each size."""
    values = iter(flat)
    return [(size, [next(values) for _ in range(count)]) for size, count in sizes]


def _update_all(sizes: Sequence[tuple[LearnedSize, int]], flat: list[float], slack: float = 0.0) -> None:
    values = iter(flat)
    for size, count in sizes:
        size.update([next(values) for _ in range(count)], slack)
        size._is_exact = False  # noqa: SLF001  # read_sizes sets it again


def _parameters(size: LearnedSize) -> list[nn.Parameter]:
    return [p for p in size.tensors() if isinstance(p, nn.Parameter)]


def _clamp(sizes: Iterable[LearnedSize]) -> None:
    for size in sizes:
        size.clamp_()


def _waits(device: torch.device) -> bool:
    """Return whether reading a number makes the host wait."""
    return device.type == "cuda"


def _after_step(sizes: list[LearnedSize]) -> None:
    """Read the sizes that eager code uses; follow those that only compiled code uses without waiting."""
    now: list[LearnedSize] = []
    late: dict[torch.device, list[LearnedSize]] = {}
    for size in sizes:
        if size.common_share and not size.is_used and _waits(device := size.tensors()[0].device):
            late.setdefault(device, []).append(size)
        else:
            size.is_used, size._late = False, None  # noqa: SLF001
            now.append(size)
    if now:
        read_sizes(now, after_step=True)
    for group in late.values():
        _follow_late(group)


@torch.no_grad()
def _follow_late(sizes: list[LearnedSize]) -> None:
    """Use the numbers of two steps ago for the share of compiled code, and start a copy of those of now.

    Args:
        sizes: sizes whose masks are on one device.
    """
    copies = sizes[0]._late = sizes[0]._late or HostCopies()  # noqa: SLF001
    if (found := copies.arrived()) is not None:
        for size, values in _divided(*found):
            size.warn_if_cut(values, compiled=True)
            size.update_share(values, SLACK)
        _use_common_share([size for size, _ in found[0]])
    numbers = [(size, size.measure()) for size in sizes]
    for size in sizes:
        size.is_trained = size.is_late = True
    copies.start(torch.cat([part for _, parts in numbers for part in parts]), [(s, _count(p)) for s, p in numbers])


# Masks are clamped before they are read, and also while hooks are paused, because clamping never waits for the device.
_clamped = on_optimizer_step(_parameters, _clamp, while_paused=True)
_sizes = on_optimizer_step(_parameters, _after_step, also=lambda size: size.stale)
