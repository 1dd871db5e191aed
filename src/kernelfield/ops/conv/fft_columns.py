"""Convolution by spectra of planes and volumes that are too large to transform as a whole.

The last axis is transformed first, row by row. Each of its frequencies is then a separate signal with one axis less, a
*column*. Blocks of columns are transformed along the other axes, multiplied and transformed back in place. Padding
along the other axes therefore exists for one block at a time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .shape import place, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Columns"]


class Columns:
    """Transforms of signals and kernels for one pair of shapes, with limited memory.

    Args:
        lengths: length of the signal along each axis.
        points: number of kernel points along each axis.
        centres: index of the kernel's offset zero along each axis.
        sizes: length of the transform along each axis.
        dtype: dtype of the transforms.
        budget: bytes of a block of columns, and of the rows that are transformed at once.
    """

    def __init__(
        self,
        lengths: tuple[int, ...],
        points: tuple[int, ...],
        centres: tuple[int, ...],
        sizes: tuple[int, ...],
        dtype: torch.dtype,
        budget: int,
    ) -> None:
        self.lengths, self.points, self.centres, self.sizes = lengths, points, centres, sizes
        self.dtype, self.budget = dtype, budget
        self.axes = tuple(range(3, 2 + len(sizes)))  # all but the last

    def conv(
        self, signals: Tensor, kernels: Tensor, product: Callable[[Tensor, Tensor], Tensor], out: Tensor | None
    ) -> Tensor:
        """Return (batch, groups, out, *lengths) from (batch, groups, in, *lengths) and (groups, out, in, *points).

        Args:
            signals: (batch, groups, in, *lengths) signals.
            kernels: (groups, out, in, *points) kernels.
            product: function that multiplies the spectra of signals and kernels.
            out: tensor for the result; a new one if None.
        """
        x, k = self._rows(signals), self._kernel_rows(kernels)
        y = x
        if kernels.shape[1] != kernels.shape[2]:  # outputs replace inputs only if there are equally many
            y = x.new_empty((*x.shape[:2], kernels.shape[1], *x.shape[3:]))
        for block in self._blocks(x, k, y):
            spectrum = product(self._forward(x[..., block]), self._kernel_forward(k[..., block]))
            y[..., block] = self._inverse(spectrum, self.lengths)
        del x, k
        return self._signals(y, signals.dtype, out)

    def grads(
        self,
        outputs: Tensor,
        signals: Tensor,
        kernels: Tensor,
        needs: tuple[bool, bool],
        products: tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]],
        out: tuple[Tensor | None, Tensor | None],
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of :meth:`conv`; a gradient that is not needed is empty.

        Args:
            outputs: (batch, groups, out, *lengths) gradient of the output.
            signals: as in :meth:`conv`.
            kernels: as in :meth:`conv`.
            needs: whether the signals and the kernels need a gradient.
            products: functions that multiply the spectra of gradients and conjugate kernels, and of gradients and
                signals.
            out: tensors for the results; a new one in place of None.
        """
        g = self._rows(outputs)
        x = self._rows(signals) if needs[1] else g
        # The gradients replace the rows of the output's gradient and of the kernel.
        k = self._kernel_rows(kernels) if needs[0] else self._empty_rows(kernels)
        grad_x = g
        if kernels.shape[1] != kernels.shape[2]:
            grad_x = g.new_empty((*g.shape[:2], kernels.shape[2], *g.shape[3:]))
        for block in self._blocks(g, x, k):
            spectrum = self._forward(g[..., block])
            conjugate = self._kernel_forward(k[..., block]).conj_physical_() if needs[0] else None
            if needs[1]:
                term = self._inverse(products[1](spectrum, self._forward(x[..., block])), self.sizes)
                k[..., block] = take(term, 3, self.points[:-1], self.sizes[:-1], self.centres[:-1])
            if conjugate is not None:
                grad_x[..., block] = self._inverse(products[0](spectrum, conjugate), self.lengths)
        del g, x
        found_kernel = self._kernels(k, kernels.dtype, out[1]) if needs[1] else kernels.new_empty(0)
        del k
        return self._signals(grad_x, signals.dtype, out[0]) if needs[0] else signals.new_empty(0), found_kernel

    def _blocks(self, *tensors: Tensor) -> Iterator[slice]:
        """Yield blocks of frequencies of the last axis whose padded columns take about the budget."""
        columns = self.sizes[-1] // 2 + 1
        most = max(math.prod(t.shape[:3]) for t in tensors)
        one = 2 * self.dtype.itemsize * most * math.prod(self.sizes[:-1])
        step = max(1, self.budget // one)
        for first in range(0, columns, step):
            yield slice(first, min(columns, first + step))

    def _parts(self, shape: torch.Size) -> Iterator[slice]:
        """Yield parts of the first spatial axis whose padded rows take about the budget."""
        row = self.dtype.itemsize * self.sizes[-1] * math.prod(shape[:3]) * math.prod(shape[4:-1])
        step = max(1, self.budget // row)
        for first in range(0, shape[3], step):
            yield slice(first, first + step)

    def _forward(self, columns: Tensor) -> Tensor:
        """Transform columns of signals along all axes but the last."""
        return torch.fft.fftn(columns, s=self.sizes[:-1], dim=self.axes)

    def _kernel_forward(self, columns: Tensor) -> Tensor:
        return self._forward(place(columns, 3, self.sizes[:-1], self.centres[:-1]))

    def _inverse(self, spectrum: Tensor, keep: tuple[int, ...]) -> Tensor:
        """Undo :meth:`_forward` and keep the first samples along each axis."""
        for axis in self.axes:
            spectrum = torch.fft.ifft(spectrum, dim=axis).narrow(axis, 0, keep[axis - 3])
        return spectrum

    def _rows(self, signals: Tensor) -> Tensor:
        """Transform signals along the last axis."""
        out = self._empty_rows(signals)
        for part in self._parts(signals.shape):
            out[:, :, :, part] = torch.fft.rfft(signals[:, :, :, part].to(self.dtype), n=self.sizes[-1], dim=-1)
        return out

    def _signals(self, rows: Tensor, dtype: torch.dtype, out: Tensor | None) -> Tensor:
        """Undo :meth:`_rows`."""
        out = rows.new_empty((*rows.shape[:-1], self.lengths[-1]), dtype=dtype) if out is None else out
        for part in self._parts(rows.shape):
            out[:, :, :, part] = torch.fft.irfft(rows[:, :, :, part], n=self.sizes[-1], dim=-1)[..., : out.shape[-1]]
        return out

    def _kernel_rows(self, kernels: Tensor) -> Tensor:
        """Transform kernels along the last axis."""
        out = self._empty_rows(kernels)
        for part in self._parts(kernels.shape):
            placed = place(kernels[:, :, :, part].to(self.dtype), kernels.dim() - 1, self.sizes[-1:], self.centres[-1:])
            out[:, :, :, part] = torch.fft.rfft(placed, n=self.sizes[-1], dim=-1)
        return out

    def _kernels(self, rows: Tensor, dtype: torch.dtype, out: Tensor | None) -> Tensor:
        """Undo :meth:`_kernel_rows`."""
        out = rows.new_empty((*rows.shape[:-1], self.points[-1]), dtype=dtype) if out is None else out
        for part in self._parts(rows.shape):
            placed = torch.fft.irfft(rows[:, :, :, part], n=self.sizes[-1], dim=-1)
            out[:, :, :, part] = take(placed, rows.dim() - 1, self.points[-1:], self.sizes[-1:], self.centres[-1:])
        return out

    def _empty_rows(self, signals: Tensor) -> Tensor:
        dtype = torch.complex128 if self.dtype == torch.float64 else torch.complex64
        return signals.new_empty((*signals.shape[:-1], self.sizes[-1] // 2 + 1), dtype=dtype)
