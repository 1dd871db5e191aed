"""Launch the kernels: tiles, grids, and the two operators that autograd calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources as TooLarge

from ...architectures import architecture_of
from ...graph_cache import graph_cache
from ..frozen_spectra import KEPT
from ..shape import centres, place, take
from . import plan_of, precision, scaled
from .outer_launch import Blocks
from .plan import power
from .spectra import gradient_kernel, spectrum_kernel
from .tables import inner_tables
from .transform import conv_kernel, grads_kernel
from .tuning import SUMS, tuning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Call", "Spectrum", "TooLarge", "make_call", "spectral_conv", "spectral_grads"]


class Spectrum(NamedTuple):
    """Kernels in the form that a convolution reads: spectra, outer transforms, or the kernels themselves.

    Args:
        values: (channels, k1, 2, k2) spectra, or outer transforms, or kernels.
        scales: factors by which to multiply the spectra, if scaled.
        tops: factors by which to multiply the outer transforms, if scaled.
    """

    values: Tensor
    scales: Tensor
    tops: Tensor


class Call(Blocks):
    """Plan, tables and launch grids of one convolution."""

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
        self.length, self.itemsize = torch.Size(lengths).numel(), dtype.itemsize
        plan = plan_of(lengths, points, causal, periodic, dtype, limits=architecture_of(device))
        if plan is None:
            raise NotImplementedError(f"no tile layout for signals of {tuple(lengths)} and kernels of {points}")
        self.precision, self.scaled, self.half = precision(dtype), scaled(dtype, lengths), dtype == torch.bfloat16
        self.plan, self.device, self.tuning = plan, device, tuning(plan, self.scaled)
        # The interpreter runs programs one after the other.
        on_gpu = device.type == "cuda"
        self.processors = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 1
        if not on_gpu:
            self.tuning = replace(self.tuning, resident=1, resident_backward=1, outer_programs=1)
        # float16 has tf32's precision but not the range that spectra need; the interpreter cannot multiply bfloat16.
        self.dtype = torch.float16 if self.scaled else torch.float32
        if dtype == torch.bfloat16 and device.type == "cuda":
            self.dtype = dtype
        self._place(points, centres(points, causal), tuple(lengths), periodic)
        n1, n2, k1, k2 = plan.tile
        self.sides = {"S": self.tuning.stack, "N1": n1, "N2": n2, "K1": k1, "K2": k2}
        self.kind: dict[str, Any] = {"COMPLEX": plan.complex, "TWIDDLE": plan.twiddle, "UPRIGHT": plan.upright}
        self.real = not plan.shift or self.centres[0] == 0
        self.kind |= {
            "SHARED": plan.element == 2,
            "REAL": self.real,
            "SCALED": self.scaled,
            "PACKED": False,
            "PRECISION": self.precision,
            "num_stages": 1,  # the loop over the batch prefetches the next signal itself
            "num_warps": self.tuning.warps,
        }
        self.tables = inner_tables(plan, self.dtype, device)
        self.prepare_blocks()

    def _place(
        self, points: tuple[int, ...], middles: tuple[int, ...], lengths: tuple[int, ...], periodic: tuple[bool, ...]
    ) -> None:
        """Find the offsets of the kernel's points. Along a periodic axis, a kernel longer than the axis wraps."""
        self.wrapped_axes = [d for d, wraps in enumerate(periodic) if wraps and points[d] > lengths[d]]
        self.points, self.centres = list(points), list(middles)
        for d in self.wrapped_axes:
            self.points[d], self.centres[d] = lengths[d], 0
        self.original = points, middles
        # Points at offsets beyond the signal's length have no effect, and their gradient is not written.
        axes = zip(self.points, self.centres, lengths, strict=True)
        self.far = any(k - 1 - c >= n for k, c, n in axes)
        fill = 3 - len(points)
        self.offsets = (*self.points, *(1,) * fill, *self.centres, *(0,) * fill)
        # A causal kernel as long as the outer transform needs no scatter.
        size = self.plan.outer * self.plan.m1 * self.plan.m2
        self.in_place = len(points) == 1 and self.points[0] == size and self.centres[0] == 0
        self.sizes = self.plan.m1, self.plan.m2, *self.offsets[:2], *self.offsets[3:5]

    def wrap(self, kernel: Tensor) -> Tensor:
        """Return contiguous (channels, 1, *points) kernels, wrapped along periodic axes that are shorter than they."""
        for d in self.wrapped_axes:
            kernel = place(kernel, 2 + d, (self.points[d],), (self.original[1][d],))
        return kernel.contiguous()

    def unwrap(self, kernel: Tensor) -> Tensor:
        """Undo :meth:`wrap` for a gradient."""
        for d in self.wrapped_axes:
            points, middles = self.original
            kernel = take(kernel, 2 + d, (points[d],), (self.points[d],), (middles[d],))
        return kernel

    def spectrum(self, kernel: Tensor, top: Tensor, training: bool = False) -> Spectrum:
        """Return (channels, 1, *points) kernels in the form that the convolution reads; see :class:`Spectrum`.

        ``top`` is the largest value of each kernel, if they are scaled and have an outer transform.
        """
        plan, tops = self.plan, self.tables[:0]
        if not (self.tuning.precompute or plan.complex):
            return Spectrum(kernel, tops, tops)
        channels = kernel.shape[0] * plan.outer
        if plan.complex:
            kernel, tops = self.split_points(kernel, top)
        scales = kernel.new_empty(channels if self.scaled else 0, dtype=torch.float32)
        if not self.precomputes(training):
            return Spectrum(kernel, scales, tops)
        out = kernel.new_empty((channels, plan.tile[2], 2, plan.tile[3]), dtype=self.dtype)
        programs, tiles = self.tiles(channels)
        spectrum_kernel[(programs,)](
            *(kernel, out, self.tables, tops, scales, channels, self.hop, *self.sizes),
            TILES=tiles,
            **self.sides,
            **self.kind,
        )
        return Spectrum(out, scales, tops)

    def kernel_spectra(self, kernel: Tensor) -> Iterator[tuple[slice, Spectrum]]:
        """Yield chunks of channels, and the spectra of their kernels for a convolution without a gradient."""
        kernel = self.wrap(kernel)
        tops = self.tops(kernel)
        for part in self.chunks():
            yield part, self.spectrum(kernel[part], tops[part])

    def gradient(self, sums: Spectrum, out: Tensor) -> None:
        """Write the kernel's gradient, (channels, 1, *points), from the sums that :meth:`grads` returns."""
        plan, (values, scales, _) = self.plan, sums
        if not (self.tuning.precompute or plan.complex):
            out.copy_((values.sum(dim=0) if values.shape[0] > 1 else values).view(out.shape))
            return
        inner, parts = plan.m1 * plan.m2, values
        if self.far and not plan.complex:
            out.zero_()
        if self.precomputes(training=True):
            channels = values.shape[1]
            parts = out.new_empty((channels, 2, inner), dtype=self.dtype) if plan.complex else out
            programs, tiles = self.tiles(channels)
            gradient_kernel[(programs,)](
                *(values, parts, self.tables, scales, values.shape[0], channels, self.hop, *self.sizes),
                EACH=power(values.shape[0]),
                TILES=tiles,
                **self.sides,
                **self.kind,
            )
        if plan.complex:
            self.merge_points(parts, scales, out)

    def tiles(self, channels: int) -> tuple[int, int]:
        """Return the numbers of programs and of tiles per program for a pass over kernels."""
        stacks = -(-channels // (self.hop * self.tuning.stack))
        tiles = power(max(1, stacks * self.hop // 1024))
        return self.hop * -(-stacks // tiles), tiles

    def conv(self, x: Tensor, spectrum: Spectrum, out: Tensor, conjugate: bool = False) -> None:
        """Convolve inner signals (batch, channels, parts, length) with a kernel's spectrum, or its conjugate."""
        plan, channels = self.plan, x.shape[1]
        parts, each = self.parts(channels, self.tuning.resident)
        conv_kernel[(self.stacks(channels), parts)](
            *(x, spectrum.values, out, self.tables, spectrum.scales, spectrum.tops),
            *(self.batch, channels, self.hop, plan.rows, plan.cols, plan.length, *self.sizes),
            **{"READY": self.precomputes(conjugate), "HOLD": self.tuning.hold, "CONJUGATE": conjugate, "EACH": each},
            TILES=self.tuning.tiles,
            **self.sides,
            **(self.kind | {"PACKED": self.tuning.packed}),
        )

    def grads(self, grad: Tensor, x: Tensor, spectrum: Spectrum, weights: Tensor, out: Tensor | None) -> Spectrum:
        """Return the partial sums of the kernel's gradient. Write the gradient of x to ``out`` unless it is None."""
        plan, channels = self.plan, x.shape[1]
        parts, each = self.parts(channels, self.tuning.resident_backward, SUMS)
        ready = self.precomputes(training=True)
        if ready:
            sums = x.new_empty((parts, channels, plan.tile[2], 2, plan.tile[3]), dtype=torch.float32)
        elif plan.complex:
            parts, each = 1, power(self.batch)
            sums = x.new_empty((channels, 2, plan.m1 * plan.m2), dtype=self.dtype)
        else:
            size = (parts, channels, *self.points)
            sums = x.new_zeros(size, dtype=torch.float32) if self.far else x.new_empty(size, dtype=torch.float32)
        scales = x.new_empty(channels if self.scaled else 0, dtype=torch.float32)
        columns = self.tuning.split_columns if out is None and ready else 1
        grads_kernel[(self.stacks(channels), parts, columns)](
            *(grad, x, spectrum.values, grad if out is None else out, sums, self.tables),
            *(spectrum.scales, spectrum.tops, weights, scales),
            *(self.batch, channels, self.hop, plan.rows, plan.cols, plan.length, *self.sizes),
            **{"READY": ready, "HOLD": self.tuning.hold_backward, "SPECTRAL": ready, "EACH": each},
            NEED_X=out is not None,
            TILES=self.tuning.tiles,
            C=self.sides["K2"] // columns,
            **self.sides,
            **(self.kind | {"PACKED": self.tuning.packed_backward}),
        )
        return Spectrum(sums, scales, scales)


#: calls are cached, because building one takes longer than a small convolution
make_call = graph_cache(256)(lambda *key: Call(*key[:-2]))


def _call(x: Tensor, kernel: Tensor, causal: bool, periodic: list[bool]) -> Call:
    products = precision(x.dtype)
    options = causal, tuple(periodic), products, scaled(x.dtype, x.shape[2:], products)
    return make_call(tuple(x.shape), tuple(kernel.shape[2:]), x.dtype, x.device, *options)


def spectral_conv(x: Tensor, kernel: Tensor, causal: bool, periodic: list[bool], groups: int) -> Tensor:  # noqa: ARG001
    """Convolve depthwise: ``x`` and ``kernel`` have ``groups`` channels."""
    x = x.contiguous()
    out = torch.empty_like(x)
    if not x.numel():
        return out
    call = _call(x, kernel, causal, periodic)
    tops = call.tops(x)
    for part, spectrum in _kernel_spectra(call, kernel):
        if call.plan.complex:
            top = tops[:, part] if call.scaled else tops
            inner = call.split(x[:, part], top)
            call.conv(inner, spectrum, inner)
            call.merge(inner, top, spectrum.scales, out[:, part])
        else:
            call.conv(x, spectrum, out)
    return out


def _kernel_spectra(call: Call, kernel: Tensor) -> Iterable[tuple[slice, Spectrum]]:
    """Return the spectra of kernels, chunk by chunk; for a frozen kernel they are computed once."""
    kept = KEPT.get(kernel) if KEPT else None
    if kept is None or not (call.tuning.precompute or call.plan.complex):
        return call.kernel_spectra(kernel)

    def compute(kernel: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor for _, spectrum in call.kernel_spectra(kernel) for tensor in spectrum)

    size = kernel.shape[0] * call.plan.outer * call.plan.tile[2] * call.plan.tile[3] * 2 * call.dtype.itemsize
    found = kept.get(call, kernel, compute, size)
    if found is None:
        return call.kernel_spectra(kernel)
    return [(part, Spectrum(*found[3 * i : 3 * i + 3])) for i, part in enumerate(call.chunks())]


def spectral_grads(
    grad: Tensor,
    x: Tensor,
    kernel: Tensor,
    needs: tuple[bool, bool],
    causal: bool,
    periodic: list[bool],
    groups: int,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`spectral_conv`; a gradient that is not needed is empty."""
    grad, x = grad.contiguous(), x.contiguous()
    need_x, need_kernel = needs
    grad_x = x.new_empty(x.shape if need_x else 0)
    if not x.numel():
        return grad_x, kernel.new_zeros(kernel.shape if need_kernel else 0)
    call = _call(x, kernel, causal, periodic)
    kernel = call.wrap(kernel)
    fused = need_x and need_kernel and not call.tuning.split_grads
    grad_tops, tops = call.tops(grad), call.tops(x)
    kernel_tops = call.tops(kernel) if need_x else call.tables[:0]
    grad_kernel = kernel.new_empty(kernel.shape if need_kernel else 0)
    for part in call.chunks(training=True):
        spectrum = Spectrum(kernel[part], call.tables[:0], call.tables[:0])
        if need_x:
            spectrum = call.spectrum(kernel[part], kernel_tops[part], training=True)
        inner, signals, target, weights = grad, x, grad_x, tops
        if call.plan.complex:
            top, other = (t[:, part] if call.scaled else t for t in (grad_tops, tops))
            inner = target = call.split(grad[:, part], top)
            signals = call.split(x[:, part], other) if need_kernel else inner
            weights = call.weights(top, other)
        if need_kernel:
            sums = call.grads(inner, signals, spectrum, weights, target if fused else None)
        if need_x and not fused:
            call.conv(inner, spectrum, target, conjugate=True)
        if need_x and call.plan.complex:
            call.merge(inner, top, spectrum.scales, grad_x[:, part])
        del inner, signals, target, spectrum  # free their memory for the next launch
        if need_kernel:
            call.gradient(sums, grad_kernel[part])
            del sums
    return grad_x, call.unwrap(grad_kernel) if need_kernel else grad_kernel
