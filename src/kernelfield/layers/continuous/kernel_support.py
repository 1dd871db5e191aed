"""The reach of masked kernels, beyond which the mask is zero and nothing is sampled.

The reach is rounded up to one of a few numbers. Otherwise a mask that grows or shrinks a little would change the shape
of its kernel at every step.

Code of torch.compile is compiled again for each new shape, which takes longer than thousands of steps, and torch gives
up after a few times. In training it therefore samples all kernels of a network at one share of their sizes: a power of
√2 that all masks fit in. Its evaluation of a network that was trained in this process does the same. The network is
compiled again when the largest mask outgrows this share: at most six times from an eighth of the size to all of it.
Samples beyond a mask are zero.
"""

from __future__ import annotations

import copy
import math
import warnings
from typing import TYPE_CHECKING, Any

import torch

from .learned_size import LearnedSize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from ...masks import Mask

__all__ = ["KernelSupport", "bucket", "sample_full_kernels"]

#: room for a mask to grow before the network is compiled again
_ROOM = 1.1
#: how many times smaller the share of compiled code must be possible before it shrinks
_SHRINKS = 4.0


def bucket(n: int) -> int:
    """Return ``n`` rounded up to a number with at most three leading binary digits, followed by zeros.

    >>> [bucket(n) for n in (1, 5, 8, 9, 13, 100)]
    [1, 5, 8, 10, 14, 112]
    """
    grain = 1 << max(0, n.bit_length() - 3)
    return math.ceil(n / grain) * grain


class KernelSupport(LearnedSize):
    """The reach of a mask, in training steps per axis: ``steps``, and ``compiled_steps`` for compiled training.

    Args:
        mask: the mask.
        size: reach of the full kernel in training steps.

    >>> from kernelfield.masks import GaussianMask
    >>> KernelSupport(GaussianMask(1, sigma=0.1), (64,)).steps       # 2.146 · 0.1 · 64 = 13.7
    (14,)
    """

    def __init__(self, mask: Mask, size: tuple[int, ...]) -> None:
        super().__init__([mask])
        self.mask, self.size = mask, size
        self.steps = self.compiled_steps = size
        self._delayed = (0,) * len(size)
        self._is_cut = False
        self.read()

    def __deepcopy__(self, memo: dict[int, Any]) -> KernelSupport:
        return KernelSupport(copy.deepcopy(self.mask, memo), self.size)

    def __reduce__(self) -> tuple[Any, ...]:
        return KernelSupport, (self.mask, self.size)

    def measure(self) -> Sequence[Tensor]:
        """Return the numbers that determine the mask's reach."""
        return self.mask.reach_numbers()

    def update(self, numbers: Sequence[float], slack: float = 0.0, *, share_only: bool = False) -> None:
        """Set the steps to the reach along each axis plus ``slack``, and the share of compiled code.

        With slack, the steps change only if they are too few or more than twice as many as needed, because each change
        needs a new CUDA graph.
        """
        # The margin keeps a point on the very edge of the support, however its coordinate was rounded.
        reach = self.mask.reach_from(numbers)
        need = tuple([_count((r + slack) * n * (1 + 1e-6), n) for r, n in zip(reach, self.size, strict=True)])
        if slack and not share_only:
            grown = tuple(min(n, bucket(steps + steps // 4)) for steps, n in zip(need, self.size, strict=True))
            need = self._delayed = tuple(
                kept if least <= kept <= max(2 * least, most) else most
                for kept, least, most in zip(self._delayed, need, grown, strict=True)
            )
        share = 0.0
        for steps, n in zip(need, self.size, strict=True):
            share = max(share, steps / n)
        if not share <= self.share <= _SHRINKS * share:
            self.share = _fitting_share(share)
        if share_only:
            return
        self.steps = need
        if self.share > self.common_share:
            self.use_share(self.share)

    def warn_if_cut(self, numbers: Sequence[float], compiled: bool) -> None:
        if self._is_cut:
            return
        reach, steps = self.mask.reach_from(numbers), self.compiled_steps if compiled else self._delayed
        exact = [
            min(n, math.floor(r * n) + 1) if math.isfinite(r) else n for r, n in zip(reach, self.size, strict=True)
        ]
        if any(have < least for have, least in zip(steps, exact, strict=True)):
            self._is_cut = True
            warnings.warn(
                f"a mask grew so fast that its kernel was cut at {tuple(steps)} of {tuple(exact)} samples for one or "
                "two training steps: sizes are read two steps late. A lower learning rate of the masks avoids it",
                stacklevel=2,
            )

    def update_share(self, numbers: Sequence[float], slack: float) -> None:
        self.update(numbers, slack, share_only=True)

    def use_share(self, share: float) -> None:
        self.common_share = share
        steps = [math.ceil(share * n) for n in self.size]
        self.compiled_steps = tuple(steps)

    def cover_all(self) -> None:
        self.steps, self.share = self.size, 1.0
        self.use_share(self.share)

    def traced_steps(self, training: bool) -> tuple[int, ...]:
        """Return the steps that traced code samples; other code reads ``steps`` after :meth:`refresh`."""
        exporting = torch.compiler.is_exporting()
        if not self.fits() or (exporting and self.is_late):
            return self.size
        shared = (training or self.is_trained) and not exporting
        return self.compiled_steps if shared else self.steps

    @property
    def shapes(self) -> tuple[int, ...]:
        return self.steps


def _fitting_share(share: float) -> float:
    """Return the smallest power of √2, up to 1, that leaves a mask room to grow.

    >>> [round(_fitting_share(s), 3) for s in (0.08, 0.1, 0.3, 0.5, 0.9)]
    [0.088, 0.125, 0.354, 0.707, 1.0]
    """
    halves = math.floor(-2 * math.log2(min(1.0, _ROOM * share)))
    return 2.0 ** (-halves / 2)


def sample_full_kernels(network: nn.Module) -> None:
    """Make a network sample its kernels at full size from now on, regardless of their masks."""
    for module in network.modules():
        if isinstance(getattr(module, "kernel_support", None), KernelSupport):
            module.kernel_support = None  # type: ignore[assignment]


def _count(reach: float, size: int) -> int:
    if not math.isfinite(reach):
        return size  # training has diverged, which the loss shows
    return min(size, bucket(math.floor(reach) + 1))
