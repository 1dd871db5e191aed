"""Depthwise convolution on tensor cores: transforms as products with small tables, in Triton.

Triton is imported by the first call. ``README.md`` explains the idea and lists the files in reading order.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...._checks import is_symbolic
from ...architectures import ARCHITECTURES, Architecture, architecture_of
from ...autograd import bilinear
from ...backend import unavailable
from ..direct import direct_conv
from ..fft import transform_conv, transform_grads
from ..shape import centres
from .plan import Plan, make_plan
from .selfcheck import is_refused, refuse, verified_conv, verified_grads

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["obstacle", "plan_of", "precision", "scaled", "triton_conv"]

#: Toeplitz products are used for lines of up to SHORT samples in batches of at least FEWEST signals
SHORT, FEWEST = 512, 48
#: number of samples above which a signal without a layout gives a warning
LONG = 1 << 14
#: whether products of tf32 precision are computed from scaled float16 values, and the longest line for which they never
#: are, because finding the largest values would cost more than it saves
SCALED, UNSCALED = os.environ.get("KERNELFIELD_SCALED") != "0", 256


def triton_conv(x: Tensor, kernel: Tensor, *, causal: bool, boundary: tuple[str, ...], groups: int) -> Tensor:
    """Convolve on tensor cores. The arguments are those of :func:`kernelfield.ops.conv`, already checked."""
    if torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return direct_conv(x, kernel, causal=causal, boundary=boundary, groups=groups)
    return _triton_conv(x, kernel, causal, [name == "periodic" for name in boundary], groups)


def precision(dtype: torch.dtype) -> str:
    """Return the precision of products under torch's float32 matmul setting; float16 counts as tf32."""
    return "tf32x3" if dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"


def scaled(dtype: torch.dtype, lengths: Sequence[int], products: str | None = None) -> bool:
    """Return whether signals of this dtype are divided by their largest values and multiplied in float16.

    Args:
        dtype: dtype of the signals.
        lengths: length of the signals along each axis.
        products: the :func:`precision` of products, if it is known.
    """
    short = len(lengths) == 1 and lengths[0] <= UNSCALED
    return SCALED and not short and dtype != torch.bfloat16 and (products or precision(dtype)) == "tf32"


def plan_of(
    lengths: Sequence[int],
    points: Sequence[int],
    causal: bool,
    periodic: Sequence[bool],
    dtype: torch.dtype,
    limits: Architecture = ARCHITECTURES[9, 0],
) -> Plan | None:
    """Return the layout for a signal of these lengths and a kernel of these points; None if there is none.

    Args:
        lengths: length of the signal along each axis.
        points: kernel points along each axis.
        causal: as in :func:`kernelfield.ops.conv`.
        periodic: for each axis, whether it is periodic.
        dtype: of the signal.
        limits: architecture of the GPU, which need not be present.
    """
    if not limits.multiplies_bfloat16:
        return None
    reaches = tuple(max(c, k - 1 - c) for k, c in zip(points, centres(points, causal), strict=True))
    half = dtype == torch.bfloat16 or scaled(dtype, lengths)
    element = 2 if half else 8 if precision(dtype) == "tf32x3" else 4
    return make_plan(tuple(lengths), reaches, tuple(periodic), element, limits.shared_bytes)


def obstacle(
    x: Tensor,
    kernel: Tensor,
    causal: bool,
    boundary: Sequence[str],
    *,
    announce: bool = False,
    dtype: torch.dtype | None = None,
) -> str | None:
    """Return the reason why tensor cores cannot compute a convolution, as a clause that follows "which", or None.

    Args:
        x: signal.
        kernel: kernel.
        causal: as in :func:`kernelfield.ops.conv`.
        boundary: boundary of each axis.
        announce: whether to warn once if a long signal has no layout and so needs a slower method.
        dtype: dtype of the computation, if autocast changes it; by default that of ``x``.
    """
    dtype = dtype or x.dtype
    reason = unavailable(x.device)
    if reason is not None:
        return reason
    if dtype == torch.float64:
        return "does not support float64"
    if kernel.shape[1] != 1 or kernel.shape[0] != x.shape[1]:
        return f"needs one kernel per channel, got {tuple(kernel.shape[:2])} for {x.shape[1]} channels"
    if is_symbolic(*x.shape[2:], *kernel.shape[2:]) or torch.compiler.is_compiling():
        return None  # the operator decides at run time, when lengths are known
    limits, periodic = architecture_of(x.device), [name == "periodic" for name in boundary]
    if plan_of(x.shape[2:], kernel.shape[2:], causal, periodic, dtype, limits=limits) is not None:
        return None
    reason = f"has no tile layout for signals of {tuple(x.shape[2:])} and kernels of {tuple(kernel.shape[2:])}"
    if plan_of(x.shape[2:], kernel.shape[2:], causal, periodic, dtype) is not None:
        reason = _smaller_gpu(reason, limits)
    elif announce and math.prod(x.shape[2:]) >= LONG:
        half = plan_of(x.shape[2:], kernel.shape[2:], causal, periodic, torch.bfloat16, limits=limits) is not None
        _announce(dtype, x.dim() - 2, reason, half)
    return reason


def _announce(dtype: torch.dtype, dim: int, reason: str, half: bool) -> None:
    """Warn, once per dtype and number of axes, that signals without a layout take longer, and name a remedy."""
    if (dtype, dim) in _announced:
        return
    _announced.add((dtype, dim))
    help_ = "; bfloat16 has one, and float32 under torch.set_float32_matmul_precision('high')" if half else ""
    text = f"the tensor-core convolution {reason} in {str(dtype)[6:]}{help_}; they use the FFT, which is slower"
    warnings.warn(text, stacklevel=3)


def _smaller_gpu(reason: str, limits: Architecture) -> str:
    """Return why a GPU lacks a layout that an H200 has; warn once per kind of GPU that such convolutions are slower."""
    if not limits.multiplies_bfloat16:
        reason = f"needs tensor cores that multiply bfloat16 or tf32 (sm_80 and later), got {limits}"
        slower = "long convolutions"
    else:
        reason = f"{reason} within the {limits.shared_bytes >> 10} KiB of shared memory of {limits}"
        slower = "some long convolutions"
    if limits not in _announced:
        _announced.add(limits)
        warnings.warn(f"the tensor-core convolution {reason}; {slower} use the FFT, which is slower", stacklevel=3)
    return reason


#: architectures, and pairs of dtype and number of axes, for which a warning was given
_announced: set[Architecture | tuple[torch.dtype, int]] = set()


def _needs_fft(x: Tensor, kernel: Tensor, causal: bool, periodic: list[bool], products: str) -> bool:
    """Return whether to use the FFT for a reason that was unknown when the method was chosen."""
    if is_refused(x, kernel) or unavailable(x.device) is not None:
        return True
    key = x.shape[2:], kernel.shape[2:], causal, *periodic, x.dtype, x.device, products, SCALED, UNSCALED
    found = _planned.get(key)
    if found is None:
        limits = architecture_of(x.device)
        plan = plan_of(x.shape[2:], kernel.shape[2:], causal, periodic, x.dtype, limits=limits)
        if len(_planned) > 10_000:
            _planned.clear()
        found = _planned[key] = plan is not None
    return not found


#: whether there is a layout, cached because looking for one takes longer than launching a kernel
_planned: dict[tuple[Any, ...], bool] = {}


def _product_precision(dtype: torch.dtype) -> str:
    """Return the precision of products, a key of ``selfcheck.TOLERANCE``."""
    return "bfloat16" if dtype == torch.bfloat16 else precision(dtype)


@functools.cache
def _launches() -> Any:
    """Return the module that launches transforms, imported at the first call."""
    return importlib.import_module(".launch", __name__)


@functools.cache
def _toeplitz_launches() -> Any:
    """Return the module that launches Toeplitz products, imported at the first call."""
    return importlib.import_module(".toeplitz_launch", __name__)


def _is_short(x: Tensor, periodic: list[bool]) -> bool:
    """Return whether to use Toeplitz products, which are faster for short lines in bfloat16."""
    line = x.dtype == torch.bfloat16 and x.dim() == 3 and not periodic[0]
    return line and x.shape[2] <= SHORT and x.shape[0] >= FEWEST


def _conv(x: Tensor, kernel: Tensor, causal: bool, periodic: list[bool], groups: int) -> Tensor:
    options, products = (causal, periodic, groups), _product_precision(x.dtype)
    if _needs_fft(x, kernel, causal, periodic, products):
        return transform_conv(x, kernel, *options)
    try:
        if _is_short(x, periodic):
            y = _toeplitz_launches().toeplitz_conv(x, kernel, causal)
        else:
            y = _launches().spectral_conv(x, kernel, *options)
    except _launches().TooLarge as error:
        refuse(x, kernel, f"does not fit this GPU ({error})")
        return transform_conv(x, kernel, *options)
    return verified_conv(y, x, kernel, products, causal, periodic)


def _grads(
    grad: Tensor, x: Tensor, kernel: Tensor, needs: tuple[bool, bool], causal: bool, periodic: list[bool], groups: int
) -> tuple[Tensor, Tensor]:
    options, products = (needs, causal, periodic, groups), _product_precision(x.dtype)
    if _needs_fft(x, kernel, causal, periodic, products):
        return transform_grads(grad, x, kernel, *options)
    try:
        if _is_short(x, periodic):
            found = _toeplitz_launches().toeplitz_grads(grad, x, kernel, needs, causal)
        else:
            found = _launches().spectral_grads(grad, x, kernel, *options)
    except _launches().TooLarge as error:
        refuse(x, kernel, f"does not fit this GPU ({error})")
        return transform_grads(grad, x, kernel, *options)
    return verified_grads(found, grad, x, kernel, products, needs, causal, periodic)


_triton_conv = bilinear("triton_conv", _conv, _grads)
