"""The maps that fields are composed of: linear maps, and sines of coordinates under Gaussian envelopes.

:func:`project` maps coordinates and :func:`affine` hidden units; :class:`WeightNormLinear` has weight normalisation
that keeps its initialisation. :func:`filter_values` computes all filters of a filter network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "WeightNormLinear",
    "affine",
    "filter_values",
    "filter_values_reference",
    "first_outputs",
    "gaussian_envelope",
    "project",
    "scale_linear_",
    "stack_linears",
]


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


def gaussian_envelope(coords: Tensor, gamma: Tensor, mean: Tensor) -> Tensor:
    """Return Gaussians of height 1, (…, points, units), at (points, dim) coordinates.

    Args:
        coords: (points, dim) coordinates.
        gamma: (…, units, dim or 1) inverse widths.
        mean: (…, units, dim) centres.

    >>> gaussian_envelope(torch.tensor([[0.5]]), torch.tensor([[2.0]]), torch.zeros(1, 1))
    tensor([[0.6065]])
    """
    gamma, mean = gamma.unsqueeze(-3), mean.unsqueeze(-3)
    # Axis by axis, so the (…, points, units, dim) tensor of all offsets never exists.
    exponent = ((coords[:, 0:1] - mean[..., 0]) * gamma[..., 0]).square()
    for d in range(1, coords.shape[-1]):
        width = gamma[..., min(d, gamma.shape[-1] - 1)]
        exponent = exponent + ((coords[:, d : d + 1] - mean[..., d]) * width).square()
    return torch.exp(-0.5 * exponent)


def filter_values_reference(
    coords: Tensor, frequency: Tensor, phase: Tensor, gamma: Tensor | None, mean: Tensor | None
) -> Tensor:
    """Return what :func:`filter_values` returns, from operations with derivatives of every order.

    >>> filter_values_reference(torch.tensor([[0.5]]), torch.tensor([[2.0]]), torch.zeros(1), None, None)
    tensor([[0.8415]])
    """
    values = torch.sin(project(coords, frequency, phase))
    if gamma is None or mean is None:
        return values
    return values * gaussian_envelope(coords, gamma, mean)


def filter_values(
    coords: Tensor, frequency: Tensor, phase: Tensor, gamma: Tensor | None = None, mean: Tensor | None = None
) -> Tensor:
    r"""Return the values of sines under Gaussian envelopes.

    .. math:: f_u(x) = \sin(w_u \cdot x + b_u)\, e_u(x), \qquad
        e_u(x) = \exp\Big(-\tfrac12 \sum_d \gamma_{ud}^2 (x_d - \mu_{ud})^2\Big)

    Args:
        coords: (points, dim) coordinates.
        frequency: (…, units, dim) weights of the sines, of one network or stacked.
        phase: (…, units) phases.
        gamma: (…, units, dim or 1) inverse widths; None for plain sines.
        mean: (…, units, dim) centres; None for plain sines.

    Returns:
        (…, points, units) values.

    >>> filter_values(torch.tensor([[0.5]]), torch.tensor([[2.0]]), torch.zeros(1))
    tensor([[0.8415]])
    """
    # On a line there is nothing to save.
    fast = (
        coords.device.type == "cpu"
        and coords.shape[-1] > 1
        and coords.dtype == frequency.dtype
        and coords.dtype in (torch.float32, torch.float64)
        and not coords.requires_grad
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()  # noqa: SLF001
    )
    if not fast:
        return filter_values_reference(coords, frequency, phase, gamma, mean)
    values: Tensor = _FilterValues.apply(coords, frequency, phase, gamma, mean)
    return values


class _FilterValues(torch.autograd.Function):
    r"""Sines under Gaussian envelopes on a CPU, with a backward pass of few operations.

    With the gradient g of f and :math:`q = g f`, all gradients follow from sums over the points, which are two
    products of matrices:

    .. math::
        \bar w_{ud} = \sum_x g_u \cos(\cdot)\, e_u\, x_d, \quad
        \bar\mu_{ud} = \gamma_{ud}^2 \sum_x q_u (x_d - \mu_{ud}), \quad
        \bar\gamma_{ud} = -\gamma_{ud} \sum_x q_u (x_d - \mu_{ud})^2.

    Autograd computes and keeps several tensors of the size of f for each axis instead.
    """

    @staticmethod
    def forward(
        ctx: Any, coords: Tensor, frequency: Tensor, phase: Tensor, gamma: Tensor | None, mean: Tensor | None
    ) -> Tensor:
        z = project(coords, frequency, phase)
        if gamma is None or mean is None:
            values, envelope = z.sin(), None
        else:
            envelope = _exponent(coords, gamma, mean).mul_(-0.5).exp_()
            values = z.sin().mul_(envelope)
        ctx.save_for_backward(coords, frequency, phase, gamma, mean, z, envelope, values)
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        coords, frequency, phase, gamma, mean, z, envelope, values = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative may be taken
            return None, *_by_reference(coords, (frequency, phase, gamma, mean), grad)
        slope = z.cos().mul_(grad)
        if envelope is not None:
            slope.mul_(envelope)
        dim = coords.shape[-1]
        sums = slope.mT @ torch.cat([coords, torch.ones_like(coords[:, :1])], dim=-1)
        to_frequency, to_phase = sums[..., :dim], sums[..., dim]
        if gamma is None:
            return None, to_frequency, to_phase, None, None
        first, second = _moments(torch.mul(grad, values, out=slope), coords, mean)
        to_mean, to_gamma = (gamma.square() * first).to(mean.dtype), (-gamma * second).to(gamma.dtype)
        if gamma.shape[-1] < dim:
            to_gamma = to_gamma.sum(dim=-1, keepdim=True)
        return None, to_frequency, to_phase, to_gamma, to_mean


def _moments(weights: Tensor, coords: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Return sums over the points of q (x - μ) and of q (x - μ)², (…, units, dim) each, in float64.

    They follow from those around 0. A narrow envelope far from 0 would lose four digits to their difference in float32.
    """
    coords, mean, dim = coords.double(), mean.double(), coords.shape[-1]
    powers = torch.cat([torch.ones_like(coords[:, :1]), coords, coords.square()], dim=-1)
    total, first, second = (weights.double().mT @ powers).split([1, dim, dim], dim=-1)
    return first - mean * total, second - 2 * mean * first + mean.square() * total


def _exponent(coords: Tensor, gamma: Tensor, mean: Tensor) -> Tensor:
    """Return (…, points, units) sums over the axes of the squares of (x - μ) γ."""
    gamma, mean = gamma.unsqueeze(-3), mean.unsqueeze(-3)
    total = (coords[:, 0:1] - mean[..., 0]).mul_(gamma[..., 0])
    total.mul_(total)
    for d in range(1, coords.shape[-1]):
        scaled = (coords[:, d : d + 1] - mean[..., d]).mul_(gamma[..., min(d, gamma.shape[-1] - 1)])
        total.addcmul_(scaled, scaled)
    return total


def _by_reference(coords: Tensor, inputs: tuple[Tensor | None, ...], grad: Tensor) -> list[Tensor | None]:
    """Return the gradients by ``inputs``, as a graph that can be differentiated again."""
    # Aliases: the gradient of an input must not include its path through another one computed from it.
    own = [None if t is None else t.view_as(t) for t in inputs]
    wanted = [t for t in own if t is not None and t.requires_grad]
    values = filter_values_reference(coords, *own)  # type: ignore[arg-type]
    found = iter(torch.autograd.grad(values, wanted, grad, create_graph=True))
    return [next(found) if t is not None and t.requires_grad else None for t in own]
