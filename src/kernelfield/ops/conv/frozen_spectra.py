"""Cached spectra of frozen kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ..graph_cache import capturing

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["KEPT", "KeptSpectra", "keep_spectra", "refresh_spectra"]

#: largest size of the cached spectra of a kernel, in bytes; further spectra are computed at every call
MOST_BYTES = 256 << 20
#: spectra of the kernels marked by :func:`keep_spectra`, as long as the kernels live; empty unless layers are frozen
KEPT = WeakTensorKeyDictionary()


class KeptSpectra:
    """The cached spectra of one kernel, by transform.

    A CUDA graph may read them, so they are never replaced. After a change of the kernel they are recomputed in place.
    """

    def __init__(self) -> None:
        self.entries: dict[Any, tuple[Callable[[Tensor], tuple[Tensor, ...]], tuple[Tensor, ...]]] = {}
        self.bytes = 0
        self._version = -1

    def get(
        self, key: Any, kernel: Tensor, compute: Callable[[Tensor], tuple[Tensor, ...]], size: int
    ) -> tuple[Tensor, ...] | None:
        """Return ``compute(kernel)``, cached at the first call; None if it cannot be cached.

        Args:
            key: key of the transform.
            kernel: the kernel of these spectra.
            compute: function that computes the spectra of a kernel.
            size: approximate size of the spectra in bytes.
        """
        if kernel.is_inference():  # an inference tensor does not record its changes
            return None
        if self.entries and self._version != kernel._version:  # noqa: SLF001
            self.refresh(kernel)
        found = self.entries.get(key)
        if found is not None:
            return found[1]
        # Tensors computed during a graph capture have no values before the graph is replayed.
        if self.bytes + size > MOST_BYTES or capturing():
            return None
        with torch.inference_mode(False), torch.no_grad():
            values = compute(kernel)
        self.entries[key] = compute, values
        self.bytes += size
        self._version = kernel._version  # noqa: SLF001
        return values

    @torch.no_grad()
    def refresh(self, kernel: Tensor) -> None:
        """Compute all spectra again, in place."""
        for compute, values in self.entries.values():
            for old, new in zip(values, compute(kernel), strict=True):
                old.copy_(new)
        self._version = kernel._version  # noqa: SLF001


def keep_spectra(kernel: Tensor) -> Tensor:
    """Mark a kernel as one that is used many times, so that convolutions without a gradient cache its spectra.

    >>> from kernelfield.ops import conv
    >>> x, kernel = torch.randn(2, 4, 64), keep_spectra(torch.randn(4, 1, 64))
    >>> y = conv(x, kernel, causal=True, groups=4, method="fft")
    >>> len(KEPT[kernel].entries)
    1
    """
    KEPT[kernel] = KeptSpectra()
    return kernel


def refresh_spectra(kernel: Tensor) -> None:
    """Compute kept spectra again after a change of the kernel, for CUDA graphs that read them."""
    kept = KEPT.get(kernel)
    if kept is not None:
        kept.refresh(kernel)
