"""Maps and norms of channels that do not care how many spatial axes follow: grids of any dimension, and points."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._checks import check_bool, check_choice, check_int

__all__ = ["BatchNorm", "Pointwise", "make_norm"]


class Pointwise(nn.Module):
    r"""A linear map of the channels at every position: :math:`y(t) = W x(t) + b`.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        gain: weights are drawn from :math:`N(0, \mathrm{gain}^2 / \mathrm{in})`; √2 after a rectifying nonlinearity and
            1 after a linear map keep the variance.
        bias: whether to add one, initially zero.

    >>> Pointwise(3, 5)(torch.randn(2, 3, 8, 8)).shape
    torch.Size([2, 5, 8, 8])
    """

    def __init__(self, in_channels: int, out_channels: int, *, gain: float = math.sqrt(2), bias: bool = True) -> None:
        super().__init__()
        self.in_channels = check_int("in_channels", in_channels)
        self.out_channels = check_int("out_channels", out_channels)
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels) * (gain / math.sqrt(in_channels)))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if check_bool("bias", bias) else None

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x.flatten(2), self.weight.unsqueeze(-1), self.bias).unflatten(2, x.shape[2:])

    def extra_repr(self) -> str:
        return f"in_channels={self.in_channels}, out_channels={self.out_channels}"


class BatchNorm(nn.modules.batchnorm._BatchNorm):  # noqa: SLF001
    """Batch normalisation of signals with any number of spatial axes.

    >>> BatchNorm(3)(torch.randn(2, 3, 4, 4, 4)).shape
    torch.Size([2, 3, 4, 4, 4])
    """

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        if input.dim() < 2:
            raise ValueError(f"input must have shape (batch, channels, *space), got {tuple(input.shape)}")


def make_norm(name: str, channels: int) -> nn.Module:
    """Return a norm by name: "batch", "layer" (over channels and space together), or "none".

    >>> make_norm("layer", 4).num_groups
    1
    """
    check_choice("norm", name, ("batch", "layer", "none"))
    if name == "batch":
        return BatchNorm(channels)
    return nn.GroupNorm(1, channels, eps=1e-12) if name == "layer" else nn.Identity()
