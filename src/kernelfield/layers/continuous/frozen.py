"""Kernels that are sampled once and reused, for predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...ops.conv.frozen_spectra import keep_spectra, refresh_spectra
from ...ops.graph_cache import capturing

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FrozenKernel"]

#: number of cuts, one per input length and dtype, that a frozen kernel caches at most
MAX_CUTS = 16


class FrozenKernel:
    """A sampled kernel with cached cuts, one per input length and dtype, and their spectra.

    Args:
        values: (out, in / groups, *points) kernel.
        causal: whether offset zero is the first point, not the middle one.

    >>> FrozenKernel(torch.arange(5.0).view(1, 1, 5), causal=False).cut((3,), torch.float32)
    tensor([[[1., 2., 3.]]])
    """

    def __init__(self, values: Tensor, causal: bool) -> None:
        self.values, self.causal = values, causal
        self._cuts: dict[tuple[tuple[int, ...], torch.dtype], Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A copy makes its own cuts, since spectra are not copied with the tensors that they belong to.
        return {**vars(self), "_cuts": {}}

    def cut(self, points: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the middle ``points`` of the kernel along each axis, or the first ones if causal."""
        if torch.compiler.is_compiling():
            return self._part(points).to(dtype)
        found = self._cuts.get((points, dtype))
        if found is None:
            with torch.inference_mode(False), torch.no_grad():
                found = self._part(points).to(dtype)
            if not capturing() and len(self._cuts) < MAX_CUTS:
                self._cuts[points, dtype] = keep_spectra(found)
        return found

    def _part(self, points: tuple[int, ...]) -> Tensor:
        part = self.values.view_as(self.values)
        for axis, keep in enumerate(points, start=2):
            part = part.narrow(axis, 0 if self.causal else (part.shape[axis] - keep) // 2, keep)
        return part

    @torch.no_grad()
    def update_(self, values: Tensor) -> None:
        """Overwrite the kernel and everything derived from it in place, since CUDA graphs read this memory."""
        self.values.copy_(values)
        for (points, dtype), cut in self._cuts.items():
            if dtype != self.values.dtype:
                cut.copy_(self._part(points))
            refresh_spectra(cut)
