r"""What networks do between convolutions: linear maps of channels, norms, GELU, dropout, residual sums.

Each of these does next to no arithmetic and reads and writes all of a signal, so that their time is their passes over
memory. On a GPU they are done in as few passes as there are dependences: bias, GELU, dropout and residual sum in one,
batch statistics in one and the norm in another, and in the backward pass likewise, the gradient of an identity branch
added where the norm's is written. Nothing is kept for the backward pass but inputs; dropout's choice is computed again.

Elsewhere, under torch.compile (which does its own fusing), torch.export and torch.func, and for second derivatives, the
formula stands; so it does where fast paths are turned off (:mod:`kernelfield.ops.backend`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..backend import use_triton as fuses
from .linear import map_channels

__all__ = ["activate", "batch_norm", "fuses", "map_activate", "map_channels"]


def activate(x: Tensor, bias: Tensor | None = None, *, residual: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    r"""Return :math:`r + \mathrm{drop}(\mathrm{GELU}(x + b))`.

    Args:
        x: (batch, channels, \*space) signal.
        bias: (channels,) what to add to it.
        residual: signal to add at the end.
        dropout: probability of a zero; the others are multiplied by 1/(1 - p). 0 in evaluation.

    >>> x, b = torch.randn(2, 3, 8), torch.randn(3)
    >>> torch.equal(activate(x, b, residual=x), F.gelu(x + b[:, None]) + x)
    True
    """
    if dropout < 1 and fuses(x) and (residual is None or residual.shape == x.shape):
        from .triton.launch import fused_activate  # noqa: PLC0415

        return fused_activate(x, bias, residual, dropout, _kept_gelu)
    y = F.dropout(_kept_gelu(x, bias, None), dropout)
    return y if residual is None else y + residual


def map_activate(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, residual: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    r"""Return :math:`r + \mathrm{drop}(\mathrm{GELU}(W x + b))`, W applied to the channels.

    Args:
        x: (batch, in, \*space) signal.
        weight: (out, in) matrix.
        bias: (out,) what to add to the mapped signal.
        residual: (batch, out, \*space) signal to add at the end.
        dropout: probability of a zero.

    >>> x, w, b = torch.randn(2, 3, 8), torch.randn(5, 3), torch.randn(5)
    >>> torch.allclose(map_activate(x, w, b), activate(map_channels(x, w), b), atol=1e-6)
    True
    """
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    shape = (len(x), len(weight), *x.shape[2:])
    if dropout < 1 and fuses(x) and (residual is None or residual.shape == shape):
        from .triton.launch import fused_map_activate  # noqa: PLC0415

        return fused_map_activate(x, weight, bias, residual, dropout, _kept_gelu_of_map)
    return activate(map_channels(x.flatten(2), weight).view(shape), bias, residual=residual, dropout=dropout)


def _kept_gelu_of_map(x: Tensor, weight: Tensor, bias: Tensor | None, kept: Tensor | None) -> Tensor:
    mapped = map_channels(x.flatten(2), weight)
    return _kept_gelu(mapped.view(len(x), -1, *x.shape[2:]), bias, kept)


def _kept_gelu(x: Tensor, bias: Tensor | None, kept: Tensor | None) -> Tensor:
    if bias is not None:
        x = x + bias.to(x.dtype).view(-1, *(1,) * (x.dim() - 2))
    y = F.gelu(x)
    return y if kept is None else y * kept


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    held: tuple[Tensor, Tensor] | None = None,
    *,
    momentum: float = 0.1,
    eps: float = 1e-5,
    gelu: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Return :math:`w (x - \mu)/\sqrt{\sigma^2 + \epsilon} + b` by the statistics of the batch, and x.

    The second result is for an identity branch around what follows: the two gradients of x are then added where the
    first is written.

    Args:
        x: (batch, channels, \*space) signal.
        weight: (channels,) factors w; None for 1 and no bias.
        bias: (channels,) b.
        held: running mean and variance, to be moved towards those of the batch.
        momentum: by how much.
        eps: added to the variance.
        gelu: whether to take the GELU of the result.

    >>> y, same = batch_norm(torch.randn(4, 3, 100), None, None)
    >>> bool(y.mean().abs() < 1e-6), same.shape
    (True, torch.Size([4, 3, 100]))
    """
    if fuses(x) and x.numel() > x.shape[1] and (weight is None) == (bias is None):
        from .triton.launch import fused_norm  # noqa: PLC0415

        def formula(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
            return _norm(x, weight, bias, None, 0.0, eps, gelu)

        return fused_norm(x, weight, bias, held, momentum, eps, gelu, formula)
    return _norm(x, weight, bias, held, momentum, eps, gelu), x


def _norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    held: tuple[Tensor, Tensor] | None,
    momentum: float,
    eps: float,
    gelu: bool,
) -> Tensor:
    mean, variance = (None, None) if held is None else held
    y = F.batch_norm(x, mean, variance, weight, bias, True, momentum, eps)
    return F.gelu(y) if gelu else y
