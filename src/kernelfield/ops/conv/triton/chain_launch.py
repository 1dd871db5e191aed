"""Launches of the outer transform by a chain of products, and of its inverse, with padding and scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .outer_chain import chain_forward, chain_inverse, chain_tables
from .outer_matmul import shrunk

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .plan import Plan

__all__ = ["ChainLaunch"]


class ChainLaunch:
    """The four steps of an outer transform, called by :class:`.outer_launch.Blocks`.

    Args:
        plan: the layout.
        dtype: dtype of the products.
        device: device of the signals.
        scaled: whether signals are divided by their largest values, for products in float16.
        real: whether kernels have no imaginary part.
    """

    def __init__(self, plan: Plan, dtype: torch.dtype, device: torch.device, scaled: bool, real: bool) -> None:
        self.plan, self.dtype, self.scaled = plan, dtype, scaled
        self.parts = 1 if real else 2
        self.signal_tables, self.signal_inverse = chain_tables(plan, False, 1, dtype, device, scaled)
        self.kernel_tables, self.kernel_inverse = chain_tables(plan, True, self.parts, dtype, device, scaled)
        rest = plan.first // plan.digits[0]
        #: samples along both axes, the first padded to whole digits
        self.filled = rest * -(-plan.valid[0] // rest), plan.valid[1] * plan.outer_step

    def split(self, x: Tensor, tops: Tensor, out: Tensor) -> None:
        """(batch, channels, *space) -> (batch, channels · outer, 2, step)."""
        # One entry of the batch at a time, because a chunk of channels is not contiguous.
        for i, target in enumerate(out.view(len(x), -1, *out.shape[-2:])):
            signals = x[i : i + 1]
            signals = self._shrunk(signals, tops[i : i + 1]) if self.scaled else signals.to(self.dtype)
            chain_forward(self.signal_tables, self._padded(signals[0]), target.unflatten(0, (x.shape[1], -1)))

    def merge(self, z: Tensor, tops: Tensor, scales: Tensor, out: Tensor) -> None:
        """(batch, channels · outer, 2, step) -> (batch, channels, *space). Overwrites ``z`` if scaled."""
        size = self.filled[0] * self.filled[1]
        for i, target in enumerate(out):
            some = z[i].unflatten(0, (out.shape[1], -1))
            direct = target[0].numel() == size and target.dtype == self.dtype and not self.scaled
            y = target.view(len(target), -1) if direct else some.new_empty((len(target), size))
            most = self._rescale(some, scales)
            chain_inverse(self.signal_inverse, some, y)
            if not direct:
                y = self._cropped(y, target)
                if self.scaled:
                    y = y.float() * (most * tops[i])[:, None, None]
                target.view(y.shape).copy_(y)

    def split_points(self, placed: Tensor, tops: Tensor, out: Tensor) -> None:
        """(channels, parts, ·) -> (channels · outer, 2, inner)."""
        placed = self._shrunk(placed[None], tops.view(1, -1))[0] if self.scaled else placed.to(self.dtype)
        chain_forward(self.kernel_tables, placed.flatten(1), out.unflatten(0, (len(placed), -1)))

    def merge_points(self, z: Tensor, scales: Tensor, placed: Tensor) -> None:
        """(channels · outer, 2, inner) -> (channels, parts, ·). Overwrites ``z`` if scaled."""
        z = z.unflatten(0, (len(placed), -1))
        flat = placed.flatten(1)
        direct = flat.dtype == self.dtype and flat.data_ptr() == placed.data_ptr() and not self.scaled
        y = flat if direct else z.new_empty(flat.shape)
        most = self._rescale(z, scales)
        chain_inverse(self.kernel_inverse, z, y)
        if not direct:
            y = y.float() * (most / self.plan.outer)[:, None] if self.scaled else y
            placed.copy_(y.view(placed.shape))

    def _shrunk(self, x: Tensor, tops: Tensor) -> Tensor:
        """Divide (1, channels, ·) by the largest values and the first digit; later tables divide by theirs."""
        return shrunk(x, tops, self.plan.digits[0], self.dtype)

    def _rescale(self, z: Tensor, scales: Tensor) -> Tensor:
        """Multiply (channels, outer, 2, step) by the factors of its frequencies, divided by the largest per channel.

        Return these largest factors.
        """
        if not self.scaled:
            return scales
        factors = scales.view(len(z), -1)
        most = factors.amax(1).clamp(min=1e-30)
        z.mul_((factors / most[:, None])[..., None, None])
        return most

    def _rows(self, x: Tensor) -> tuple[int, int]:
        """Return the rows and columns of (channels, *space) for padding; one row if it is a line."""
        return (1, x[0].numel()) if x.dim() == 2 else (x.shape[1], x[0, 0].numel())

    def _padded(self, x: Tensor) -> Tensor:
        """Return (channels, samples) with zeros where the transform has more samples than the signal."""
        (rows, width), (padded_rows, padded_columns) = self._rows(x), self.filled
        if x[0].numel() == padded_rows * padded_columns:
            return x.reshape(len(x), -1)
        if rows == 1 and x.dim() == 2:
            padded_rows, padded_columns = 1, padded_rows * padded_columns
        out = x.new_zeros((len(x), padded_rows, padded_columns))
        out[:, :rows, :width] = x.reshape(len(x), rows, width)
        return out.flatten(1)

    def _cropped(self, y: Tensor, target: Tensor) -> Tensor:
        """Undo :meth:`_padded`: return (channels, rows, width)."""
        (rows, width), (padded_rows, padded_columns) = self._rows(target), self.filled
        if target.dim() == 2:
            padded_rows, padded_columns = 1, padded_rows * padded_columns
        return y.view(len(y), padded_rows, padded_columns)[:, :rows, :width]
