"""What a launch may choose freely, and what was measured to be good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .plan import power

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["CHUNK", "SUMS", "Tuning", "signals_of_a_program", "time_of_waves", "tuning"]

#: signals of a program: the kernels are compiled for few numbers of them
SIGNALS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 22, 32, 64, 128)
#: signals in whose time a program loads its tables, the launches of a chunk begin and end, and sums are passed on
START = 1.5
CHUNK = 12.0
SUMS = 2.0


@dataclass(frozen=True)
class Tuning:
    """What a launch may choose freely.

    Args:
        upright: whether the first table is on the left.
        stack: channels of a program.
        warps: warps of a program.
        hold: whether a ready spectrum stays in registers.
        hold_too: whether it does while gradients are computed.
        ready: whether a kernel's spectrum and its gradient are made by launches of their own.
        few: batch up to which they are not after all, if there is an outer transform.
        few_too: the same backward.
        apart: whether the two gradients are launched apart.
        columns_apart: programs that share the columns of a spectrum then, for the kernel's gradient.
        resident: programs that share a multiprocessor, by their registers.
        resident_too: the same for gradients.
        packed: whether twiddle factors and spectra are held in half precision, not in float32.
        packed_too: the same for gradients.
        tiles: stacks of channels that a program does one after the other, where the batch alone is too short to pay for
            loading the tables.
        rows: rows of a tile of the outer transform.
        columns: columns of it.
        outer_warps: warps of it.
        depth: columns of its table at a time.
        stages: of them that are loaded before they are needed.
        outer_programs: programs to aim at for it.
        by_library: whether torch's matrix products do it, where they can.
        shares: bytes of outer transforms at a time, over those of the signals in float32: of lines and of more axes,
            each in half precision or forward, and in float32 backward.
        kernel_shares: to be added over those of the kernels in float32, in half precision and in float32.
        least_bytes: bytes that they may always take.
    """

    upright: bool = False
    stack: int = 1
    warps: int = 4
    hold: bool = True
    hold_too: bool = True
    ready: bool = False
    few: int = 0
    few_too: int = 0
    apart: bool = False
    resident: int = 2
    resident_too: int = 2
    packed: bool = False
    packed_too: bool = False
    columns_apart: int = 1
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
    """Return the choices measured to be good on an H200.

    Args:
        plan: the layout.
        scaled: whether signals are of float32, multiplied in float16.
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
    # Tables of many blocks are read in parts; lines of so many leave the most to read for a row of the table.
    parted = plan.outer > 64
    tall = plan.outer > (64 if plan.phase else 128)
    return Tuning(
        plan.upright,
        stack,
        warps,
        hold=size <= 4096 and not (plan.phase and size == 4096),
        hold_too=size < 4096,
        ready=plan.complex or size > 1024,
        few=(128 if size <= 1024 else 1) if plan.complex and plan.twiddle else 0,
        few_too=(16 if small else 8 if size <= 1024 else 1) if plan.complex and plan.twiddle else 0,
        # What a sum takes besides would spill.
        apart=size == 4096 if plan.complex else (k1, k2) in {(32, 64), (64, 128)},
        columns_apart=2 if (k1, k2) == (64, 128) else 1,
        packed=size <= 1024 and not plan.slim,
        packed_too=size <= 1024 and plan.complex and not plan.slim,
        resident=12 // warps if plan.slim else 1 if warps == 8 else 3 if plan.complex and size <= 1024 else 2,
        resident_too=8 // warps if plan.slim else 2,
        outer_programs=1 << 20 if plan.outer <= 16 else 4224 if small else 2112,
        rows=128 if tall else 64,
        outer_warps=8 if tall else 4,
        depth=32 if parted else 64,
        stages=3 if parted else 1,
        by_library=plan.outer > 64 and not (scaled and small),
    )


def signals_of_a_program(stacks: int, batch: int, slots: int, more: float = 0.0) -> int:
    """Return how many signals of a batch a program is to take: the fewest waves of the shortest programs are the best.

    Args:
        stacks: programs that the batch is shared by.
        batch: signals of each stack.
        slots: programs at a time.
        more: what else a program does, in the time of signals.

    >>> signals_of_a_program(140, 64, 528)  # three waves of 6; one of 22 would leave a fifth of the slots empty
    6
    >>> signals_of_a_program(140, 64, 528, more=2.0)
    22
    """
    return min((n for n in SIGNALS if n <= power(batch)), key=lambda n: time_of_waves(stacks, batch, n, slots, more))


def time_of_waves(stacks: int, batch: int, each: int, slots: int, more: float = 0.0) -> float:
    """Return how long programs of ``each`` signals take, in the time of signals.

    A device runs as many programs at a time as it has slots, wave after wave; each of them takes as long as its signals
    and :data:`START` more, to load its tables.
    """
    waves = -(-stacks * -(-batch // each) // slots)
    return waves * (each + START + more)
