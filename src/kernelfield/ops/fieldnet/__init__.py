r"""Values of several kernel networks at all points of a regular grid.

A kernel network is small. On a GPU it spends its time on launches and memory traffic: each of its hundred operations
reads and writes all hidden units at all points. The Triton kernels of this folder compute the last hidden layer of any
number of networks in one launch. They compute coordinates from the numbers that describe the grid, and their backward
pass recomputes the hidden units. The last linear map, which may have a thousand outputs, is a matrix product.

Products are in float32, as three tf32 products each, because large frequencies multiply their errors.

The reference is the field itself. It is also used for second derivatives and for all cases that the kernels do not
support: other fields and dtypes, wide layers, exported programs. Compiled code calls the kernels as a custom operator.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ..._hooks import has_hooks
from ...masks import GaussianMask, gaussian_windows, stack_gaussians
from ..backend import use_triton
from ..graph_cache import graph_cache
from ..kernel_operator import use_kernel_operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ...fields.base import Architecture, Field
    from ...grids import KernelGrid
    from ...masks import Mask

__all__ = ["grid_points", "sample_fields"]

#: widest hidden layer that fits into the registers of a program
MAX_HIDDEN = 64
#: largest number of values of all layers of a network on a grid, which kernels index with 32 bits
MAX_VALUES = 1 << 31
#: largest number of points of cached grids; training samples its kernels on the same grids at every step
MOST_POINTS = 1 << 16


def sample_fields(
    fields: Sequence[Field], grid: KernelGrid, channels: int | None = None, masks: Sequence[Mask] | None = None
) -> Tensor:
    """Return the values of fields times masks on a regular grid, if possible with two launches and a matrix product.

    Args:
        fields: n fields that are :meth:`~kernelfield.fields.Field.alike`, or one field of any kind.
        grid: the points.
        channels: return only the first ``channels`` values; all by default.
        masks: n masks of one class; none by default.

    Returns:
        (n, channels, points) values.

    >>> from kernelfield.fields import SIREN
    >>> from kernelfield.grids import KernelGrid
    >>> field, grid = SIREN(dim=1, channels=3), KernelGrid.of((8,), (1.0,))
    >>> torch.allclose(sample_fields([field], grid)[0], field(grid.coords().flatten(0, -2)).mT)
    True
    """
    first = fields[0]
    like = _any_tensor(first)
    architectures = _architectures(fields, grid, like)
    if architectures is not None:
        features = _fused_features(fields, architectures, grid)
        weight, bias = type(first).readouts(fields, channels)
        values = torch.baddbmm(bias.unsqueeze(2), weight, features)
        if masks and not torch.compiler.is_compiling() and _are_fused(masks, values):
            return _fused_windows(values, masks, grid)
    else:
        coords = grid_points(grid, like.dtype, like.device)
        alone = len(fields) == 1
        values = (first(coords, channels).unsqueeze(0) if alone else type(first).together(fields, coords, channels)).mT
    if not masks:
        return values
    points = grid_points(grid, values.dtype, values.device)
    window = masks[0](points).unsqueeze(0) if has_hooks(masks[0]) else type(masks[0]).together(masks, points)
    return values * window.unsqueeze(1)


def grid_points(grid: KernelGrid, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the (points, dim) coordinates of a grid, which are cached and must not be changed in place.

    >>> from kernelfield.grids import KernelGrid
    >>> grid_points(KernelGrid.of((2,), (1.0,)), torch.float32, torch.device("cpu")).tolist()
    [[-0.5], [0.0], [0.5]]
    """
    # Not grid.points, since a compiler cannot trace the lock of a cached property.
    return (_cached_points if math.prod(grid.count) <= MOST_POINTS else _make_points)(grid, dtype, device)


def _make_points(grid: KernelGrid, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # training may use these tensors later
        return grid.coords(dtype=dtype, device=device).flatten(0, -2)


_cached_points = graph_cache(64)(_make_points)


def _architectures(fields: Sequence[Field], grid: KernelGrid, like: Tensor) -> list[Architecture] | None:
    """Return the architectures of the fields if Triton kernels can compute their features on this grid, else None."""
    if len(grid.count) > 3 or like.dtype != torch.float32:
        return None
    if not (_use_operator(like) if torch.compiler.is_compiling() else use_triton(like)):
        return None
    found = []
    for field in fields:
        architecture = None if has_hooks(field) else field.architecture()
        if architecture is None or architecture.hidden > MAX_HIDDEN:
            return None
        if architecture.layers * architecture.hidden * math.prod(grid.count) >= MAX_VALUES:
            return None
        if {p.dtype for p in architecture.parameters} != {torch.float32}:
            return None
        found.append(architecture)
    return found


def _use_operator(like: Tensor) -> bool:
    """Return whether traced code calls a custom operator; an exported program runs on machines without Triton too."""
    return use_kernel_operator(like) and not torch.compiler.is_exporting()


def _fused_features(fields: Sequence[Field], architectures: Sequence[Architecture], grid: KernelGrid) -> Tensor:
    """Return the (n, hidden, points) inputs of the last linear maps."""
    from .triton.launch import fused_features  # noqa: PLC0415

    def formula(*parameters: Tensor) -> Tensor:
        each = len(parameters) // len(fields)
        split = [parameters[i * each : (i + 1) * each] for i in range(len(fields))]
        stacked = [torch.stack(same) for same in zip(*split, strict=True)]
        coords = grid.coords(dtype=stacked[0].dtype, device=stacked[0].device).flatten(0, -2)
        return fields[0].features_from(coords, stacked).mT

    return fused_features(architectures, grid, formula)


def _are_fused(masks: Sequence[Mask], values: Tensor) -> bool:
    """Return whether Triton kernels can multiply these values by these masks."""
    return (
        all(type(mask) is GaussianMask and mask.threshold == masks[0].threshold for mask in masks)
        and not has_hooks(*masks)
        and {t.dtype for mask in masks for t in (values, mask.mean, mask.sigma)} == {torch.float32}
        and values.numel() < MAX_VALUES
    )


def _fused_windows(values: Tensor, masks: Sequence[Mask], grid: KernelGrid) -> Tensor:
    """Return (n, channels, points) values times Gaussian masks."""
    from .triton.windows import multiply_gaussians  # noqa: PLC0415

    threshold = masks[0].threshold

    def formula(values: Tensor, mean: Tensor, sigma: Tensor) -> Tensor:
        points = grid_points(grid, values.dtype, values.device)
        return values * gaussian_windows(points, mean, sigma, threshold).unsqueeze(1)

    mean, sigma = stack_gaussians([getattr(mask, name) for name in ("mean", "sigma") for mask in masks])
    return multiply_gaussians(values, mean, sigma, threshold, grid, formula)


def _any_tensor(field: Field) -> Tensor:
    """Return a parameter, or else a buffer, for its dtype and device."""
    own = next(iter(field._parameters.values()), None)  # noqa: SLF001  # without a walk through the submodules
    tensor = next(field.parameters(), None) if own is None else own
    return next(field.buffers(), torch.empty(0)) if tensor is None else tensor
