"""From a masked network to one of other sizes: copying weights, multiplying masks into them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...layers import ContinuousConv
from ...layers.continuous.active_slice import Band, Extent

if TYPE_CHECKING:
    from ...layers import CCNNBlock

__all__ = ["conv_layers", "copy_common", "fixed_extent", "fold_masks", "kernel_points"]


def fixed_extent(extent: Extent) -> Extent:
    """Return an extent in plain numbers, without the masks that are multiplied into the weights."""
    band = extent.band
    if band is not None:
        offsets = tuple(band.offsets.tolist()) if isinstance(band.offsets, Tensor) else tuple(band.offsets)
        band = Band(band.cutoffs, offsets, band.temperature, band.threshold)  # type: ignore[arg-type]
    scale = float(extent.scale) if extent.scale is not None else None
    return Extent(extent.widths, band=band, scale=scale)


def fold_masks(old: CCNNBlock, new: CCNNBlock, extent: Extent) -> None:
    """Multiply the masks on channels into the weights of ``new``."""
    read, middle, written = (None, None, None) if extent.widths is None else extent.widths
    columns, rows, last_rows = extent.masks
    for map_old, map_new, before, after, factors in (
        (old.conv.pointwise, new.conv.pointwise, read, middle, (rows, columns)),
        (old.linear, new.linear, middle, written, (last_rows, None)),
    ):
        weight, bias = map_old.part(map_old.in_channels if before is None else before, after, *factors)  # type: ignore[union-attr, operator]
        map_new.weight.copy_(weight)  # type: ignore[union-attr, operator]
        if bias is not None:
            map_new.bias.copy_(bias)  # type: ignore[union-attr, operator]


@torch.no_grad()
def copy_common(source: nn.Module, target: nn.Module) -> None:
    """Copy what two networks of one kind have in common: of tensors of different sizes, the first of each axis."""
    have = source.state_dict()
    for name, tensor in target.state_dict().items():
        given = have.get(name)
        if given is not None and given.dim() == tensor.dim():
            part = tuple(slice(0, min(a, b)) for a, b in zip(given.shape, tensor.shape, strict=True))
            tensor[part].copy_(given[part])


def conv_layers(network: nn.Module) -> list[ContinuousConv]:
    """Return the continuous convolutions of a network, in order."""
    return [module for module in network.modules() if isinstance(module, ContinuousConv)]


def kernel_points(layer: ContinuousConv) -> tuple[int, ...]:
    """Return how many points the kernel has along each axis."""
    if layer.mask is None:
        return layer.size
    low, high = layer.mask.support()
    steps = torch.maximum(low.abs(), high.abs()).tolist()
    reach = [min(n, int(r * n * (1 + 1e-6)) + 1) for r, n in zip(steps, layer.size, strict=True)]
    return tuple(reach if layer.causal else (2 * r - 1 for r in reach))
