"""Launches of the kernels: tiles, grids, and the two operators that autograd meets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources as TooLarge

from ..fft import place, take
from ..kept import kept
from ..shape import centres
from . import plan_of, precision, scaled
from .outer import merge_kernel, merge_points_kernel, split_kernel, split_points_kernel
from .places import place_kernel, take_kernel
from .plan import LEAST, power
from .spectra import gradient_kernel, spectrum_kernel
from .tables import inner_tables, outer_tables, phases
from .transform import conv_kernel, grads_kernel
from .tuning import signals_of_a_program, tuning

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Call", "Spectrum", "TooLarge", "make_call", "spectral_conv", "spectral_grads"]


class Spectrum(NamedTuple):
    """Spectra of kernels, (channels, 2, k1, k2), or kernels; and what they are to be multiplied by, if scaled."""

    values: Tensor
    scales: Tensor


class Call:
    """One convolution's plan, tables and grids."""

    def __init__(
        self,
        shape: tuple[int, ...],
        points: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        causal: bool,
        periodic: tuple[bool, ...],
    ) -> None:
        self.batch, self.channels, *lengths = shape
        self.length = torch.Size(lengths).numel()
        plan = plan_of(lengths, points, causal, periodic, dtype)
        if plan is None:
            raise NotImplementedError(f"no tiles for signals of {tuple(lengths)} and kernels of {points}")
        self.plan, self.device, self.tuning = plan, device, tuning(plan)
        # An interpreter runs programs one after the other.
        on_gpu = device.type == "cuda"
        self.processors = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 1
        if not on_gpu:
            self.tuning = replace(self.tuning, resident=1, outer_programs=1)
        self.precision, self.scaled = precision(dtype), scaled(dtype)
        # float16 has tf32's precision but not the range that spectra need; the interpreter multiplies no bfloat16.
        self.dtype = torch.float16 if self.scaled else torch.float32
        if dtype == torch.bfloat16 and device.type == "cuda":
            self.dtype = dtype
        self._place(points, centres(points, causal), tuple(lengths), periodic)
        n1, n2, k1, k2 = plan.tile
        self.sides = {"S": self.tuning.stack, "N1": n1, "N2": n2, "K1": k1, "K2": k2}
        self.kind: dict[str, Any] = {"COMPLEX": plan.complex, "TWIDDLE": plan.twiddle, "UPRIGHT": plan.upright}
        self.real = not plan.shift or self.centres[0] == 0
        self.kind |= {
            "REAL": self.real,
            "SCALED": self.scaled,
            "PRECISION": self.precision,
            "num_warps": self.tuning.warps,
        }
        self.kind["num_stages"] = 1  # the loop over the batch asks for the next signal by itself
        self.tables = inner_tables(plan, self.dtype, device, self.scaled)
        self.blocks = -(-self.length // plan.outer_step)
        self.r, self.q = (max(LEAST, power(n)) for n in (plan.outer, self.blocks))
        if plan.complex:
            self.outer_tables = outer_tables(plan, self.blocks, self.r, self.q, self.dtype, device, self.scaled)
            self.phases = phases(plan, self.dtype, device) if plan.phase else self.tables
            self.outer_kind: dict[str, Any] = {"BLOCK_N": self.tuning.columns}
            # Stages would fill the shared memory that other programs of the same multiprocessor need.
            self.outer_kind |= {"PHASE": plan.phase, "SCALED": self.scaled, "PRECISION": self.precision}
            self.outer_kind["num_stages"] = 1
            self.outer_kind["num_warps"] = self.tuning.outer_warps

    def _place(
        self, points: tuple[int, ...], middles: tuple[int, ...], lengths: tuple[int, ...], periodic: tuple[bool, ...]
    ) -> None:
        """Find where the kernel's points are: along a circle shorter than the kernel, it is wound up first."""
        self.wound = [d for d, wraps in enumerate(periodic) if wraps and points[d] > lengths[d]]
        self.points, self.centres = list(points), list(middles)
        for d in self.wound:
            self.points[d], self.centres[d] = lengths[d], 0
        self.original = points, middles
        # An offset of all the signal's length meets nothing, and its gradient is not written.
        places = zip(self.points, self.centres, lengths, strict=True)
        self.far = any(k - 1 - c >= n for k, c, n in places)
        fill = 3 - len(points)
        self.offsets = (*self.points, *(1,) * fill, *self.centres, *(0,) * fill)
        # A causal kernel as long as the outer transform is where it has to be.
        size = self.plan.outer * self.plan.m1 * self.plan.m2
        self.in_place = len(points) == 1 and self.points[0] == size and self.centres[0] == 0
        self.sizes = self.plan.m1, self.plan.m2, *self.offsets[:2], *self.offsets[3:5]

    def wind(self, kernel: Tensor) -> Tensor:
        """(channels, 1, *points) -> the same with its longer axes wound up, contiguous."""
        for d in self.wound:
            kernel = place(kernel, 2 + d, (self.points[d],), (self.original[1][d],))
        return kernel.contiguous()

    def unwind(self, kernel: Tensor) -> Tensor:
        """Undo :meth:`wind` for a gradient."""
        for d in self.wound:
            points, middles = self.original
            kernel = take(kernel, 2 + d, (points[d],), (self.points[d],), (middles[d],))
        return kernel

    def chunks(self) -> Iterator[slice]:
        """Part the channels so that the outer spectra of one part stay within the budget."""
        step = self.channels
        if self.plan.complex:
            each = 2 * self.batch * self.plan.outer * self.plan.outer_step * self.dtype.itemsize
            step = max(1, min(step, self.tuning.chunk_bytes // each))
        for first in range(0, self.channels, step):
            yield slice(first, min(self.channels, first + step))

    def tops(self, x: Tensor) -> Tensor:
        """Return what outer signals are divided by, the largest value of each; nothing if they are not scaled."""
        if not (self.scaled and self.plan.complex):
            return self.tables[:0]
        axes = tuple(range(2, x.dim()))
        return torch.linalg.vector_norm(x, math.inf, dim=axes, dtype=torch.float32).clamp(min=1e-30)

    def spectrum(self, kernel: Tensor) -> Spectrum:
        """Return what the kernels take of (channels, 1, *points): its spectrum if it is to be ready, else itself."""
        plan, tops = self.plan, self.tables[:0]
        if not self.tuning.ready:
            return Spectrum(kernel, tops)
        channels = kernel.shape[0] * plan.outer
        if plan.complex:
            inner = plan.m1 * plan.m2
            parts = kernel.new_empty((channels, 2, inner), dtype=self.dtype)
            tops = self.tops(kernel)
            tile, columns = min(self.r, self.tuning.rows), self.outer_kind["BLOCK_N"]
            split_points_kernel[(-(-inner // columns), self.r // tile, kernel.shape[0])](
                *(self.put(kernel), parts, self.outer_tables[0], self.phases, tops, plan.outer, inner),
                **{"R": tile, "Q": self.q, "BLOCK_Q": min(self.q, 64)},
                REAL=self.real,
                **self.outer_kind,
            )
            kernel = parts
            if self.scaled:
                tops = (tops * plan.outer).expand(-1, plan.outer).contiguous()
        out = kernel.new_empty((channels, 2, *plan.tile[2:]), dtype=self.dtype)
        scales = kernel.new_empty(channels if self.scaled else 0, dtype=torch.float32)
        programs, tiles = self.tiles(channels)
        spectrum_kernel[(programs,)](
            *(kernel, out, self.tables, tops, scales, channels, *self.sizes), TILES=tiles, **self.sides, **self.kind
        )
        return Spectrum(out, scales)

    def gradient(self, sums: Tensor, out: Tensor) -> None:
        """Write the kernel's gradient, (channels, 1, *points), from the sums over parts of the batch."""
        plan, channels = self.plan, sums.shape[1]
        if not self.tuning.ready:
            out.copy_((sums.sum(dim=0) if sums.shape[0] > 1 else sums).view(out.shape))
            return
        inner = plan.m1 * plan.m2
        if self.far and not plan.complex:
            out.zero_()
        parts = out.new_empty((channels, 2, inner), dtype=self.dtype) if plan.complex else out
        scales = out.new_empty(channels if self.scaled else 0, dtype=torch.float32)
        programs, tiles = self.tiles(channels)
        gradient_kernel[(programs,)](
            *(sums, parts, self.tables, scales, sums.shape[0], channels, *self.sizes),
            EACH=power(sums.shape[0]),
            TILES=tiles,
            **self.sides,
            **self.kind,
        )
        if plan.complex:
            placed = out if self.in_place else out.new_empty(out.shape[0], 1 if self.real else 2, plan.outer, inner)
            tile, columns = min(self.q, self.tuning.rows), self.outer_kind["BLOCK_N"]
            merge_points_kernel[(-(-inner // columns), self.q // tile, out.shape[0])](
                *(parts, placed, self.outer_tables[1], self.phases, scales, plan.outer, inner),
                **{"R": self.r, "BLOCK_R": min(self.r, 64), "Q": tile},
                REAL=self.real,
                **self.outer_kind,
            )
            if not self.in_place:
                rows, columns = (1, self.points[0]) if out.dim() == 3 else (self.points[0], out[0, 0, 0].numel())
                self.move(take_kernel, placed, out, rows, columns)

    def put(self, kernel: Tensor) -> Tensor:
        """(channels, 1, *points) -> (channels, parts, outer, inner): every point at its place on the circles."""
        if self.in_place:
            return kernel
        outer, inner = self.plan.outer, self.plan.m1 * self.plan.m2
        placed = kernel.new_empty(kernel.shape[0], 1 if self.real else 2, outer, inner)
        self.move(place_kernel, kernel, placed, outer, inner)
        return placed

    def move(self, function: Any, source: Tensor, target: Tensor, rows: int, columns: int) -> None:
        """Launch one of :mod:`.places` with this many rows and columns of the target."""
        plan, tall = self.plan, 1 if rows == 1 else 4
        function[(-(-columns // 256), -(-rows // tall), target.shape[0])](
            *(source, target, plan.outer, plan.m1 * plan.m2, plan.m2, *self.offsets),
            **{"DIM": len(self.points), "REAL": self.real, "ROWS": tall, "COLS": 256},
        )

    def tiles(self, channels: int) -> tuple[int, int]:
        """Return programs and tiles of each for one pass over kernels; tables are loaded once a program."""
        stacks = -(-channels // self.tuning.stack)
        tiles = power(max(1, stacks // 1024))
        return -(-stacks // tiles), tiles

    def parts(self, channels: int, more: float = 0.0) -> tuple[int, int]:
        """Return how many parts the batch is cut in, and the signals of each."""
        stacks, slots = -(-channels // (self.tuning.stack * self.tuning.tiles)), self.tuning.resident * self.processors
        each = signals_of_a_program(stacks, self.batch, slots, more)
        return -(-self.batch // each), each

    def conv(self, x: Tensor, spectrum: Spectrum, out: Tensor, conjugate: bool = False) -> None:
        """Convolve inner signals (batch, channels, parts, length) with a kernel's spectrum."""
        plan, channels = self.plan, x.shape[1]
        parts, each = self.parts(channels)
        tiles = self.tuning.tiles
        conv_kernel[(-(-channels // (self.tuning.stack * tiles)), parts)](
            *(x, spectrum.values, out, self.tables, spectrum.scales),
            *(self.batch, channels, plan.rows, plan.cols, plan.length, *self.sizes),
            **{"READY": self.tuning.ready, "HOLD": self.tuning.hold, "CONJUGATE": conjugate, "EACH": each},
            TILES=tiles,
            **self.sides,
            **self.kind,
        )

    def grads(self, grad: Tensor, x: Tensor, spectrum: Spectrum, weights: Tensor, out: Tensor | None) -> Tensor:
        """Return the sums that the kernel's gradient is made of; write that of x to ``out`` if it is wanted."""
        plan, channels = self.plan, x.shape[1]
        parts, each = self.parts(channels, 2.0)  # sums to be written and read again
        if self.tuning.ready:
            sums = x.new_empty((parts, channels, 2, *plan.tile[2:]), dtype=torch.float32)
        else:
            size = (parts, channels, *self.points)
            sums = x.new_zeros(size, dtype=torch.float32) if self.far else x.new_empty(size, dtype=torch.float32)
        tiles = self.tuning.tiles
        grads_kernel[(-(-channels // (self.tuning.stack * tiles)), parts)](
            *(grad, x, spectrum.values, grad if out is None else out, sums, self.tables, spectrum.scales, weights),
            *(self.batch, channels, plan.rows, plan.cols, plan.length, *self.sizes),
            **{"READY": self.tuning.ready, "HOLD": self.tuning.hold_too, "SPECTRAL": self.tuning.ready, "EACH": each},
            NEED_X=out is not None,
            TILES=tiles,
            **self.sides,
            **self.kind,
        )
        return sums

    def outer_numbers(self, x: Tensor, tops: Tensor) -> tuple[tuple[int, ...], int, int]:
        """Return the numbers that ``split`` and ``merge`` take, the signals of a program, and the tiles of a signal."""
        step = self.plan.outer_step
        signals, tiles = x.shape[0] * x.shape[1], -(-step // self.outer_kind["BLOCK_N"])
        each = power(max(1, min(signals, signals * tiles // self.tuning.outer_programs)))
        strides = x.stride(0), tops.stride(0)
        return (signals, x.shape[1], *strides, self.blocks, self.plan.outer, step, self.length), each, tiles

    def split(self, x: Tensor, tops: Tensor) -> Tensor:
        """(batch, channels, *space) -> (batch, channels · outer, 2, step)."""
        plan = self.plan
        numbers, each, tiles = self.outer_numbers(x, tops)
        out = x.new_empty((x.shape[0], x.shape[1] * plan.outer, 2, plan.outer_step), dtype=self.dtype)
        tile = min(self.r, self.tuning.rows)
        split_kernel[(tiles, self.r // tile, -(-numbers[0] // each))](
            *(x, out, self.outer_tables[0], self.phases, tops, *numbers),
            **{"R": tile, "Q": self.q, "BLOCK_Q": min(self.q, 64), "EACH": each},
            **self.outer_kind,
        )
        return out

    def merge(self, z: Tensor, tops: Tensor, scales: Tensor, out: Tensor) -> None:
        """(batch, channels · outer, 2, step) -> (batch, channels, *space)."""
        numbers, each, tiles = self.outer_numbers(out, tops)
        tile = min(self.q, self.tuning.rows)
        merge_kernel[(tiles, self.q // tile, -(-numbers[0] // each))](
            *(z, out, self.outer_tables[1], self.phases, tops, scales, *numbers),
            **{"R": self.r, "BLOCK_R": min(self.r, 64), "Q": tile, "EACH": each},
            **self.outer_kind,
        )

    def weights(self, tops: Tensor, others: Tensor) -> Tensor:
        """Return what products of parts of two signals are to be multiplied by, (batch, channels · outer)."""
        if not self.scaled:
            return self.tables[:0]
        outer = self.plan.outer
        return (tops * others * outer**2).repeat_interleave(outer, dim=1)


#: plans, tables and grids take longer to make than a small convolution
make_call = kept(256)(lambda *key: Call(*key[:-2]))


def _call(x: Tensor, kernel: Tensor, causal: bool, periodic: list[bool]) -> Call:
    how = causal, tuple(periodic), precision(x.dtype), scaled(x.dtype)
    return make_call(tuple(x.shape), tuple(kernel.shape[2:]), x.dtype, x.device, *how)


def spectral_conv(x: Tensor, kernel: Tensor, causal: bool, periodic: list[bool], groups: int) -> Tensor:  # noqa: ARG001
    """Convolve depthwise; ``x`` and ``kernel`` have as many channels as there are groups."""
    x = x.contiguous()
    out = torch.empty_like(x)
    if not x.numel():
        return out
    call = _call(x, kernel, causal, periodic)
    kernel, tops = call.wind(kernel), call.tops(x)
    for part in call.chunks():
        spectrum = call.spectrum(kernel[part])
        if call.plan.complex:
            top = tops[:, part] if call.scaled else tops
            inner = call.split(x[:, part], top)
            call.conv(inner, spectrum, inner)
            call.merge(inner, top, spectrum.scales, out[:, part])
        else:
            call.conv(x, spectrum, out)
    return out


def spectral_grads(
    grad: Tensor,
    x: Tensor,
    kernel: Tensor,
    need_x: bool,
    need_kernel: bool,
    causal: bool,
    periodic: list[bool],
    groups: int,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`spectral_conv`; one that is not needed is empty."""
    grad, x = grad.contiguous(), x.contiguous()
    grad_x = x.new_empty(x.shape if need_x else 0)
    if not x.numel():
        return grad_x, kernel.new_zeros(kernel.shape if need_kernel else 0)
    call = _call(x, kernel, causal, periodic)
    kernel = call.wind(kernel)
    together = need_x and need_kernel and not call.tuning.apart
    grad_tops, tops = (call.tops(t) for t in (grad, x))
    grad_kernel = kernel.new_empty(kernel.shape if need_kernel else 0)
    for part in call.chunks():
        spectrum = call.spectrum(kernel[part]) if need_x else Spectrum(kernel[part], call.tables[:0])
        inner, signals, target, weights = grad, x, grad_x, tops
        if call.plan.complex:
            top, other = (t[:, part] if call.scaled else t for t in (grad_tops, tops))
            inner = target = call.split(grad[:, part], top)
            signals = call.split(x[:, part], other) if need_kernel else inner
            weights = call.weights(top, other)
        if need_kernel:
            sums = call.grads(inner, signals, spectrum, weights, target if together else None)
            call.gradient(sums, grad_kernel[part])
        if need_x and not together:
            call.conv(inner, spectrum, target, conjugate=True)
        if need_x and call.plan.complex:
            call.merge(inner, top, spectrum.scales, grad_x[:, part])
    return grad_x, call.unwind(grad_kernel) if need_kernel else grad_kernel
