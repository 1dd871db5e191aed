"""Compare the tensor-core convolution with an FFT the first time a shape is used, on two of its channels.

The Triton compiler has not been tested on every GPU and every layout. If the results differ by more than rounding, the
check warns, and the FFT convolves this shape from then on.
"""

from __future__ import annotations

import math
import os
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..fft import transform_conv, transform_grads

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TOLERANCE", "is_refused", "refuse", "verified_conv", "verified_grads"]

#: largest relative error attributed to rounding, several times the measured error
TOLERANCE = {"bfloat16": 0.05, "tf32": 0.02, "tf32x3": 1e-4}
#: whether results are compared at all
CHECKS = os.environ.get("KERNELFIELD_CHECK") != "0"

_verified: set[Any] = set()
_refused: set[Any] = set()


def is_refused(x: Tensor, kernel: Tensor) -> bool:
    """Return whether these shapes failed the comparison, so that the FFT convolves them."""
    return bool(_refused and _key(x, kernel) in _refused)


def refuse(x: Tensor, kernel: Tensor, why: str) -> None:
    """Use the FFT for these shapes from now on, and warn once."""
    _refused.add(_key(x, kernel))
    what = f"tensor-core convolution of {tuple(x.shape)} with {tuple(kernel.shape)}, {x.dtype}, {why}"
    warnings.warn(f"{what}; the FFT is used from now on", stacklevel=2)


def verified_conv(y: Tensor, x: Tensor, kernel: Tensor, products: str, causal: bool, periodic: list[bool]) -> Tensor:
    """Return ``y`` if it is the convolution of ``x`` and ``kernel``, else their convolution by FFT.

    Args:
        y: the result to verify.
        x: (batch, channels, *lengths) signal.
        kernel: (channels, 1, *points).
        products: the precision of the products, a key of ``TOLERANCE``.
        causal: as in :func:`kernelfield.ops.conv`.
        periodic: for each axis, whether it is periodic.

    >>> x, k = torch.randn(3, 4, 20), torch.randn(4, 1, 20)
    >>> y = transform_conv(x, k, True, [False], 4)
    >>> verified_conv(y, x, k, "tf32", True, [False]) is y
    True
    """
    key = _key(x, kernel), "output", causal, *periodic, products
    if not _is_due(key, x):
        return y
    (a, b), groups = _ends(x, kernel)
    expected = transform_conv(a, b, causal, periodic, groups)
    scale = (_norms(a) * b.flatten(1).norm(dim=1)).norm()
    if _agrees(key, products, (y[:, :: _stride(y)], expected, scale)):
        return y
    refuse(x, kernel, "is wrong on this GPU")
    return transform_conv(x, kernel, causal, periodic, x.shape[1])


def verified_grads(
    grads: tuple[Tensor, Tensor],
    grad: Tensor,
    x: Tensor,
    kernel: Tensor,
    products: str,
    need: tuple[bool, bool],
    causal: bool,
    periodic: list[bool],
) -> tuple[Tensor, Tensor]:
    """Return ``grads`` if they are correct, else the gradients by FFT; ``need`` marks the gradients to compare."""
    key = _key(x, kernel), "gradients", *need, causal, *periodic, products
    if not _is_due(key, x):
        return grads
    (a, b), groups = _ends(x, kernel)
    g = grad[:, :: _stride(grad)].float()
    expected = transform_grads(g, a, b, need, causal, periodic, groups)
    triples = []
    if need[0]:
        triples.append((grads[0][:, :: _stride(x)], expected[0], (_norms(g) * b.flatten(1).norm(dim=1)).norm()))
    if need[1]:
        triples.append((grads[1][:: _stride(x)], expected[1], (_norms(g) * _norms(a)).norm()))
    if _agrees(key, products, *triples):
        return grads
    refuse(x, kernel, "has wrong gradients on this GPU")
    return transform_grads(grad, x, kernel, need, causal, periodic, x.shape[1])


def _key(x: Tensor, kernel: Tensor) -> Any:
    return tuple(x.shape), tuple(kernel.shape), x.dtype, x.device


def _is_due(key: Any, x: Tensor) -> bool:
    """Return whether a comparison is still to be made and possible; during graph capture nothing is computed."""
    if not CHECKS or key in _verified or x.numel() == 0:
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _stride(x: Tensor) -> int:
    """Return the stride that selects the first and the last channel."""
    return max(1, x.shape[1] - 1)


def _ends(x: Tensor, kernel: Tensor) -> tuple[Iterator[Tensor], int]:
    """Return the first and the last channel of both in float32, and the number of channels selected."""
    step = _stride(x)
    return (t.float() for t in (x[:, ::step], kernel[::step])), min(2, x.shape[1])


def _norms(x: Tensor) -> Tensor:
    """Return the norm of each channel of each signal."""
    return x.flatten(2).norm(dim=2)


def _agrees(key: Any, products: str, *triples: tuple[Tensor, Tensor, Tensor]) -> bool:
    """Return whether each found tensor is close to the expected one; mark ``key`` as verified if this was conclusive.

    The error is relative to ``scale``, the norms of the factors, because spectra are rounded before terms cancel.
    Values that are all zero or not finite are inconclusive.
    """
    conclusive = True
    for found, expected, scale in triples:
        size = torch.maximum(scale, expected.norm())
        error, size = torch.stack([(found.float() - expected).norm(), size]).tolist()
        if not math.isfinite(size) or size == 0:
            conclusive = False
        elif not error <= TOLERANCE[products] * size:
            return False
    if conclusive:
        _verified.add(key)
    return True
