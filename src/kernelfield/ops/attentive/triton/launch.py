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
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ...autograd import EagerFunction
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
    peak = _Peaks.apply(x.flatten(1, 2).contiguous(), w.flatten(2, 3).contiguous())
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
    return _Weighted.apply(*some)


class _Peaks(EagerFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        b, c, hi, wi = x.shape
        k, n = w.shape[0], w.shape[-1]
        ho, wo = hi - k + 1, wi - k + 1
        top = torch.empty((b, c, n), dtype=torch.float32, device=x.device)
        place = torch.empty((b, c, n), dtype=torch.int32, device=x.device)
        _, across, lanes = TILES["peaks"]
        tile = _lanes(n, lanes)
        grid = (b * c, ceil_div(n, tile["L"]))
        peaks[grid](x, w, top, place, c, n, hi, wi, ho, wo, KS=k, P=_part(wo, across), **tile)
        ctx.save_for_backward(x, w, place)
        return top

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        x, w, place = ctx.saved_tensors
        b, c, hi, wi = x.shape
        k, n = w.shape[0], w.shape[-1]
        tile = _lanes(n, 32)
        splits, each = _splits(b, c * ceil_div(n, tile["L"]))
        dx = torch.zeros_like(x)
        dw = torch.empty((splits, *w.shape), dtype=torch.float32, device=x.device)
        grid = (c, ceil_div(n, tile["L"]), splits)
        peaks_grad[grid](x, w, place, slope.contiguous(), dx, dw, b, each, c, n, hi, wi, wi - k + 1, KS=k, **tile)
        return dx, dw.sum(dim=0)


class _Weighted(EagerFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, alpha: Tensor | None, psi: Tensor | None) -> Tensor:
        b, c, g, hi, wi = x.shape
        k, n = w.shape[0], w.shape[-1]
        ho, wo = hi - k + 1, wi - k + 1
        total = torch.empty((b, ho, wo, g, n), dtype=torch.float32, device=x.device)
        top = which = total
        if psi is not None:
            top = torch.empty_like(total)
            which = torch.empty((b, ho * wo + 1, g, n), dtype=torch.int16, device=x.device)
        rows, columns, tile = _tile("sums", n, wo)
        tiles, across = ceil_div(ho, rows) * ceil_div(wo, columns), ceil_div(wo, columns)
        sums[b * tiles, g * ceil_div(n, tile["L"])](
            x, w, w if alpha is None else alpha, total, top, which, c, g, n, hi, wi, ho, wo, tiles, across,
            KS=k, ALPHA=alpha is not None, TOP=psi is not None, R=rows, P=columns, **tile,
        )  # fmt: skip
        if psi is None:
            ctx.save_for_backward(x, w, alpha)
            return total.squeeze(3)
        gate, out = torch.empty_like(total), total.new_empty((b, ho, wo, n))
        _, columns, tile = _tile("attend", n, wo)
        across = ceil_div(wo, columns)
        attend[b * ho * across, ceil_div(n, tile["L"])](
            total, top, psi, gate, out, g, n, ho, wo, across, A=psi.shape[0], P=columns, **tile
        )
        ctx.save_for_backward(x, w, alpha, psi, total, top, which, gate)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, w, alpha, *rest = ctx.saved_tensors
        if rest:
            psi, total, top, which, gate = rest
            dtotal, dtop, dpsi = _space_grad(slope.contiguous(), psi, total, top, gate)
        else:
            dtotal, dpsi = F.pad(slope.flatten(1, 2), (0, 0, 0, 1)).unsqueeze(2), None
            dtop = which = dtotal
        dx, dw, dalpha = _sums_grad(x, w, alpha, dtotal, dtop, which, bool(rest))
        return dx, dw, dalpha, dpsi


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
