"""The weight of each sample of an input, on a grid or at points."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..._arguments import checked
from ..._checks import check_choice
from ..._object_kinds import TensorOf
from ...ops import sample_density
from ...ops.points.finite import may_read

__all__ = ["sample_weight", "seen_only"]


@checked(x=TensorOf("any", "batch, channels, *space"), mask=TensorOf("bool", "batch, *space") | None)
def seen_only(x: Tensor, mask: Tensor | None) -> Tensor:
    r"""Set values at unseen positions, which may be NaN, to zero.

    Args:
        x: (batch, channels, \*space) values.
        mask: (batch, \*space), True where a position was seen; None if all were.

    Returns:
        (batch, channels, \*space) values.

    >>> seen_only(torch.tensor([[[1.0, float("nan")]]]), torch.tensor([[True, False]]))
    tensor([[[1., 0.]]])
    """
    return x if mask is None else x.masked_fill(~mask.unsqueeze(1), 0)


def sample_weight(
    coords: Tensor | None,
    mask: Tensor | None,
    density: Tensor | str | None,
    steps: tuple[float, ...],
    causal: bool = False,
) -> Tensor | None:
    """Return the weight of each sample, (batch, points) or (batch, *space); None if all weights are equal."""
    if density is None:
        return mask
    if isinstance(density, str):
        check_choice("density", density, ("estimate",))
        if coords is None:
            raise ValueError("density must be a tensor if there are no coords to estimate it from, got 'estimate'")
        if mask is not None:
            coords = coords.expand(mask.shape[0], -1, -1)
        density = sample_density(coords, mask, causal=causal)
    else:
        _check_density(density, mask)
    # A grid has one sample per step. Weights are relative to that density.
    weight = 1 / (density * math.prod(steps))
    return weight if mask is None else torch.where(mask, weight, 0.0)


def _check_density(density: Tensor, mask: Tensor | None) -> None:
    """Raise a ValueError unless the density of every seen sample is positive and finite, if the host may read it."""
    if not may_read(density):
        return
    good = (density > 0) & density.isfinite()
    good = good if mask is None else good | ~mask
    if not bool(good.all()):
        wrong = (density if mask is None else density.expand(mask.shape))[~good]
        raise ValueError(f"density must be above 0 and finite where a sample was seen, got {float(wrong[0])}")
