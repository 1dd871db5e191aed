"""Residual branches at a learned resolution, of signals that are split over processes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..layers import BandLimit, CCNNBlock, seen_only
from ..layers.continuous.sampling import sample_weight
from .collectives import channels_to_space, space_to_channels
from .scatter import gather_slabs
from .slabs import Slabs, split_length

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ..layers import ActiveSlice, ContinuousConv

__all__ = ["SplitBandLimit", "SplitBlock"]


class SplitBlock(CCNNBlock):
    """A block whose residual branch may have slabs of different lengths than its input."""

    slabs: Slabs

    def forward(self, x: Tensor, *, active: ActiveSlice | None = None, **how: Any) -> Tensor:
        active = self.active if active is None else active
        if active is not None and isinstance(active.band_limit, BandLimit):
            limit: Any = SplitBandLimit(active.band_limit, self.slabs)
            active = replace(active, band_limit=limit)
        return super().forward(x, active=active, **how)


@dataclass
class SplitBandLimit:
    """A :class:`~kernelfield.layers.BandLimit` of slabs. Resampling exchanges channels for space.

    Args:
        limit: the frequencies of a block.
        slabs: the processes; between :meth:`down` and :meth:`up` their slabs have the low resolution.
        before: lengths of the slabs of the input.
    """

    limit: BandLimit
    slabs: Slabs
    before: tuple[int, ...] = ()

    def down(self, layer: ContinuousConv, x: Tensor, sampling: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """Return ``x`` at the low resolution, and the sampling arguments with which ``layer`` convolves it."""
        step, mask, density = sampling.get("step", 1.0), sampling.get("mask"), sampling.get("density")
        weight = None
        if mask is not None or density is not None:
            steps = (step,) * layer.dim if isinstance(step, (int, float)) else tuple(step)
            x, weight = seen_only(x, mask), sample_weight(None, mask, density, steps)
        if weight is not None:
            x = x * weight.unsqueeze(1).to(x.dtype)
        how: dict[str, Any] = {}

        def resample(whole: Tensor) -> Tensor:
            low, given = self.limit.down(layer, whole, {"step": step})
            how.update(given)
            return low

        self.before = self.slabs.lengths
        return self._resampled(x, resample), how

    def up(self, x: Tensor, lengths: Sequence[int], sampling: dict[str, Any]) -> Tensor:
        """Return ``x`` at the input's resolution."""
        whole = (sum(self.before), *lengths[1:])
        return self._resampled(x, lambda low: self.limit.up(low, whole, sampling), self.before)

    def _resampled(
        self, x: Tensor, resample: Callable[[Tensor], Tensor], lengths: tuple[int, ...] | None = None
    ) -> Tensor:
        """Resample a signal that is split, to slabs of these ``lengths`` or of nearly equal ones."""
        slabs, channels = self.slabs, x.shape[1]
        split = channels >= slabs.size
        y = resample(space_to_channels(x, slabs) if split else gather_slabs(x, slabs, 2))
        if y.shape[2] < slabs.size:
            raise ValueError(
                f"network must keep at least one sample on each of the {slabs.size} processes, got a block whose "
                f"learned resolution keeps {y.shape[2]} in total"
            )
        slabs.lengths = split_length(y.shape[2], slabs.size) if lengths is None else lengths
        if split:
            return channels_to_space(y, channels, slabs)
        return y.narrow(2, slabs.start, slabs.lengths[slabs.rank])
