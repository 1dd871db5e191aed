"""Convolutions on groups whose kernels differ in size between elements, such as dilations (chapter 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..._hooks import has_hooks
from ..._kinds import Choice
from ...ops import Dilated
from .correlate import convolve_bank

if TYPE_CHECKING:
    from torch import Tensor

    from ...groups import Group
    from .kernel import GroupKernel

__all__ = ["SCALE_BOUNDARIES", "group_bank", "lift_bank", "out_group"]

SCALE_BOUNDARIES = ("zero", "valid")


def out_group(group: Group, interactions: int | None, scale_boundary: str) -> Group:
    """Return the group of a layer's output.

    Args:
        group: group of the input.
        interactions: number of neighbouring elements that a kernel spans.
        scale_boundary: "zero" treats the input as zero beyond the last element and keeps the group. "valid" leaves out
            the last ``interactions`` - 1 elements of the output, which would read beyond it.
    """
    Choice(*SCALE_BOUNDARIES).check("scale_boundary", scale_boundary)
    if scale_boundary == "zero":
        return group
    if group.check_interactions(interactions) is None:
        raise ValueError("scale_boundary must be 'zero' without interactions, got 'valid'")
    return group.shortened((interactions or 1) - 1)


def lift_bank(kernel: GroupKernel, x: Tensor, boundary: str) -> Tensor:
    r"""Lift (batch, in, \*space) to all elements: (batch, out, group, \*space)."""
    kernels = [_kernel(kernel, k, range(1)) for k in range(kernel.group.order or 1)]
    return torch.stack(convolve_bank(x, kernels, boundary), dim=2)


def group_bank(kernel: GroupKernel, x: Tensor, boundary: str, count: int) -> Tensor:
    r"""Convolve (batch, in, group, \*space) and return the first ``count`` elements: (batch, out, count, \*space)."""
    n = kernel.group.order or 1
    if kernel.interactions is None:  # every output element reads the same signal
        kernels = [_kernel(kernel, k, range(n)) for k in range(count)]
        return torch.stack(convolve_bank(x.flatten(1, 2), kernels, boundary), dim=2)
    results: list[Tensor] = []
    for k in range(count):
        stop = min(k + kernel.interactions, n)
        dilated = _kernel(kernel, k, range(k, stop))
        read = x[:, :, k] if stop == k + 1 else x[:, :, k:stop].flatten(1, 2)
        results += convolve_bank(read, [dilated], boundary)
    if boundary == "valid":
        shortest = min(results, key=lambda y: y.shape[2])
        results = [_middle(y, shortest) for y in results]
    return torch.stack(results, dim=2)


def _middle(y: Tensor, like: Tensor) -> Tensor:
    """Return the middle of ``y``, at the positions of ``like``, the shorter output of a longer kernel."""
    for axis in range(2, y.dim()):
        more = y.shape[axis] - like.shape[axis]
        y = y.narrow(axis, more // 2, like.shape[axis])
    return y


def _kernel(kernel: GroupKernel, k: int, inputs: range) -> Tensor | Dilated:
    r"""Return the kernel from the elements ``inputs`` to element k: (out, in·len(inputs), \*points)."""
    dilated = _dilated(kernel, k, inputs)
    if dilated is not None:
        return dilated
    parameter = next(kernel.parameters())
    elements = kernel.group.elements(parameter.dtype, parameter.device)
    here, there = elements[k : k + 1], elements[inputs.start : inputs.stop]
    return kernel.render(here, there, kernel.group.stretches()[k]).flatten(1, 2)


def _dilated(kernel: GroupKernel, k: int, inputs: range) -> Dilated | None:
    """Return the kernel as dilated coefficients, if it is a spline on the samples and the dilation is an integer."""
    group, stretch = kernel.group, kernel.group.stretches()[k]
    if kernel.field.lattice is None or not group.ordered or has_hooks(kernel.field):
        return None
    if group.dim != 1 or stretch != round(stretch) or not kernel.on_space:
        return None
    spline = kernel.spline
    size = kernel.kernel_size
    on_samples = spline.size[-1] == size and size % 2 == 1 and spline.origin[-1] == (size - 1) / 2
    on_samples = on_samples and abs(spline.spacing[-1] * max(size - 1, 1) - 2) < 1e-9
    if not on_samples or spline.order[-1] == 0:
        return None
    out, into = kernel.shape
    table = spline.coefficients.view(-1, size, out, into)
    if kernel.on_group:
        n = group.window
        count = kernel.interactions or 2 * n - 1
        # Only splines of degree 0 and 1 have their coefficients as values at the nodes.
        if spline.size[0] != count or spline.order[0] > 1 or spline.origin[0] != (count - 1) / 2:
            return None
        first = inputs.start - k + (0 if kernel.interactions is not None else n - 1)
        table = table[first : first + len(inputs)]
    weights = table.permute(2, 3, 0, 1).flatten(1, 2) / stretch
    return Dilated(weights, round(stretch), spline.order[-1])
