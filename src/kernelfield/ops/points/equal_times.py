"""Samples that have the same time."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["group_times", "sum_at_equal_times"]


def group_times(times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sort (batch, points) times; return them, their order, and the number of each one's group of equal times.

    >>> group_times(torch.tensor([[2.0, 1.0, 2.0]]))
    (tensor([[1., 2., 2.]]), tensor([[1, 0, 2]]), tensor([[0, 1, 1]]))
    """
    ordered, order = times.sort(dim=1, stable=True)
    first = torch.cat([torch.zeros_like(order[:, :1]), (ordered[:, 1:] != ordered[:, :-1]).long()], dim=1)
    return ordered, order, first.cumsum(dim=1)


def sum_at_equal_times(values: Tensor, times: Tensor, at: Tensor) -> Tensor:
    """Return the (batch, channels, queries) sums of the values at the time of each query; zero if there are none.

    Args:
        values: (batch, channels, points) values.
        times: (batch, points) times of the values.
        at: (batch, queries) times of the queries.

    >>> values, times = torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[5.0, 1.0, 5.0]])
    >>> sum_at_equal_times(values, times, torch.tensor([[5.0, 6.0]]))
    tensor([[[4., 0.]]])
    """
    ordered, order, group = group_times(times)
    every = order.unsqueeze(1).expand(values.shape)
    sums = torch.zeros_like(values).scatter_add(2, group.unsqueeze(1).expand(values.shape), values.gather(2, every))
    found = torch.searchsorted(ordered, at.contiguous()).clamp(max=times.shape[1] - 1)
    same = ordered.gather(1, found) == at
    index = group.gather(1, found).unsqueeze(1).expand(-1, values.shape[1], -1)
    return sums.gather(2, index) * same.unsqueeze(1)
