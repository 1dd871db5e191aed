r"""Convolution as a product of spectra. Only the input and the kernel are saved for the backward pass.

Inputs are processed in chunks of groups and of the batch, which limits the memory for spectra and on a CPU keeps them
in cache. A plane or volume that is larger than a chunk is processed in blocks of columns (:mod:`.fft_columns`).
"""

from __future__ import annotations

import functools
import math
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from ..autograd import bilinear
from .direct import direct_conv
from .fft_columns import Columns
from .frozen_spectra import KEPT
from .shape import centres, place, take

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "fast_size",
    "fft_conv",
    "transform_conv",
    "transform_grads",
    "transform_sizes",
    "working_dtype",
]

# Bytes of one padded chunk of the input. On a CPU this is a fraction of a typical last-level cache. On a GPU it fills
# the device. `benchmarks/conv.py --chunks` plots time against chunk size.
CHUNK_BYTES = {"cpu": 1 << 22, "cuda": 128 << 20}
# If signals have at least LARGE bytes each, a chunk is at most this share of all of them.
CHUNK_SHARE, LARGE = 1 / 16, 16 << 20


def fft_conv(x: Tensor, kernel: Tensor, *, causal: bool, boundary: tuple[str, ...], groups: int) -> Tensor:
    """Convolve by products of spectra. The arguments are those of :func:`kernelfield.ops.conv`, already checked."""
    if torch._C._are_functorch_transforms_active():  # noqa: SLF001
        # torch.func cannot transform the operators below, but it can transform the direct sum.
        return direct_conv(x, kernel, causal=causal, boundary=boundary, groups=groups)
    return _fft_conv(x, kernel, causal, [name == "periodic" for name in boundary], groups)


def prepared_fft_conv(
    x: Tensor, kernel: Tensor, causal: bool, boundary: tuple[str, ...], groups: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return :func:`fft_conv` for signals and kernels of the shapes and dtypes of ``x`` and ``kernel``.

    A call without a gradient then has no overhead before its first transform.
    """
    general = partial(fft_conv, causal=causal, boundary=boundary, groups=groups)
    if torch.is_grad_enabled() and (x.requires_grad or kernel.requires_grad):
        return general
    convolve = _transform_of(x, kernel, causal, [name == "periodic" for name in boundary], groups).conv

    def run(x: Tensor, kernel: Tensor) -> Tensor:
        return (general if torch._C._are_functorch_transforms_active() else convolve)(x, kernel)  # noqa: SLF001

    return run


#: one chunk: all groups and the whole batch
WHOLE = [(slice(None), [slice(None)])]


class _Transform:
    """Spectra of signals and kernels for one pair of shapes, and their products.

    Args:
        lengths: length of the signal along each axis.
        points: number of kernel points along each axis.
        dtype: dtype of the transforms.
        depthwise: whether there is one input channel per group.
        causal: as in :func:`kernelfield.ops.conv`.
        periodic: whether each axis is periodic.
        groups: number of groups of channels.
    """

    def __init__(
        self,
        lengths: tuple[int, ...],
        points: tuple[int, ...],
        dtype: torch.dtype,
        depthwise: bool,
        causal: bool,
        periodic: tuple[bool, ...],
        groups: int,
    ) -> None:
        self.lengths, self.points, self.dtype = lengths, points, dtype
        self.depthwise, self.groups = depthwise, groups
        self.centres = centres(points, causal)
        self.sizes = transform_sizes(lengths, points, self.centres, periodic)
        self.total = math.prod(self.sizes)
        self.axes = tuple(range(-len(self.sizes), 0))
        # Kernels begin at index 0 of the transform, and outputs at the kernel's centre, so no values are moved. Along a
        # periodic axis the kernel is moved by its centre, and outputs begin at 0.
        axes = list(zip(self.centres, points, self.sizes, periodic, strict=True))
        self.first = tuple([0 if wraps or k > size else c for c, k, size, wraps in axes])
        self.moved = tuple([c if wraps or k > size else 0 for c, k, size, wraps in axes])
        self.origin = (0,) * len(axes)
        #: whether a kernel's points are moved to other indices of the transform
        self.moves = any(wraps or k > size for _, k, size, wraps in axes)

    def conv(self, x: Tensor, kernel: Tensor) -> Tensor:
        if self._is_plain(x, kernel):
            spectrum = self._kept(kernel, self._plain_spectrum)
            if spectrum is None:
                spectrum = self._kernel_spectrum(kernel.squeeze(1))
            y = self._inverse(self._spectrum(x).mul_(spectrum), self.lengths, self.first)
            return y if y.dtype == x.dtype else y.to(x.dtype)
        signals, kernels = x.unflatten(1, (self.groups, -1)), kernel.unflatten(0, (self.groups, -1))
        columns = self._columns(signals, kernels)
        if columns is not None and self.groups == 1:
            return columns.conv(signals, kernels, self._product, None).flatten(1, 2)
        chunks = self._chunks(signals, kernels)
        if chunks == WHOLE:
            spectrum = self._kept(kernel, self._group_spectrum)
            spectrum = self._kernel_spectrum(kernels) if spectrum is None else spectrum
            return self._conv(signals, spectrum).flatten(1, 2).to(x.dtype)
        out = x.new_empty((x.shape[0], self.groups, kernels.shape[1], *self.lengths))
        if columns is not None:
            for g in range(self.groups):
                one = slice(g, g + 1)
                columns.conv(signals[:, one], kernels[one], self._product, out[:, one])
            return out.flatten(1, 2)
        whole = self._kept(kernel, self._group_spectrum)
        for group, batches in chunks:
            spectrum = self._kernel_spectrum(kernels[group]) if whole is None else whole[group]
            for batch in batches:
                out[batch, group] = self._conv(signals[batch, group], spectrum)
        return out.flatten(1, 2)

    def _kept(self, kernel: Tensor, compute: Callable[[Tensor], tuple[Tensor, ...]]) -> Tensor | None:
        """Return the cached spectrum of a frozen kernel, or None for any other kernel."""
        kept = KEPT.get(kernel) if KEPT else None
        if kept is None:
            return None
        found = kept.get(compute, kernel, compute, kernel.shape[0] * kernel.shape[1] * self.total * self.dtype.itemsize)
        return None if found is None else found[0]

    def _plain_spectrum(self, kernel: Tensor) -> tuple[Tensor, ...]:
        return (self._kernel_spectrum(kernel.squeeze(1)),)

    def _group_spectrum(self, kernel: Tensor) -> tuple[Tensor, ...]:
        return (self._kernel_spectrum(kernel.unflatten(0, (self.groups, -1))),)

    def _is_plain(self, x: Tensor, kernel: Tensor) -> bool:
        """Return whether there is one kernel per channel and a single chunk, so that no axis of groups is needed.

        Without that axis a small convolution needs half as many calls of torch.
        """
        if not self.depthwise or kernel.shape[0] != self.groups or x.numel() == 0:
            return False
        row = self.total * self.dtype.itemsize
        size = x.shape[0] * self.groups * row
        return size <= CHUNK_BYTES["cpu"] or size <= self._budget(x, row)  # no budget is below that of a CPU

    def _plain_grads(
        self, grad: Tensor, x: Tensor, kernel: Tensor, need_x: bool, need_kernel: bool
    ) -> tuple[Tensor, Tensor]:
        spectrum = self._spectrum(grad, self.first)
        grad_x, grad_kernel = x.new_empty(0), kernel.new_empty(0)
        if need_kernel:
            total = self._spectrum(x).conj_physical_().mul_(spectrum).sum(dim=0)
            grad_kernel = self._kernel_from(total).unsqueeze(1).to(kernel.dtype)
        if need_x:
            conjugate = self._kernel_spectrum(kernel.squeeze(1)).conj_physical_()
            grad_x = self._inverse(spectrum.mul_(conjugate), self.lengths, self.origin).to(x.dtype)
        return grad_x, grad_kernel

    def grads(self, grad: Tensor, x: Tensor, kernel: Tensor, need_x: bool, need_kernel: bool) -> tuple[Tensor, Tensor]:
        if self._is_plain(x, kernel):
            return self._plain_grads(grad, x, kernel, need_x, need_kernel)
        outputs, signals = grad.unflatten(1, (self.groups, -1)), x.unflatten(1, (self.groups, -1))
        kernels = kernel.unflatten(0, (self.groups, -1))
        columns, needs = self._columns(signals, kernels), (need_x, need_kernel)
        products = self._contract_out, self._contract_batch
        if columns is not None and self.groups == 1:
            found = columns.grads(outputs, signals, kernels, needs, products, (None, None))
            return found[0].view(x.shape if need_x else 0), found[1].view(kernel.shape if need_kernel else 0)
        chunks = WHOLE if columns is not None else self._chunks(signals, kernels)
        if chunks == WHOLE and columns is None:
            return self._whole_grads(outputs, signals, kernels, need_x, need_kernel)
        grad_x = x.new_empty(x.shape if need_x else 0)
        grad_kernel = kernel.new_zeros(kernel.shape if need_kernel else 0)
        if columns is not None:
            for g in range(self.groups):
                one = slice(g, g + 1)
                out_x = grad_x.unflatten(1, (self.groups, -1))[:, one] if need_x else None
                out_kernel = grad_kernel.unflatten(0, (self.groups, -1))[one] if need_kernel else None
                columns.grads(outputs[:, one], signals[:, one], kernels[one], needs, products, (out_x, out_kernel))
            return grad_x, grad_kernel
        for group, batches in chunks:
            conjugate = self._kernel_spectrum(kernels[group]).conj_physical_() if need_x else None
            total: Tensor | None = None
            for batch in batches:
                spectrum = self._spectrum(outputs[batch, group], self.first)
                if need_kernel:
                    term = self._contract_batch(spectrum, self._spectrum(signals[batch, group]))
                    total = term if total is None else total.add_(term)
                if conjugate is not None:
                    signal = self._inverse(self._contract_out(spectrum, conjugate), self.lengths, self.origin)
                    grad_x.unflatten(1, (self.groups, -1))[batch, group] = signal
            if total is not None:
                grad_kernel.unflatten(0, (self.groups, -1))[group] = self._kernel_from(total)
        return grad_x, grad_kernel

    def _whole_grads(
        self, outputs: Tensor, signals: Tensor, kernels: Tensor, need_x: bool, need_kernel: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of one chunk, without copies into larger tensors."""
        grad_x, grad_kernel = signals.new_empty(0), kernels.new_empty(0)
        spectrum = self._spectrum(outputs, self.first)
        if need_kernel:
            total = self._contract_batch(spectrum, self._spectrum(signals))
            grad_kernel = self._kernel_from(total).flatten(0, 1).to(kernels.dtype)
        if need_x:
            conjugate = self._kernel_spectrum(kernels).conj_physical_()
            product = self._contract_out(spectrum, conjugate)
            grad_x = self._inverse(product, self.lengths, self.origin).flatten(1, 2).to(signals.dtype)
        return grad_x, grad_kernel

    def _budget(self, signals: Tensor, row: int) -> int:
        """Return the bytes of padded signals per chunk, where one group of one batch entry has ``row`` bytes."""
        most = CHUNK_BYTES.get(signals.device.type, CHUNK_BYTES["cuda"])
        if row < LARGE:
            return most
        return min(most, max(LARGE, int(CHUNK_SHARE * row * signals.shape[0] * self.groups)))

    def _row(self, signals: Tensor, kernels: Tensor) -> int:
        """Return the bytes of one group of one batch entry, padded."""
        return max(signals.shape[2], kernels.shape[1]) * self.total * self.dtype.itemsize

    def _columns(self, signals: Tensor, kernels: Tensor) -> Columns | None:
        """Return the transforms for blocks of columns; None if a signal fits into a chunk or has a single axis."""
        row = self._row(signals, kernels)
        budget = self._budget(signals, row)
        if len(self.sizes) == 1 or row <= budget or not signals.shape[0]:
            return None
        return Columns(self.lengths, self.points, self.centres, self.sizes, self.dtype, budget)

    def _chunks(self, signals: Tensor, kernels: Tensor) -> list[tuple[slice, list[slice]]]:
        """Cut (batch, groups) into blocks whose padded signals take about CHUNK_BYTES."""
        batch = signals.shape[0]
        if batch == 0:
            return []
        row = self._row(signals, kernels)
        rows = max(1, self._budget(signals, row) // row)
        # Groups are split first, because a group's kernel is transformed once for the whole batch.
        group_step = max(1, min(self.groups, rows // batch))
        batch_step = max(1, min(batch, rows // group_step))
        if group_step >= self.groups and batch_step >= batch:
            return WHOLE
        batches = [slice(i, i + batch_step) for i in range(0, batch, batch_step)]
        return [(slice(i, i + group_step), batches) for i in range(0, self.groups, group_step)]

    # Shapes below, also of spectra: signals (b, g, i, *space), outputs (b, g, o, *space), kernels (g, o, i, *points).

    def _conv(self, signals: Tensor, spectrum: Tensor) -> Tensor:
        return self._inverse(self._product(self._spectrum(signals), spectrum), self.lengths, self.first)

    def _product(self, x: Tensor, spectrum: Tensor) -> Tensor:
        if self.depthwise:  # with one input channel per group the product is elementwise
            return x.mul_(spectrum.squeeze(2)) if spectrum.shape[1] == 1 else x * spectrum.squeeze(2)
        return torch.einsum("bgi...,goi...->bgo...", x, spectrum)

    # Conjugates are computed at once: under a dispatch mode, products inside an operator would ignore lazy ones.

    def _contract_out(self, outputs: Tensor, conjugate: Tensor) -> Tensor:
        if self.depthwise and conjugate.shape[1] == 1:
            return outputs.mul_(conjugate.squeeze(2))
        return torch.einsum("bgo...,goi...->bgi...", outputs, conjugate)

    def _contract_batch(self, outputs: Tensor, signals: Tensor) -> Tensor:
        signals = signals.conj_physical_()
        if self.depthwise:
            return (outputs * signals).sum(dim=0).unsqueeze(2)
        return torch.einsum("bgo...,bgi...->goi...", outputs, signals)

    def _spectrum(self, signals: Tensor, first: tuple[int, ...] | None = None) -> Tensor:
        """Transform signals whose first sample lies at index ``first`` along each axis, 0 by default."""
        if signals.dtype != self.dtype:
            signals = signals.to(self.dtype)
        if signals.is_cuda:  # one launch
            if first is not None and first != self.origin:
                signals = F.pad(signals, [n for axis in reversed(self.axes) for n in self._gaps(signals, axis, first)])
            return torch.fft.rfftn(signals, s=self.sizes, dim=self.axes)
        # Axis by axis, from the last, so that rows of padding along other axes are never transformed.
        if first is not None:
            signals = self._padded(signals, -1, first)
        spectrum = torch.fft.rfft(signals, n=self.sizes[-1], dim=-1)
        for axis in reversed(self.axes[:-1]):
            if first is not None:
                spectrum = self._padded(spectrum, axis, first)
            spectrum = torch.fft.fft(spectrum, n=self.sizes[axis], dim=axis)
        return spectrum

    def _padded(self, signals: Tensor, axis: int, first: tuple[int, ...]) -> Tensor:
        """Return signals that begin at index ``first`` along an axis."""
        if not first[axis]:
            return signals
        return F.pad(signals, [0, 0] * (-1 - axis) + self._gaps(signals, axis, first))

    def _gaps(self, signals: Tensor, axis: int, first: tuple[int, ...]) -> list[int]:
        return [first[axis], self.sizes[axis] - signals.shape[axis] - first[axis]]

    def _inverse(self, spectrum: Tensor, keep: tuple[int, ...], first: tuple[int, ...]) -> Tensor:
        """Return ``keep`` samples along each axis of the inverse transform, from index ``first``."""
        if spectrum.is_cuda:
            signals = torch.fft.irfftn(spectrum, s=self.sizes, dim=self.axes)
            for axis in self.axes:
                signals = signals.narrow(axis, first[axis], keep[axis])
            return signals
        for axis in self.axes[:-1]:
            spectrum = torch.fft.ifft(spectrum, dim=axis).narrow(axis, first[axis], keep[axis])
        return torch.fft.irfft(spectrum, n=self.sizes[-1], dim=-1).narrow(-1, first[-1], keep[-1])

    def _kernel_spectrum(self, kernels: Tensor) -> Tensor:
        if self.moves:
            kernels = place(kernels, kernels.dim() - len(self.sizes), self.sizes, self.moved)
        return self._spectrum(kernels)

    def _kernel_from(self, spectrum: Tensor) -> Tensor:
        """Undo :meth:`_kernel_spectrum`."""
        if not self.moves:
            return self._inverse(spectrum, self.points, self.origin)
        circle = self._inverse(spectrum, self.sizes, self.origin)
        return take(circle, circle.dim() - len(self.sizes), self.points, self.sizes, self.moved)


#: transforms by shapes, cached because making one takes as long as a small convolution
_transform = functools.lru_cache(4096)(_Transform)


def _transform_of(x: Tensor, kernel: Tensor, causal: bool, periodic: list[bool], groups: int) -> _Transform:
    depthwise = kernel.shape[1] == 1
    return _transform(x.shape[2:], kernel.shape[2:], working_dtype(x), depthwise, causal, tuple(periodic), groups)


def transform_conv(x: Tensor, kernel: Tensor, causal: bool, periodic: list[bool], groups: int) -> Tensor:
    """Convolve by spectra, without a gradient."""
    return _transform_of(x, kernel, causal, periodic, groups).conv(x, kernel)


def transform_grads(
    grad: Tensor, x: Tensor, kernel: Tensor, needs: tuple[bool, bool], causal: bool, periodic: list[bool], groups: int
) -> tuple[Tensor, Tensor]:
    """Return both gradients of :func:`transform_conv`; a gradient that is not needed is empty."""
    return _transform_of(x, kernel, causal, periodic, groups).grads(grad, x, kernel, *needs)


_fft_conv = bilinear("fft_conv", transform_conv, transform_grads)


def transform_sizes(
    lengths: tuple[int, ...], points: tuple[int, ...], middles: tuple[int, ...], periodic: Sequence[bool]
) -> tuple[int, ...]:
    """Return the length of the transform along each axis.

    With a periodic boundary this is the length of the input. Otherwise it is long enough that no value wraps around
    into the output. Padding by the kernel's longer side, not by the whole kernel, is enough for that.
    """
    return tuple(
        length if wraps else fast_size(length + max(k - 1 - c, c))
        for length, k, c, wraps in zip(lengths, points, middles, periodic, strict=True)
    )


def fast_size(n: int) -> int:
    """Return a length for fast FFTs: the smallest even number of at least ``n`` without prime factors above 5.

    >>> [fast_size(n) for n in (7, 97, 1567, 31999)]
    [8, 100, 1600, 32000]
    """
    best = 2
    while best < n:
        best *= 2
    five = 1
    while five < best:
        three = five
        while three < best:
            size = three * 2
            while size < n:
                size *= 2
            best = min(best, size)
            three *= 3
        five *= 5
    return best


def working_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of FFTs of ``x``: float64 for float64, float32 for all others."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
