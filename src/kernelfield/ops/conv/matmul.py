r"""Dense convolution by matrix products alone, for the transforms and for the sum over channels at each frequency.

.. math:: \hat y_{bo}(f) = \sum_i \hat x_{bi}(f)\, \hat k_{oi}(f)

is a product of matrices for each frequency f, which GPUs compute on tensor cores. It needs spectra with the frequency
first and the channels last. An FFT returns the opposite order, so its spectra would have to be copied before and after.
Transforms that are matrix products themselves (:mod:`.triton.outer_chain`) can write spectra in this order.

A boundary of zeros needs no padding along the first axis. At frequencies k + ¼, samples that would wrap around land in
the imaginary part, where kernel points at negative offsets are placed.

Products are in the dtype of the signal: bfloat16 with sums in float32, or float32 with the precision of
``torch.set_float32_matmul_precision``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..autograd import bilinear
from ..graph_cache import graph_cache
from .direct import direct_conv
from .fft import transform_conv, transform_grads
from .shape import centres, place, take
from .triton.outer_chain import digit_shifts, digit_table, repeated_product
from .triton.plan import find_digits

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["has_products", "matmul_conv"]

#: longest transform along an axis after the first, where each transform is one product
LONGEST = 1024


def matmul_conv(x: Tensor, kernel: Tensor, *, causal: bool, boundary: tuple[str, ...], groups: int) -> Tensor:
    """Convolve by matrix products. The arguments are those of :func:`kernelfield.ops.conv`, already checked."""
    if torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return direct_conv(x, kernel, causal=causal, boundary=boundary, groups=groups)
    return _matmul_conv(x, kernel, causal, [name == "periodic" for name in boundary], groups)


def has_products(lengths: Sequence[int], points: Sequence[int], causal: bool, periodic: Sequence[bool]) -> bool:
    """Return whether transforms of these lengths are short enough for matrix products; otherwise the FFT is used.

    >>> has_products((1024,), (1024,), True, (False,)), has_products((1 << 20,), (1 << 20,), True, (False,))
    (True, False)
    """
    sizes = _sizes(tuple(lengths), tuple(points), centres(points, causal), tuple(periodic))
    return bool(find_digits(lengths[0], periodic[0])) and max((0, *sizes[1:])) <= LONGEST


def _sizes(
    lengths: tuple[int, ...], points: tuple[int, ...], middles: tuple[int, ...], periodic: tuple[bool, ...]
) -> tuple[int, ...]:
    """Return the lengths of the transforms; all axes but the first are padded by the kernel's reach."""
    reaches = (min(n - 1, max(k - 1 - c, c)) for n, k, c in zip(lengths, points, middles, strict=True))
    others = zip(lengths[1:], list(reaches)[1:], periodic[1:], strict=True)
    first = math.prod(find_digits(lengths[0], periodic[0]))
    return first, *(n if wraps else 8 * -(-(n + reach) // 8) for n, reach, wraps in others)


class _Products:
    """Spectra of signals and kernels for one pair of shapes, as matrix products.

    Spectra are (frequencies, 2, signals), the real part before the imaginary part.

    Args:
        lengths: length of the signal along each axis.
        points: number of kernel points along each axis.
        causal: as in :func:`kernelfield.ops.conv`.
        periodic: whether each axis is periodic.
        dtype: dtype of the products.
        device: device of the tables.
    """

    def __init__(
        self,
        lengths: tuple[int, ...],
        points: tuple[int, ...],
        causal: bool,
        periodic: tuple[bool, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.lengths, self.points, self.dtype = lengths, points, dtype
        self.centres = centres(points, causal)
        self.sizes = _sizes(lengths, points, self.centres, periodic)
        self.wraps = periodic[0]
        self.shift = 0.0 if self.wraps else 0.25
        self.digits = find_digits(lengths[0], self.wraps)
        self.rest = self.sizes[0] // self.digits[0]
        #: samples along the first axis, padded to whole digits
        self.padded_rows = self.rest * -(-lengths[0] // self.rest)
        # Points at offsets beyond the signal's length meet no sample.
        c, n = self.centres[0], lengths[0]
        self.before, self.after = (c, points[0] - c) if self.wraps else (min(c, n - 1), min(points[0] - c, n))
        self.parts = 2 if self.before and not self.wraps else 1
        self.signal_tables = self._tables(self.padded_rows, lengths[1:], 1, dtype, device)
        self.kernel_tables = self._tables(self.sizes[0], self.sizes[1:], self.parts, dtype, device)

    def _tables(
        self, padded_rows: int, others: tuple[int, ...], parts: int, dtype: torch.dtype, device: torch.device
    ) -> list[tuple[Tensor, Tensor]]:
        """Return a table and its inverse for each digit, for a signal with these numbers of samples along the axes."""
        tables, none = [], torch.zeros(1, dtype=torch.float64)
        for i, size in enumerate(self.digits):
            shifts = digit_shifts(self.digits[:i], self.shift)
            tables.append(digit_table(shifts, size, size if i else padded_rows // self.rest, 2 if i else parts))
        tables += [digit_table(none, size, inputs, 2) for size, inputs in zip(self.sizes[1:], others, strict=True)]
        backward = [table.mT.contiguous() / (table.shape[1] // 2) for table in tables]
        return [(a.to(device, dtype), b.to(device, dtype)) for a, b in zip(tables, backward, strict=True)]

    def conv(self, x: Tensor, kernel: Tensor) -> Tensor:
        """(batch, in, *lengths), (out, in, *points) -> (batch, out, *lengths)."""
        a, k = self._signal_spectrum(x), self._kernel_spectrum(kernel)
        y = _multiply(a, k.mT, a.new_empty((*a.shape[:3], len(kernel))), conjugate=False)
        del a, k
        return self._signal(y)

    def grads(self, grad: Tensor, x: Tensor, kernel: Tensor, needs: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
        """Return the gradients of :meth:`conv`; a gradient that is not needed is empty."""
        g = self._signal_spectrum(grad)
        grad_x, grad_kernel = x.new_empty(0), kernel.new_empty(0)
        if needs[1]:
            a = self._signal_spectrum(x)
            # Re and Im of Σ_b g conj(a), (out, in)
            total = _multiply(g.mT, a, a.new_empty((*a.shape[:2], *kernel.shape[:2])), conjugate=True)
            del a
            grad_kernel = self._kernel(total)
            del total
        if needs[0]:
            k = self._kernel_spectrum(kernel)
            y = _multiply(g, k, g.new_empty((*g.shape[:3], kernel.shape[1])), conjugate=True)
            del g, k
            grad_x = self._signal(y)
        return grad_x, grad_kernel

    def _signal_spectrum(self, x: Tensor) -> Tensor:
        """(batch, channels, *lengths) -> (frequencies, 2, batch, channels)."""
        signals = x.to(self.dtype).flatten(0, 1)
        if self.padded_rows > self.lengths[0]:
            padded = signals.new_zeros((len(signals), self.padded_rows, *self.lengths[1:]))
            padded[:, : self.lengths[0]] = signals
            signals = padded
        return _forward(self.signal_tables, signals.flatten(1)).unflatten(-1, x.shape[:2])

    def _signal(self, spectrum: Tensor) -> Tensor:
        y = _inverse(self.signal_tables, spectrum.flatten(2))
        y = y.view(*spectrum.shape[2:], self.padded_rows, *self.lengths[1:])
        return y.narrow(2, 0, self.lengths[0])

    def _kernel_spectrum(self, kernel: Tensor) -> Tensor:
        """(out, in, *points) -> (frequencies, 2, out, in)."""
        k = place(kernel.to(self.dtype).flatten(0, 1), 2, *self._others(True))
        for d, size in enumerate(self.sizes[1:], start=2):
            if k.shape[d] < size:  # ``place`` does not pad an axis whose centre is its first point
                k = torch.nn.functional.pad(k, (0, 0) * (k.dim() - 1 - d) + (0, size - k.shape[d]))
        if self.wraps:
            k = place(k, 1, self.sizes[:1], self.centres[:1])
            if k.shape[1] < self.sizes[0]:
                k = torch.nn.functional.pad(k, (0, 0) * (k.dim() - 2) + (0, self.sizes[0] - k.shape[1]))
            return _forward(self.kernel_tables, k.flatten(1)).unflatten(-1, kernel.shape[:2])
        placed = k.new_zeros((len(k), self.parts, *self.sizes))
        placed[:, 0, : self.after] = k.narrow(1, self.centres[0], self.after)
        if self.before:
            placed[:, 1, self.sizes[0] - self.before :] = k.narrow(1, self.centres[0] - self.before, self.before)
        return _forward(self.kernel_tables, placed.flatten(1)).unflatten(-1, kernel.shape[:2])

    def _kernel(self, spectrum: Tensor) -> Tensor:
        """Undo :meth:`_kernel_spectrum` for a gradient."""
        k = _inverse(self.kernel_tables, spectrum.flatten(2))
        k = k.view(-1, self.parts, *self.sizes)
        if self.wraps:
            points = take(k[:, 0], 1, self.points[:1], self.sizes[:1], self.centres[:1])
        else:
            points = k.new_zeros((len(k), self.points[0], *self.sizes[1:]))
            points[:, self.centres[0] : self.centres[0] + self.after] = k[:, 0, : self.after]
            if self.before:
                imaginary = k[:, 1, self.sizes[0] - self.before :]
                points[:, self.centres[0] - self.before : self.centres[0]] = imaginary
        return take(points, 2, *self._others(False)).unflatten(0, spectrum.shape[2:])

    def _others(self, placing: bool) -> tuple[tuple[int, ...], ...]:
        """Return the arguments of ``place`` or ``take`` for all axes but the first."""
        return (*(() if placing else (self.points[1:],)), self.sizes[1:], self.centres[1:])


def _forward(tables: list[tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
    """(signals, parts · samples) -> (frequencies, 2, signals)."""
    count, width = len(x), math.prod(table.shape[2] // 2 for table, _ in tables[1:])
    for i, (table, _) in enumerate(tables[:-1]):
        width //= table.shape[2] // 2 if i else 1
        x = repeated_product(table, x.reshape(-1, table.shape[2], width))
    last = tables[-1][0]
    x = x.reshape(count, -1, last.shape[2]).permute(1, 2, 0)
    return torch.bmm(last.expand(len(x), -1, -1), x).view(-1, 2, count)


def _inverse(tables: list[tuple[Tensor, Tensor]], spectrum: Tensor) -> Tensor:
    """(frequencies, 2, signals) -> (signals, parts · samples), the inverse of :func:`_forward`."""
    last, count = tables[-1][1].mT, spectrum.shape[2]
    z = spectrum.reshape(-1, last.shape[1], count).mT
    x = z.new_empty((count, len(z), last.shape[2]))
    torch.bmm(z, last.expand(len(z), -1, -1), out=x.permute(1, 0, 2))
    width = last.shape[2] // (2 if len(tables) > 1 else 1)
    for _, table in reversed(tables[:-1]):
        x = repeated_product(table, x.reshape(-1, table.shape[2], width))
        width *= table.shape[1] // 2
    return x.reshape(count, -1)


def _multiply(a: Tensor, b: Tensor, out: Tensor, conjugate: bool) -> Tensor:
    """Write a · b, or a · conj(b), to ``out``: complex matrices (2, ·, ·) for each frequency."""
    sign = 1 if conjugate else -1
    re, im = out[:, 0], out[:, 1]
    torch.bmm(a[:, 0], b[:, 0], out=re)
    re.baddbmm_(a[:, 1], b[:, 1], alpha=sign)
    torch.bmm(a[:, 1], b[:, 0], out=im)
    im.baddbmm_(a[:, 0], b[:, 1], alpha=-sign)
    return out


#: tables by shape, cached so that CUDA graphs can use them
_products = graph_cache(64)(_Products)


def _working_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of products: bfloat16 only on a GPU, and float32 for float16, whose range is too small."""
    if x.dtype == torch.bfloat16 and x.is_cuda:
        return x.dtype
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _find(x: Tensor, kernel: Tensor, causal: bool, periodic: list[bool]) -> _Products | None:
    """Return the tables for these shapes; None if the FFT is used instead."""
    shapes = tuple(x.shape[2:]), tuple(kernel.shape[2:])
    if not x.numel() or not has_products(*shapes, causal, periodic):
        return None
    return _products(*shapes, causal, tuple(periodic), _working_dtype(x), x.device)


def _conv(x: Tensor, kernel: Tensor, causal: bool, periodic: list[bool], groups: int) -> Tensor:
    products = _find(x, kernel, causal, periodic)
    if products is None:
        return transform_conv(x, kernel, causal, periodic, groups)
    with torch.autocast(x.device.type, enabled=False):
        pairs = zip(x.chunk(groups, 1), kernel.chunk(groups, 0), strict=True)
        outputs = [products.conv(a, k).to(x.dtype) for a, k in pairs]
    return outputs[0].contiguous() if groups == 1 else torch.cat(outputs, 1)


def _grads(
    grad: Tensor, x: Tensor, kernel: Tensor, needs: tuple[bool, bool], causal: bool, periodic: list[bool], groups: int
) -> tuple[Tensor, Tensor]:
    products = _find(x, kernel, causal, periodic)
    if products is None:
        return transform_grads(grad, x, kernel, needs, causal, periodic, groups)
    with torch.autocast(x.device.type, enabled=False):
        triples = zip(grad.chunk(groups, 1), x.chunk(groups, 1), kernel.chunk(groups, 0), strict=True)
        found = [products.grads(g, a, k, needs) for g, a, k in triples]
    grad_x = torch.cat([a.to(x.dtype) for a, _ in found], 1 if needs[0] else 0)
    return grad_x, torch.cat([k.to(kernel.dtype) for _, k in found])


_matmul_conv = bilinear("matmul_conv", _conv, _grads)
