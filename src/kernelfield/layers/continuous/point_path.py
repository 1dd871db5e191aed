"""Continuous convolutions of values at points instead of on a grid."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..._arguments import checked
from ..._hooks import has_hooks
from ..._kinds import POSITIVE
from ..._object_kinds import Instance, TensorOf
from ...ops import plan_points, point_conv, point_sums
from ...ops.points.equal_times import sum_at_equal_times

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from .continuous_conv import ContinuousConv

__all__ = ["convolve_points", "use_point_plans", "uses_features"]

#: slack of the plan that a layer makes at its next call, for layers that are to make one
_planning: dict[ContinuousConv, float] = {}


@checked(network=Instance("torch.nn.Module"), x=TensorOf("float"), slack=POSITIVE)
def use_point_plans(network: nn.Module, x: Tensor, *, slack: float = 1.25, **sampling: Any) -> None:
    """Make a plan, from an example input, of how each convolution of a network convolves at points.

    The network runs on the example, and each of its convolutions keeps a :class:`kernelfield.ops.PointPlan` for points
    like these. From then on the host never waits for the device to learn where the points are. The methods "cells" and
    "grid" also work in compiled and exported graphs, for any number of points. Outputs are NaN for points that do not
    fit the plan. For such points, make a new plan or set ``point_plan`` of the layers to None.

    Args:
        network: the network or layer.
        x: example input of the network.
        slack: factor by which later points may extend further and be denser than those of ``x``.
        sampling: further arguments of its forward pass, such as ``coords``.

    >>> import kernelfield as kf
    >>> layer = kf.CKConv(2, 2, size=3000, field=kf.fields.MAGNet, depthwise=True)
    >>> times = 3000 * torch.rand(1, 3000, 1).sort(dim=1).values
    >>> use_point_plans(layer, torch.randn(1, 2, 3000), coords=times)
    >>> layer.point_plan.method
    'grid'
    """
    layers = [m for m in network.modules() if hasattr(m, "point_plan")]
    if not layers:
        raise ValueError(f"network must hold a continuous convolution, got {type(network).__name__}")
    modes = {m: m.training for m in network.modules()}
    try:
        _planning.update(dict.fromkeys(layers, slack))  # type: ignore[arg-type]
        with torch.no_grad():
            network.eval()(x, **sampling)
    finally:
        for layer in layers:
            _planning.pop(layer, None)  # type: ignore[call-overload]
        for module, training in modes.items():
            module.training = training


def convolve_points(
    layer: ContinuousConv,
    x: Tensor,
    coords: Tensor,
    weight: Tensor | None,
    steps: tuple[float, ...],
    mask: Tensor | None,
    at: Tensor | None = None,
) -> Tensor:
    """Return the convolution of ``x`` (batch, in, points), without bias, at the same points or elsewhere.

    Args:
        layer: the convolution.
        x: values.
        coords: (batch or 1, points, dim) coordinates in training steps.
        weight: (batch, points) weight of each sample, or None.
        steps: sampling step along each axis that the weights refer to.
        mask: (batch, points), True where a sample was seen, or None.
        at: (batch or 1, queries, dim) coordinates of the outputs, or None for those of the points.
    """
    if layer.boundary == "periodic":
        raise ValueError("coords must be None for a layer with boundary='periodic', got a tensor")
    # In half precision, late times round to the same number, so their differences are computed in float32.
    dtype = torch.promote_types(layer.reach.dtype, torch.float32)
    if torch.finfo(coords.dtype).bits > torch.finfo(dtype).bits:
        coords, at = _near_zero(coords, at, mask)
    coords = coords.to(dtype)
    measure = math.prod(steps)
    # A Python number, because a CUDA graph cannot contain the copy of a tensor from the host.
    weighted = x * (measure if weight is None else (weight * measure).unsqueeze(1).to(x.dtype))
    groups, out = (layer.groups, layer.out_channels) if layer.groups == 1 else (x.shape[1], x.shape[1])
    values = layer.values if out == layer.out_channels else partial(layer.values, channels=out)
    at = None if at is None else at.to(coords.dtype)
    reach, kernel, size = _support(layer, lambda offsets: values(offsets.to(layer.reach.dtype)))
    reach = reach.to(coords.dtype)
    how: dict[str, Any] = {"out_channels": out, "groups": groups, "causal": layer.causal, "mask": mask, "at": at}
    how["hidden"] = layer.field.hidden_values()
    slack = _planning.get(layer) if _planning else None
    if slack is not None and layer.neighbors is None:
        options: dict[str, Any] = {"method": layer.point_method, "tolerance": layer.tolerance, "slack": slack}
        layer.point_plan = plan_points(coords, kernel, reach, in_channels=x.shape[1], **how, **options)
    plan = layer.point_plan
    if plan is not None and plan.grid is not None:  # the mask may have changed its size
        plan = plan._replace(grid=plan.grid._replace(size=size))
    y = point_conv(
        weighted,
        coords,
        kernel,
        reach,
        **how,
        neighbors=layer.neighbors,
        method=layer.point_method,
        tolerance=layer.tolerance,
        plan=plan,
        pairs=partial(_convolve_features, layer, weighted, coords, at) if uses_features(layer) else None,
    )
    density_weight = None if weight is None or weight.dtype == torch.bool else weight
    if not layer.causal or (measure == 1 and density_weight is None) or 0 in (coords.shape[1], y.shape[-1]):
        return y
    # Half of the cell at lag zero lies in the future. A training cell has width 1, so half of it replaces half of this
    # input's cell, as SampledKernel.finish does on grids.
    times = coords[..., 0].expand(x.shape[0], -1)
    cell: float | Tensor = 1.0
    if density_weight is not None:  # samples at one time share the cell
        seen = (density_weight > 0).to(x.dtype).expand(times.shape).unsqueeze(1)
        cell = seen / sum_at_equal_times(seen, times, times).clamp(min=1)
    rest = (x * cell - weighted) / 2
    here = values(layer.reach.new_zeros(1)).view(groups, -1, layer.in_channels // layer.groups)
    own = torch.einsum("goi,bgin->bgon", here.to(rest.dtype), rest.unflatten(1, (groups, -1))).flatten(1, 2)
    return y + sum_at_equal_times(own, times, times if at is None else at[..., 0].expand(x.shape[0], -1))


def _near_zero(coords: Tensor, at: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Shift coordinates so that each sample's lowest is zero: dates in float64 then keep their digits in float32."""
    if coords.shape[1] == 0:
        return coords, at
    with torch.no_grad():
        seen = None if mask is None or coords.shape[0] != mask.shape[0] else mask.unsqueeze(-1)
        low = (coords if seen is None else torch.where(seen, coords, torch.inf)).amin(dim=1, keepdim=True)
        low = torch.where(low.isfinite(), low, 0.0)
    return coords - low, None if at is None else at.to(coords.dtype) - low


def _support(
    layer: ContinuousConv, values: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Callable[[Tensor], Tensor], tuple[float, ...]]:
    """Return the masked kernel's reach, the kernel as a function of offsets relative to it, and the reach as floats."""
    full = tuple(map(float, layer.size))
    compiling = torch.compiler.is_compiling()
    if layer.kernel_support is None or (compiling and layer.point_plan is None):
        return layer.reach, values, full
    if not compiling:
        layer.kernel_support.refresh()
    steps = layer.kernel_support.traced_steps(layer.training) if compiling else layer.kernel_support.steps
    if steps == layer.size:
        return layer.reach, values, full
    # Multiplying by a Python number avoids a copy of a new tensor to the device.
    share = [a / b for a, b in zip(steps, layer.size, strict=True)]
    size = tuple(map(float, steps))
    if len(set(share)) == 1:
        return layer.reach * share[0], lambda offsets: values(offsets * share[0]), size
    scale = layer.reach.new_tensor(share)
    return layer.reach * scale, lambda offsets: values(offsets * scale), size


def uses_features(layer: ContinuousConv) -> bool:
    """Return whether sums of the field's features are cheaper than sums of its values."""
    pairs = layer.in_channels * layer.out_channels // layer.groups
    if layer.groups > 1 or has_hooks(layer.field):
        return False
    features = layer.field.features(layer.reach.new_zeros(1, layer.dim))
    return features is not None and layer.neighbors is None and 2 * (features.shape[-1] + 1) <= pairs


def _convolve_features(layer: ContinuousConv, weighted: Tensor, coords: Tensor, at: Tensor | None) -> Tensor:
    """Convolve with the field's features, under the mask, and apply its last linear map to the sums.

    The map commutes with the sum over points, and there are far fewer features than pairs of channels.
    """

    def features(offsets: Tensor) -> Tensor:
        offsets = offsets.to(layer.reach.dtype)
        with torch.autocast(offsets.device.type, enabled=False):
            values = layer.field.features(offsets)
        assert values is not None
        values = torch.cat([values, torch.ones_like(values[..., :1])], dim=-1)  # the last one for the bias
        return values if layer.mask is None else values * layer.mask(offsets).unsqueeze(-1)

    sums = point_sums(
        weighted,
        coords,
        features,
        layer.reach.to(coords.dtype),
        causal=layer.causal,
        hidden=layer.field.hidden_values(),
        at=at,
    )
    weight, bias = layer.field.readout()
    joined = torch.cat([weight, bias.unsqueeze(1)], dim=1).unflatten(0, (layer.out_channels, layer.in_channels))
    return torch.einsum("och,bchn->bon", joined.to(sums.dtype), sums)
