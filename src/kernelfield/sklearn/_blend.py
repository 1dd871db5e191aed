"""Weights of networks and random kernels in their mean, from predictions for held-out samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["blend", "folds"]

#: candidates for the share of the networks and for the factor on their logits
SHARES = tuple(0.1 * i for i in range(11))
FACTORS = tuple(0.1 * 2 ** (0.5 * i) for i in range(10))
#: number of best candidates to average, since few samples do not tell which one is best
AVERAGED = 10


def folds(target: Tensor, count: int, seed: int) -> Tensor:
    """Return the fold of each sample, of ``count`` folds that divide every class evenly.

    >>> folds(torch.tensor([0, 0, 0, 1, 1, 1]), 3, seed=0).view(2, 3).sort().values.tolist()
    [[0, 1, 2], [0, 1, 2]]
    """
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(seed))
    if target.dtype == torch.long:
        order = order[target[order].argsort(stable=True)]
    part = torch.empty(len(target), dtype=torch.long)
    part[order] = torch.arange(len(target)) % count
    return part


def blend(networks: Tensor, kernels: Tensor, target: Tensor) -> tuple[float, float]:
    r"""Return the share w of the networks and the factor f on their logits that give the least held-out errors.

    .. math:: p = w\, \mathrm{softmax}(f z_\text{networks}) + (1 - w)\, \mathrm{softmax}(z_\text{kernels})

    For values, f = 1. Both numbers are means over the best candidates.

    Args:
        networks: (n, out) held-out logits or values of the networks.
        kernels: (n, out) held-out logits or values of the random kernels.
        target: (n,) classes or (n, out) values.

    >>> share, _ = blend(torch.randn(40, 1), torch.ones(40, 1), torch.ones(40, 1))
    >>> share < 0.5
    True
    """
    tried = []
    if target.dtype != torch.long:
        for share in SHARES:
            error = F.mse_loss(share * networks + (1 - share) * kernels, target.to(networks))
            tried.append((float(error), share, 1.0))
    else:
        steady = kernels.softmax(dim=1)
        for factor in FACTORS:
            tempered = (factor * networks).softmax(dim=1)
            for share in SHARES:
                mixed = share * tempered + (1 - share) * steady
                error = -mixed.gather(1, target.unsqueeze(1)).clamp(min=1e-9).log().mean()
                tried.append((float(error), share, factor))
    best = sorted(tried)[: AVERAGED if target.dtype == torch.long else 1]
    return sum(share for _, share, _ in best) / len(best), sum(factor for *_, factor in best) / len(best)
