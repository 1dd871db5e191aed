"""Tuning parameters of the tensor-core kernels, and the values that were fastest."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .plan import power

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["CHUNK", "SUMS", "Tuning", "signals_per_program", "tuning", "wave_time"]

#: allowed numbers of signals per program; few, because each needs its own compiled kernel
SIGNALS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 22, 32, 64, 128)
#: times to load the tables, to launch a chunk, and to pass on partial sums, in units of the time per signal
START = 1.5
CHUNK = 12.0
SUMS = 2.0


@dataclass(frozen=True)
class Tuning:
    """Parameters that change the speed of a launch but not its result.

    Args:
        upright: whether the first table is the left factor.
        stack: channels per program.
        warps: warps per program.
        hold: whether a precomputed kernel spectrum stays in registers in the forward pass.
        hold_backward: the same in the backward pass.
        precompute: whether the kernel's spectrum and its gradient are computed by separate launches.
        fused_batch: largest batch for which the spectrum is nevertheless computed in the same launch, if there is an
            outer transform.
        fused_batch_backward: the same in the backward pass.
        split_grads: whether the two gradients are computed by separate launches.
        split_columns: number of programs that share the columns of a spectrum, for a separate kernel gradient.
        resident: programs per multiprocessor, as limited by registers.
        resident_backward: the same in the backward pass.
        packed: whether twiddle factors and spectra are in half precision instead of float32.
        packed_backward: the same in the backward pass.
        tiles: number of channel stacks that one program processes one after the other, if the batch alone is too small
            to make loading the tables worthwhile.
        rows: rows per tile of the outer transform.
        columns: columns per tile of the outer transform.
        outer_warps: warps per program of the outer transform.
        depth: columns of the outer table per step.
        stages: depth of the load pipeline of the outer transform.
        outer_programs: target number of programs of the outer transform.
        by_library: whether torch's matrix products compute the outer transform, if they can.
        shares: memory for outer transforms, relative to the signals' bytes in float32. The first pair is for lines, the
            second for more axes. Each pair is for half precision or forward, and for float32 backward.
        kernel_shares: further memory, relative to the kernels' bytes in float32, for half precision and for float32.
        least_bytes: memory that outer transforms may always use.
    """

    upright: bool = False
    stack: int = 1
    warps: int = 4
    hold: bool = True
    hold_backward: bool = True
    precompute: bool = False
    fused_batch: int = 0
    fused_batch_backward: int = 0
    split_grads: bool = False
    resident: int = 2
    resident_backward: int = 2
    packed: bool = False
    packed_backward: bool = False
    split_columns: int = 1
    tiles: int = 1
    rows: int = 64
    columns: int = 128
    outer_warps: int = 4
    depth: int = 64
    stages: int = 1
    outer_programs: int = 2112
    by_library: bool = False
    shares: tuple[tuple[float, float], tuple[float, float]] = ((1.26, 0.3), (2.6, 2.3))
    kernel_shares: tuple[float, float] = (1.75, 0.33)
    least_bytes: int = 64 << 20


def tuning(plan: Plan, scaled: bool = False) -> Tuning:
    """Return the parameters that were fastest on an H200.

    Args:
        plan: the layout.
        scaled: whether signals are float32, multiplied in float16.
    """
    _, n2, k1, k2 = plan.tile
    size = k1 * k2
    small = plan.complex and size == 256
    if plan.slim:
        stack, warps = 2, k1 // 16
    elif plan.upright:
        stack, warps = 1, k1 // 16
    else:
        stack, warps = 1 if k1 >= 64 else max(1, 64 // min(n2, k1)), 4
    # Large tables are read in parts. Taller tiles read the signals less often, which matters most for long lines.
    parted = plan.outer > 64
    tall = plan.outer > (64 if plan.phase else 128)
    return Tuning(
        plan.upright,
        stack,
        warps,
        hold=size <= 4096 and not (plan.phase and size == 4096),
        hold_backward=size < 4096,
        precompute=plan.complex or size > 1024,
        fused_batch=(128 if size <= 1024 else 1) if plan.complex and plan.twiddle else 0,
        fused_batch_backward=(16 if small else 8 if size <= 1024 else 1) if plan.complex and plan.twiddle else 0,
        # The registers of the sum would spill otherwise.
        split_grads=size == 4096 if plan.complex else (k1, k2) in {(32, 64), (64, 128)},
        split_columns=2 if (k1, k2) == (64, 128) else 1,
        packed=size <= 1024 and not plan.slim,
        packed_backward=size <= 1024 and plan.complex and not plan.slim,
        resident=12 // warps if plan.slim else 1 if warps == 8 else 3 if plan.complex and size <= 1024 else 2,
        resident_backward=8 // warps if plan.slim else 2,
        outer_programs=1 << 20 if plan.outer <= 16 else 4224 if small else 2112,
        rows=128 if tall else 64,
        outer_warps=8 if tall else 4,
        depth=32 if parted else 64,
        stages=3 if parted else 1,
        by_library=plan.outer > 64 and not (scaled and small),
    )


@functools.lru_cache(1 << 14)
def signals_per_program(stacks: int, batch: int, slots: int, more: float = 0.0) -> int:
    """Return the number of signals per program that minimises :func:`wave_time`.

    Args:
        stacks: number of channel stacks; each has its own programs.
        batch: signals per stack.
        slots: programs that run at the same time.
        more: further time per program, in units of the time per signal.

    >>> signals_per_program(140, 64, 528)  # three waves of 6; one of 22 would leave a fifth of the slots empty
    6
    >>> signals_per_program(140, 64, 528, more=2.0)
    22
    """
    return min((n for n in SIGNALS if n <= power(batch)), key=lambda n: wave_time(stacks, batch, n, slots, more))


def wave_time(stacks: int, batch: int, each: int, slots: int, more: float = 0.0) -> float:
    """Return the run time with ``each`` signals per program, in units of the time per signal.

    A device runs ``slots`` programs at a time, wave after wave. Each takes the time of its signals plus :data:`START`
    to load its tables.
    """
    waves = -(-stacks * -(-batch // each) // slots)
    return waves * (each + START + more)
