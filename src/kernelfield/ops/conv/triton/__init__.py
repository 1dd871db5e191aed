"""Depthwise convolution on tensor cores: transforms as products with small tables, in Triton.

Triton is imported by the first call. ``README.md`` explains the idea and lists the files in reading order.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...backend import fast_paths, unavailable
from ..autograd import bilinear
from ..direct import direct_conv
from ..fft import transform_conv, transform_grads
from ..shape import centres, is_symbolic
from .plan import Plan, make_plan
from .selfcheck import is_refused, refuse, verified_conv, verified_grads

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["obstacle", "plan_of", "precision", "scaled", "triton_conv"]

#: longest line for bands of a Toeplitz matrix rather than transforms, and the smallest batch that fills their products
SHORT, FEWEST = 512, 48
#: whether what has tf32's precision is computed by scaled products of float16, and the longest line that never is:
#: there it takes longer to find the largest values than is saved
SCALED, UNSCALED = os.environ.get("KERNELFIELD_SCALED") != "0", 256


def triton_conv(x: Tensor, kernel: Tensor, *, causal: bool, boundary: tuple[str, ...], groups: int) -> Tensor:
    """Convolve on tensor cores; arguments as in :func:`kernelfield.ops.conv`, already checked."""
    if torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return direct_conv(x, kernel, causal=causal, boundary=boundary, groups=groups)
    return _triton_conv(x, kernel, causal, [name == "periodic" for name in boundary], groups)


def precision(dtype: torch.dtype) -> str:
    """Return how float32 products are computed, by torch's own setting; float16 has the precision of tf32."""
    return "tf32x3" if dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"


def scaled(dtype: torch.dtype, lengths: Sequence[int]) -> bool:
    """Return whether products in this dtype are of float16, of signals divided by their largest values."""
    short = len(lengths) == 1 and lengths[0] <= UNSCALED
    return SCALED and not short and dtype != torch.bfloat16 and precision(dtype) == "tf32"


def plan_of(
    lengths: Sequence[int], points: Sequence[int], causal: bool, periodic: Sequence[bool], dtype: torch.dtype
) -> Plan | None:
    """Return the layout for a signal of these lengths and a kernel of these points, if there is one."""
    reaches = tuple(max(c, k - 1 - c) for k, c in zip(points, centres(points, causal), strict=True))
    half = dtype == torch.bfloat16 or scaled(dtype, lengths)
    element = 2 if half else 8 if precision(dtype) == "tf32x3" else 4
    return make_plan(tuple(lengths), reaches, tuple(periodic), element)


def obstacle(x: Tensor, kernel: Tensor, causal: bool, boundary: Sequence[str]) -> str | None:
    """Return why a convolution cannot be done here, in words that follow "…, which ", or None if it can."""
    reason = unavailable(x.device)
    if reason is not None:
        return reason
    if x.dtype == torch.float64:
        return "computes no float64"
    if kernel.shape[1] != 1 or kernel.shape[0] != x.shape[1]:
        return f"needs one kernel per channel, got {tuple(kernel.shape[:2])} for {x.shape[1]} channels"
    if is_symbolic(*x.shape[2:], *kernel.shape[2:]) or torch.compiler.is_compiling():
        return None  # decided when they are known, by the operator itself
    if plan_of(x.shape[2:], kernel.shape[2:], causal, [name == "periodic" for name in boundary], x.dtype) is None:
        return f"has no tiles for signals of {tuple(x.shape[2:])} and kernels of {tuple(kernel.shape[2:])}"
    return None


def _otherwise(x: Tensor, kernel: Tensor, causal: bool, periodic: list[bool]) -> bool:
    """Return whether an FFT has to do it: what forbids the kernels was not known when this method was chosen."""
    if is_refused(x, kernel) or not fast_paths():
        return True
    return plan_of(x.shape[2:], kernel.shape[2:], causal, periodic, x.dtype) is None


def _how(dtype: torch.dtype) -> str:
    """Return the precision of products, as errors are allowed by it."""
    return "bfloat16" if dtype == torch.bfloat16 else precision(dtype)


def _is_short(x: Tensor, periodic: list[bool]) -> bool:
    """Return whether a line is short enough for bands, which were measured to be faster in bfloat16."""
    line = x.dtype == torch.bfloat16 and x.dim() == 3 and not periodic[0]
    return line and x.shape[2] <= SHORT and x.shape[0] >= FEWEST


def _conv(x: Tensor, kernel: Tensor, causal: bool, periodic: list[bool], groups: int) -> Tensor:
    how = causal, periodic, groups
    if _otherwise(x, kernel, causal, periodic):
        return transform_conv(x, kernel, *how)
    from .launch import TooLarge, spectral_conv  # noqa: PLC0415
    from .toeplitz_launch import toeplitz_conv  # noqa: PLC0415

    try:
        y = toeplitz_conv(x, kernel, causal) if _is_short(x, periodic) else spectral_conv(x, kernel, *how)
    except TooLarge as error:
        refuse(x, kernel, f"does not fit this GPU ({error})")
        return transform_conv(x, kernel, *how)
    return verified_conv(y, x, kernel, _how(x.dtype), causal, periodic)


def _grads(
    grad: Tensor,
    x: Tensor,
    kernel: Tensor,
    need_x: bool,
    need_kernel: bool,
    causal: bool,
    periodic: list[bool],
    groups: int,
) -> tuple[Tensor, Tensor]:
    how = need_x, need_kernel, causal, periodic, groups
    if _otherwise(x, kernel, causal, periodic):
        return transform_grads(grad, x, kernel, *how)
    from .launch import TooLarge, spectral_grads  # noqa: PLC0415
    from .toeplitz_launch import toeplitz_grads  # noqa: PLC0415

    try:
        if _is_short(x, periodic):
            found = toeplitz_grads(grad, x, kernel, need_x, need_kernel, causal)
        else:
            found = spectral_grads(grad, x, kernel, *how)
    except TooLarge as error:
        refuse(x, kernel, f"does not fit this GPU ({error})")
        return transform_grads(grad, x, kernel, *how)
    return verified_grads(found, grad, x, kernel, _how(x.dtype), (need_x, need_kernel), causal, periodic)


_triton_conv = bilinear("triton_conv", _conv, _grads)
