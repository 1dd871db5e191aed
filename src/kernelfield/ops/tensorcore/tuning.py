"""What a launch may choose freely, and what was measured to be good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .plan import power

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["Tuning", "signals_of_a_program", "tuning"]

#: signals of a program: the kernels are compiled for few numbers of them
SIGNALS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 22, 32, 64, 128)
#: signals in whose time a program loads its tables
START = 1.5


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
        apart: whether the two gradients are launched apart.
        resident: programs that share a multiprocessor, by their registers.
        tiles: stacks of channels that a program does one after the other, where the batch alone is too short to pay for
            loading the tables.
        rows: rows of a tile of the outer transform.
        columns: columns of it.
        outer_warps: warps of it.
        outer_programs: programs to aim at for it.
        chunk_bytes: bytes of outer spectra held at once.
    """

    upright: bool = False
    stack: int = 1
    warps: int = 4
    hold: bool = True
    hold_too: bool = True
    ready: bool = False
    apart: bool = False
    resident: int = 2
    tiles: int = 1
    rows: int = 64
    columns: int = 128
    outer_warps: int = 4
    outer_programs: int = 2112
    chunk_bytes: int = 128 << 20


def tuning(plan: Plan) -> Tuning:
    """Return the choices measured to be good on an H200."""
    _, n2, k1, k2 = plan.tile
    size = k1 * k2
    if plan.upright:
        stack, warps = 1, k1 // 16
    else:
        stack, warps = 1 if k1 >= 64 else max(1, 64 // min(n2, k1)), 4
    small = plan.complex and size == 256
    return Tuning(
        plan.upright,
        stack,
        warps,
        hold=size < 4096 or (size == 4096 and not plan.complex),
        hold_too=size < 4096,
        ready=plan.complex or size >= 1024,
        apart=not plan.complex and (k1, k2) in {(32, 64), (64, 128)},
        resident=4 if warps == 2 or small else 1 if warps == 8 else 2,
        outer_programs=4224 if small else 2112,
        **({"tiles": 4, "rows": 128, "outer_warps": 8} if plan.complex and warps == 8 else {}),
        columns=64 if plan.outer > 32 and not (plan.complex and warps == 8) else 128,
    )


def signals_of_a_program(stacks: int, batch: int, slots: int, more: float = 0.0) -> int:
    """Return how many signals of a batch a program is to take.

    A device runs as many programs at a time as it has slots, wave after wave; each of them takes as long as its signals
    and :data:`START` more, to load its tables. The fewest waves of the shortest programs are the best.

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

    def cost(each: int) -> float:
        waves = -(-stacks * -(-batch // each) // slots)
        return waves * (each + START + more)

    return min((n for n in SIGNALS if n <= power(batch)), key=cost)
