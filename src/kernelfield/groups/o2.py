"""All rotations of the plane, and the mirror."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .semidirect import RotationsAndMirror
from .so2 import SO2

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["O2"]


class O2(RotationsAndMirror):
    """The rotations of the plane and their mirror images (chapter 11); with translations the group E(2).

    An element is (angle, m) with m = 1 or -1. Samples come in pairs, each rotation with and without the mirror, so
    that neither half is favoured.

    Args:
        chart: where kernels are sampled along the rotations, "algebra" or "circle"; see
            :class:`~kernelfield.groups.SO2`.

    >>> import torch
    >>> O2().spread(4, torch.tensor([0.5])).T / torch.tensor([[torch.pi], [1.0]])
    tensor([[-0.5000,  0.5000, -0.5000,  0.5000],
            [ 1.0000,  1.0000, -1.0000, -1.0000]])
    """

    def __init__(self, chart: str = "algebra") -> None:
        super().__init__(SO2(chart))

    def spread(self, n: int, at: Tensor) -> Tensor:
        if n == 1:  # a single draw: the share says which half, and where in it
            half = (at >= 0.5).to(at.dtype)
            turns = self.rotations.spread(1, 2 * at - half)
            return self.join([1 - 2 * half[:1, None], turns]) if len(at) == 1 else self._rows(1 - 2 * half, turns)
        if n % 2:
            raise ValueError(f"n must be even, as each rotation comes with its mirror image, got {n}")
        signs = self.mirror.elements(at.dtype, at.device)
        return self.join([signs, self.rotations.spread(n // 2, at)])

    def _rows(self, signs: Tensor, turns: Tensor) -> Tensor:
        from torch import cat  # noqa: PLC0415

        return cat([turns, signs[:, None]], dim=-1)
