"""The action of an affine map on a signal on a regular grid: exact where the grid allows it, interpolated where not."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .._checks import check_choice

__all__ = ["transform"]


def transform(signal: Tensor, matrix: Tensor, shift: Tensor | None = None, *, mode: str = "bilinear") -> Tensor:
    r"""Return :math:`f(A^{-1}(x - t))` for a signal f, with x counted in grid steps from the centre of the grid.

    Axes that A only exchanges or reverses are exchanged or reversed, and whole steps of t are moved, without any
    arithmetic on the values. Everything else is interpolated, with zeros outside of the grid.

    Args:
        signal: (…, \*space) signal with 1 to 3 spatial axes.
        matrix: (dim, dim) matrix A.
        shift: (dim,) translation t in grid steps.
        mode: "bilinear" (linear in any dimension) or "bicubic" (two dimensions).

    >>> x = torch.arange(4.0).view(1, 1, 2, 2)
    >>> quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> transform(x, quarter).equal(torch.rot90(x, 1, (-2, -1)))
    True
    """
    check_choice("mode", mode, ("bilinear", "bicubic"))
    dim = matrix.shape[-1]
    shift = matrix.new_zeros(dim) if shift is None else shift
    rounded = matrix.round()
    if _is_signed_permutation(rounded) and bool((matrix - rounded).abs().max() < 1e-6):
        signal = _permute(signal, rounded)
        matrix = torch.eye(dim, dtype=matrix.dtype)
        if bool((shift - shift.round()).abs().max() < 1e-6):
            return _translate(signal, [int(s) for s in shift.round()])
    return _interpolate(signal, matrix, shift, mode)


def _is_signed_permutation(matrix: Tensor) -> bool:
    ones = torch.ones(matrix.shape[-1], dtype=matrix.dtype)
    return bool((matrix.abs().sum(0) == ones).all() and (matrix.abs().sum(1) == ones).all())


def _permute(signal: Tensor, matrix: Tensor) -> Tensor:
    dim = matrix.shape[-1]
    lead = signal.dim() - dim
    # Output axis i is input axis j, reversed where the entry is -1.
    sources = [int(row.abs().argmax()) for row in matrix]
    flips = [lead + i for i, j in enumerate(sources) if matrix[i, j] < 0]
    return signal.permute(*range(lead), *(lead + j for j in sources)).flip(flips)


def _translate(signal: Tensor, steps: list[int]) -> Tensor:
    lead = signal.dim() - len(steps)
    for axis, step in enumerate(steps, start=lead):
        if step:
            length = signal.shape[axis]
            index = torch.arange(length, device=signal.device) - step
            inside = ((index >= 0) & (index < length)).to(signal.dtype)
            moved = signal.index_select(axis, index.clamp(0, length - 1))
            signal = moved * inside.view(-1, *[1] * (signal.dim() - axis - 1))
    return signal


def _interpolate(signal: Tensor, matrix: Tensor, shift: Tensor, mode: str) -> Tensor:
    dim = matrix.shape[-1]
    space = signal.shape[-dim:]
    inverse = torch.linalg.inv(matrix).to(signal.device)
    axes = [torch.arange(n, dtype=inverse.dtype, device=signal.device) - (n - 1) / 2 for n in space]
    points = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1) - shift.to(inverse)
    # grid_sample counts from -1 to 1 between the outermost samples, and its last coordinate is the first axis.
    half = torch.tensor([max((n - 1) / 2, 0.5) for n in space], dtype=inverse.dtype, device=signal.device)
    at = ((points @ inverse.T) / half).flip(-1).to(signal.dtype)
    flat = signal.reshape(1, -1, *space)
    if dim == 1:  # grid_sample begins at two dimensions
        flat, at = flat.unsqueeze(-2), torch.stack([at[..., 0], torch.zeros_like(at[..., 0])], dim=-1).unsqueeze(0)
    moved = F.grid_sample(flat, at.unsqueeze(0), mode=mode, padding_mode="zeros", align_corners=True)
    return moved.reshape(signal.shape)
