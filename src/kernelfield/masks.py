r"""Masks: differentiable windows whose size is learned (chapter 6, section 2.1; chapter 5, section 3.1).

A mask is a product of one factor in [0, 1] per axis. A factor below the threshold :math:`T_m` counts as exactly zero,
so nothing needs to be computed there. A mask has an inverse in closed form, so the region where it is not zero is known
in advance: :meth:`Mask.support`.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ._arguments import checked, with_arguments_of
from ._checks import check_coords, per_axis
from ._kinds import FINITE, POSITIVE, SHARE, Int, PerAxis
from ._object_kinds import TensorOf

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["GaussianMask", "Mask", "SigmoidMask", "SteerableMask"]


class Mask(nn.Module):
    """Base class of masks.

    A subclass defines :meth:`profile`, the value along each axis before the threshold, and :meth:`roots`, where the
    profile equals the threshold.

    Args:
        dim: number of axes.
        threshold: factors below it are set to zero; between 0 and 1.
        domain: the interval of coordinates in use along each axis; :meth:`size` counts points of this interval.

    >>> class Triangle(Mask):
    ...     def profile(self, coords):
    ...         return 1 - coords.abs()
    >>> Triangle(1, threshold=0.25)(torch.tensor([[0.0], [0.5], [0.8]]))
    tensor([1.0000, 0.5000, 0.0000])
    """

    domain: tuple[float, float]
    #: whether the window has a learned lower edge; otherwise it begins at the lower end of the domain
    closes_below: bool = True

    @checked(dim=Int(1), threshold=SHARE)
    def __init__(self, dim: int, threshold: float = 0.1, domain: tuple[float, float] = (-1.0, 1.0)) -> None:
        super().__init__()
        self.dim, self.threshold = dim, float(threshold)
        self.domain = (float(domain[0]), float(domain[1]))

    def _set(self, name: str, value: Tensor, learned: bool) -> None:
        if learned:
            self.register_parameter(name, nn.Parameter(value))
        else:
            self.register_buffer(name, value)

    def profile(self, coords: Tensor) -> Tensor:
        """Return the value along each axis, before the threshold: (…, dim) to (…, dim)."""
        raise NotImplementedError

    def roots(self) -> tuple[Tensor, Tensor]:
        """Return the two coordinates per axis, (dim,) each, between which the profile is above the threshold."""
        raise NotImplementedError

    @checked(coords=TensorOf("float"))
    def forward(self, coords: Tensor) -> Tensor:
        """Return the mask at ``coords``: (…, dim) to (…)."""
        return _product(self.values(check_coords(coords, self.dim)))

    def values(self, coords: Tensor) -> Tensor:
        """Return the value along each axis, zero below the threshold: (…, dim) to (…, dim).

        Use this for independent axes, such as the widths of several layers, whose values are not multiplied.
        """
        return self.cut(self.profile(coords))

    def cut(self, profile: Tensor) -> Tensor:
        """Return ``profile`` with values below the threshold set to zero."""
        return torch.where(profile < self.threshold, 0.0, profile)  # NaN stays NaN

    @classmethod
    def together(cls, masks: Sequence[Mask], coords: Tensor) -> Tensor:
        """Return the values of several masks of this class at the same ``coords``: (points, dim) to (n, points)."""
        return torch.stack([mask(coords) for mask in masks])

    def support(self) -> tuple[Tensor, Tensor]:
        """Return the box outside which the mask is zero: its (dim,) lowest and (dim,) highest coordinates.

        The box is clipped to the domain and differentiable.
        """
        low, high = self.roots()
        return low.clamp(min=self.domain[0]), high.clamp(max=self.domain[1])

    def reach_numbers(self) -> Sequence[Tensor]:
        """Return the 1-D tensors whose values :meth:`reach_from` takes, concatenated."""
        low, high = self.support()
        return [torch.maximum(low.abs(), high.abs())]

    def reach_from(self, numbers: Sequence[float]) -> Sequence[float]:
        """Return how far the support reaches from the origin along each axis, from the values of :meth:`reach_numbers`.

        A network on a GPU copies the numbers of all its masks to the host at once. This method then runs on the host.

        >>> mask = GaussianMask(1, sigma=0.1)
        >>> round(mask.reach_from(torch.cat(list(mask.reach_numbers())).tolist())[0], 4)
        0.2146
        """
        return numbers

    @checked()
    def size(self, n: int) -> Tensor:
        """Return how many of ``n`` points, spread evenly over the domain, lie inside the support, per axis: (dim,).

        The number is real and differentiable in the mask's parameters. Where the support reaches past the domain, the
        size stops growing but its gradient does not vanish (a straight-through estimator). A mask that has grown to its
        limit can therefore shrink again.
        """
        begin, end = self.domain
        low, high = self.roots()
        upper = high + (high.clamp(max=end) - high).detach()
        lower = low.clamp(min=begin)
        if self.closes_below:
            lower = low + (lower - low).detach()
        return (upper - lower).clamp(min=0.0) * (n / (end - begin))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, threshold={self.threshold}, domain={self.domain}"


class GaussianMask(Mask):
    r"""A Gaussian window with a learned width per axis (chapter 5, Eq. 1; chapter 6, Eq. 1).

    .. math:: m(x) = \prod_d \exp\!\big(-\tfrac12 (x_d - \mu_d)^2 / \sigma_d^2\big), \quad 0 \text{ if a factor} < T_m

    Its support is :math:`\mu \pm \sigma\sqrt{-2 \ln T_m}`, 2.146 σ for the usual threshold of 0.1.

    Args:
        dim: number of axes.
        sigma: initial width, one for all axes or one per axis.
        mean: initial centre, one for all axes or one per axis.
        threshold: factors below it are set to zero.
        learn_mean: whether the centre is learned too.
        learn_sigma: whether the width is learned.
        isotropic: one width shared by all axes.
        domain: interval of coordinates in use along each axis; (0, 1) for a causal kernel.

    >>> mask = GaussianMask(dim=1, sigma=0.25)
    >>> mask(torch.tensor([[0.0], [0.25], [0.6]])).detach()
    tensor([1.0000, 0.6065, 0.0000])
    >>> low, high = mask.support()
    >>> round(high.item(), 4)
    0.5365
    >>> round(mask.size(33).item(), 2)
    17.7
    """

    mean: Tensor
    sigma: Tensor

    @checked(dim=Int(1), sigma=PerAxis(POSITIVE), threshold=SHARE)
    def __init__(
        self,
        dim: int = 1,
        sigma: float | Sequence[float] = 0.15,
        mean: float | Sequence[float] = 0.0,
        *,
        threshold: float = 0.1,
        learn_mean: bool = False,
        learn_sigma: bool = True,
        isotropic: bool = False,
        domain: tuple[float, float] = (-1.0, 1.0),
    ) -> None:
        super().__init__(dim, threshold, domain)
        if isotropic and isinstance(sigma, (list, tuple)) and len(sigma) > 1:
            raise ValueError(f"sigma must be one number for all axes if isotropic is True, got {sigma}")
        self._set("sigma", _axes(sigma, 1 if isotropic else dim), learn_sigma)
        self._set("mean", _axes(mean, dim), learn_mean)
        self.closes_below = bool((self.mean > self.domain[0]).all())

    def profile(self, coords: Tensor) -> Tensor:
        return _gauss(coords, self.mean, self.sigma)

    @classmethod
    def together(cls, masks: Sequence[Mask], coords: Tensor) -> Tensor:
        if cls is not GaussianMask or len({mask.threshold for mask in masks}) > 1:
            return super().together(masks, coords)  # a subclass may have another profile
        tensors = [getattr(mask, name) for name in ("mean", "sigma") for mask in masks]
        plain = torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling()  # noqa: SLF001
        if not plain and not coords.requires_grad:
            return _product(_GaussianWindows.apply(coords, masks[0].threshold, *tensors))
        return gaussian_windows(coords, *stack_gaussians(tensors), masks[0].threshold)

    def reach_numbers(self) -> Sequence[Tensor]:
        return self.sigma.detach(), self.mean.detach()

    def reach_from(self, numbers: Sequence[float]) -> Sequence[float]:
        mean, factor, (begin, end) = numbers[-self.dim :], math.sqrt(-2 * math.log(self.threshold)), self.domain
        halves = [abs(sigma) * factor for sigma in numbers[: -self.dim]]
        if len(halves) < self.dim:  # one width for all axes
            halves = halves * self.dim
        ends = zip(mean, halves, strict=True)
        return [max(abs(max(m - half, begin)), abs(min(m + half, end))) for m, half in ends]

    def roots(self) -> tuple[Tensor, Tensor]:
        half = self.sigma.abs() * math.sqrt(-2 * math.log(self.threshold))
        return self.mean - half, self.mean + half

    def sigma_for(self, reach: float) -> float:
        """Return the width at which the mask extends by ``reach`` to either side of its centre.

        >>> mask = GaussianMask(1)
        >>> round(GaussianMask(1, mask.sigma_for(0.5)).support()[1].item(), 4)
        0.5
        """
        return reach / math.sqrt(-2 * math.log(self.threshold))


class SteerableMask(GaussianMask):
    r"""A Gaussian window on the plane with a learned orientation (chapter 5, appendix "Rotated Gaussian masks").

    .. math:: m(x) = m_\mathrm{gauss}\big(R_\phi^{-1} (x - \mu) + \mu\big), \qquad
        R_\phi = \begin{pmatrix} \cos\phi & -\sin\phi \\ \sin\phi & \cos\phi \end{pmatrix}

    Its support is the smallest axis-aligned box that contains the rotated window.

    Args:
        dim: number of axes, 2.
        sigma: initial width, one for both axes or one per axis of the window.
        angle: initial angle φ, in radians.
        options: further arguments of :class:`GaussianMask`: mean, threshold, learn_mean, learn_sigma, domain.

    >>> mask = SteerableMask(2, sigma=(0.1, 0.3), angle=math.pi / 2)
    >>> mask(torch.tensor([[0.3, 0.0], [0.0, 0.3]])).detach()        # the long side lies along the first axis
    tensor([0.6065, 0.0000])
    """

    @checked(dim=Int(2, 2), sigma=PerAxis(POSITIVE), angle=FINITE)
    @with_arguments_of(GaussianMask.__init__, without=("isotropic",))
    def __init__(
        self, dim: int = 2, sigma: float | Sequence[float] = 0.15, *, angle: float = 0.0, **options: Any
    ) -> None:
        super().__init__(dim, sigma, **options)
        self.angle = nn.Parameter(torch.tensor(float(angle), dtype=torch.get_default_dtype()))

    def profile(self, coords: Tensor) -> Tensor:
        x, y = (coords - self.mean).unbind(-1)
        cos, sin = self.angle.cos(), self.angle.sin()
        rotated = torch.stack([cos * x + sin * y, cos * y - sin * x], dim=-1)
        return _gauss(rotated, torch.zeros_like(self.mean), self.sigma)

    # Neither its values nor its support are those of the Gaussian mask.
    reach_numbers, reach_from = Mask.reach_numbers, Mask.reach_from

    def roots(self) -> tuple[Tensor, Tensor]:
        half = self.sigma.abs() * math.sqrt(-2 * math.log(self.threshold))
        half = half * self.angle.cos().abs() + half.flip(0) * self.angle.sin().abs()
        return self.mean - half, self.mean + half


class SigmoidMask(Mask):
    r"""A window that is one below a learned offset and falls to zero beyond it (chapter 6, Eq. 2).

    .. math:: m(x) = \prod_d 1 - \mathrm{sigm}\big(\tau (x_d - \mu_d)\big), \quad 0 \text{ where a factor} < T_m

    It suits axes along which entries are ordered by importance: channels, blocks, frequencies. Its support ends at
    :math:`\mu - \ln\big(1/(1 - T_m) - 1\big)/\tau`, which is :meth:`overhang` beyond the offset.

    Args:
        dim: number of axes.
        offset: initial offset μ, one for all axes or one per axis.
        temperature: steepness τ, fixed.
        threshold: factors below it are set to zero.
        learn_offset: whether the offset is learned.
        domain: interval of coordinates in use along each axis.

    >>> mask = SigmoidMask(dim=1, offset=0.0, temperature=25.0)
    >>> mask(torch.tensor([[-1.0], [0.0], [0.2]])).detach()
    tensor([1.0000, 0.5000, 0.0000])
    >>> round(mask.support()[1].item(), 4)
    0.0879
    """

    closes_below = False
    offset: Tensor

    @checked(dim=Int(1), temperature=POSITIVE, threshold=SHARE)
    def __init__(
        self,
        dim: int = 1,
        offset: float | Sequence[float] = 0.0,
        *,
        temperature: float = 25.0,
        threshold: float = 0.1,
        learn_offset: bool = True,
        domain: tuple[float, float] = (-1.0, 1.0),
    ) -> None:
        super().__init__(dim, threshold, domain)
        self.temperature = float(temperature)
        self._set("offset", _axes(offset, dim), learn_offset)

    def profile(self, coords: Tensor) -> Tensor:
        # sigm(-z) equals 1 - sigm(z) without the cancellation where the mask is nearly zero.
        return torch.sigmoid(self.temperature * (self.offset - coords))

    def roots(self) -> tuple[Tensor, Tensor]:
        high = self.offset + self.overhang(self.threshold)
        return torch.full_like(high, self.domain[0]), high

    def overhang(self, value: float) -> float:
        """Return the distance beyond the offset at which the mask has fallen to ``value``."""
        return math.log(1 / value - 1) / self.temperature

    def limits(self, low: float = 0.95, high: float = 0.85) -> tuple[float, float]:
        """Return the offsets at which the mask is ``low`` where its domain begins, and ``high`` where it ends.

        Between them it has a gradient to learn from (chapter 6's appendix, "Maximum and minimum allowable sizes").
        """
        begin, end = self.domain
        return begin - self.overhang(low), end - self.overhang(high)

    @classmethod
    def offset_for(cls, share: float, temperature: float, threshold: float = 0.1) -> float:
        """Return the offset at which a mask on [-1, 1] keeps ``share`` of its axis.

        >>> mask = SigmoidMask(1, SigmoidMask.offset_for(0.5, 25.0), temperature=25.0)
        >>> round(mask.size(280).item(), 3)
        140.0
        """
        return 2 * share - 1 - math.log(1 / threshold - 1) / temperature


def _product(values: Tensor) -> Tensor:
    # The backward pass of Tensor.prod would wait for the device to count the zeros.
    return functools.reduce(torch.mul, values.unbind(-1))


class _GaussianWindows(torch.autograd.Function):
    """Gaussians of n masks along each axis, zero below a threshold, in half as many operations as autograd would take.

    The tensors are n centres, (dim,) each, and n widths, (dim,) or (1,) each. The result is (n, points, dim).
    """

    @staticmethod
    def forward(ctx: Any, coords: Tensor, threshold: float, *tensors: Tensor) -> Tensor:
        mean, sigma = stack_gaussians(tensors)
        scaled = (coords - mean).div_(sigma)
        values = scaled.square().mul_(-0.5).exp_()
        values.masked_fill_(values < threshold, 0.0)
        ctx.save_for_backward(coords, scaled, values, *tensors)
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        coords, scaled, values, *tensors = ctx.saved_tensors
        mean, sigma = stack_gaussians(tensors)
        if torch.is_grad_enabled():  # for second derivatives with respect to the centres and widths
            scaled = (coords - mean) / sigma
        n = len(tensors) // 2
        by_mean: Sequence[Tensor | None] = [None] * n
        by_sigma: Sequence[Tensor | None] = [None] * n
        slope = grad * values * scaled
        if any(ctx.needs_input_grad[2 : 2 + n]):
            by_mean = (slope.sum(dim=1) / sigma.squeeze(1)).unbind()
        if any(ctx.needs_input_grad[2 + n :]):
            total = (slope * scaled).sum(dim=1)
            if sigma.shape[-1] < total.shape[-1]:
                total = total.sum(dim=-1, keepdim=True)
            by_sigma = (total / sigma.squeeze(1)).unbind()
        return None, None, *by_mean, *by_sigma


def gaussian_windows(coords: Tensor, mean: Tensor, sigma: Tensor, threshold: float) -> Tensor:
    """Return the values of n Gaussian masks, given as :func:`stack_gaussians` does: (points, dim) to (n, points)."""
    values = _gauss(coords, mean, sigma)
    return _product(torch.where(values < threshold, 0.0, values))


def stack_gaussians(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return n centres and n widths of Gaussian masks as (n, 1, dim) and (n, 1, dim or 1)."""
    n = len(tensors) // 2
    if n == 1:
        return tensors[0].view(1, 1, -1), tensors[1].view(1, 1, -1)
    if tensors[0].shape == tensors[n].shape:
        mean, sigma = torch.stack(list(tensors)).unsqueeze(1).split(n)
        return mean, sigma
    return torch.stack(list(tensors[:n])).unsqueeze(1), torch.stack(list(tensors[n:])).unsqueeze(1)


def _gauss(x: Tensor, mean: Tensor, sigma: Tensor) -> Tensor:
    return torch.exp(-0.5 * ((x - mean) / sigma).square())


def _axes(value: float | Sequence[float], dim: int) -> Tensor:
    return torch.tensor(per_axis(value, dim), dtype=torch.get_default_dtype())
