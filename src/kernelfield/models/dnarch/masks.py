"""The sizes that the masks of a :class:`DNArch` keep, as Python numbers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from ...layers import LearnedSize, cutoff
from ...masks import GaussianMask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ...masks import Mask, SigmoidMask

__all__ = ["MaskSizes", "cell_centres"]


class MaskSizes(LearnedSize):
    """Numbers of channels and blocks, and shares of the band, that the masks of a :class:`DNArch` keep."""

    def __init__(
        self,
        width: SigmoidMask | None,
        resolution: SigmoidMask | None,
        depth: SigmoidMask | None,
        kernels: Sequence[Mask],
        channels: int,
        blocks: int,
        least_size: int,
        fixed: bool,
    ) -> None:
        self.width, self.resolution, self.depth, self.kernels = width, resolution, depth, tuple(kernels)
        super().__init__([m for m in (width, resolution, depth, *kernels) if m is not None])
        self.channels, self.blocks, self.least_size, self.fixed = channels, blocks, least_size, fixed
        self.kept_blocks = blocks
        self.kept_widths: list[tuple[int, int, int]] = [(channels, channels, channels)] * blocks
        self.kept_bands: list[tuple[float, ...]] = []
        self.read()

    def unfixed(self) -> MaskSizes:
        """Return the sizes of the same masks without fixed shapes."""
        masks = self.width, self.resolution, self.depth, self.kernels
        return MaskSizes(*masks, self.channels, self.blocks, self.least_size, fixed=False)

    def measure(self) -> list[Tensor]:
        parts: list[Tensor] = []
        if self.fixed:
            return parts
        if self.width is not None:
            kept = self.width.values(cell_centres(self.channels, self.width.offset)) > 0
            parts.append(kept.sum(dim=0).double())
        if self.resolution is not None:
            parts.append(self.resolution.roots()[1].double())
        if self.depth is not None:
            kept = self.depth.values(cell_centres(self.blocks, self.depth.offset)) > 0
            parts.append(kept.sum(dim=0).double())
        return parts

    def update(self, numbers: Sequence[float], slack: float = 0.0) -> None:
        more = 1 if slack else 0  # a channel that the mask does not keep is multiplied by zero
        if self.width is not None:
            counts, numbers = numbers[: 3 * self.blocks], numbers[3 * self.blocks :]
            # A layer has at least one channel; an empty mask multiplies it by zero.
            kept = [min(self.channels, max(1, int(count) + more)) for count in counts]
            self.kept_widths = [(kept[i], kept[i + 1], kept[i + 2]) for i in range(0, len(kept), 3)]
        if self.resolution is not None:
            dim = self.resolution.dim // self.blocks
            roots, numbers = numbers[: dim * self.blocks], numbers[dim * self.blocks :]
            shares = [cutoff(root) for root in roots]
            self.kept_bands = [tuple(shares[i : i + dim]) for i in range(0, len(shares), dim)]
        if self.depth is not None:
            self.kept_blocks = int(numbers[0])

    @property
    def shapes(self) -> Any:
        return self.kept_blocks, *self.kept_widths, *self.kept_bands

    @torch.no_grad()
    def clamp_(self) -> None:
        for mask in (self.width, self.resolution, self.depth):
            if mask is not None:
                mask.offset.clamp_(*mask.limits())
        for kernel in self.kernels:
            # A kernel of one point would get no gradient that makes it grow.
            if isinstance(kernel, GaussianMask):
                kernel.sigma.clamp_(min=kernel.sigma_for(1.001 / self.least_size))

    def _arguments(self) -> tuple[Any, ...]:
        held = self.width, self.resolution, self.depth, self.kernels
        return *held, self.channels, self.blocks, self.least_size, self.fixed

    def __deepcopy__(self, memo: dict[int, Any]) -> MaskSizes:
        return MaskSizes(*(copy.deepcopy(value, memo) for value in self._arguments()))

    def __reduce__(self) -> tuple[Any, ...]:
        return MaskSizes, self._arguments()


def cell_centres(count: int, like: Tensor) -> Tensor:
    """Return the centres of ``count`` equal cells of [-1, 1], (count, 1): coordinates of channels or blocks."""
    return ((2 * torch.arange(count, dtype=like.dtype, device=like.device) + 1) / count - 1).unsqueeze(1)
