"""Resampling of an axis as a product with a matrix, for lengths that may be tensors on a device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..conv.fft import working_dtype
from ..graph_cache import graph_cache

__all__ = ["apply_along", "multiplicity", "resample_matrix"]


def multiplicity(bins: int, old: int | Tensor, new: int | Tensor, device: torch.device) -> Tensor:
    """Return the multiplicity of each bin of a real spectrum, (bins,).

    A bin counts twice, for f and -f. Frequency zero counts once. So does the last bin of an even grid, which contains
    both signs, unless downsampling has brought two separate ones together there.
    """
    k = torch.arange(bins, device=device)
    least = torch.minimum(old, new) if isinstance(old, Tensor) and isinstance(new, Tensor) else _least(old, new)
    last = 1 + (new < old)
    counts = torch.where(2 * k < least, 2, torch.where(2 * k == least, last, 0))
    return torch.where(k == 0, 1, counts)


def _least(old: int | Tensor, new: int | Tensor) -> int | Tensor:
    if isinstance(old, Tensor):
        return old.clamp(max=new)
    return new.clamp(max=old) if isinstance(new, Tensor) else torch.sym_min(old, new)


def resample_matrix(
    old: int | Tensor, new: int | Tensor, rows: int, columns: int, *, window: Tensor | None = None, like: Tensor
) -> Tensor:
    r"""Return the matrix by which :func:`resample` multiplies an axis of ``old`` samples to get ``new`` samples.

    .. math:: A_{ij} = \tfrac1N \sum_k c_k m_k \cos\big(2\pi k (i/M - j/N)\big), \qquad c_k \in \{0, 1, 2\}

    The two lengths may be integer tensors on a device. The shape is then fixed, rows and columns beyond the lengths are
    zero, and the host does not wait for the device.

    Args:
        old: number N of samples before.
        new: number M of samples after.
        rows: number of rows, at least ``new``.
        columns: number of columns, at least ``old``.
        window: values m_k at the frequencies 0, 1, …, min(rows, columns) // 2, at least.
        like: a tensor with the dtype and device of the result; a result in half precision is computed in float32.
    """
    dtype, device = working_dtype(like), like.device
    bins = min(rows, columns) // 2 + 1
    fixed = not (isinstance(old, Tensor) or isinstance(new, Tensor)) and _is_plain(like)
    after, before = (_waves if fixed else _waves.function)(old, new, rows, columns, bins, dtype, device)
    if window is not None:
        after = after * window[:bins].to(dtype).repeat(2)
    with torch.autocast(device.type, enabled=False):
        matrix = after @ before
    return matrix.to(like.dtype)


def _is_plain(x: Tensor) -> bool:
    """Return whether tensors made for ``x`` may be cached, unlike those of a tracer or of inference mode."""
    return type(x) in (Tensor, torch.nn.Parameter) and not (
        torch.compiler.is_compiling() or torch.is_inference_mode_enabled()
    )


@graph_cache(256)  # matrices between two fixed lengths are needed at every step
@torch.no_grad()
def _waves(
    old: int | Tensor, new: int | Tensor, rows: int, columns: int, bins: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines at the new samples, (rows, 2 · bins), and at the old ones, (2 · bins, columns)."""
    weight = multiplicity(bins, old, new, device).double() / old
    i, j, k = (torch.arange(n, device=device) for n in (rows, columns, bins))
    after, before = (_phases(torch.outer(m, k), n) for m, n in ((i, new), (j, old)))
    after = torch.cat([after.cos() * weight, after.sin() * weight], dim=1)
    before = torch.cat([before.cos(), before.sin()], dim=1)
    if isinstance(new, Tensor):
        after = torch.where((i < new).unsqueeze(1), after, 0.0)
    if isinstance(old, Tensor):
        before = torch.where((j < old).unsqueeze(1), before, 0.0)
    return after.to(dtype), before.T.contiguous().to(dtype)


def _phases(product: Tensor, period: int | Tensor) -> Tensor:
    """Return 2π · product / period in (-π, π]; full turns are removed in integer arithmetic, which is exact."""
    return (((product + period // 2) % period) - period // 2).double() * (2 * math.pi) / period


def apply_along(x: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """Multiply the lines of ``x`` along ``axis`` by a matrix (after, before)."""
    with torch.autocast(x.device.type, enabled=False):  # in the signal's dtype, like FFTs
        if x.device.type == "cpu" and axis == x.dim() - 2 and x.dim() > 2 and not torch.compiler.is_compiling():
            # A product from the left, plane by plane, needs no transpose and has a contiguous result.
            planes = x.flatten(0, -3)
            return torch.bmm(matrix.expand(len(planes), *matrix.shape), planes).unflatten(0, x.shape[:-2])
        # With the axis last, there is one product for all lines, and one for the gradient of the matrix.
        return (x.movedim(axis, -1) @ matrix.T).movedim(-1, axis)
