"""Convolution: one function for one to three dimensions, which chooses its method.

:func:`conv` checks its arguments and makes a plan, once for each set of shapes and settings. The methods are ``direct``
(a sum), ``fft`` with ``fft_columns``, ``matmul`` and ``triton/``; ``reference`` is the readable formula. ``cost``
compares the methods with the constants in ``measured``. ``shape`` has checks and index arithmetic, ``frozen_spectra``
the spectra of frozen kernels.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._arguments import checked
from ..._kinds import Choice
from ..backend import fast_paths, launches_count
from .cost import cheapest, computing_dtype
from .direct import direct_conv, prepared_direct_conv
from .fft import fft_conv, prepared_fft_conv
from .matmul import matmul_conv
from .measured import on_change
from .shape import KINDS, check_conv, whole_windows
from .triton import obstacle, triton_conv

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["METHODS", "conv"]

METHODS = {"direct": direct_conv, "fft": fft_conv, "triton": triton_conv, "matmul": matmul_conv}


@checked(**KINDS, method=Choice("auto", *METHODS))
def conv(
    x: Tensor,
    kernel: Tensor,
    *,
    causal: bool = False,
    boundary: str | Sequence[str] = "zero",
    groups: int = 1,
    method: str = "auto",
) -> Tensor:
    r"""Convolve a signal with a kernel, on the signal's own grid.

    .. math:: y_o(t) = \sum_i \sum_j k_{oi}(j)\, x_i(t + c - j)

    This is a convolution, not a correlation: the kernel is indexed by offset, output position minus input position, in
    the order of :func:`kernelfield.grids.kernel_grid`. Offset zero is point c: the kernel's middle (the lower of two
    for an even number of points), or its first point if ``causal``.

    Args:
        x: (batch, in, \*space) signal with 1 to 3 spatial axes.
        kernel: (out, in / groups, \*points) kernel, up to twice as long as the signal along each axis.
        causal: whether outputs depend only on present and past inputs; 1D only.
        boundary: values beyond the signal, "zero" or "periodic", or "valid" to return only the length - points + 1
            outputs at which the kernel lies within the signal; one for all axes or one per axis.
        groups: number of groups of channels; ``in`` groups make a depthwise convolution.
        method: "direct" for a sum; "fft" for a product of spectra; "triton" for spectra on a GPU's tensor cores
            (depthwise convolutions in single and half precision); "matmul" for spectra by matrix products alone, for
            many input channels per group. "auto" takes "direct", "fft" or "triton", whichever is fastest by a cost
            model that was measured on this kind of device.

    Returns:
        (batch, out, \*space) signal, shorter along axes with a "valid" boundary. FFTs of half-precision signals run in
        float32.

    >>> x = torch.tensor([[[0.0, 1.0, 0.0, 0.0]]])
    >>> k = torch.tensor([[[1.0, 2.0, 3.0]]])
    >>> conv(x, k, method="direct")
    tensor([[[1., 2., 3., 0.]]])
    >>> conv(x, k, causal=True, method="direct")
    tensor([[[0., 1., 2., 3.]]])
    >>> conv(x, k, boundary="valid", method="direct")
    tensor([[[2., 3.]]])
    >>> conv(torch.randn(8, 6, 32, 32), torch.randn(6, 1, 63, 63), groups=6).shape
    torch.Size([8, 6, 32, 32])
    """
    return _plan(x, kernel, causal, boundary, groups, method)(x, kernel)


def reversed_conv(x: Tensor, kernel: Tensor, *, boundary: str = "zero") -> Tensor:
    """Convolve directly with a kernel that is already flipped along all axes of space.

    Use it for kernels that are computed at every call and can be computed flipped at no cost.

    >>> x, kernel = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    >>> torch.allclose(reversed_conv(x, kernel.flip((2, 3))), conv(x, kernel, method="direct"))
    True
    """
    return _plan(x, kernel, False, boundary, 1, "reversed")(x, kernel)


#: plans by arguments, cached because checking arguments and choosing a method take as long as a small convolution
_plans: dict[tuple[Any, ...], Callable[[Tensor, Tensor], Tensor]] = {}
on_change(_plans.clear)


def _plan(
    x: Tensor, kernel: Tensor, causal: bool, boundary: str | Sequence[str], groups: int, method: str
) -> Callable[[Tensor, Tensor], Tensor]:
    """Check the arguments; return the convolution for signals and kernels like these."""
    plain = isinstance(x, Tensor) and isinstance(kernel, Tensor) and isinstance(boundary, str)
    plain = plain and type(causal) is bool and type(groups) is int  # 1, 1.0 and True would be one key
    if not plain or torch.compiler.is_compiling():
        return _make_plan(x, kernel, causal, boundary, groups, method)
    training = torch.is_grad_enabled() and (x.requires_grad or kernel.requires_grad)
    device = x.device
    autocast = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type)
    settings: tuple[Any, ...] = (training, causal, boundary, groups, method, fast_paths(), autocast)
    if device.type == "cuda":  # of the products on tensor cores, and of costs
        settings = (*settings, torch.get_float32_matmul_precision(), launches_count())
    key = (x.shape, kernel.shape, x.dtype, kernel.dtype, device, *settings)
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) > 10_000:
            _plans.clear()
        plan = _plans[key] = _make_plan(x, kernel, causal, boundary, groups, method)
    return plan


def _make_plan(
    x: Tensor, kernel: Tensor, causal: bool, boundary: str | Sequence[str], groups: int, method: str
) -> Callable[[Tensor, Tensor], Tensor]:
    boundaries = check_conv(x, kernel, causal, boundary, groups)
    if method == "auto":
        method = cheapest(x, kernel, causal, boundaries)
    elif method == "triton" and (reason := obstacle(x, kernel, causal, boundaries, dtype=computing_dtype(x))):
        raise ValueError(f"method must be 'auto', 'direct', 'fft' or 'matmul' here, got 'triton', which {reason}")
    run = _runner(x, kernel, causal, boundaries, groups, method)
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return partial(_in_autocast, run)
    if x.dtype != kernel.dtype:
        raise TypeError(f"kernel must have the dtype of x, {x.dtype}, got {kernel.dtype}")
    return run


def _runner(
    x: Tensor, kernel: Tensor, causal: bool, boundaries: tuple[str, ...], groups: int, method: str
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a method as a function of the signal and the kernel alone."""
    if method in ("direct", "reversed"):
        return prepared_direct_conv(x, kernel, causal, boundaries, groups, is_flipped=method == "reversed")
    # A direct sum computes only the outputs that are kept. Other methods compute all outputs and drop some.
    if "valid" in boundaries:
        zeros = tuple("zero" if name == "valid" else name for name in boundaries)
        uncropped = _runner(x, kernel, causal, zeros, groups, method)
        return lambda x, kernel: whole_windows(uncropped(x, kernel), kernel.shape[2:], causal, boundaries)
    if method == "fft" and not torch.compiler.is_compiling():
        return prepared_fft_conv(x, kernel, causal, boundaries, groups)
    return partial(METHODS[method], causal=causal, boundary=boundaries, groups=groups)


def _in_autocast(run: Callable[[Tensor, Tensor], Tensor], x: Tensor, kernel: Tensor) -> Tensor:
    """Convolve in autocast's dtype, like torch's own convolutions, with any method."""
    dtype = torch.get_autocast_dtype(x.device.type)
    return run(x.to(dtype), kernel.to(dtype))
