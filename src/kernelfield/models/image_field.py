"""A field as a network: an image as a function of position."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._arguments import checked
from .._object_kinds import TensorOf
from ..fields import SIREN, FourierFilter, GaborFilter, MAGNet, build_field
from .classifier import Classifier
from .registry import register

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..fields import Field

__all__ = ["ImageField"]


class ImageField(Classifier):
    r"""A field sampled at the positions of its input; the values of the input are ignored (chapter 5, appendix).

    .. math:: y_c(i) = \psi_c\big(2 i / (n - 1) - 1\big)

    How well a field fits images shows which kernels it can represent.

    Args:
        in_channels: accepted like in other networks; the values are not used.
        out_channels: number of values, 3 for colours.
        dim: number of spatial axes.
        field: makes a field from (dim, channels).

    >>> ImageField(1, 3, field=MAGNet)(torch.zeros(1, 1, 6, 4)).shape
    torch.Size([1, 3, 6, 4])
    """

    @checked()
    def __init__(
        self, in_channels: int = 1, out_channels: int = 3, *, dim: int = 2, field: Callable[..., Field] = MAGNet
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.dim = in_channels, out_channels, dim
        self.field = build_field(field, dim, out_channels)

    @checked(x=TensorOf("float", "batch, channels, *space", empty=False))
    def forward(self, x: Tensor) -> Tensor:
        """Return the field on the grid of ``x``: (batch, in, …) to (batch, out, …)."""
        if x.dim() != self.dim + 2:
            raise ValueError(f"x must be (batch, channels, {self.dim} axes), got shape {tuple(x.shape)}")
        # arange, not linspace: lengths may be dynamic.
        axes = [torch.arange(n, dtype=x.dtype, device=x.device) * (2 / max(n - 1, 1)) - 1 for n in x.shape[2:]]
        if not torch.compiler.is_compiling() and x.dtype != (dtype := next(self.parameters()).dtype):
            raise TypeError(f"x must have the dtype of the field, {dtype}, got {x.dtype}")
        coords = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
        values = self.field(coords).movedim(-1, 0)
        return values.unsqueeze(0).expand(len(x), *values.shape)


# The published sizes, 7.36k, 7.11k, 7.40k and 7.14k, are those of ten linear maps; the published input scale of 256 is
# 2π·ω₀·√(L + 1).
_SCALE = 256 / (2 * torch.pi * 11**0.5)
_FIELDS = {
    "magnet": partial(MAGNet, hidden=23, layers=10, omega_0=_SCALE, start="flexconv"),
    "magnet_equal": partial(MAGNet, hidden=23, layers=10, omega_0=_SCALE, start="flexconv", envelopes="equal"),
    "gabor": partial(GaborFilter, hidden=23, layers=10, omega_0=_SCALE, start="flexconv"),
    "gabor_varied": partial(GaborFilter, hidden=23, layers=10, omega_0=_SCALE, start="flexconv", envelopes="varied"),
    "fourier": partial(FourierFilter, hidden=25, layers=10, omega_0=_SCALE, start="flexconv"),
    "siren": partial(SIREN, hidden=29, layers=10, start="flexconv"),
}
for _name, _field in _FIELDS.items():
    register(f"image_{_name}", ImageField, f"an image as a {_name.replace('_', ' ')} field (chapter 5)", field=_field)
