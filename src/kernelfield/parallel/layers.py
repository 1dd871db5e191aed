"""Mixins that ``shard`` adds to norms, dropout and readouts for signals that are split over processes.

A mixin overrides only the operations that depend on other slabs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..layers import BatchNorm, CumulativeNorm, Dropout, Pointwise
from ..models.readout import Readout
from ..ops.fused.synced_norm import sum_over_processes
from .dropout import drop_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .slabs import Slabs

__all__ = ["SplitBatchNorm", "SplitCumulativeNorm", "SplitDropout", "SplitGroupNorm", "SplitPointwise", "SplitReadout"]


class SplitBatchNorm(BatchNorm):
    """Batch statistics over the mesh in training and, without running statistics, over the context group otherwise."""

    slabs: Slabs

    def process_groups(self) -> Sequence[Any] | None:
        if self.training:
            return self.slabs.groups
        return None if self.running_mean is not None else (self.slabs.group,)


class SplitGroupNorm(nn.GroupNorm):
    """A norm whose means and variances are over all slabs."""

    slabs: Slabs

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        values = input if input.dtype == torch.float64 else input.float()
        grouped = values.reshape(len(input), self.num_groups, -1)
        count = grouped.shape[-1] // input.shape[2] * self.slabs.total
        mean = sum_over_processes(grouped.sum(dim=-1, keepdim=True), [self.slabs.group]) / count
        centred = grouped - mean
        variance = sum_over_processes(centred.square().sum(dim=-1, keepdim=True), [self.slabs.group]) / count
        y = (centred * torch.rsqrt(variance + self.eps)).view(input.shape)
        if self.weight is not None:
            shape = (-1, *(1,) * (input.dim() - 2))
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(input.dtype)


class SplitCumulativeNorm(CumulativeNorm):
    """A norm whose cumulative sums continue those of the slabs before."""

    slabs: Slabs

    def forward(self, x: Tensor) -> Tensor:
        own = torch.stack(self.sums(x))
        slabs = self.slabs
        # Each process adds the totals of the slabs before its own.
        totals = own.new_zeros(slabs.size, *own.shape[:-1])
        totals = totals.index_add(0, torch.tensor([slabs.rank], device=x.device), own[..., -1].unsqueeze(0))
        before = sum_over_processes(totals, [slabs.group])[: slabs.rank].sum(dim=0)
        count = torch.arange(1, x.shape[-1] + 1, dtype=torch.float64, device=x.device) + slabs.start
        mean, square = (own + before.unsqueeze(-1)) / count
        return self.normalise(x, mean, square)


class SplitDropout(Dropout):
    """Dropout with the random numbers that one process would draw for the whole signal."""

    slabs: Slabs

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.p) or self.kind == "channels":
            return super().forward(x)
        self.slabs.check(x)
        return drop_part(x, self.p, 2, self.slabs.start, self.slabs.total, few_bits=self.few_bits)


class SplitPointwise(Pointwise):
    """A linear map whose dropout uses the random numbers of the whole signal."""

    slabs: Slabs

    def forward(self, x: Tensor, *, dropout: float = 0.0, residual: Tensor | None = None, **how: Any) -> Tensor:
        if not dropout or how.get("dropout_channels"):
            return super().forward(x, dropout=dropout, residual=residual, **how)
        self.slabs.check(x)
        y = drop_part(super().forward(x, **how), dropout, 2, self.slabs.start, self.slabs.total)
        return y if residual is None else y + residual


class SplitReadout(Readout):
    """A readout that averages over all slabs, or reads the last position of the last slab."""

    slabs: Slabs

    def pool(self, x: Tensor, seen: Tensor | None) -> Tensor:
        slabs = self.slabs
        groups = [slabs.group]
        if self.kind == "mean":
            wide = torch.promote_types(x.dtype, torch.float32)  # as in Readout
            if seen is None:
                count = x.shape[-1] // slabs.lengths[slabs.rank] * slabs.total
                return (sum_over_processes(x.sum(dim=2, dtype=wide), groups) / count).to(x.dtype)
            weight = seen.unsqueeze(1).to(x.dtype)
            parts = [(x * weight).sum(dim=2, dtype=wide), weight.sum(dim=2, dtype=wide)]
            sums = sum_over_processes(torch.cat(parts, dim=1), groups)
            return (sums[:, :-1] / sums[:, -1:].detach().clamp(min=1)).to(x.dtype)
        pooled = super().pool(x, seen)
        if seen is None:
            has_last = torch.full((len(x),), slabs.rank == slabs.size - 1, device=x.device)
        else:
            # The last slab with a seen position; the first slab if there is none, as for a whole signal.
            any_seen = torch.zeros(slabs.size, len(x), dtype=x.dtype, device=x.device)
            any_seen[slabs.rank] = seen.any(dim=1).to(x.dtype)
            ranks = torch.arange(slabs.size, device=x.device).unsqueeze(1)
            last = torch.where(sum_over_processes(any_seen, groups) > 0, ranks, 0).amax(dim=0)
            has_last = last == slabs.rank
        return sum_over_processes(torch.where(has_last.unsqueeze(1), pooled, 0.0), groups)
