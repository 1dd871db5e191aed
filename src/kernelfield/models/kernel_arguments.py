"""Arguments that networks with continuous kernels share, and the convolutions made from them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .._arguments import checked
from .._kinds import POSITIVE, TEXT, Int, Kind
from ..fields import SIREN, Field, FourierFilter, GaborFilter, MAGNet
from ..fields.base import field_options
from ..layers import CKConv, FlexConv

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from ..masks import Mask

__all__ = ["KERNEL_FIELDS", "KERNEL_KINDS", "KERNEL_WORDS", "conv_factory", "kernel_reach"]

#: kinds of the arguments that describe kernels; see :func:`kernelfield._arguments.checked`
KERNEL_KINDS: dict[str, Kind] = {
    "dim": Int(1, 3),
    "omega_0": POSITIVE | None,
    "hidden_omega_0": POSITIVE | None,
    "start": TEXT | None,
    "sigma": POSITIVE | None,
}
#: the fields with which chapter 5 compares MAGNet
KERNEL_FIELDS: dict[str, type[Field]] = {"siren": SIREN, "fourier": FourierFilter, "gabor": GaborFilter}
#: their names in descriptions of networks
KERNEL_WORDS = {"siren": "SIREN", "fourier": "Fourier", "gabor": "Gabor"}


def kernel_reach(size: int | Sequence[int], kernel_size: int | None, *, causal: bool = False) -> int | Sequence[int]:
    """Return how far kernels of ``kernel_size`` points reach, in training steps; ``size`` if it is not given.

    A kernel of k points ends (k - 1)/2 steps from its centre, and a causal one k - 1 steps in the past.

    >>> kernel_reach(32, 33), kernel_reach(32, 33, causal=True), kernel_reach(32, None)
    (17, 33, 32)
    """
    if kernel_size is None:
        return size
    if causal:
        return kernel_size
    if kernel_size % 2 == 0:
        raise ValueError(f"kernel_size must be odd for kernels with a centre, got {kernel_size}")
    return (kernel_size + 1) // 2


@checked(**KERNEL_KINDS, default_start=TEXT)
def conv_factory(
    *,
    field: Callable[..., Field] = MAGNet,
    hidden: int = 32,
    omega_0: float | None = None,
    hidden_omega_0: float | None = None,
    start: str | None = None,
    default_start: str = "flexconv",
    sigma: float | None = 0.0375,
    mask: Callable[..., Mask] | Mask | None = None,
    **options: Any,
) -> Callable[[int, int], nn.Module]:
    """Return a function that makes dense convolutions from their channels, by default those of chapter 5's images.

    Args:
        field: makes each kernel's field.
        hidden: width of the kernel networks.
        omega_0: frequency scale of the kernel networks; the field's own default if not given.
        hidden_omega_0: frequency scale of a SIREN's hidden layers; ``omega_0`` if not given.
        start: starting values of the kernel networks; see :mod:`kernelfield.fields.start`.
        default_start: starting values without ``start``, for fields that have them.
        sigma: initial width of Gaussian masks on the kernels.
        mask: another mask in place of the Gaussian. Without ``sigma`` and ``mask``, kernels are global.
        options: further arguments of :class:`CKConv` or :class:`FlexConv`: dim, size and others.

    >>> conv_factory(sigma=None, size=16)(2, 3).extra_repr()
    '2, 3, dim=1, size=(16,), causal=False'
    """
    widths = {"hidden": hidden, "omega_0": omega_0, "hidden_omega_0": hidden_omega_0}
    options["field"] = field_options(field, default_start=default_start, start=start, **widths)
    if mask is not None:
        return partial(FlexConv, mask=mask, **options)
    return partial(CKConv, **options) if sigma is None else partial(FlexConv, sigma=sigma, **options)
