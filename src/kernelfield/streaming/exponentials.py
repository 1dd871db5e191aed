r"""Fits of sampled kernels by sums of damped oscillations.

The Hankel matrix :math:`H_{ij} = k(i + j)` of :math:`k(\tau) = \sum_n c_n \lambda_n^\tau` has as many singular values
as there are poles, and its column space is shift invariant: with U its leading left singular vectors, the poles are the
eigenvalues of :math:`\Phi` in :math:`U_\uparrow \Phi = U_\downarrow`, where the arrows leave out the last and the first
row (the matrix pencil). The weights follow by least squares. Gauss-Newton steps, damped as by Levenberg and Marquardt,
then lower the error further, since a cut of small singular values is not the best fit of its order.

A kernel that has not decayed at its end would get poles outside of the unit circle. So it is continued: by its
reflection through its last point, under a window that falls to zero. Only lags of the kernel itself count as errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Oscillations", "fit_kernels", "fit_order"]

#: numbers of oscillations that are tried one after another
ORDERS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64)
#: values of kernels that are fitted at once; their bases and Jacobians have a hundred times as many
CHUNK = 1 << 15
#: smallest damping, in units of the inverse length of the kernel
LEAST_DAMPING = 1e-3


@dataclass
class Oscillations:
    """Sums of damped oscillations, one for each kernel.

    Args:
        damping: (kernels, order) α per sample.
        frequency: (kernels, order) ω in radians per sample.
        cosine: (kernels, order) weights a.
        sine: (kernels, order) weights b.
    """

    damping: Tensor
    frequency: Tensor
    cosine: Tensor
    sine: Tensor

    def values(self, points: int) -> Tensor:
        """Return the kernels at lags 0 to points - 1, (kernels, points)."""
        return _weighted(_basis(self.damping, self.frequency, points), self)

    def padded(self, order: int) -> Oscillations:
        """Return the same kernels with more terms, of weight zero."""
        more = order - self.damping.shape[1]
        pad = torch.nn.functional.pad
        return Oscillations(
            pad(self.damping, (0, more), value=0.1),
            pad(self.frequency, (0, more)),
            pad(self.cosine, (0, more)),
            pad(self.sine, (0, more)),
        )

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return damping, frequency, cosine and sine."""
        return self.damping, self.frequency, self.cosine, self.sine


def fit_kernels(
    kernels: Tensor, *, order: int | None = None, tolerance: float = 1e-3, refine: int = 20, max_order: int = 32
) -> tuple[Oscillations, Tensor, Tensor]:
    r"""Fit sampled kernels by sums of damped oscillations, each with as few of them as it needs.

    Args:
        kernels: (kernels, points) kernels at lags 0, 1, …
        order: number of oscillations of all kernels; chosen for each kernel by ``tolerance`` if not given.
        tolerance: relative error that is accepted, :math:`\|k - \hat k\| \le \mathrm{tolerance}\, \|k\|`.
        refine: Gauss-Newton steps after the closed form.
        max_order: largest number of oscillations; kernels that need more have an error above the tolerance.

    Returns:
        The oscillations, all padded to the largest order; the order of each kernel, and its relative error.

    >>> t = torch.arange(200, dtype=torch.float64)
    >>> kernels = torch.stack([(-0.02 * t).exp() * (0.3 * t).cos(), 2 * (-0.01 * t).exp()])
    >>> fit, orders, errors = fit_kernels(kernels, tolerance=1e-6)
    >>> orders.tolist(), bool(errors.max() < 1e-6)
    ([1, 1], True)
    """
    parts = [
        _fit_chunk(part, order, tolerance, refine, max_order)
        for part in kernels.detach().to("cpu", torch.float64).split(max(1, CHUNK // kernels.shape[1]))
    ]
    most = max(fit.damping.shape[1] for fit, _, _ in parts)
    padded = zip(*(fit.padded(most).tensors() for fit, _, _ in parts), strict=True)
    joined = Oscillations(*(torch.cat(tensors) for tensors in padded))
    return joined, torch.cat([orders for _, orders, _ in parts]), torch.cat([errors for _, _, errors in parts])


def _fit_chunk(
    kernels: Tensor, order: int | None, tolerance: float, refine: int, max_order: int
) -> tuple[Oscillations, Tensor, Tensor]:
    count, points = kernels.shape
    norms = kernels.norm(dim=1)
    # A kernel far below the others has no influence; its own size is not the measure then.
    scale = torch.maximum(norms, 0.01 * norms.square().mean().sqrt()).clamp(min=1e-300)
    tried: Sequence[int] = [n for n in ORDERS if n <= max_order] if order is None else [order]
    # A kernel that is such a sum is found in its own matrix, any other better in that of its continuation.
    own, sizes = leading_vectors(kernels, min(2 * max(tried), points // 2))
    longer, _ = leading_vectors(continued(kernels), min(2 * max(tried), points - 1))
    if order is None:  # no fit of fewer poles can be much better than the singular values that it leaves out
        rest = (sizes.square().flip(1).cumsum(1).flip(1) / sizes.square().sum(dim=1, keepdim=True)).sqrt()
        least = int((rest > 10 * tolerance).sum(dim=1).min()) // 2
        tried = [n for n in tried if n >= least] or tried[-1:]
    best = [torch.zeros(count, max(tried), dtype=torch.float64) for _ in range(4)]
    best[0].fill_(0.1)
    errors = torch.ones(count, dtype=torch.float64) * torch.inf
    orders = torch.zeros(count, dtype=torch.int64)
    left = torch.arange(count)
    for n in tried:
        chosen, wanted = kernels[left], scale[left]
        fit = _better(chosen, fit_order(chosen, n, own[left]), fit_order(chosen, n, longer[left]))
        error = (fit.values(points) - chosen).norm(dim=1) / wanted
        # Steps lower the error by a factor of a few: not worth their time far from the tolerance.
        near = (
            torch.ones_like(error, dtype=torch.bool) if order is not None or n == tried[-1] else error < 10 * tolerance
        )
        if refine and bool(near.any()):
            rows = near.nonzero().squeeze(1)
            better = _refined(Oscillations(*(t[rows] for t in fit.tensors())), chosen[rows], refine)
            for whole, part in zip(fit.tensors(), better.tensors(), strict=True):
                whole[rows] = part
            error = (fit.values(points) - chosen).norm(dim=1) / wanted
        improved = error < errors[left]
        rows = left[improved]
        for whole, part in zip(best, fit.padded(max(tried)).tensors(), strict=True):
            whole[rows] = part[improved]
        errors[rows], orders[rows] = error[improved], n
        left = left[errors[left] > tolerance]
        if not len(left):
            break
    most = max(1, int(orders.max()))
    return Oscillations(*(t[:, :most].clone() for t in best)), orders, errors


def fit_order(kernels: Tensor, order: int, vectors: Tensor) -> Oscillations:
    """Return the fit of one order in closed form: the matrix pencil, then least squares.

    Args:
        kernels: (kernels, points) kernels.
        order: number of oscillations, pairs of conjugate poles.
        vectors: (kernels, rows, n) leading left singular vectors of the Hankel matrices.
    """
    points = kernels.shape[1]
    rank = min(2 * order, vectors.shape[2])
    u = vectors[..., :rank]
    upper, lower = u[:, :-1], u[:, 1:]
    # Orthonormal columns without one row: well conditioned, so that normal equations do.
    gram = upper.mT @ upper + 1e-13 * torch.eye(rank, dtype=u.dtype)
    poles = torch.linalg.eigvals(torch.linalg.solve(gram, upper.mT @ lower))
    # Of each conjugate pair the one above the real line; others become poles that die at once.
    above = poles.imag >= 0
    damping = torch.where(above, -poles.abs().clamp(min=1e-8).log(), 20.0).clamp(min=LEAST_DAMPING / points)
    frequency = torch.where(above, poles.angle(), 0.0)
    if rank <= order:
        more = order - rank
        pad = torch.nn.functional.pad
        return _with_weights(kernels, pad(damping, (0, more), value=20.0), pad(frequency, (0, more)))
    # Real poles have no partner, so that there may be more than ``order``: the strongest are kept.
    fit = _with_weights(kernels, damping, frequency)
    energy = (fit.cosine.square() + fit.sine.square()) / (1 - torch.exp(-2 * fit.damping))
    strongest = energy.masked_fill(~above, -1).topk(order, dim=1).indices
    return _with_weights(kernels, damping.gather(1, strongest), frequency.gather(1, strongest))


def continued(kernels: Tensor) -> Tensor:
    """Return kernels (kernels, points) followed by their reflection through the last point, which falls to zero."""
    points = kernels.shape[1]
    window = 0.5 + 0.5 * torch.cos(torch.arange(1, points, dtype=kernels.dtype) * (torch.pi / points))
    return torch.cat([kernels, (2 * kernels[:, -1:] - kernels.flip(1)[:, 1:]) * window], dim=1)


def leading_vectors(kernels: Tensor, rank: int, powers: int = 2) -> tuple[Tensor, Tensor]:
    """Return the leading left singular vectors (kernels, rows, rank) of the kernels' Hankel matrices, and the values.

    By randomised subspace iteration. Products with a Hankel matrix are correlations, computed by FFTs, so a kernel of
    many thousand points needs no matrix of their square.
    """
    points = kernels.shape[1]
    columns = points // 2
    rows = points - columns + 1
    n = 1 << (points + max(rows, columns)).bit_length()
    spectrum = torch.fft.rfft(kernels, n=n).unsqueeze(1)

    def product(v: Tensor, size: int) -> Tensor:  # H v, and Hᵀ v for the other size: H depends on i + j alone
        return torch.fft.irfft(spectrum * torch.fft.rfft(v.mT, n=n).conj(), n=n)[..., :size].mT

    generator = torch.Generator().manual_seed(0)
    width = min(columns, rank + 8)
    start = torch.randn(columns, width, generator=generator, dtype=kernels.dtype).expand(len(kernels), -1, -1)
    q = torch.linalg.qr(product(start, rows))[0]
    for _ in range(powers):
        q = torch.linalg.qr(product(q, columns))[0]
        q = torch.linalg.qr(product(q, rows))[0]
    small = product(q, columns).mT  # qᵀ H
    u, sizes, _ = torch.linalg.svd(small, full_matrices=False)
    return q @ u[..., :rank], sizes[..., :rank]


def _basis(damping: Tensor, frequency: Tensor, points: int) -> Tensor:
    """Return cosines and sines under their damping, (kernels, points, 2 · order)."""
    rate = torch.complex(-damping, frequency)[:, None, None]
    block = math.isqrt(points - 1) + 1
    times = torch.arange(block, dtype=damping.dtype)
    # Powers aB and b give powers aB + b: products are far cheaper than exponentials.
    powers = torch.exp(rate * (block * times).view(-1, 1, 1)) * torch.exp(rate * times.view(-1, 1))
    powers = powers.flatten(1, 2)[:, :points]
    return torch.cat([powers.real, powers.imag], dim=2)


def _weighted(basis: Tensor, fit: Oscillations) -> Tensor:
    """Return the kernels for a basis of cosines and sines, (kernels, points)."""
    return (basis @ torch.cat([fit.cosine, fit.sine], dim=1).unsqueeze(-1)).squeeze(-1)


def _with_weights(kernels: Tensor, damping: Tensor, frequency: Tensor) -> Oscillations:
    """Return the oscillations with the weights of least squares."""
    basis = _basis(damping, frequency, kernels.shape[1])
    gram = basis.mT @ basis
    # Poles that nearly coincide would have huge weights of opposite signs, which float32 cannot subtract.
    ridge = 1e-11 * gram.diagonal(dim1=1, dim2=2).mean(dim=1).clamp(min=1e-12)
    gram = gram + ridge.view(-1, 1, 1) * torch.eye(gram.shape[1], dtype=gram.dtype)
    weights = torch.linalg.solve(gram, (basis.mT @ kernels.unsqueeze(-1))).squeeze(-1)
    cosine, sine = weights.chunk(2, dim=1)
    return Oscillations(damping, frequency, cosine.contiguous(), sine.contiguous())


def _refined(fit: Oscillations, kernels: Tensor, steps: int) -> Oscillations:
    """Lower the error by damped Gauss-Newton steps in all parameters; each kernel has a damping factor of its own."""
    points = kernels.shape[1]
    least = LEAST_DAMPING / points
    parameters = torch.stack([fit.damping.log(), fit.frequency, fit.cosine, fit.sine], dim=1)  # (kernels, 4, order)
    factor = torch.full((len(kernels),), 1e-3, dtype=kernels.dtype)

    def split(p: Tensor) -> Oscillations:
        return Oscillations(p[:, 0].exp().clamp(min=least), p[:, 1], p[:, 2], p[:, 3])

    now = split(parameters)
    basis = _basis(now.damping, now.frequency, points)
    residual = kernels - _weighted(basis, now)
    error = residual.square().sum(dim=1)
    times = torch.arange(points, dtype=kernels.dtype).view(1, -1, 1)
    for _ in range(steps):
        cosines, sines = basis.chunk(2, dim=2)
        a, b = now.cosine.unsqueeze(1), now.sine.unsqueeze(1)
        slope = -now.damping.unsqueeze(1) * times
        jacobian = torch.cat([slope * (a * cosines + b * sines), times * (b * cosines - a * sines), basis], dim=2)
        gram = jacobian.mT @ jacobian
        diagonal = gram.diagonal(dim1=1, dim2=2)
        damped = gram + torch.diag_embed(factor.view(-1, 1) * diagonal + 1e-12 * diagonal.mean(dim=1, keepdim=True))
        step = torch.linalg.solve(damped, (jacobian.mT @ residual.unsqueeze(-1))).squeeze(-1)
        trial = parameters + step.view_as(parameters)
        new = split(trial)
        new_basis = _basis(new.damping, new.frequency, points)
        left = kernels - _weighted(new_basis, new)
        size = left.square().sum(dim=1)
        good = size < error
        parameters = torch.where(good.view(-1, 1, 1), trial, parameters)
        now = split(parameters)
        basis = torch.where(good.view(-1, 1, 1), new_basis, basis)
        residual = torch.where(good.view(-1, 1), left, residual)
        error = torch.where(good, size, error)
        factor = torch.where(good, factor / 3, factor * 4).clamp(1e-12, 1e6)
    # The linear part once more, in closed form: its weights do not cancel.
    return _better(kernels, _with_weights(kernels, now.damping, now.frequency), now)


def _better(kernels: Tensor, first: Oscillations, second: Oscillations) -> Oscillations:
    """Return for each kernel the fit with the lower error, the first if they are alike."""
    errors = [(kernels - fit.values(kernels.shape[1])).square().sum(dim=1) for fit in (first, second)]
    chosen = (errors[0] <= 1.0001 * errors[1]).view(-1, 1)
    pairs = zip(first.tensors(), second.tensors(), strict=True)
    return Oscillations(*(torch.where(chosen, a, b) for a, b in pairs))
