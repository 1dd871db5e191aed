"""Copy weights between networks of different sizes, and multiply masks into weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...layers import ActiveSlice, BandLimit, ContinuousConv

if TYPE_CHECKING:
    from ...layers import CCNNBlock

__all__ = ["conv_layers", "copy_common", "fixed_slice", "fold_masks", "kernel_points"]


def fixed_slice(active: ActiveSlice) -> ActiveSlice:
    """Return a slice as Python numbers and without factors, for weights that already contain them."""
    limit = active.band_limit
    if limit is not None:
        offsets = tuple(limit.offsets.tolist()) if isinstance(limit.offsets, Tensor) else tuple(limit.offsets)
        limit = BandLimit(limit.cutoffs, offsets, limit.temperature, limit.threshold)  # type: ignore[arg-type]
    scale = None if active.scale is None else float(active.scale)
    return ActiveSlice(active.channels, None, limit, scale)


def fold_masks(old: CCNNBlock, new: CCNNBlock, active: ActiveSlice) -> None:
    """Copy the linear maps of ``old`` to ``new``, with the masks on channels multiplied into the weights."""
    maps = ((old.conv.pointwise, new.conv.pointwise, active.conv), (old.linear, new.linear, active.linear))
    for source, target, part in maps:
        weight, bias = source.active_parameters(part)  # type: ignore[union-attr, operator]
        target.weight.copy_(weight)  # type: ignore[union-attr, operator]
        if bias is not None:
            target.bias.copy_(bias)  # type: ignore[union-attr, operator]


@torch.no_grad()
def copy_common(source: nn.Module, target: nn.Module) -> None:
    """Copy tensors of the same name; if sizes differ, copy the first entries along each axis."""
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
    """Return the number of kernel points along each axis."""
    reach = list(layer.size)
    if layer.mask is not None:
        low, high = layer.mask.support()
        steps = torch.maximum(low.abs(), high.abs()).tolist()
        reach = [min(n, int(r * n * (1 + 1e-6)) + 1) for r, n in zip(steps, layer.size, strict=True)]
    return tuple(reach if layer.causal else (2 * r - 1 for r in reach))
