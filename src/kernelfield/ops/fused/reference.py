"""The fused operators as plain torch formulas: the reference, and the path of devices without fast kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from ..._checks import check_choice
from .channel_map import map_channels
from .dropout import drop

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["ACTIVATIONS", "activate", "batch_norm", "kept_gelu", "kept_gelu_of_map", "linear", "mapped_offset"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}


def activate(
    x: Tensor,
    bias: Tensor | None,
    activation: str | None,
    dropout: float,
    dropout_channels: bool,
    residual: Tensor | None,
) -> Tensor:
    """Return residual + drop(activation(x + bias)); see :func:`kernelfield.ops.fused.activate`."""
    y = x if bias is None else _biased(x, bias)
    if activation is not None:
        y = (ACTIVATIONS.get(activation) or _unknown(activation))(y)
    if dropout > 0:
        y = drop(y, dropout, channels=dropout_channels)
    return y if residual is None else y + residual


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *epilogue: Any) -> Tensor:
    """Return residual + drop(activation(W x + bias)); ``epilogue`` are the last arguments of :func:`activate`."""
    y = F.conv1d(x.flatten(2), weight.unsqueeze(-1), bias).unflatten(2, x.shape[2:])
    return activate(y, None, *epilogue)


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: tuple[Tensor, Tensor] | None,
    training: bool,
    momentum: float,
    eps: float,
    activation: str | None,
) -> Tensor:
    """Return activation(norm of x); see :func:`kernelfield.ops.fused.batch_norm`."""
    mean, variance = (None, None) if running is None else running
    y = F.batch_norm(x, mean, variance, weight, bias, training or running is None, momentum, eps)
    return y if activation is None else (ACTIVATIONS.get(activation) or _unknown(activation))(y)


def kept_gelu(x: Tensor, bias: Tensor | None, kept: Tensor | None) -> Tensor:
    """Return the GELU of x + bias times ``kept``, the dropout mask with its factor; for second derivatives."""
    y = F.gelu(x if bias is None else _biased(x, bias))
    return y if kept is None else y * kept


def kept_gelu_of_map(x: Tensor, weight: Tensor, bias: Tensor | None, kept: Tensor | None) -> Tensor:
    """Return :func:`kept_gelu` of W x."""
    mapped = map_channels(x.flatten(2), weight)
    return kept_gelu(mapped.view(len(x), -1, *x.shape[2:]), bias, kept)


def mapped_offset(offset: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return W o + b for an (in,) vector o, an (out, in) matrix W and an (out,) bias b, without autocast.

    >>> mapped_offset(torch.ones(2), torch.eye(2), torch.ones(2))
    tensor([2., 2.])
    """
    if not torch.is_autocast_enabled(weight.device.type):
        return F.linear(offset.to(weight.dtype), weight, bias)
    with torch.autocast(weight.device.type, enabled=False):
        return F.linear(offset.to(weight.dtype), weight, bias)


def _biased(x: Tensor, bias: Tensor) -> Tensor:
    return x + bias.to(x.dtype).view(-1, *(1,) * (x.dim() - 2))


def _unknown(activation: str) -> Callable[[Tensor], Tensor]:
    return ACTIVATIONS[check_choice("activation", activation, ACTIVATIONS)]
