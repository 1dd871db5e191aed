"""Launch the outer transform of signals and kernels, chunk by chunk."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .chain_launch import ChainLaunch
from .outer import merge_kernel, merge_points_kernel, split_kernel, split_points_kernel
from .outer_matmul import largest_values, multiply, shrunk, shrunk_by_rows
from .plan import LEAST, power
from .scatter import gather_kernel, scatter_kernel
from .tables import outer_products, outer_tables
from .tuning import CHUNK, SUMS, signals_per_program, wave_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .plan import Plan
    from .tuning import Tuning

__all__ = ["Blocks"]

#: largest grid size along the last axis
MOST_PROGRAMS = 65_535


class Blocks:
    """The outer transform of a convolution, and its division into chunks."""

    plan: Plan
    tuning: Tuning
    device: torch.device
    dtype: torch.dtype
    precision: str
    half: bool
    scaled: bool
    real: bool
    in_place: bool
    processors: int
    batch: int
    channels: int
    length: int
    itemsize: int
    points: list[int]
    offsets: tuple[int, ...]
    tables: Tensor

    def prepare_blocks(self) -> None:
        """Build the tables and the arguments common to all launches."""
        plan = self.plan
        self.parts_of_channels: dict[bool, list[slice]] = {}
        if plan.digits:
            self.chain = ChainLaunch(plan, self.dtype, self.device, self.scaled, self.real)
        self.blocks = -(-self.length // plan.outer_step)
        # Axes of the grid to which kernels are scattered.
        self.grid = plan.outer, plan.m1 * plan.m2, plan.m2
        if plan.digits:
            rest = plan.second * plan.m1 * plan.m2
            self.grid = plan.first, rest, plan.m1 * plan.m2 if len(self.points) == 3 else rest
        self.r, self.q = (max(LEAST, power(n)) for n in (plan.outer, self.blocks))
        if plan.complex and not plan.digits:
            self.outer_tables = outer_tables(plan, self.blocks, self.r, self.q, self.dtype, self.device, self.scaled)
            self.outer_kind: dict[str, Any] = {"BLOCK_N": self.tuning.columns}
            self.outer_kind |= {"SCALED": self.scaled, "PRECISION": self.precision}
            # More stages would take shared memory from other programs on the same multiprocessor.
            self.outer_kind["num_stages"] = 1
            self.outer_kind["STAGES"] = self.tuning.stages
            self.outer_kind["num_warps"] = self.tuning.outer_warps
        # Each outer frequency of a line has its own tables, so a stack holds signals of one outer frequency.
        self.hop = plan.hop
        # Library matrix products need aligned sizes. They cannot apply a factor per entry, which the inverse of scaled
        # signals needs; in the forward direction the signals are scaled beforehand.
        sides = plan.outer, plan.outer_step, plan.m1 * plan.m2
        aligned = self.length == plan.outer * plan.outer_step and not any(n % 8 for n in sides)
        by_library = plan.complex and self.tuning.by_library and (self.half or self.scaled) and aligned
        self.by_library = by_library and not plan.digits
        self.inverse_by_library = self.by_library and not self.scaled
        # For long blocks, folding the factors into a table per signal is cheaper than reading the signal twice.
        self.by_rows = self.by_library and self.scaled and plan.phase and plan.outer_step == power(plan.outer_step)

    def precomputes(self, training: bool) -> bool:
        """Return whether a kernel's spectrum and its gradient are computed by separate launches.

        In small batches, each program computes the spectrum of its kernels from their outer transform.
        """
        few = self.tuning.fused_batch_backward if training else self.tuning.fused_batch
        return self.tuning.precompute and not (self.plan.complex and self.batch <= few)

    def chunks(self, training: bool = False) -> Sequence[slice]:
        """Return chunks of channels whose temporary memory is within the budget."""
        found = self.parts_of_channels.get(training)
        if found is None:
            step, most = self.channels_of_a_chunk(training), self.channels
            found = [slice(first, min(most, first + step)) for first in range(0, most, step)]
            self.parts_of_channels[training] = found
        return found

    def channels_of_a_chunk(self, training: bool) -> int:
        """Return the fastest number of channels per chunk, between half of the number that fits and all of it."""
        plan, size = self.plan, self.dtype.itemsize
        if not plan.complex:
            return self.channels
        signal, kernel = (2 * plan.outer * n * size for n in (self.batch * plan.outer_step, plan.m1 * plan.m2))
        # Forward: outer transforms of signal and kernel, and the spectrum. Backward: those of two signals, and sums.
        each = signal + 2 * kernel
        if training:
            each = 2 * (signal + kernel) + (4 * kernel if self.precomputes(training) else 0)
        if plan.digits:
            each += max(signal, kernel)  # the result of the second last product of a chain
        most = max(1, min(self.channels, MOST_PROGRAMS, self.budget(training) // each))
        return min(range(-(-most // 2), most + 1), key=lambda n: self.time_of_chunks(n, training))

    def time_of_chunks(self, step: int, training: bool) -> float:
        """Return the run time with ``step`` channels per chunk, in units of the inner transform of one signal.

        Programs run in waves, which a chunk should fill.
        """
        full, rest = divmod(self.channels, step)
        chunks = ((full, step), (1, rest)) if rest else ((full, step),)
        return sum(count * (CHUNK + self.time_of_inner(n * self.plan.outer, training)) for count, n in chunks)

    def stacks(self, channels: int) -> int:
        """Return the number of stacks of inner signals for this many channels."""
        return self.hop * -(-channels // (self.hop * self.tuning.stack * self.tuning.tiles))

    def parts(self, channels: int, resident: int, more: float = 0.0) -> tuple[int, int]:
        """Return the number of parts of the batch and of signals per part."""
        each = signals_per_program(self.stacks(channels), self.batch, resident * self.processors, more)
        return -(-self.batch // each), each

    def time_of_inner(self, channels: int, training: bool) -> float:
        """Return the run time of the inner transforms of this many channels, in units of one signal."""
        resident, more = (self.tuning.resident_backward, SUMS) if training else (self.tuning.resident, 0.0)
        each = self.parts(channels, resident, more)[1]
        if training and self.plan.complex and not self.precomputes(training):
            each = power(self.batch)
        return wave_time(self.stacks(channels), self.batch, each, resident * self.processors, more)

    def budget(self, training: bool) -> int:
        """Return the bytes that outer transforms may use, from the bytes of signals and kernels in float32.

        Torch's FFT peaks at 14 times the signals' bytes for lines, and twice that for planes. The target is a sixth of
        this, with the output and both gradients. In float32 that leaves a third of the signals' bytes for lines.
        """
        tight = training and self.itemsize == 4
        share = self.tuning.shares[len(self.points) > 1][tight]
        signals, kernels = self.batch * self.channels * self.length, self.channels * math.prod(self.points)
        more = self.tuning.kernel_shares[self.itemsize == 4] * kernels
        return max(self.tuning.least_bytes, int(4 * (share * signals + more)))

    def tops(self, x: Tensor) -> Tensor:
        """Return the largest value of each outer signal, by which it is divided; an empty tensor if not scaled.

        With ``by_rows`` the result is filled later, when the signals are read.
        """
        if not (self.scaled and self.plan.complex):
            return self.tables[:0]
        return x.new_empty(x.shape[:2], dtype=torch.float32) if self.by_rows else largest_values(x)

    def transform_by_library(self, x: Tensor, tops: Tensor, out: Tensor, inputs: int = 1) -> None:
        """Write the outer transform of (batch, channels, ·) with ``inputs`` parts each, by torch's matrix products."""
        table = outer_products(self.plan, inputs, self.dtype, self.device)[0]
        if self.by_rows:
            x, table = shrunk_by_rows(x, tops, self.plan.outer, table)
        elif self.scaled:
            x = shrunk(x, tops, self.plan.outer, self.dtype)
        multiply(table, x, out)

    def outer_numbers(self, x: Tensor, tops: Tensor) -> tuple[tuple[int, ...], int, int]:
        """Return integer arguments of ``split`` and ``merge``, the signals per program, and the tiles per signal."""
        step = self.plan.outer_step
        signals, tiles = x.shape[0] * x.shape[1], -(-step // self.outer_kind["BLOCK_N"])
        each = power(max(1, min(signals, signals * tiles // self.tuning.outer_programs)))
        if max(self.r, self.q) > self.tuning.depth:
            each = 1  # tables are read for every signal anyway
        each = max(each, power(-(-signals // MOST_PROGRAMS)))
        strides = x.stride(0), tops.stride(0)
        return (signals, x.shape[1], *strides, self.blocks, self.plan.outer, step, self.length), each, tiles

    def split(self, x: Tensor, tops: Tensor) -> Tensor:
        """(batch, channels, *space) -> (batch, channels · outer, 2, step)."""
        plan = self.plan
        out = x.new_empty((x.shape[0], x.shape[1] * plan.outer, 2, plan.outer_step), dtype=self.dtype)
        if plan.digits:
            self.chain.split(x, tops, out)
            return out
        if self.by_library:
            self.transform_by_library(x, tops, out.view(*x.shape[:2], 2 * plan.outer, -1))
            return out
        numbers, each, tiles = self.outer_numbers(x, tops)
        tile = min(self.r, self.tuning.rows)
        split_kernel[(tiles, self.r // tile, -(-numbers[0] // each))](
            *(x, out, self.outer_tables[0], tops, *numbers),
            **{"R": tile, "Q": self.q, "BLOCK_Q": min(self.q, self.tuning.depth), "EACH": each},
            **self.outer_kind,
        )
        return out

    def merge(self, z: Tensor, tops: Tensor, scales: Tensor, out: Tensor) -> None:
        """(batch, channels · outer, 2, step) -> (batch, channels, *space)."""
        if self.plan.digits:
            self.chain.merge(z, tops, scales, out)
            return
        if self.inverse_by_library:
            table = outer_products(self.plan, 1, self.dtype, self.device)[1]
            multiply(table, z.view(*out.shape[:2], table.shape[1], -1), out)
            return
        numbers, each, tiles = self.outer_numbers(out, tops)
        tile = min(self.q, self.tuning.rows)
        merge_kernel[(tiles, self.q // tile, -(-numbers[0] // each))](
            *(z, out, self.outer_tables[1], tops, scales, *numbers),
            **{"R": self.r, "BLOCK_R": min(self.r, self.tuning.depth), "Q": tile, "EACH": each},
            **self.outer_kind,
        )

    def weights(self, tops: Tensor, others: Tensor) -> Tensor:
        """Return the factors of products of two scaled signals: (batch, channels · outer)."""
        if not self.scaled:
            return self.tables[:0]
        outer = self.plan.outer
        return (tops * others * outer**2).repeat_interleave(outer, dim=1)

    def split_points(self, kernel: Tensor, tops: Tensor) -> tuple[Tensor, Tensor]:
        """(channels, 1, *points) -> (channels · outer, 2, inner), and the factors to multiply it by, if scaled."""
        plan, inner = self.plan, self.plan.m1 * self.plan.m2
        parts = kernel.new_empty((kernel.shape[0] * plan.outer, 2, inner), dtype=self.dtype)
        if plan.digits:
            self.chain.split_points(self.scatter(kernel), tops, parts)
        elif self.by_library:
            target = parts.view(1, len(kernel), 2 * plan.outer, inner)
            self.transform_by_library(self.scatter(kernel)[None], tops.view(1, -1), target, 1 if self.real else 2)
        else:
            tile = min(self.r, self.tuning.rows)
            split_points_kernel[(-(-inner // self.tuning.columns), self.r // tile, kernel.shape[0])](
                *(self.scatter(kernel), parts, self.outer_tables[0], tops, plan.outer, inner),
                **{"R": tile, "Q": self.q, "BLOCK_Q": min(self.q, self.tuning.depth)},
                REAL=self.real,
                **self.outer_kind,
            )
        if self.scaled:
            tops = (tops * plan.outer).expand(-1, plan.outer).contiguous()
        return parts, tops

    def merge_points(self, parts: Tensor, scales: Tensor, out: Tensor) -> None:
        """(channels · outer, 2, inner) -> (channels, 1, *points)."""
        plan, inner = self.plan, self.plan.m1 * self.plan.m2
        placed = out if self.in_place else out.new_empty(out.shape[0], 1 if self.real else 2, *self.grid[:2])
        if plan.digits:
            self.chain.merge_points(parts, scales, placed)
        elif self.inverse_by_library:
            table = outer_products(plan, 1 if self.real else 2, self.dtype, self.device)[1]
            multiply(table, parts.view(1, len(out), table.shape[1], inner), placed[None])
        else:
            tile = min(self.q, self.tuning.rows)
            merge_points_kernel[(-(-inner // self.tuning.columns), self.q // tile, out.shape[0])](
                *(parts, placed, self.outer_tables[1], scales, plan.outer, inner),
                **{"R": self.r, "BLOCK_R": min(self.r, self.tuning.depth), "Q": tile},
                REAL=self.real,
                **self.outer_kind,
            )
        if not self.in_place:
            rows, columns = (1, self.points[0]) if out.dim() == 3 else (self.points[0], out[0, 0, 0].numel())
            self.launch_scatter(gather_kernel, placed, out, rows, columns)

    def scatter(self, kernel: Tensor) -> Tensor:
        """(channels, 1, *points) -> (channels, parts, outer, inner): scatter every point to its offset."""
        if self.in_place:
            return kernel
        placed = kernel.new_empty(kernel.shape[0], 1 if self.real else 2, *self.grid[:2])
        self.launch_scatter(scatter_kernel, kernel, placed, *self.grid[:2])
        return placed

    def launch_scatter(self, function: Any, source: Tensor, target: Tensor, rows: int, columns: int) -> None:
        """Launch a kernel of :mod:`.scatter` for a target of this many rows and columns."""
        block_rows = 1 if rows == 1 else 4
        function[(-(-columns // 256), -(-rows // block_rows), target.shape[0])](
            *(source, target, *self.grid, *self.offsets),
            **{"DIM": len(self.points), "REAL": self.real, "ROWS": block_rows, "COLS": 256},
        )
