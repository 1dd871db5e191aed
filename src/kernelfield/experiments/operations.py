"""The number of floating-point operations of a network on its plain torch paths."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..ops import use_fast_paths

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["count_operations"]


def count_operations(work: Callable[[], Any]) -> int:
    """Return the number of floating-point operations of ``work`` on the CPU.

    Matrix products, convolutions and Fourier transforms count. A complex transform of n samples counts as 5 n log₂ n
    operations, a real one as half of that. Sums, activations and other pointwise operations do not count.

    Args:
        work: function to call once.

    >>> count_operations(lambda: torch.ones(2, 3) @ torch.ones(3, 4))
    48
    >>> count_operations(lambda: torch.fft.rfft(torch.ones(8)))
    60
    """
    aten = torch.ops.aten
    transforms = {aten._fft_r2c: _real, aten._fft_c2r: _real_back, aten._fft_c2c: _complex}  # noqa: SLF001
    with use_fast_paths(False), FlopCounterMode(display=False, custom_mapping=transforms) as counter:
        work()
    return int(counter.get_total_flops())


def _steps(shape: Any, axes: Any) -> float:
    """Return n log₂ n over the transformed axes, times the number of transforms."""
    lengths = [shape[axis] for axis in axes]
    return math.prod(shape) * sum(math.log2(n) for n in lengths if n > 1)


def _real(shape: Any, axes: Any, *_: Any, **__: Any) -> int:
    return round(2.5 * _steps(shape, axes))


def _real_back(shape: Any, axes: Any, _norm: Any, last: int, *_: Any, **__: Any) -> int:
    full = list(shape)
    full[axes[-1]] = last
    return round(2.5 * _steps(full, axes))


def _complex(shape: Any, axes: Any, *_: Any, **__: Any) -> int:
    return round(5.0 * _steps(shape, axes))
