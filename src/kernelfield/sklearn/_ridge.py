"""Ridge regression in closed form, with a strength selected by leave-one-out errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RidgeFit", "best_temperature", "fit_ridge"]

#: candidates for the strength, relative to features of unit length
STRENGTHS = tuple(10.0 ** (0.5 * i) for i in range(-10, 9))
#: candidates for the share of the second group of features
SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
#: largest number of samples that select strength and share
MOST_SAMPLES = 2000
#: number of best fits to average; fewer for many samples, which take longer and need it less
AVERAGED, AVERAGED_OF_MANY = 10, 3


@dataclass(frozen=True)
class RidgeFit:
    """A linear map of features.

    Args:
        weight: (features, out) weights.
        bias: (out,) biases.
        strength: strength of the penalty in the best fit.
        share: share of the second group of features in the penalty of the best fit.
        held_out: (n, out) prediction for each sample from a fit to all others; only for some samples if n is large.
        rows: indices of these samples.
    """

    weight: Tensor
    bias: Tensor
    strength: float
    share: float
    held_out: Tensor
    rows: Tensor


def fit_ridge(features: Tensor, parts: Sequence[int], target: Tensor) -> RidgeFit:
    r"""Fit a linear map; select the strength of its penalty and the division of the penalty between two feature groups.

    .. math:: \min_{W, b} \|Y - X_s W - b\|^2 + \alpha \|W\|^2, \qquad
        X_s = \big[\sqrt{(1 - s) / p_1}\, X_1, \sqrt{s / p_2}\, X_2\big]

    The result is the mean of the maps for the ten pairs of α and s with the least leave-one-out errors, since the
    errors of few samples do not tell which pair is best. These errors need no refit: with :math:`h_i = \tfrac1n + [K (K
    + \alpha)^{-1}]_{ii}` and :math:`K = X_s X_s^\top`, centred, they are :math:`(y_i - \hat y_i) / (1 - h_i)`.

    Args:
        features: (n, p₁ + p₂) standardised features, float64.
        parts: p₁ and p₂.
        target: (n, out) targets.

    >>> x = torch.randn(40, 5, dtype=torch.float64)
    >>> found = fit_ridge(x, (3, 2), x[:, :1] - 2 * x[:, 4:] + 3)
    >>> torch.allclose(x @ found.weight + found.bias, x[:, :1] - 2 * x[:, 4:] + 3, atol=0.01)
    True
    """
    n = len(features)
    rows = torch.randperm(n)[:MOST_SAMPLES].sort().values if n > MOST_SAMPLES else torch.arange(n)
    grams = []
    for part in features[rows].split(list(parts), dim=1):
        centred = part - part.mean(dim=0)
        grams.append(centred @ centred.T / max(1, part.shape[1]))
    y = target[rows]
    found: list[tuple[float, float, float, Tensor]] = []
    for share in SHARES:
        for strength, held_out in _held_out((1 - share) * grams[0] + share * grams[1], y):
            found.append((float((held_out - y).square().mean()), share, strength, held_out))
    found.sort(key=lambda fit: fit[0])
    best = found[: AVERAGED if n <= MOST_SAMPLES else AVERAGED_OF_MANY]
    weight, bias = torch.zeros(features.shape[1], y.shape[1]).to(features), torch.zeros(y.shape[1]).to(features)
    for _, share, strength, _ in best:
        shares = zip(parts, (1 - share, share), strict=True)
        factors = torch.cat([torch.full((p,), (s / max(1, p)) ** 0.5) for p, s in shares]).to(features)
        # The loss is a sum over samples, so the strength of the penalty grows with their number.
        one_weight, one_bias = _solve(features * factors, target, strength * n / len(rows))
        weight += factors.unsqueeze(1) * one_weight / len(best)
        bias += one_bias / len(best)
    held_out = torch.stack([fit[3] for fit in best]).mean(dim=0)
    return RidgeFit(weight, bias, best[0][2], best[0][1], held_out, rows)


def _held_out(gram: Tensor, y: Tensor) -> list[tuple[float, Tensor]]:
    """Return the leave-one-out predictions for each strength."""
    n = len(gram)
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp(min=0)
    mean = y.mean(dim=0)
    rotated = vectors.T @ (y - mean)
    found = []
    for strength in STRENGTHS:
        inverse = 1 / (values + strength)
        residual = strength * (vectors @ (inverse.unsqueeze(1) * rotated))
        leverage = 1 / n + vectors.square() @ (values * inverse)
        found.append((strength, y - residual / (1 - leverage).clamp(min=1e-6).unsqueeze(1)))
    return found


def _solve(features: Tensor, target: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Return the weights and biases by solving the smaller of the two linear systems."""
    shift, mean = features.mean(dim=0), target.mean(dim=0)
    x, y = features - shift, target - mean
    n, p = x.shape
    if n <= p:
        weight = x.T @ torch.linalg.solve(x @ x.T + strength * torch.eye(n, dtype=x.dtype), y)
    else:
        weight = torch.linalg.solve(x.T @ x + strength * torch.eye(p, dtype=x.dtype), x.T @ y)
    return weight, mean - shift @ weight


def best_temperature(scores: Tensor, classes: Tensor) -> float:
    """Return the factor on held-out ``scores`` (n, out) with the least cross-entropy for ``classes`` (n,)."""
    factors = [0.5 * 2 ** (0.5 * i) for i in range(11)]
    return min(factors, key=lambda factor: float(F.cross_entropy(factor * scores, classes)))
