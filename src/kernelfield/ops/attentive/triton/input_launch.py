"""Attention on the input of a group convolution (chapter 8, Eq. 20) as one function, by Triton kernels.

The forward pass reads the signal three times, and the backward pass reads signal and gradient three times, because each
pass over them needs the result of the one before. All other tensors are small.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...autograd import EagerFunction, grads_by_formula
from ...launch_sizes import ceil_div
from ..reference import input_attention_maps
from .input_kernels import channel_slopes, over_channels, over_space, signal_slopes, space_slopes, subtract

__all__ = ["attend_to_input"]

#: numbers of q and positions per tile, for positions (False) or q (True) adjacent in memory; measured on an H200
TILES = {False: (4, 256), True: (32, 32)}
LANES = 128
UNROLL = 8
WARPS = 4


def attend_to_input(x: Tensor, squeeze: Tensor, excite: Tensor, psi: Tensor, dilation: int) -> Tensor:
    r"""Return :math:`(1 - \alpha_X \alpha_C) f`, in the memory layout of the signal.

    Args:
        x: (b, c, g, rows, columns) signal.
        squeeze: (hidden, c·g) matrix.
        excite: (c·g, hidden) matrix.
        psi: (g, 2·g, a, a) flipped kernels, on mean and maximum over channels.
        dilation: distance between the points of the kernels.
    """
    flat = x.flatten(3).flatten(1, 2)
    if 1 not in flat.stride()[1:]:
        flat = flat.contiguous()
    y = _Attend.apply(flat, squeeze.float(), excite.float(), psi.float(), dilation, tuple(x.shape[2:]))
    return y.unflatten(2, x.shape[3:]).unflatten(1, x.shape[1:3])


class _Attend(EagerFunction):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, squeeze: Tensor, excite: Tensor, psi: Tensor, dilation: int, shape: tuple[int, int, int]
    ) -> Tensor:
        b, q, n = x.shape
        g = shape[0]
        c = q // g
        grids, tile, lanes = _launch(x, g)
        both = torch.empty((2, b, q), dtype=torch.float32, device=x.device)  # mean and maximum
        place = torch.empty((b, q), dtype=torch.int32, device=x.device)
        over_space[grids["rows"]](x, both[0], both[1], place, q, n, *_strides(x), **tile)
        hidden = F.relu(both @ squeeze.mT)
        alpha = torch.sigmoid((hidden[0] + hidden[1]) @ excite.mT)
        found = both.new_empty((b, 2 * g, *shape[1:]))
        which = torch.empty((b, g, n), dtype=torch.int16, device=x.device)
        over_channels[grids["lanes"]](x, alpha, found, which, c, g, n, *_strides(x), **lanes)
        s = torch.sigmoid_(_conv(found, psi, dilation))
        y = torch.empty_like(x)
        subtract[grids["tiles"]](x, alpha, s, y, q, g, n, *_strides(x), **tile)
        ctx.save_for_backward(x, squeeze, excite, psi, both, place, hidden, alpha, found, which, s)
        ctx.dilation, ctx.shape = dilation, shape
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # second derivatives need differentiable operations
            formula = partial(_formula, dilation=ctx.dilation, shape=ctx.shape)
            return *grads_by_formula(formula, ctx.saved_tensors[:4], dy), None, None
        x, squeeze, excite, psi, both, place, hidden, alpha, found, which, s = ctx.saved_tensors
        if dy.stride() != x.stride():
            dy = torch.empty_like(x).copy_(dy)
        q, n = x.shape[1:]
        g = len(psi)
        c = q // g
        grids, tile, lanes = _launch(x, g)
        dt = torch.empty_like(s)
        space_slopes[grids["lanes"]](x, alpha, s, dy, dt, c, g, n, *_strides(x), **lanes)
        # The transposed convolution is computed as a forward convolution, which has faster kernels.
        dfound = _conv(dt, psi.flip((2, 3)).transpose(0, 1).contiguous(), ctx.dilation)
        dpsi = _weight_grad(found, dt, psi, ctx.dilation)
        da = torch.empty_like(alpha)
        channel_slopes[grids["rows"]](x, alpha, s, dy, dfound, which, da, q, c, g, n, *_strides(x), **tile)
        dexcite = da.mT @ (hidden[0] + hidden[1])
        dhidden = (da @ excite) * (hidden > 0)
        dboth = dhidden @ squeeze
        dsqueeze = dhidden.flatten(0, 1).mT @ both.flatten(0, 1)
        dx = torch.empty_like(x)
        signal_slopes[grids["tiles"]](
            alpha, s, dy, dfound, which, dboth[0], dboth[1], place, dx, q, c, g, n, *_strides(x), **tile
        )
        return dx, dsqueeze, dexcite, dpsi, None, None


def _formula(
    x: Tensor, squeeze: Tensor, excite: Tensor, psi: Tensor, *, dilation: int, shape: tuple[int, int, int]
) -> Tensor:
    """Compute :class:`_Attend` from torch's operations."""
    signal = x.float().unflatten(2, shape[1:]).unflatten(1, (-1, shape[0]))
    channel, space = input_attention_maps(signal, squeeze, excite, psi.flip((2, 3)), dilation=dilation)
    return (signal - space * channel * signal).flatten(3).flatten(1, 2).to(x.dtype)


def _conv(x: Tensor, kernel: Tensor, dilation: int) -> Tensor:
    return F.conv2d(x, kernel, padding=dilation * (kernel.shape[-1] // 2), dilation=dilation)


def _weight_grad(x: Tensor, dy: Tensor, kernel: Tensor, dilation: int) -> Tensor:
    padding = [dilation * (kernel.shape[-1] // 2)] * 2
    return torch.ops.aten.convolution_backward(
        dy, x, kernel, None, [1, 1], padding, [dilation] * 2, False, [0, 0], 1, [False, True, False]
    )[1]


def _strides(x: Tensor) -> tuple[int, int, int]:
    return x.stride()  # type: ignore[return-value]


def _launch(x: Tensor, g: int) -> tuple[dict[str, tuple[int, ...]], dict[str, Any], dict[str, Any]]:
    """Return the grids of the three kinds of kernels, and the sizes of tiles and of lanes."""
    b, q, n = x.shape
    last = x.stride(2) != 1
    rows, columns = TILES[last]
    blocks = ceil_div(q, rows)
    grids = {
        "rows": (b, blocks),
        "tiles": (b, blocks, ceil_div(n, columns)),
        "lanes": (b, ceil_div(g * n, LANES)),
    }
    tile = {"QB": rows, "PB": columns, "num_warps": WARPS}
    return grids, tile, {"LAST": last, "L": LANES, "UNROLL": UNROLL, "num_warps": LANES // 32}
