"""What a launch may choose freely, and what was measured to be good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["Tuning", "tuning"]


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
        programs: programs to aim at.
        tiles: stacks of channels that a program does one after the other, where the batch alone is too short to pay for
            loading the tables.
        rows: rows of a tile of the outer transform.
        columns: columns of it.
        outer_warps: warps of it.
        chunk_bytes: bytes of outer spectra held at once.
    """

    upright: bool = False
    stack: int = 1
    warps: int = 4
    hold: bool = True
    hold_too: bool = True
    ready: bool = False
    apart: bool = False
    programs: int = 528
    tiles: int = 1
    rows: int = 64
    columns: int = 128
    outer_warps: int = 4
    chunk_bytes: int = 128 << 20


def tuning(plan: Plan) -> Tuning:
    """Return the choices measured to be good on an H200."""
    _, n2, k1, k2 = plan.tile
    size = k1 * k2
    if plan.upright:
        stack, warps = 1, k1 // 16
    else:
        stack, warps = 1 if k1 >= 64 else max(1, 64 // min(n2, k1)), 4
    many = size == 1024 or size >= 4096 if not plan.complex else size == 256
    long = plan.complex and warps == 8
    return Tuning(
        plan.upright,
        stack,
        warps,
        hold=size < 4096 or (size == 4096 and not plan.complex),
        hold_too=size < 4096,
        ready=plan.complex or size > 1024,
        apart=not plan.complex and (k1, k2) in {(32, 64), (64, 128)},
        programs=264 if size <= 256 and not plan.complex else 1056 if many else 528,
        tiles=4 if long else 1,
        rows=128 if long else 64,
        columns=64 if plan.outer > 32 and not long else 128,
        outer_warps=8 if long else 4,
    )
