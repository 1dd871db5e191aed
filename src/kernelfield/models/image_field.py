"""A field as a network that maps positions to the values of an image."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._arguments import checked
from .._module_state import in_full_precision
from .._object_kinds import TensorOf
from ..fields import SIREN, FourierFilter, GaborFilter, MAGNet, build_field
from .classifier import Classifier
from .registry import register

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..fields import Field

__all__ = ["ImageField"]


class ImageField(Classifier):
    r"""A field as a network that maps positions to values (chapter 5, appendix "Image Fitting Datasets").

    .. math:: y_c(i) = \psi_c\big(x(i)\big)

    Fitting images measures which kernels a field can represent. Pixel i of n along an axis lies at 2 i / (n - 1) - 1.

    Args:
        in_channels: number of coordinates of a position.
        out_channels: number of values, 3 for colours.
        field: makes a field from (dim, channels).

    >>> positions = torch.rand(1, 2, 6, 4) * 2 - 1
    >>> ImageField(2, 3, field=MAGNet)(positions).shape
    torch.Size([1, 3, 6, 4])
    """

    @checked()
    def __init__(self, in_channels: int = 2, out_channels: int = 3, *, field: Callable[..., Field] = MAGNet) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.dim = in_channels, out_channels, in_channels
        self.field = build_field(field, in_channels, out_channels)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ImageField:
        # Its input are coordinates, which half precision would round to a few hundred positions.
        super()._apply(in_full_precision(fn), recurse)
        return self

    @checked(x=TensorOf("float", "batch, channels, *space", empty=False))
    def forward(self, x: Tensor) -> Tensor:
        """Return the values at positions from -1 to 1, on a grid or not: (batch, in, …) to (batch, out, …)."""
        if x.shape[1] != self.in_channels:
            raise ValueError(f"x must be (batch, {self.in_channels} coordinates, ...), got shape {tuple(x.shape)}")
        if not torch.compiler.is_compiling() and x.dtype != (dtype := next(self.parameters()).dtype):
            raise TypeError(f"x must have the dtype of the field, {dtype}, got {x.dtype}")
        return self.field(x.movedim(1, -1)).movedim(-1, 1)


# Ten linear maps give the published parameter counts, 7.36k, 7.11k, 7.40k and 7.14k. The scales and widths below fit
# photographs better than the authors' defaults, a scale of 256, α = 6 and β = 1 (docs/results.md).
def _filters(kind: Callable[..., Field], input_scale: float, hidden: int = 23, **options: Any) -> Callable[..., Field]:
    """Return a filter network with ten linear maps; chapter 5's input scale s is 2π·ω₀·√(L + 1)."""
    omega_0 = input_scale / (2 * torch.pi * 11**0.5)
    return partial(kind, hidden=hidden, layers=10, omega_0=omega_0, start="flexconv", **options)


_FIELDS = {
    "magnet": _filters(MAGNet, 1024, alpha=1.5),
    "magnet_equal": _filters(MAGNet, 512, alpha=3.0, envelopes="equal"),
    "gabor": _filters(GaborFilter, 4096, beta=8.0),
    "gabor_varied": _filters(GaborFilter, 2048, alpha=3.0, beta=4.0, envelopes="varied"),
    "fourier": _filters(FourierFilter, 64, hidden=25),
    "siren": partial(SIREN, hidden=29, layers=10, start="flexconv"),
}
_WORDS = {
    "magnet": "a MAGNet",
    "magnet_equal": "a MAGNet, original initialisation",
    "gabor": "a Gabor filter network, original initialisation",
    "gabor_varied": "a Gabor filter network",
    "fourier": "a Fourier filter network",
    "siren": "a SIREN",
}
for _name, _field in _FIELDS.items():
    register(f"image_{_name}", ImageField, f"an image as {_WORDS[_name]} (chapter 5)", field=_field)
