"""A linear model on pooled responses to random continuous kernels, for small data sets; fitted in closed form."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._arguments import with_arguments_of
from .._checks import check_int, ints_per_axis
from ..fields import Field, RandomFourier, build_field
from ..ops import conv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["RandomKernelNet", "RandomKernels"]

#: reach of a kernel to each side, in widths of its Gaussian
REACH = 3.0
#: largest number of averaged input values per axis that serve as features, by number of axes
MAX_VALUES = {1: 2048, 2: 32, 3: 10}
#: margin by which a response must exceed a threshold, because responses to a constant signal are rounding errors
MARGIN = 1e-6
#: largest number of responses in memory at a time
CHUNK = 1 << 28


class RandomKernels(nn.Module):
    r"""Pooled responses to random kernels of many widths. The kernels are drawn once and not trained.

    A kernel is a random field under a Gaussian, with zero mean and unit norm. Widths form a geometric series from half
    a step to an eighth of the input:

    .. math:: \psi_k(x) \propto \mathrm{field}_k(x / \sigma_k)\, e^{-|x|^2 / 2 \sigma_k^2}, \qquad
        r_k = \sum_c s_{kc}\, (\psi_k * x_c)

    with signs :math:`s_{kc}` for a random subset of the channels. The features are statistics of each response over
    positions: the share above each of ``biases`` thresholds, which :meth:`draw_biases` takes from the training samples,
    and the maximum.

    Args:
        in_channels: channels of the input.
        dim: number of spatial dimensions.
        size: length of the training input, one for all axes or one per axis.
        kernels: number of kernels.
        biases: thresholds per kernel.
        field: makes the fields from ``(dim, channels)``; coordinates are in units of ``REACH`` widths.

    >>> features = RandomKernels(1, size=50, kernels=20)
    >>> x = torch.randn(8, 1, 50)
    >>> features.draw_biases(x)
    >>> features(x).shape           # 6 shares and a maximum for each kernel
    torch.Size([8, 140])
    """

    biases: Tensor

    def __init__(
        self,
        in_channels: int,
        *,
        dim: int = 1,
        size: int | Sequence[int],
        kernels: int = 1000,
        biases: int = 6,
        field: Callable[..., Field] = partial(RandomFourier, layers=2, omega_0=0.7, features=64),
    ) -> None:
        super().__init__()
        self.in_channels, self.dim = check_int("in_channels", in_channels), check_int("dim", dim)
        sizes = ints_per_axis("size", size, dim)
        smallest, largest = 0.5, max(1.0, (min(sizes) - 1) / 8)
        levels = 1 + round(2 * math.log2(largest / smallest))  # two widths per octave
        levels = min(levels, check_int("kernels", kernels))
        counts = [kernels // levels + (i < kernels % levels) for i in range(levels)]
        ratio = (largest / smallest) ** (1 / max(1, levels - 1))
        for level, count in enumerate(counts):
            kernel = _draw_kernels(field, dim, count, smallest * ratio**level, sizes)
            signs = _draw_signs(count, in_channels).view(count, in_channels, *(1,) * dim)
            self.register_buffer(f"kernel_{level}", kernel.unsqueeze(1) * signs)
        self.levels = levels
        self.register_buffer("biases", torch.zeros(kernels, check_int("biases", biases)))

    def responses(self, x: Tensor) -> Iterator[Tensor]:
        """Yield the responses of each width to ``x`` (batch, in, *space): (batch, kernels of that width, *space)."""
        for level in range(self.levels):
            kernel = self.get_buffer(f"kernel_{level}").to(x.dtype)
            for axis, length in enumerate(x.shape[2:], start=2):
                # Kernel points at offsets beyond a short input's length would only meet padding.
                beyond = max(0, kernel.shape[axis] // 2 - (length - 1))
                kernel = kernel.narrow(axis, beyond, kernel.shape[axis] - 2 * beyond)
            yield conv(x, kernel)

    @torch.no_grad()
    def draw_biases(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Take the thresholds of each kernel from its responses to one of the samples ``x`` (n, in, *space).

        They are quantiles at multiples of the golden ratio modulo 1, which spreads the quantiles of all kernels evenly.
        """
        each = self.biases.shape[1]
        drawn: list[Tensor] = []
        for responses in self.responses_of_random_samples(x, mask):
            start = each * sum(len(b) for b in drawn)
            rank = (
                (torch.arange(1, 1 + each * len(responses), dtype=torch.float64) + start) * (math.sqrt(5) + 1) / 2 % 1
            )
            quantiles = [torch.quantile(r, q) for r, q in zip(responses, rank.to(x).view(-1, each), strict=True)]
            drawn.append(torch.stack(quantiles))
        self.biases.copy_(torch.cat(drawn))

    def responses_of_random_samples(self, x: Tensor, mask: Tensor | None) -> Iterator[list[Tensor]]:
        """Yield, for each width, the responses of each kernel to a random sample, at the observed positions."""
        observed = torch.arange(len(x), device=x.device) if mask is None else mask.flatten(1).any(dim=1).nonzero()[:, 0]
        if len(observed) == 0:
            raise ValueError("mask must mark an observed position in at least one sample, got none")
        chosen = observed[torch.randint(len(observed), (min(len(observed), 32),), device=x.device)]
        for responses in self.responses(x[chosen]):
            picks = torch.randint(len(chosen), (responses.shape[1],)).tolist()
            seen = [slice(None) if mask is None else mask[chosen[i]] for i in picks]
            yield [responses[i, k][s].flatten() for k, (i, s) in enumerate(zip(picks, seen, strict=True))]

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (batch, kernels · (biases + 1)) features of ``x``.

        Statistics leave out positions where ``mask`` is False; ``x`` must be zero there, since kernels reach over them.
        """
        per_sample = len(self.biases) * x[0, 0].numel()
        if len(x) > 1 and len(x) * per_sample > CHUNK:
            half = len(x) // 2
            parts = [self(x[s], None if mask is None else mask[s]) for s in (slice(half), slice(half, None))]
            return torch.cat(parts)
        features, at = [], 0
        weight = None if mask is None else mask.flatten(1).unsqueeze(1).to(x.dtype)
        for responses in self.responses(x):
            flat = responses.flatten(2)
            biases = self.biases[at : at + flat.shape[1]].to(x.dtype)
            at += flat.shape[1]
            for bias in biases.unbind(1):
                above = (flat > bias.unsqueeze(1) + MARGIN).to(x.dtype)
                share = above.mean(2) if weight is None else (above * weight).sum(2) / weight.sum(2).clamp(min=1)
                features.append(share)
            features.append(flat.amax(2) if weight is None else _masked_maximum(flat, weight > 0))
        return torch.cat(features, dim=1)


def _masked_maximum(x: Tensor, seen: Tensor) -> Tensor:
    """Return the maximum of (batch, kernels, positions) over seen positions (batch, 1, positions), or 0 without any."""
    largest = x.masked_fill(~seen, -math.inf).amax(2)
    return torch.where(seen.any(dim=2), largest, 0.0)


class RandomKernelNet(nn.Module):
    """A linear map of standardised features: those of :class:`RandomKernels` and the input values themselves.

    :class:`kernelfield.sklearn.RandomKernelClassifier` fits the linear map in closed form.

    Args:
        in_channels: channels of the input.
        out_channels: number of predictions.
        dim: number of spatial dimensions.
        size: length of the training input.
        options: further arguments of :class:`RandomKernels`: kernels, biases, field.

    >>> net = RandomKernelNet(2, 3, size=30, kernels=10)
    >>> net(torch.randn(4, 2, 30)).shape
    torch.Size([4, 3])
    """

    shift: Tensor
    scale: Tensor

    @with_arguments_of(RandomKernels.__init__)
    def __init__(
        self, in_channels: int, out_channels: int, *, dim: int = 1, size: int | Sequence[int], **options: Any
    ) -> None:
        super().__init__()
        self.features = RandomKernels(in_channels, dim=dim, size=size, **options)
        self.values_size = tuple(min(n, MAX_VALUES.get(dim, 4)) for n in ints_per_axis("size", size, dim))
        kernels, biases = self.features.biases.shape
        pooled = kernels * (biases + 1)
        self.parts = (pooled, in_channels * math.prod(self.values_size))
        self.register_buffer("shift", torch.zeros(sum(self.parts)))
        self.register_buffer("scale", torch.ones(sum(self.parts)))
        self.linear = nn.Linear(sum(self.parts), out_channels)

    def raw_features(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return all features of ``x``, not standardised: (batch, features)."""
        return torch.cat([self.features(x, mask), self._values(x, mask)], dim=1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (batch, out) predictions for ``x`` (batch, in, *space)."""
        return self.linear((self.raw_features(x, mask) - self.shift) * self.scale)

    def _values(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the values at fixed positions; a series that ends early is stretched to the full length.

        The values of a series do not depend on its padding, and so not on the other series of its batch.
        """
        if x.dim() == 3 and (mask is not None or x.shape[2] < self.values_size[0]):
            x = _resized(x, x.new_ones(len(x), x.shape[2]).bool() if mask is None else mask, self.values_size[0])
        elif x.shape[2:] != self.values_size:
            pools: tuple[Any, ...] = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
            x = pools[x.dim() - 3](x, self.values_size)
        return x.flatten(1)


def _draw_kernels(field: Callable[..., Field], dim: int, count: int, width: float, sizes: Sequence[int]) -> Tensor:
    """Return kernels (count, *points) of a width in steps, with zero mean and unit norm."""
    reaches = [min(math.ceil(REACH * width), (n - 1) // 2) for n in sizes]
    axes = [torch.arange(-r, r + 1) / (REACH * width) for r in reaches]
    coords = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    with torch.no_grad():
        values = build_field(field, dim, count, size=max(3, *(2 * r + 1 for r in reaches)))(coords).movedim(-1, 0)
        values = values * torch.exp(-0.5 * (REACH * coords).square().sum(dim=-1))
        flat = values.flatten(1)
        if flat.shape[1] > 1:
            flat = flat - flat.mean(dim=1, keepdim=True)
        flat = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-6)
    return flat.view_as(values)


def _draw_signs(count: int, channels: int) -> Tensor:
    """Return +1 or -1 for a random subset of the channels of each kernel, at most nine, and 0 for the others."""
    if channels == 1:
        return torch.ones(count, 1)
    most = math.log2(min(channels, 9) + 1)
    wanted = (2 ** (torch.rand(count, 1) * most)).floor()
    order = torch.rand(count, channels).argsort(dim=1).argsort(dim=1)
    return torch.where(order < wanted, torch.randn(count, channels).sign(), 0.0)


def _resized(x: Tensor, mask: Tensor, size: int) -> Tensor:
    """Cut series (n, channels, length) after their last observed position and resize them to ``size``.

    Shorter series are interpolated, longer ones averaged as by :func:`torch.nn.functional.adaptive_avg_pool1d`.
    """
    index = torch.arange(mask.shape[1], device=x.device)
    last = torch.where(mask, index, 0).amax(dim=1, keepdim=True)
    stretched = _interpolated(x, torch.linspace(0, 1, size, device=x.device, dtype=x.dtype) * last)
    if x.shape[2] <= size:
        return stretched
    step = torch.arange(size + 1, device=x.device) * (last + 1)
    start, end = step[:, :-1] // size, -(-step[:, 1:] // size)
    sums = F.pad(x.cumsum(dim=2), (1, 0))
    mean = (_at(sums, end) - _at(sums, start)) / (end - start).unsqueeze(1)
    return torch.where((last + 1 > size).unsqueeze(1), mean, stretched)


def _interpolated(x: Tensor, at: Tensor) -> Tensor:
    """Interpolate series (n, channels, length) at positions (n, size)."""
    low = at.floor().long().clamp(max=x.shape[2] - 1)
    near, far = _at(x, low), _at(x, (low + 1).clamp(max=x.shape[2] - 1))
    return near + (far - near) * (at - low).unsqueeze(1)


def _at(x: Tensor, index: Tensor) -> Tensor:
    """Return the values of (n, channels, length) series at indices (n, size)."""
    return x.gather(2, index.unsqueeze(1).expand(-1, x.shape[1], -1))
