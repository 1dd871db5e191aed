"""Fitting a field to values at known points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .._arguments import checked
from .._kinds import POSITIVE, Int
from .._object_kinds import Instance, TensorOf

if TYPE_CHECKING:
    from torch import Tensor

    from .base import Field

__all__ = ["fit_field"]


@checked(
    field=Instance("kernelfield.fields.Field"),
    coords=TensorOf("float", "points, dim", empty=False),
    values=TensorOf("float", "points, channels", empty=False),
    steps=Int(1),
    lr=POSITIVE,
)
def fit_field(field: Field, coords: Tensor, values: Tensor, *, steps: int = 500, lr: float = 0.01) -> list[float]:
    r"""Fit a field to values at given points with Adam, in place, and return the mean squared error before each step.

    .. math:: \min_\theta \tfrac{1}{PC} \sum_{p, c} \big(\psi_c(x_p; \theta) - v_{pc}\big)^2

    Chapters 2 and 5 compare fields by how well they fit step functions, noise, Gabor filters and photographs.

    Args:
        field: the field ψ; its parameters θ change in place.
        coords: (points, dim) coordinates x.
        values: (points, channels) values v.
        steps: number of steps of Adam, each on all points.
        lr: learning rate.

    >>> from kernelfield.fields import SIREN
    >>> t = torch.linspace(-1, 1, 40)[:, None]
    >>> errors = fit_field(SIREN(1, 1), t, t.sign(), steps=20)
    >>> len(errors), errors[-1] < errors[0]
    (20, True)
    """
    if not len(coords):
        raise ValueError(f"coords must have at least one point, got {tuple(coords.shape)}")
    if values.shape != (len(coords), field.channels):
        raise ValueError(
            f"values must be ({len(coords)}, {field.channels}), one for each point and channel, got "
            f"{tuple(values.shape)}"
        )
    optimizer = torch.optim.Adam(field.parameters(), lr=lr)
    errors = []
    for _ in range(steps):
        error = (field(coords) - values).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(error.detach())
    field._keeps_scale = True  # noqa: SLF001
    return torch.stack(errors).tolist()
