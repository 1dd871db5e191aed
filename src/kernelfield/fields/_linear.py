"""Linear maps of fields, with weight normalisation that keeps their initialisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["WeightNormLinear", "scale_linear_"]


class WeightNormLinear(nn.Module):
    r"""A linear map with its weight split into length and direction: :math:`W_i = g_i v_i / \|v_i\|`.

    Made from a linear map that is already initialised, whose weight it reproduces: initialising after the split would
    set a tensor that the next forward overwrites.

    Args:
        linear: the map to split.

    >>> linear = nn.Linear(3, 2)
    >>> torch.allclose(WeightNormLinear(linear).weight, linear.weight)
    True
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        self.direction = nn.Parameter(weight.clone())
        self.gain = nn.Parameter(weight.norm(dim=1, keepdim=True))
        self.bias = nn.Parameter(linear.bias.detach().clone())

    @property
    def weight(self) -> Tensor:
        return self.gain * F.normalize(self.direction, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


@torch.no_grad()
def scale_linear_(linear: nn.Module, factor: float | Tensor) -> None:
    """Multiply the outputs of ``linear`` by ``factor``, one for all or one per output, in place."""
    # Outputs are the rows of the weight, along which a factor per output would otherwise not be laid.
    rows = factor.unsqueeze(-1) if isinstance(factor, Tensor) and factor.dim() else factor
    if not isinstance(linear, (nn.Linear, WeightNormLinear)):
        raise TypeError(f"linear must be a linear map, got {type(linear).__name__}")
    (linear.gain if isinstance(linear, WeightNormLinear) else linear.weight).mul_(rows)
    linear.bias.mul_(factor)
