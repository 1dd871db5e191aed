"""Linear maps of fields, with weight normalisation that keeps their initialisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["WeightNormLinear", "affine", "first_outputs", "project", "scale_linear_", "stack_linears"]


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x Wᵀ + b for one map or for n stacked maps.

    Args:
        x: (points, in) inputs, shared by all maps, or (n, points, in).
        weight: (out, in) or (n, out, in).
        bias: (out,) or (n, out).

    Returns:
        (points, out) or (n, points, out).
    """
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    return torch.baddbmm(bias.unsqueeze(1), x.expand(len(weight), *x.shape[-2:]), weight.mT)


def project(coords: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x Wᵀ + b for coordinates x, in full precision.

    It avoids matrix products, which ``torch.set_float32_matmul_precision("high")`` rounds to tf32: a phase of a
    thousand radians would be off by half a radian.

    Args:
        coords: (…, dim) coordinates; (points, dim) for stacked maps.
        weight: (out, dim) or (n, out, dim).
        bias: (out,) or (n, out).

    Returns:
        (…, out) or (n, points, out).
    """
    z = bias if weight.dim() == 2 else bias.unsqueeze(-2)
    rows = weight if weight.dim() == 2 else weight.unsqueeze(-3)
    for d in range(coords.shape[-1]):
        z = torch.addcmul(z, coords[..., d : d + 1], rows[..., d])
    return z


def stack_linears(linears: Sequence[nn.Module]) -> tuple[Tensor, Tensor]:
    """Return the weights (n, out, in) and biases (n, out) of n linear maps, all of one kind and shape."""
    first: Any = linears[0]
    if len(linears) == 1:
        return first.weight.unsqueeze(0), first.bias.unsqueeze(0)
    bias = torch.stack([m.bias for m in linears])  # type: ignore[misc]
    if isinstance(first, WeightNormLinear):
        gain, direction = (torch.stack([getattr(m, name) for m in linears]) for name in ("gain", "direction"))
        return gain * F.normalize(direction, dim=2), bias
    return torch.stack([m.weight for m in linears]), bias  # type: ignore[misc]


def first_outputs(maps: tuple[Tensor, Tensor], channels: int | None) -> tuple[Tensor, Tensor]:
    """Return the weights (n, out, in) and biases (n, out) of the first ``channels`` outputs; all if None."""
    weight, bias = maps
    if channels is None or channels >= weight.shape[1]:
        return maps
    return weight.narrow(1, 0, channels), bias.narrow(1, 0, channels)


class WeightNormLinear(nn.Module):
    r"""A linear map with its weight split into length and direction: :math:`W_i = g_i v_i / \|v_i\|`.

    It splits a linear map that is already initialised and keeps its weight. Initialising after the split would have no
    effect, because ``weight`` is recomputed from gain and direction at every use.

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
    # Outputs are rows of the weight: a factor per output needs a last axis to broadcast along them.
    rows = factor.unsqueeze(-1) if isinstance(factor, Tensor) and factor.dim() else factor
    if not isinstance(linear, (nn.Linear, WeightNormLinear)):
        raise TypeError(f"linear must be a linear map, got {type(linear).__name__}")
    (linear.gain if isinstance(linear, WeightNormLinear) else linear.weight).mul_(rows)
    linear.bias.mul_(factor)
