"""Affine maps of signals on a regular grid: exact where they map the grid to itself, interpolated elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .._arguments import checked
from .._object_kinds import TensorOf

__all__ = ["transform", "warp"]

_SIGNAL = TensorOf("float")


@checked(
    signal=_SIGNAL,
    matrix=TensorOf("float", shape="dim, dim", empty=False),
    shift=TensorOf("float", shape="dim") | None,
)
def transform(signal: Tensor, matrix: Tensor, shift: Tensor | None = None) -> Tensor:
    r"""Return :math:`f(A^{-1}(x - t))` for a signal f, with x counted in grid steps from the centre of the grid.

    Permutations and flips of axes and shifts by whole steps move values without changing them. Other maps interpolate
    linearly, with zeros outside the grid.

    Args:
        signal: (…, \*space) signal with 1 to 3 spatial axes.
        matrix: (dim, dim) matrix A.
        shift: (dim,) translation t in grid steps.

    >>> x = torch.arange(4.0).view(1, 1, 2, 2)
    >>> quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> transform(x, quarter).equal(torch.rot90(x, 1, (-2, -1)))
    True
    """
    dim = matrix.shape[-1]
    _check_axes(signal, dim)
    shift = matrix.new_zeros(dim) if shift is None else shift
    rounded = matrix.round()
    if _is_signed_permutation(rounded) and bool((matrix - rounded).abs().max() < 1e-6):
        signal = _permute(signal, rounded)
        matrix = torch.eye(dim, dtype=matrix.dtype, device=matrix.device)
        if bool((shift - shift.round()).abs().max() < 1e-6):
            return _translate(signal, [int(s) for s in shift.round()])
    return _warp(signal, matrix[None].to(signal.device), shift.to(signal.device))[0]


def _check_axes(signal: Tensor, dim: int) -> None:
    if not 1 <= dim <= 3 or signal.dim() < dim or 0 in signal.shape:
        raise ValueError(f"signal must have {dim} (1 to 3) spatial axes and not be empty, got {tuple(signal.shape)}")


def _is_signed_permutation(matrix: Tensor) -> bool:
    entries = matrix.abs()
    return bool((entries.sum(0) == 1).all() and (entries.sum(1) == 1).all())


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


@checked(
    signal=_SIGNAL,
    matrices=TensorOf("float", shape="n, dim, dim", empty=False),
    shift=TensorOf("float", shape="dim") | None,
)
def warp(signal: Tensor, matrices: Tensor, shift: Tensor | None = None) -> Tensor:
    r"""Return the signal under n linear maps, always interpolated; differentiable in the signal and the maps.

    Args:
        signal: (…, \*space) signal.
        matrices: (n, dim, dim) matrices A.
        shift: (dim,) translation t in grid steps, applied after A.

    Returns:
        (n, …, \*space) signals :math:`f(A^{-1}(x - t))`.

    >>> warp(torch.randn(2, 3, 8, 8), torch.eye(2).expand(5, 2, 2)).shape
    torch.Size([5, 2, 3, 8, 8])
    """
    _check_axes(signal, matrices.shape[-1])
    return _warp(signal, matrices, shift)


def may_check(matrices: Tensor) -> bool:
    """Return whether torch may check that matrices are regular, for which it waits for their device.

    A CUDA graph must not wait. Compiled code becomes one under ``mode="reduce-overhead"``.

    >>> may_check(torch.eye(2))
    True
    """
    if not matrices.is_cuda:
        return True
    return not torch.compiler.is_compiling() and not torch.cuda.is_current_stream_capturing()


def _warp(signal: Tensor, matrices: Tensor, shift: Tensor | None) -> Tensor:
    n, dim = matrices.shape[0], matrices.shape[-1]
    space = signal.shape[-dim:]
    inverse = torch.linalg.inv_ex(matrices, check_errors=may_check(matrices)).inverse
    axes = [torch.arange(k, dtype=inverse.dtype, device=inverse.device) - (k - 1) / 2 for k in space]
    points = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)
    if shift is not None:
        points = points - shift
    # In grid_sample, -1 and 1 are the outermost samples. A single sample has no extent, so zeros are padded around it.
    single = [int(k == 1) for k in space]
    halves = [(k - 1) / 2 + pad for k, pad in zip(space, single, strict=True)]
    flat = signal.reshape(1, -1, *space)
    if any(single):
        flat = F.pad(flat, [pad for pad in reversed(single) for _ in range(2)])
    # The last coordinate of grid_sample is the first axis.
    moved = torch.einsum("nij,pj->npi", inverse, points).unbind(-1)
    at = torch.stack([x / half for x, half in zip(moved, halves, strict=True)][::-1], dim=-1)
    # In half precision, coordinates of an image of 256 pixels would be off by up to half a pixel.
    computed = torch.promote_types(signal.dtype, torch.float32)
    at = at.unflatten(1, space).to(computed)
    flat = flat.to(computed).expand(n, *[-1] * (dim + 1))
    if dim == 1:  # grid_sample needs at least two dimensions
        flat, at = flat.unsqueeze(-2), torch.cat([at, torch.zeros_like(at)], dim=-1).unsqueeze(1)
    values = F.grid_sample(flat, at, mode="bilinear", padding_mode="zeros", align_corners=True)
    return values.reshape(n, *signal.shape).to(signal.dtype)
