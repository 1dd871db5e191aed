r"""Fit sampled kernels by sums of damped oscillations.

The Hankel matrix :math:`H_{ij} = k(i + j)` of :math:`k(\tau) = \sum_n c_n \lambda_n^\tau` has as many singular values
as there are poles, and its column space is shift invariant: with U its leading left singular vectors, the poles are the
eigenvalues of :math:`\Phi` in :math:`U_\uparrow \Phi = U_\downarrow`, where the arrows leave out the last and the first
row (the matrix pencil). The weights follow by least squares. Gauss-Newton steps, damped as by Levenberg and Marquardt,
then lower the error further, since a cut of small singular values is not the best fit of its order.

A kernel that has not decayed at its end would get poles outside the unit circle. So it is continued by its reflection
through its last point, under a window that falls to zero. A short continuation has few poles of its own, a long one
keeps all poles inside the circle; several lengths are tried for each kernel, and the best fit is taken. Errors count
only at the lags of the kernel itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

__all__ = ["Oscillations", "fit_kernels", "fit_order", "scales"]

#: numbers of oscillations that are tried one after another
ORDERS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64)
#: values of kernels that are fitted at once; their bases and Jacobians have a hundred times as many
CHUNK = 1 << 15
#: lengths of the continuations that are tried, in lengths of the kernel
CONTINUATIONS = (0.0, 0.125, 0.25, 0.5, 1.0)
#: points of the grid on which long kernels are fitted first
COARSE = 1024
#: largest number of rows of a Hankel matrix that is decomposed directly
SMALL = 400
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
    kernels: Tensor,
    *,
    order: int | None = None,
    tolerance: float = 1e-3,
    refine: int = 20,
    max_order: int = 32,
    stop: bool = False,
) -> tuple[Oscillations, Tensor, Tensor]:
    r"""Fit sampled kernels by sums of damped oscillations, each with as few of them as it needs.

    Args:
        kernels: (kernels, points) kernels at lags 0, 1, …
        order: number of oscillations of all kernels; chosen for each kernel by ``tolerance`` if not given.
        tolerance: accepted relative error, :math:`\|k - \hat k\| \le \mathrm{tolerance}\, \|k\|`.
        refine: Gauss-Newton steps after the closed form.
        max_order: largest number of oscillations; kernels that need more have an error above the tolerance.
        stop: stop after the first chunk of kernels in which one needs more, and return only the kernels up to there.

    Returns:
        The oscillations, all padded to the largest order; the order of each kernel, and its relative error.

    >>> t = torch.arange(200, dtype=torch.float64)
    >>> kernels = torch.stack([(-0.02 * t).exp() * (0.3 * t).cos(), 2 * (-0.01 * t).exp()])
    >>> fit, orders, errors = fit_kernels(kernels, tolerance=1e-6)
    >>> orders.tolist(), bool(errors.max() < 1e-6)
    ([1, 1], True)
    """
    kernels = kernels.detach().to("cpu", torch.float64)
    scale = scales(kernels)
    # A given order is refined as far as possible.
    search = partial(_fit_part, order=order, tolerance=0.0 if order else tolerance, refine=refine, max_order=max_order)
    parts = []
    count = max(1, CHUNK // min(kernels.shape[1], COARSE))
    for part, wanted in zip(kernels.split(count), scale.split(count), strict=True):
        parts.append(search(part, wanted))
        if stop and bool((parts[-1][2] > tolerance).any()):
            break
    most = max(fit.damping.shape[1] for fit, _, _ in parts)
    padded = zip(*(fit.padded(most).tensors() for fit, _, _ in parts), strict=True)
    joined = Oscillations(*(torch.cat(tensors) for tensors in padded))
    return joined, torch.cat([orders for _, orders, _ in parts]), torch.cat([errors for _, _, errors in parts])


def scales(kernels: Tensor) -> Tensor:
    """Return the sizes (kernels,) to which errors are relative: norms, but at least a hundredth of their mean.

    A kernel far smaller than the others has little influence, so its own size is not the measure.
    """
    norms = kernels.norm(dim=1)
    return torch.maximum(norms, 0.01 * norms.square().mean().sqrt()).clamp(min=1e-300)


def _fit_part(
    kernels: Tensor, scale: Tensor, *, order: int | None, tolerance: float, refine: int, max_order: int
) -> tuple[Oscillations, Tensor, Tensor]:
    """Fit long kernels on a coarse grid, and those that need all their points on the fine grid."""
    every = kernels.shape[1] // COARSE
    if every < 2:
        return _Search(kernels, scale, tolerance, refine).orders(order, max_order)
    coarse = kernels[:, ::every]
    found = _Search(coarse, scale / math.sqrt(every), 0.8 * tolerance, refine).orders(order, max_order)
    fit, orders = _on_fine_grid(kernels, found[0], found[1], every), found[1]
    errors = (fit.values(kernels.shape[1]) - kernels).norm(dim=1) / scale
    # Frequencies beyond the coarse grid show as a larger error on the fine one.
    rows = (errors > torch.maximum(1.5 * found[2], torch.tensor(tolerance))).nonzero().squeeze(1)
    for part in rows.split(max(1, CHUNK // kernels.shape[1])) if len(rows) else ():
        again = _Search(kernels[part], scale[part], tolerance, refine).orders(order, max_order)
        better = again[2] < errors[part]
        most = max(fit.damping.shape[1], again[0].damping.shape[1])
        fit = fit.padded(most)
        for whole, new in zip(fit.tensors(), again[0].padded(most).tensors(), strict=True):
            whole[part[better]] = new[better]
        orders[part[better]], errors[part[better]] = again[1][better], again[2][better]
    return fit, orders, errors


def _on_fine_grid(kernels: Tensor, coarse: Oscillations, orders: Tensor, every: int) -> Oscillations:
    """Return the fit on all points for the poles of a fit on every ``every``-th of them."""
    fit = Oscillations(coarse.damping / every, coarse.frequency / every, *(t.clone() for t in coarse.tensors()[2:]))
    for n in orders.unique().tolist():
        for rows in (orders == n).nonzero().squeeze(1).split(max(1, CHUNK // kernels.shape[1])):
            part = _with_weights(kernels[rows], fit.damping[rows, :n], fit.frequency[rows, :n])
            fit.cosine[rows, :n], fit.sine[rows, :n] = part.cosine, part.sine
    return fit


class _Search:
    """The search for the fewest oscillations of some kernels.

    Args:
        kernels: (kernels, points) kernels.
        scale: (kernels,) sizes to which errors are relative.
        tolerance: accepted relative error.
        refine: Gauss-Newton steps after the closed form.
    """

    def __init__(self, kernels: Tensor, scale: Tensor, tolerance: float, refine: int) -> None:
        self.kernels, self.scale, self.tolerance, self.refine = kernels, scale, tolerance, refine
        self.points = kernels.shape[1]

    def orders(self, order: int | None, max_order: int) -> tuple[Oscillations, Tensor, Tensor]:
        """Return the best fits, their orders and their errors; for ``order`` alone if it is given."""
        tried = [n for n in ORDERS if n <= max_order] if order is None else [order]
        longest, count = max(tried), len(self.kernels)
        bases = [leading_vectors(continued(self.kernels, share), 2 * longest) for share in CONTINUATIONS]
        start = torch.zeros(count, dtype=torch.int64)
        if order is None:  # no fit of fewer poles can be much better than the singular values that it leaves out
            start = torch.stack([_poles_needed(sizes, 10 * self.tolerance) for _, sizes in bases]).amin(dim=0) // 2
            start = start.clamp(max=longest)
        best = Oscillations(*(torch.zeros(count, longest, dtype=torch.float64) for _ in range(4)))
        best.damping.fill_(0.1)
        errors = torch.full((count,), torch.inf, dtype=torch.float64)
        orders = torch.zeros(count, dtype=torch.int64)
        for n in tried:
            left = ((errors > self.tolerance) & (start <= n)).nonzero().squeeze(1)
            if not len(left):
                continue
            fit, error = self._fit(left, n, [vectors[left] for vectors, _ in bases], last=n == longest)
            improved = error < errors[left]
            rows = left[improved]
            for whole, part in zip(best.tensors(), fit.padded(longest).tensors(), strict=True):
                whole[rows] = part[improved]
            errors[rows], orders[rows] = error[improved], n
        most = max(1, int(orders.max()))
        return Oscillations(*(t[:, :most].clone() for t in best.tensors())), orders, errors

    def _fit(self, rows: Tensor, order: int, vectors: list[Tensor], *, last: bool) -> tuple[Oscillations, Tensor]:
        """Return fits of one order and their errors: the best in closed form, refined if that may be enough."""
        kernels, scale = self.kernels[rows], self.scale[rows]
        fit = fit_order(kernels, order, vectors[0])
        for others in vectors[1:]:
            fit = _better(kernels, fit, fit_order(kernels, order, others))
        error = (fit.values(self.points) - kernels).norm(dim=1) / scale
        near = error > self.tolerance
        if not last:  # steps lower the error by a factor of a few: not worth their time far from the tolerance
            near &= error < 10 * self.tolerance
        if self.refine and bool(near.any()):
            chosen = near.nonzero().squeeze(1)
            better = _refined(Oscillations(*(t[chosen] for t in fit.tensors())), kernels[chosen], self.refine)
            for whole, part in zip(fit.tensors(), better.tensors(), strict=True):
                whole[chosen] = part
            error = (fit.values(self.points) - kernels).norm(dim=1) / scale
        return fit, error


def _poles_needed(sizes: Tensor, tolerance: float) -> Tensor:
    """Return how many singular values (kernels, n) must be kept to leave out less than a relative tolerance."""
    rest = (sizes.square().flip(1).cumsum(1).flip(1) / sizes.square().sum(dim=1, keepdim=True).clamp(min=1e-300)).sqrt()
    return (rest > tolerance).sum(dim=1)


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
    # Orthonormal columns without one row are well conditioned, so normal equations suffice.
    gram = upper.mT @ upper + 1e-13 * torch.eye(rank, dtype=u.dtype)
    poles = torch.linalg.eigvals(torch.linalg.solve(gram, upper.mT @ lower))
    # Keep the pole of each conjugate pair above the real axis; the others become poles that decay at once.
    above = poles.imag >= 0
    damping = torch.where(above, -poles.abs().clamp(min=1e-8).log(), 20.0).clamp(min=LEAST_DAMPING / points)
    frequency = torch.where(above, poles.angle(), 0.0)
    if rank <= order:
        more = order - rank
        pad = torch.nn.functional.pad
        return _with_weights(kernels, pad(damping, (0, more), value=20.0), pad(frequency, (0, more)))
    # Real poles have no partner, so there may be more than ``order``: keep the strongest.
    fit = _with_weights(kernels, damping, frequency)
    energy = (fit.cosine.square() + fit.sine.square()) / (1 - torch.exp(-2 * fit.damping))
    strongest = energy.masked_fill(~above, -1).topk(order, dim=1).indices
    return _with_weights(kernels, damping.gather(1, strongest), frequency.gather(1, strongest))


def continued(kernels: Tensor, share: float) -> Tensor:
    """Return kernels (kernels, points) followed by their reflection through the last point, which falls to zero.

    Args:
        kernels: (kernels, points) kernels.
        share: length of the continuation, in lengths of the kernel, 0 to 1.
    """
    points = kernels.shape[1]
    more = round(share * (points - 1))
    window = 0.5 + 0.5 * torch.cos(torch.arange(1, more + 1, dtype=kernels.dtype) * (torch.pi / (more + 1)))
    return torch.cat([kernels, (2 * kernels[:, -1:] - kernels.flip(1)[:, 1 : more + 1]) * window], dim=1)


def leading_vectors(kernels: Tensor, rank: int, powers: int = 2) -> tuple[Tensor, Tensor]:
    """Return the leading left singular vectors (kernels, rows, rank) of the kernels' Hankel matrices, and the values.

    Small matrices are decomposed directly, large ones by randomised subspace iteration. Products with a large Hankel
    matrix are correlations, computed by FFTs, so the matrix of a long kernel is never built.
    """
    points = kernels.shape[1]
    columns = points // 2
    rows = points - columns + 1
    rank = min(rank, columns)
    if rows <= SMALL:
        side = (points + 1) // 2
        values, vectors = torch.linalg.eigh(kernels.unfold(1, side, 1)[:, :side])  # Hankel matrices are symmetric
        largest = values.abs().topk(min(rank, side), dim=1)
        index = largest.indices.unsqueeze(1).expand(-1, side, -1)
        return vectors.gather(2, index), largest.values
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
    """Return damped cosines and sines, (kernels, points, 2 · order)."""
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
    """Return the oscillations with least-squares weights."""
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
    # Solve for the weights once more, in closed form, which keeps them from cancelling.
    return _better(kernels, _with_weights(kernels, now.damping, now.frequency), now)


def _better(kernels: Tensor, first: Oscillations, second: Oscillations) -> Oscillations:
    """Return for each kernel the fit with the lower error, the first if both are nearly equal."""
    errors = [(kernels - fit.values(kernels.shape[1])).square().sum(dim=1) for fit in (first, second)]
    chosen = (errors[0] <= 1.0001 * errors[1]).view(-1, 1)
    pairs = zip(first.tensors(), second.tensors(), strict=True)
    return Oscillations(*(torch.where(chosen, a, b) for a, b in pairs))
