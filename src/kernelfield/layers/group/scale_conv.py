r"""Convolutions over dilations: a bank of dilated kernels, each sampled no further out than it reaches (chapter 10).

.. math:: y(t, s) = \sum_{\varsigma \in \{s, \dots, s\, b^{n-1}\}} \Big(f(\cdot, \varsigma) *
              \tfrac1s \psi\big(\tfrac{\cdot}{s}, \tfrac{\varsigma}{s}\big)\Big)(t)

Written for the whole of a window of dilations, whose elements are known without looking at a tensor. Drawn or chosen
elements take the way of every other group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..._checks import check_choice
from ...groups import Group, Scale
from ...ops import Dilated
from .correlate import convolve_bank

if TYPE_CHECKING:
    from torch import Tensor

    from .kernel import GroupKernel

__all__ = ["SCALE_BOUNDARIES", "group_bank", "lift_bank", "out_group"]

SCALE_BOUNDARIES = ("zero", "valid")


def out_group(group: Group, interactions: int | None, scale_boundary: str) -> Group:
    """Return the group on which a layer's output lies: without the dilations whose interactions leave the window.

    Args:
        group: of the input.
        interactions: dilations that a kernel spans.
        scale_boundary: "zero", beyond the coarsest dilation the input is zero, and the window stays; "valid", only
            what needs nothing from beyond is computed, and the window loses ``interactions`` - 1 dilations.
    """
    check_choice("scale_boundary", scale_boundary, SCALE_BOUNDARIES)
    if scale_boundary == "zero":
        return group
    if interactions is None or not isinstance(group, Scale):
        raise ValueError("scale_boundary must be 'zero' without interactions between dilations, got 'valid'")
    return group.shortened(interactions - 1)


def lift_bank(kernel: GroupKernel, group: Scale, x: Tensor, boundary: str) -> Tensor:
    r"""Lift (batch, in, \*space) to all dilations of the window: (batch, out, dilations, \*space)."""
    kernels = [_kernel(kernel, group, k, range(1)) for k in range(group.n)]
    return torch.stack(convolve_bank(x, kernels, boundary), dim=2)


def group_bank(kernel: GroupKernel, group: Scale, x: Tensor, boundary: str, count: int) -> Tensor:
    r"""Convolve (batch, in, dilations, \*space) to the first ``count`` dilations of the window."""
    if kernel.interactions is None:  # all of them read the same signal
        kernels = [_kernel(kernel, group, k, range(group.n)) for k in range(count)]
        return torch.stack(convolve_bank(x.flatten(1, 2), kernels, boundary), dim=2)
    results: list[Tensor] = []
    for k in range(count):
        stop = min(k + kernel.interactions, group.n)
        dilated = _kernel(kernel, group, k, range(k, stop))
        read = x[:, :, k] if stop == k + 1 else x[:, :, k:stop].flatten(1, 2)
        results += convolve_bank(read, [dilated], boundary)
    if boundary == "valid":
        results = [_middle(y, results[-1]) for y in results]
    return torch.stack(results, dim=2)


def _middle(y: Tensor, like: Tensor) -> Tensor:
    """Return what of ``y`` lies where ``like``, of a larger kernel, has outputs too."""
    for axis in range(2, y.dim()):
        more = y.shape[axis] - like.shape[axis]
        y = y.narrow(axis, more // 2, like.shape[axis])
    return y


def _kernel(kernel: GroupKernel, group: Scale, k: int, inputs: range) -> Tensor | Dilated:
    r"""Return the kernel of dilation k on the dilations ``inputs``: (out, in·len(inputs), \*points)."""
    dilated = _dilated(kernel, group, k, inputs)
    if dilated is not None:
        return dilated
    parameter = next(kernel.parameters())
    here = torch.arange(k, k + 1, dtype=parameter.dtype, device=parameter.device)[:, None]
    there = torch.arange(inputs.start, inputs.stop, dtype=parameter.dtype, device=parameter.device)[:, None]
    return kernel.render(here, there, group.base**k).flatten(1, 2)


def _dilated(kernel: GroupKernel, group: Scale, k: int, inputs: range) -> Dilated | None:
    """Return the kernel by its coefficients, if it is a spline on the samples and they stay samples when dilated."""
    spline = kernel.spline()
    stretch = group.base**k
    if spline is None or group.dim != 1 or stretch != round(stretch) or not kernel.on_space:
        return None
    size = kernel.kernel_size
    on_samples = spline.size[-1] == size and size % 2 == 1 and spline.origin[-1] == (size - 1) / 2
    on_samples = on_samples and abs(spline.spacing[-1] * max(size - 1, 1) - 2) < 1e-9
    if not on_samples or spline.order[-1] == 0:
        return None
    out, into = kernel.shape
    table = spline.coefficients.view(-1, size, out, into)
    if kernel.on_group:
        count = kernel.interactions or 2 * group.n - 1
        # Only splines of degree 1 have their coefficients as values.
        if spline.size[0] != count or spline.order[0] > 1 or spline.origin[0] != (count - 1) / 2:
            return None
        first = inputs.start - k + (0 if kernel.interactions is not None else group.n - 1)
        table = table[first : first + len(inputs)]
    weights = table.permute(2, 3, 0, 1).flatten(1, 2) / stretch
    return Dilated(weights, round(stretch), spline.order[-1])
