"""What tensor cores compute is compared with an FFT when a shape is first met, on two of its channels.

Kernels are compiled for a GPU by a compiler that nobody has tried on all GPUs and all layouts. Where results differ by
more than their precision explains, the FFT's are returned, from then on too, and a warning says so.
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

__all__ = ["LARGEST", "is_refused", "refuse", "trusted_conv", "trusted_grads"]

#: relative errors that are taken for rounding, several times what was measured
LARGEST = {"bfloat16": 0.05, "tf32": 0.02, "tf32x3": 1e-4}
#: whether anything is compared
CHECKS = os.environ.get("KERNELFIELD_CHECK") != "0"

_right: set[Any] = set()
_refused: set[Any] = set()


def is_refused(x: Tensor, kernel: Tensor) -> bool:
    """Return whether an FFT has to convolve these."""
    return bool(_refused and _key(x, kernel) in _refused)


def refuse(x: Tensor, kernel: Tensor, why: str) -> None:
    """Leave convolutions of these shapes to an FFT, and say so once."""
    _refused.add(_key(x, kernel))
    says = f"tensor-core convolution of {tuple(x.shape)} with {tuple(kernel.shape)}, {x.dtype}, {why}"
    warnings.warn(f"{says}; an FFT does it from now on", stacklevel=2)


def trusted_conv(y: Tensor, x: Tensor, kernel: Tensor, how: str, causal: bool, periodic: list[bool]) -> Tensor:
    """Return ``y`` or, if it is not the convolution of ``x`` and ``kernel``, that.

    Args:
        y: what was computed.
        x: (batch, channels, *lengths) signal.
        kernel: (channels, 1, *points).
        how: the precision of its products, one of those in ``LARGEST``.
        causal: as in :func:`kernelfield.ops.conv`.
        periodic: which axes are circles.

    >>> x, k = torch.randn(3, 4, 20), torch.randn(4, 1, 20)
    >>> y = transform_conv(x, k, True, [False], 4)
    >>> trusted_conv(y, x, k, "tf32", True, [False]) is y
    True
    """
    key = _key(x, kernel), "output", causal, *periodic, how
    if not _is_due(key, x):
        return y
    (a, b), groups = _ends(x, kernel)
    expected = transform_conv(a, b, causal, periodic, groups)
    scale = (_norms(a) * b.flatten(1).norm(dim=1)).norm()
    if _agrees(key, how, (y[:, :: _stride(y)], expected, scale)):
        return y
    refuse(x, kernel, "is wrong on this GPU")
    return transform_conv(x, kernel, causal, periodic, x.shape[1])


def trusted_grads(
    grads: tuple[Tensor, Tensor],
    grad: Tensor,
    x: Tensor,
    kernel: Tensor,
    how: str,
    need: tuple[bool, bool],
    causal: bool,
    periodic: list[bool],
) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``x`` and ``kernel``, those that are needed, as :func:`trusted_conv` does the output."""
    key = _key(x, kernel), "gradients", *need, causal, *periodic, how
    if not _is_due(key, x):
        return grads
    (a, b), groups = _ends(x, kernel)
    g = grad[:, :: _stride(grad)].float()
    expected = transform_grads(g, a, b, *need, causal, periodic, groups)
    triples = []
    if need[0]:
        triples.append((grads[0][:, :: _stride(x)], expected[0], (_norms(g) * b.flatten(1).norm(dim=1)).norm()))
    if need[1]:
        triples.append((grads[1][:: _stride(x)], expected[1], (_norms(g) * _norms(a)).norm()))
    if _agrees(key, how, *triples):
        return grads
    refuse(x, kernel, "has wrong gradients on this GPU")
    return transform_grads(grad, x, kernel, *need, causal, periodic, x.shape[1])


def _key(x: Tensor, kernel: Tensor) -> Any:
    return tuple(x.shape), tuple(kernel.shape), x.dtype, x.device


def _is_due(key: Any, x: Tensor) -> bool:
    """Return whether a comparison was not made yet, and can be made now: a graph that is captured computes nothing."""
    if not CHECKS or key in _right or x.numel() == 0:
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _stride(x: Tensor) -> int:
    """Return the step that leaves the first channel and the last."""
    return max(1, x.shape[1] - 1)


def _ends(x: Tensor, kernel: Tensor) -> tuple[Iterator[Tensor], int]:
    """Return the first and the last channel of both, in single precision, and how many that are."""
    step = _stride(x)
    return (t.float() for t in (x[:, ::step], kernel[::step])), min(2, x.shape[1])


def _norms(x: Tensor) -> Tensor:
    """Return the norm of every channel of every signal."""
    return x.flatten(2).norm(dim=2)


def _agrees(key: Any, how: str, *triples: tuple[Tensor, Tensor, Tensor]) -> bool:
    """Return whether (found, expected, scale) are near each other, as far as they have values to tell by.

    Spectra are rounded, so that an error is relative to the norms of what is convolved, ``scale``, where these cancel.
    """
    told = True
    for found, expected, scale in triples:
        size = torch.maximum(scale, expected.norm())
        error, size = torch.stack([(found.float() - expected).norm(), size]).tolist()
        if not math.isfinite(size) or size == 0:
            told = False
        elif not error <= LARGEST[how] * size:
            return False
    if told:
        _right.add(key)
    return True
