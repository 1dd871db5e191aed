"""Convolutions of signals that are split over processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .._hooks import has_hooks
from ..layers import ContinuousConv
from ..layers.continuous.kernel_sampler import recall_kernel, remember_kernel
from ..ops import conv
from ..ops.fused import drop
from ..ops.fused.synced_norm import sum_over_processes
from .collectives import channels_to_space, space_to_channels, sum_to_space, window
from .slabs import Slabs, split_length
from .volume import ConvPlan, plan_conv

if TYPE_CHECKING:
    from ..fields import Field
    from ..grids import KernelGrid

__all__ = ["SplitConv", "kernel_part"]


class SplitConv(ContinuousConv):
    """A mixin that ``shard`` adds to a :class:`~kernelfield.layers.ContinuousConv` so that it convolves slabs."""

    slabs: Slabs

    def forward(self, x: Tensor, *, coords: Tensor | None = None, **how: Any) -> Tensor:
        if coords is not None:
            raise ValueError("coords must be None for a network that is split over processes, got a tensor")
        return super().forward(x, **how)

    def batch_key(self, grid: KernelGrid) -> None:
        """Return None, because each layer samples its own kernel, and only for its share of the channels."""

    def plan(self, shape: tuple[int, ...], lengths: tuple[int, ...], points: int) -> ConvPlan:
        r"""Return a plan to convolve a signal of (batch, channels, \*space) ``shape`` in slabs of ``lengths``."""
        channels = self.in_channels if self.groups == 1 else shape[1]
        return plan_conv(
            lengths,
            points,
            in_channels=channels,
            out_channels=self.out_channels if self.groups == 1 else channels,
            depthwise=self.groups > 1,
            causal=self.causal,
            periodic=self.boundary == "periodic",
        )

    def penalised_kernel(self) -> Tensor:
        """Return the norms of all processes' shares of the kernel, (P,): a tensor of the same norm as the kernel."""
        slabs = self.slabs
        if self.in_channels < slabs.size:
            return self.kernel()
        parts = split_length(self.in_channels, slabs.size)
        grid = self.grid(None, (1.0,) * self.dim)
        own = self._sample_part(grid, sum(parts[: slabs.rank]), parts[slabs.rank]).norm()
        ranks = torch.arange(slabs.size, device=own.device)
        return sum_over_processes(torch.where(ranks == slabs.rank, own, 0.0), [slabs.group])

    def _grid_conv(self, x: Tensor, steps: tuple[float, ...], kernel: Tensor | None) -> Tensor:
        slabs = self.slabs
        slabs.check(x)
        lengths = self.input_lengths((slabs.total, *x.shape[3:]))
        kernel = self.frozen(steps, lengths) if kernel is None else kernel
        grid = self.grid(lengths, steps)
        plan = self.plan(x.shape, slabs.lengths, grid.count[0] if kernel is None else kernel.shape[2])
        channels = x.shape[1]
        if kernel is None and self.training and self.kernel_dropout:
            kernel = self.sample(steps, lengths, channels)  # dropout draws for the whole kernel
        if plan.method == "halo":
            if kernel is None:
                kernel = self._sample_part(grid, 0, channels)
            if self.groups > 1:
                kernel = kernel[:channels]
            x = window(x, plan.before, plan.after, slabs, periodic=self.boundary == "periodic")
            boundary = ("valid", *(self.boundary,) * (self.dim - 1))
            return self._convolve(x, self._dropped(kernel), boundary)
        parts = split_length(channels, slabs.size)
        first, count = sum(parts[: slabs.rank]), parts[slabs.rank]
        if kernel is None:
            kernel = self._sample_part(grid, first, count)
        elif self.groups > 1:
            kernel = self._dropped(kernel[:channels])[first : first + count]
        else:
            kernel = self._dropped(kernel)[:, first : first + count]
        y = self._convolve(space_to_channels(x, slabs), kernel, self.boundary)
        return channels_to_space(y, channels, slabs) if self.groups > 1 else sum_to_space(y, slabs)

    def _sample_part(self, grid: KernelGrid, first: int, count: int) -> Tensor:
        key = (self, grid, first, count)
        known = recall_kernel(key)
        if known is not None:
            return known
        if not torch.is_grad_enabled():
            return remember_kernel(key, kernel_part(self, grid, first, count))
        # Splitting does not shrink the hidden layers of a kernel network, so the backward pass computes them again
        # instead of keeping them.
        kernel = checkpoint(kernel_part, self, grid, first, count, use_reentrant=False, preserve_rng_state=False)
        return remember_kernel(key, kernel)

    def _dropped(self, kernel: Tensor) -> Tensor:
        return drop(kernel, self.kernel_dropout) if self.training and self.kernel_dropout else kernel

    def _convolve(self, x: Tensor, kernel: Tensor, boundary: str | tuple[str, ...]) -> Tensor:
        if not torch.is_autocast_enabled(x.device.type):
            kernel = kernel.to(x.dtype)
        groups = 1 if self.groups == 1 else x.shape[1]
        return conv(x, kernel, causal=self.causal, boundary=boundary, groups=groups, method=self.method)


def kernel_part(layer: ContinuousConv, grid: KernelGrid, first: int, count: int) -> Tensor:
    r"""Return a layer's kernel for some of its input channels: (count, 1, \*points) or, dense, (out, count, \*points).

    The last linear map of the kernel network is evaluated for these channels alone.

    Args:
        layer: a continuous convolution.
        grid: grid to sample on.
        first: first input channel.
        count: number of input channels.

    >>> from kernelfield import CKConv
    >>> layer = CKConv(6, 4, size=8)
    >>> part = kernel_part(layer, layer.grid(None, (1.0,)), 2, 3)
    >>> torch.allclose(part, layer.kernel()[:, 2:5], atol=1e-6)
    True
    """
    wide = layer.wide(grid)
    coords = wide.coords(dtype=layer.reach.dtype, device=layer.reach.device).flatten(0, -2)
    rows = torch.arange(layer.field.channels, device=coords.device)
    if layer.groups == 1:
        rows = rows.view(layer.out_channels, layer.in_channels)
    rows = rows.narrow(-1, first, count).flatten()
    with torch.autocast(coords.device.type, enabled=False):
        values = _field_rows(layer.field, coords, rows)
        if layer.mask is not None:
            values = values * layer.mask(coords).unsqueeze(-1)
        kernel = values.mT.unflatten(0, (-1, 1 if layer.groups > 1 else count)).unflatten(-1, wide.count)
        return layer.finish(kernel, grid)


def _field_rows(field: Field, coords: Tensor, rows: Tensor) -> Tensor:
    """Return some of the values of a field at (points, dim) coordinates: (points, rows)."""
    features = None if has_hooks(field) else field.features(coords)
    if features is None:
        return field(coords)[..., rows]
    weight, bias = field.readout()
    return torch.nn.functional.linear(features, weight[rows], bias[rows])
