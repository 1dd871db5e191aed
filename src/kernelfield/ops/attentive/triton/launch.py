r"""Maxima and weighted sums of the responses of attentive convolutions, by kernels that write no response.

:math:`r_{bcgn}(x) = \sum_k w_{kcgn} f_{bcg}(x + k)` is the response of input channel c and element g to the kernel of
output n, which counts channels and elements. There is one response for each pair of input and output, but an attentive
convolution (chapter 8) needs only two maxima and a sum of them. The kernels compute these and their gradients from the
signal. The gradient of a maximum goes to the first response that attains it, which is a subgradient.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...attention.windows import windows
from ...autograd import EagerFunction, grads_by_formula
from ...kernel_operator import kernel_operator
from ...launch_sizes import ceil_div, power_of_2
from .backward import peaks_grad, sources, taps
from .forward import peaks, sums
from .spatial import attend, filters, gate_grad, spread

__all__ = ["response_peaks", "weighted_responses"]

#: the tile of a program of one warp: rows (input channels for "taps"), columns and lanes; measured on an H200
TILES = {
    "peaks": (1, 16, 64),
    "sums": (2, 8, 64),
    "taps": (3, 8, 32),
    "sources": (4, 4, 128),
    "attend": (1, 16, 64),
    "spread": (1, 8, 64),
    "filters": (1, 8, 64),
}
#: number of programs that keeps a GPU busy
PROGRAMS = 4096


def response_peaks(x: Tensor, w: Tensor) -> Tensor:
    """Return the largest response over space, (b, c, g, n).

    Args:
        x: (b, c, g, rows, columns) signal, already padded.
        w: (points, points, c, g, n) kernels, already flipped.
    """
    run = _peaks_op if torch.compiler.is_compiling() else _Peaks.apply
    peak: Tensor = run(x.flatten(1, 2).contiguous(), w.flatten(2, 3).contiguous())
    return peak.unflatten(1, x.shape[1:3])


def weighted_responses(x: Tensor, w: Tensor, alpha: Tensor | None, psi: Tensor | None) -> Tensor:
    r"""Return :math:`\sum_{cg} \alpha^X_{bgn}(x)\, \alpha_{bcgn}\, r_{bcgn}(x)`: (b, rows, columns, n).

    Args:
        x: (b, c, g, rows, columns) signal, already padded.
        w: (points, points, c, g, n) kernels, already flipped.
        alpha: (b, c, g, n) weights of channels, or None.
        psi: (a, a, 2, g, n) flipped kernels of spatial attention, on the sum and the maximum over channels, or None.
    """
    if psi is None:  # statistics of single elements are not needed
        x, w = x.flatten(1, 2).unsqueeze(2), w.flatten(2, 3).unsqueeze(3)
        alpha = None if alpha is None else alpha.flatten(1, 2).unsqueeze(2)
    some = [None if t is None else t.contiguous() for t in (x, w, alpha, psi)]
    run = _weighted_op if torch.compiler.is_compiling() else _Weighted.apply
    result: Tensor = run(*some)
    return result


def _find_peaks(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest responses and their places; x is (b, c·g, rows, columns), w (points, points, c·g, n)."""
    b, c, hi, wi = x.shape
    k, n = w.shape[0], w.shape[-1]
    ho, wo = hi - k + 1, wi - k + 1
    top, place = _peak_shapes(x, w)
    _, across, lanes = TILES["peaks"]
    tile = _lanes(n, lanes)
    grid = (b * c, ceil_div(n, tile["L"]))
    peaks[grid](x, w, top, place, c, n, hi, wi, ho, wo, KS=k, P=_part(wo, across), **tile)
    return top, place


def _peak_shapes(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    size = (*x.shape[:2], w.shape[-1])
    return x.new_empty(size, dtype=torch.float32), x.new_empty(size, dtype=torch.int32)


def _peaks_grads(slope: Tensor, x: Tensor, w: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the signal and the kernels."""
    b, c, hi, wi = x.shape
    k, n = w.shape[0], w.shape[-1]
    tile = _lanes(n, 32)
    splits, each = _splits(b, c * ceil_div(n, tile["L"]))
    dx = torch.zeros_like(x)
    dw = torch.empty((splits, *w.shape), dtype=torch.float32, device=x.device)
    grid = (c, ceil_div(n, tile["L"]), splits)
    peaks_grad[grid](x, w, place, slope.contiguous(), dx, dw, b, each, c, n, hi, wi, wi - k + 1, KS=k, **tile)
    return dx, dw.sum(dim=0)


class _Peaks(EagerFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        top, place = _find_peaks(x, w)
        ctx.save_for_backward(x, w, place)
        return top

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # second derivatives need differentiable operations
            return grads_by_formula(_peaks_formula, ctx.saved_tensors[:2], slope)
        return _peaks_grads(slope, *ctx.saved_tensors)


def _peaks_formula(x: Tensor, w: Tensor) -> Tensor:
    """Compute the largest responses from torch's operations; arguments as in :func:`_find_peaks`."""
    k = w.shape[0]
    return torch.einsum("bcyxij,ijcn->bcyxn", windows(x, (k, k), (0, 0)), w).amax(dim=(2, 3))


_peaks_op = kernel_operator("response_peaks", "Tensor x, Tensor w", 1, 2, _find_peaks, _peaks_grads, _peak_shapes)


def _sum_weighted(x: Tensor, w: Tensor, alpha: Tensor | None, psi: Tensor | None) -> tuple[Tensor, ...]:
    """Return the weighted sums and what spatial attention saves: sums, maxima and their channels, and gates."""
    b, c, g, hi, wi = x.shape
    k, n = w.shape[0], w.shape[-1]
    ho, wo = hi - k + 1, wi - k + 1
    out, total, top, which, gate = _weighted_shapes(x, w, alpha, psi)
    if psi is None:
        total = top = which = out.unsqueeze(3)
    rows, columns, tile = _tile("sums", n, wo)
    tiles, across = ceil_div(ho, rows) * ceil_div(wo, columns), ceil_div(wo, columns)
    sums[b * tiles, g * ceil_div(n, tile["L"])](
        x, w, w if alpha is None else alpha, total, top, which, c, g, n, hi, wi, ho, wo, tiles, across,
        KS=k, ALPHA=alpha is not None, TOP=psi is not None, R=rows, P=columns, **tile,
    )  # fmt: skip
    if psi is None:
        return (out, *(out.new_empty(0) for _ in range(4)))
    _, columns, tile = _tile("attend", n, wo)
    across = ceil_div(wo, columns)
    attend[b * ho * across, ceil_div(n, tile["L"])](
        total, top, psi, gate, out, g, n, ho, wo, across, A=psi.shape[0], P=columns, **tile
    )
    return out, total, top, which, gate


def _weighted_shapes(x: Tensor, w: Tensor, alpha: Tensor | None, psi: Tensor | None) -> tuple[Tensor, ...]:  # noqa: ARG001
    b, _, g, hi, wi = x.shape
    k, n = w.shape[0], w.shape[-1]
    ho, wo = hi - k + 1, wi - k + 1
    out = x.new_empty((b, ho, wo, n), dtype=torch.float32)
    if psi is None:
        return (out, *(out.new_empty(0) for _ in range(4)))
    total, top, gate = (out.new_empty((b, ho, wo, g, n)) for _ in range(3))
    return out, total, top, out.new_empty((b, ho * wo + 1, g, n), dtype=torch.int16), gate


def _weighted_grads(
    slope: Tensor, x: Tensor, w: Tensor, alpha: Tensor | None, psi: Tensor | None, *saved: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of all four arguments."""
    dpsi = None
    if psi is not None:
        total, top, which, gate = saved
        dtotal, dtop, dpsi = _space_grad(slope.contiguous(), psi, total, top, gate)
    else:
        dtotal = F.pad(slope.flatten(1, 2), (0, 0, 0, 1)).unsqueeze(2)
        dtop = which = dtotal
    dx, dw, dalpha = _sums_grad(x, w, alpha, dtotal, dtop, which, psi is not None)
    return dx, dw, dalpha, dpsi


class _Weighted(EagerFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, alpha: Tensor | None, psi: Tensor | None) -> Tensor:
        out, *saved = _sum_weighted(x, w, alpha, psi)
        ctx.save_for_backward(x, w, alpha, psi, *saved)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return grads_by_formula(_weighted_formula, ctx.saved_tensors[:4], slope)
        return _weighted_grads(slope, *ctx.saved_tensors)


def _weighted_formula(x: Tensor, w: Tensor, alpha: Tensor | None, psi: Tensor | None) -> Tensor:
    """Compute :func:`weighted_responses` from torch's operations."""
    k = w.shape[0]
    found = torch.einsum("bcgyxij,ijcgn->bcyxgn", windows(x, (k, k), (0, 0)), w)
    found = found if alpha is None else found * alpha[:, :, None, None]
    total = found.sum(dim=1)  # (b, y, x, g, n)
    if psi is None:
        return total.sum(dim=3)
    a = psi.shape[0]
    both = torch.stack([total, found.amax(dim=1)], dim=1).movedim((2, 3), (4, 5))
    scores = torch.einsum("btgnyxij,ijtgn->byxgn", windows(both, (a, a), (a // 2, a // 2)), psi)
    return (torch.sigmoid(scores) * total).sum(dim=3)


_weighted_op = kernel_operator(
    "weighted_responses",
    "Tensor x, Tensor w, Tensor? alpha, Tensor? psi",
    4,
    4,
    _sum_weighted,
    _weighted_grads,
    _weighted_shapes,
)


def _space_grad(slope: Tensor, psi: Tensor, total: Tensor, top: Tensor, gate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of sums, maxima and kernels of spatial attention."""
    b, h, w, g, n = total.shape
    a = psi.shape[0]
    ds = torch.empty_like(total)
    gate_grad[(ceil_div(ds.numel(), 1024),)](total, gate, slope, ds, g, n, ds.numel(), L=1024, num_warps=4)
    _, columns, tile = _tile("filters", n, w)
    blocks = g * ceil_div(n, tile["L"])
    splits, each = _splits(b, blocks * a)
    dpsi = total.new_empty((splits, *psi.shape))
    filters[blocks, a, splits](total, top, ds, dpsi, b, each, g, n, h, w, A=a, P=columns, **tile)
    # Each sample has one extra position, which is zero.
    both = total.new_empty((2, b, h * w + 1, g, n))
    both[:, :, -1].zero_()
    dtotal, dtop = both.unbind()
    _, columns, tile = _tile("spread", n, w)
    across = ceil_div(w, columns)
    spread[b * h * across, g * ceil_div(n, tile["L"])](
        gate, slope, ds, psi, dtotal, dtop, g, n, h, w, across, A=a, P=columns, **tile
    )
    return dtotal, dtop, dpsi.sum(dim=0)


def _sums_grad(
    x: Tensor, w: Tensor, alpha: Tensor | None, dtotal: Tensor, dtop: Tensor, which: Tensor, tops: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of the signal, the kernels and the weights of channels."""
    b, c, g, hi, wi = x.shape
    k, n = w.shape[0], w.shape[-1]
    ho, wo = hi - k + 1, wi - k + 1
    flags = {"KS": k, "ALPHA": alpha is not None, "TOP": tops}
    channels, columns, tile = _tile("taps", n, wo)
    channels = min(channels, c)
    blocks = g * ceil_div(n, tile["L"])
    splits, each = _splits(b, blocks * ceil_div(c, channels))
    dw = torch.empty((splits, *w.shape), dtype=torch.float32, device=x.device)
    dalpha = None if alpha is None else torch.empty_like(alpha)
    taps[blocks, ceil_div(c, channels), splits](
        x, w, w if alpha is None else alpha, dtotal, dtop, which, dw if dalpha is None else dalpha, dw,
        b, each, c, g, n, hi, wi, ho, wo, CB=channels, P=columns, **flags, **tile,
    )  # fmt: skip
    dx = torch.empty((b, g, hi, wi, c), dtype=torch.float32, device=x.device)
    rows, columns, tile = _tile("sources", c, wi)
    tiles, across = ceil_div(hi, rows) * ceil_div(wi, columns), ceil_div(wi, columns)
    channels_last = w.permute(3, 4, 0, 1, 2).contiguous()
    factors = w if alpha is None else alpha.permute(0, 2, 3, 1).contiguous()
    sources[b * tiles, g * ceil_div(c, tile["L"])](
        channels_last, factors, dtotal, dtop, which, dx, c, g, n, hi, wi, ho, wo, tiles, across,
        R=rows, P=columns, **flags, **tile,
    )  # fmt: skip
    return dx.permute(0, 4, 1, 2, 3), dw.sum(dim=0), dalpha


@functools.lru_cache(4096)
def _tile(kernel: str, n: int, columns: int) -> tuple[int, int, dict[str, int]]:
    """Return the rows and columns of a tile and the lanes of a program, for ``n`` outputs and a map of ``columns``."""
    rows, across, lanes = TILES[kernel]
    return rows, _part(columns, across), _lanes(n, lanes)


@functools.lru_cache(4096)
def _part(length: int, most: int) -> int:
    """Return the columns of a tile, ``most`` or half as many; further sizes would need more compiled kernels."""
    half = max(1, most // 2)
    return half if 5 * ceil_div(length, half) * half < 4 * ceil_div(length, most) * most else most


@functools.lru_cache(4096)
def _lanes(count: int, most: int) -> dict[str, int]:
    return {"L": max(16, min(most, power_of_2(count))), "num_warps": 1}


def _splits(samples: int, programs: int) -> tuple[int, int]:
    """Return the number of parts of a sum over samples, and the number of samples in each part."""
    splits = max(1, min(samples, math.ceil(PROGRAMS / programs)))
    each = math.ceil(samples / splits)
    return math.ceil(samples / each), each
