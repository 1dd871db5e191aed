r"""Causal convolution of a signal that arrives in pieces.

Split the kernel into lags 0 … 2B and segments [S, 2S) for S = 2B, 4B, … Each time S more samples have arrived, one FFT
of 2S points convolves these S samples with the segment [S, 2S). The result belongs to the next 2S outputs and is added
to a buffer of pending outputs. So every pair of a sample and a lag is multiplied before its output is due, a sample
takes part in one FFT per segment, and L samples cost

.. math:: \sum_{S < L} \frac{L}{S}\, O(S \log S) = O(L \log^2 L).

The samples of the current block of B are multiplied by the lags below B directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._kinds import shown
from .._object_kinds import TensorOf
from ..ops import conv

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .clock import Clock

__all__ = ["OnlineConv"]

#: samples in a block that is multiplied directly
BLOCK = 64


class OnlineConv(nn.Module):
    r"""The causal convolution of ``ops.conv``, for a signal that arrives in pieces.

    .. math:: y_o(t) = \sum_i \sum_{j=0}^{\min(t, K-1)} k_{oi}(j)\, x_i(t - j)

    It keeps the last S samples and 2S pending outputs, where S is below the kernel's length K.

    Args:
        kernel: (out, in / groups, points) kernel; lags beyond its last nonzero value need no memory.
        groups: 1, or the number of channels for a depthwise convolution.
        batch: number of independent signals.

    >>> x, kernel = torch.randn(2, 3, 500), torch.randn(3, 1, 300)
    >>> online = OnlineConv(kernel, groups=3, batch=2)
    >>> y = torch.cat([online(piece) for piece in x.split([1, 1, 130, 368], dim=2)], dim=2)
    >>> torch.allclose(y, conv(x, kernel, causal=True, groups=3), atol=1e-4)
    True
    """

    @checked(kernel=TensorOf("float", "out_channels, in_channels, taps", empty=False))
    def __init__(self, kernel: Tensor, *, groups: int = 1, batch: int = 1) -> None:
        super().__init__()
        if kernel.is_meta or not len(kernel):
            raise ValueError(f"kernel must have output channels on a device that holds data, got {shown(kernel)}")
        if groups > 1 and tuple(kernel.shape[:2]) != (groups, 1):
            raise ValueError(
                f"groups must be 1, or the number of channels of a kernel (channels, 1, points), got {groups} for "
                f"{shown(kernel)}"
            )
        self.depthwise = groups > 1 or kernel.shape[:2] == (1, 1)
        kernel = kernel[..., : _last_nonzero(kernel) + 1].detach()
        if kernel.dtype in (torch.bfloat16, torch.float16):
            kernel = kernel.float()  # FFTs do not support half precision, and long sums need more digits
        points = kernel.shape[-1]
        #: sizes of input blocks, ascending: the direct block, then one size for each segment of the kernel
        self.sizes = [BLOCK]
        while 2 * self.sizes[-1] < points:
            self.sizes.append(2 * self.sizes[-1])
        self.batch, self.channels, self.out_channels = batch, groups * kernel.shape[1], kernel.shape[0]
        #: samples so far
        self.time = 0
        keep = {"persistent": False}
        self.register_buffer("kernel", kernel.contiguous(), **keep)
        reach = torch.nn.functional.pad(kernel, (0, max(0, BLOCK - points)))[..., :BLOCK]
        # The lag of the oldest sample first, channels last: a part of a block is contiguous in memory. The zeros after
        # lag 0 are for samples that have not arrived yet.
        first = torch.nn.functional.pad(reach.flip(-1), (0, BLOCK - 1)).permute(2, 1, 0).contiguous()
        self.register_buffer("direct", first.squeeze(1) if self.depthwise else first, **keep)
        for size in self.sizes[1:]:
            self.register_buffer(f"segment{size}", torch.fft.rfft(kernel[..., size : 2 * size], n=2 * size), **keep)
        shapes = {
            "block": (batch, BLOCK, self.channels),
            "history": (batch, self.channels, self.sizes[-1]),
            "pending": (batch, self.out_channels, 2 * self.sizes[-1]),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, kernel.new_zeros(shape), **keep)
        self._spectra: dict[int, Tensor] = {}

    kernel: Tensor
    direct: Tensor
    block: Tensor
    history: Tensor
    pending: Tensor

    @checked(x=TensorOf("float", ".batch, .channels, times"))
    def forward(self, x: Tensor) -> Tensor:
        """Return the next n outputs, (batch, out, n), for the next n samples (batch, in, n)."""
        dtype = x.dtype
        x = x.to(self.kernel.dtype)
        if x.shape[-1] == 1:
            return self._push_one(x).to(dtype)
        done: list[Tensor] = []
        start, total = 0, x.shape[-1]
        while start < total:
            size = self._piece(total - start)
            piece = x.narrow(-1, start, size)
            done.append(self._push_block(piece) if self.time % BLOCK == 0 and size >= BLOCK else self._push_part(piece))
            start += size
        return (done[0] if len(done) == 1 else torch.cat(done, dim=-1)).to(dtype)

    def _piece(self, available: int) -> int:
        """Return how many of the available samples the next operation takes."""
        if self.time % BLOCK or available < BLOCK:
            return min(available, BLOCK - self.time % BLOCK)
        largest = self.sizes[-1]
        if self.time % largest == 0 and available >= largest:
            return available - available % largest
        return max(size for size in self.sizes if size <= available and self.time % size == 0)

    def _push_one(self, x: Tensor) -> Tensor:
        """Process one sample: multiply the current block by the first lags."""
        at = self.time % BLOCK
        block, pending = self.block, self.pending
        block.select(1, at).copy_(x.squeeze(-1))
        y = self._first_lags(block.narrow(1, 0, at + 1), self.direct.narrow(0, BLOCK - at - 1, at + 1))
        place = pending.select(-1, self.time % pending.shape[-1])
        y = y.add_(place).unsqueeze(-1)
        place.zero_()
        self.time += 1
        if self.time % BLOCK == 0:
            self._finish_block()
        return y

    def push_at(self, x: Tensor, clock: Clock) -> Tensor:
        """Process one sample at the position of a clock, like ``forward`` but with the same operations each time.

        The caller updates :attr:`time`. Tensors of the state keep their addresses, so that the call can be captured as
        a CUDA graph: one for each value of ``clock.completed``.

        Args:
            x: (batch, in, 1) sample.
            clock: position, and the size of the largest block that the sample completes.

        Returns:
            (batch, out, 1) output.
        """
        pending = self.pending
        self.block.index_copy_(1, clock.places(BLOCK), x.to(self.kernel.dtype).movedim(1, 2))
        y = self._first_lags(self.block, self.direct.index_select(0, clock.lags(BLOCK)))
        place = clock.places(pending.shape[-1])
        y = y.unsqueeze(-1).add_(pending.index_select(-1, place))
        pending.index_fill_(-1, place, 0)
        if clock.completed:
            self._complete_at(clock)
        return y.to(x.dtype)

    def _complete_at(self, clock: Clock) -> None:
        """Add the contributions of blocks that end with the current sample to later outputs."""
        samples, pending, length = self.block.movedim(1, 2), self.pending, self.history.shape[-1]
        y = self._lags_of_two_blocks(samples)[..., BLOCK:]
        pending.index_add_(-1, clock.places(pending.shape[-1], 1, y.shape[-1]), y)
        self.history.index_copy_(-1, clock.places(length, 1 - BLOCK, BLOCK), samples)
        for size in self.sizes[1:]:
            if size > clock.completed:
                break
            y = self._segment(self.history.index_select(-1, clock.places(length, 1 - size, size)))
            pending.index_add_(-1, clock.places(pending.shape[-1], 1, 2 * size), y)

    def _first_lags(self, samples: Tensor, lags: Tensor) -> Tensor:
        """Return (batch, out) sums over the samples of a block, each times the kernel at its lag."""
        if not self.depthwise:
            return samples.flatten(1) @ lags.flatten(0, 1)
        if self.batch > 1:
            return torch.einsum("blc,lc->bc", samples, lags)
        return (samples.squeeze(0) * lags).sum(0, keepdim=True)

    def _push_part(self, x: Tensor) -> Tensor:
        """Process part of a block, at most up to its end."""
        at, size = self.time % BLOCK, x.shape[-1]
        self.block[:, at : at + size] = x.movedim(1, 2)
        samples = self.block[:, : at + size].movedim(1, 2).contiguous()
        y = self._direct(samples)[..., at:]
        self.time += size
        y = self._take(self.time - size, size) + y
        if self.time % BLOCK == 0:
            self._finish_block()
        return y

    def _direct(self, samples: Tensor) -> Tensor:
        kernel = self.kernel[..., : samples.shape[-1]]
        return conv(samples, kernel, causal=True, groups=self.channels if self.depthwise else 1)

    def _finish_block(self) -> None:
        """Add the contributions of a complete block of single samples to later outputs."""
        samples = self.block.movedim(1, 2)
        self._add(self.time, self._lags_of_two_blocks(samples)[..., BLOCK:])
        self._remember(samples)
        self._convolve_segments(BLOCK)

    def _push_block(self, x: Tensor) -> Tensor:
        """Process an aligned block of one of the sizes, or several blocks of the largest."""
        size = x.shape[-1]
        outputs = self._lags_of_two_blocks(x)
        y = self._take(self.time, min(size, self.pending.shape[-1]))
        y = outputs[..., :size] + torch.nn.functional.pad(y, (0, size - y.shape[-1]))
        self.time += size
        self._add(self.time, outputs[..., size:])
        self._remember(x)
        self._convolve_segments(size)
        return y

    def _lags_of_two_blocks(self, x: Tensor) -> Tensor:
        """Return the convolution of a block with the lags below twice its length, including outputs after the block."""
        size = x.shape[-1]
        lags = min(2 * size, self.kernel.shape[-1])
        # The outputs after the block are padded to the length of a segment's.
        most = size + 2 * min(size, self.sizes[-1])
        n = 4 * size if size <= self.sizes[-1] else _fast_length(size + lags)
        kernel = self._spectra.get(size)
        if kernel is None:
            kernel = torch.fft.rfft(self.kernel[..., :lags], n=n)
            if size <= self.sizes[-1]:
                self._spectra[size] = kernel
        y = torch.fft.irfft(self._product(torch.fft.rfft(x, n=n), kernel), n=n)
        y = y[..., : size + lags]
        return torch.nn.functional.pad(y, (0, most - y.shape[-1])) if y.shape[-1] < most else y

    def _convolve_segments(self, done: int) -> None:
        """Convolve each block that is now complete, and larger than ``done``, with its segment."""
        for size in self.sizes[1:]:
            if self.time % size:
                break
            if size > done:
                end = self.time % self.history.shape[-1] or self.history.shape[-1]
                self._add(self.time, self._segment(self.history[..., end - size : end]))

    def _segment(self, samples: Tensor) -> Tensor:
        """Return the convolution of S samples with the lags from S to 2S, for the next 2S outputs."""
        size = samples.shape[-1]
        spectrum = torch.fft.rfft(samples, n=2 * size)
        return torch.fft.irfft(self._product(spectrum, getattr(self, f"segment{size}")), n=2 * size)

    def _product(self, x: Tensor, kernel: Tensor) -> Tensor:
        if self.depthwise:
            return x * kernel.squeeze(1)
        return torch.einsum("bif,oif->bof", x, kernel)

    def _remember(self, x: Tensor) -> None:
        """Store samples up to the current time, which must be the end of a block."""
        length = self.history.shape[-1]
        x = x[..., -length:]
        end = self.time % length or length
        self.history[..., end - x.shape[-1] : end] = x

    def _take(self, start: int, size: int) -> Tensor:
        """Return pending outputs and clear them."""
        ranges = self._ring_ranges(start, size)
        taken = [self.pending[..., a:b].clone() for a, b in ranges]
        for a, b in ranges:
            self.pending[..., a:b] = 0
        return taken[0] if len(taken) == 1 else torch.cat(taken, dim=-1)

    def _add(self, start: int, y: Tensor) -> None:
        done = 0
        for a, b in self._ring_ranges(start, y.shape[-1]):
            self.pending[..., a:b] += y[..., done : done + b - a]
            done += b - a

    def _ring_ranges(self, start: int, size: int) -> list[tuple[int, int]]:
        """Return the index ranges of ``size`` outputs from time ``start`` in the ring buffer of pending outputs."""
        length = self.pending.shape[-1]
        begin = start % length
        if begin + size <= length:
            return [(begin, begin + size)]
        return [(begin, length), (0, begin + size - length)]

    # State

    def reset(self, streams: Sequence[int] | slice = slice(None)) -> None:
        """Forget all samples of some signals of the batch."""
        rows = streams if isinstance(streams, slice) else list(streams)
        for buffer in (self.block, self.history, self.pending):
            buffer[rows] = 0

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the state."""
        time = torch.tensor(self.time)
        return {"time": time, **{name: getattr(self, name).clone() for name in ("block", "history", "pending")}}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from a state of a convolution with the same kernel."""
        self.time = int(state["time"])
        for name in ("block", "history", "pending"):
            getattr(self, name).copy_(state[name])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OnlineConv:
        self._spectra.clear()  # they belong to the device of the kernel
        return super()._apply(fn, recurse)


def _last_nonzero(kernel: Tensor) -> int:
    """Return the last lag at which any kernel is not zero, at least 0."""
    lags = (kernel != 0).flatten(0, -2).any(dim=0).nonzero()
    return int(lags[-1]) if len(lags) else 0


def _fast_length(n: int) -> int:
    """Return the next power of two or three quarters of one."""
    power = 1 << (n - 1).bit_length()
    return power * 3 // 4 if power * 3 // 4 >= n else power
