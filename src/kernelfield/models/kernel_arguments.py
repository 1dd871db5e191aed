"""Arguments that networks of continuous kernels have in common, and the convolutions that they make from them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .._kinds import POSITIVE, TEXT, Int, Kind
from ..fields import SIREN, Field, FourierFilter, GaborFilter
from ..layers import CKConv, FlexConv

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from ..masks import Mask

__all__ = ["KERNEL_FIELDS", "KERNEL_KINDS", "conv_factory", "kernel_reach"]

#: kinds of the arguments that describe kernels; see :func:`kernelfield._arguments.checked`
KERNEL_KINDS: dict[str, Kind] = {
    "dim": Int(1, 3),
    "omega_0": POSITIVE | None,
    "start": TEXT | None,
    "sigma": POSITIVE | None,
}
#: the fields that chapter 5 compares with its own
KERNEL_FIELDS: dict[str, type[Field]] = {"siren": SIREN, "fourier": FourierFilter, "gabor": GaborFilter}


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


def conv_factory(
    sigma: float | None, mask: Callable[..., Mask] | Mask | None = None, **arguments: Any
) -> Callable[[int, int], nn.Module]:
    """Return a function that makes dense convolutions from their channels.

    Args:
        sigma: initial width of Gaussian masks on the kernels.
        mask: another mask in place of the Gaussian. Without ``sigma`` and ``mask``, kernels are global.
        arguments: further arguments of :class:`CKConv` or :class:`FlexConv`: dim, size, field and others.

    >>> conv_factory(None, size=16)(2, 3).extra_repr()
    '2, 3, dim=1, size=(16,), causal=False'
    """
    if mask is not None:
        return partial(FlexConv, mask=mask, **arguments)
    return partial(CKConv, **arguments) if sigma is None else partial(FlexConv, sigma=sigma, **arguments)
