"""Resampling of a long axis by two FFTs, with a backward pass of two FFTs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..autograd import grads_by_formula
from ..conv.fft import working_dtype
from .matrix import multiplicity

__all__ = ["resample_axis"]


def resample_axis(x: Tensor, axis: int, new: int, window: Tensor | None) -> Tensor:
    """Resample one axis to ``new`` samples; ``window`` is that of :func:`~kernelfield.ops.resample`."""
    plain = type(x) is Tensor and not torch.compiler.is_compiling()
    if plain and x.numel() == 0:  # libraries reject empty batches
        return x.index_select(axis, torch.zeros(new, dtype=torch.long, device=x.device))
    if plain and torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return _Resample.apply(x, axis, new, window)
    return _through_spectrum(x, axis, new, window)[0]


def _through_spectrum(x: Tensor, axis: int, new: int, window: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the resampled signal, and the part of the spectrum of ``x`` that both grids can represent."""
    old = x.shape[axis]
    bins = min(old, new) // 2 + 1
    spectrum = torch.fft.rfft(x.to(working_dtype(x)), dim=axis).narrow(axis, 0, bins)
    weight = _weight(x, bins, old, new, window) / multiplicity(bins, new, new, x.device) * (new / old)
    product = spectrum * _along_axis(weight, axis, spectrum)
    return torch.fft.irfft(product, n=new, dim=axis).to(x.dtype), spectrum  # padded with zeros


def _weight(x: Tensor, bins: int, old: int, new: int, window: Tensor | None) -> Tensor:
    """Return c · m of :func:`resample_matrix`, (bins,)."""
    counts = multiplicity(bins, old, new, x.device)
    return counts.to(x.dtype if window is None else window.dtype) * (1.0 if window is None else window[:bins])


def _along_axis(weight: Tensor, axis: int, spectrum: Tensor) -> Tensor:
    # In the spectrum's dtype, because a product of complex and real numbers takes twice the time.
    return weight.to(spectrum.dtype).view(-1, *(1,) * (spectrum.dim() - 1 - axis % spectrum.dim()))


class _Resample(torch.autograd.Function):
    r"""Resampling whose gradient is a resampling back to the old grid, by two transforms instead of autograd's four.

    .. math:: \bar x_j = \tfrac1N \sum_k c_k m_k \sum_i \cos\big(2\pi k (j/N - i/M)\big)\, \bar y_i, \qquad
        \bar m_k = \tfrac{c_k}{N}\, \mathrm{Re}\, \overline{\mathcal{F}_N[x]_k}\, \mathcal{F}_M[\bar y]_k
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, new: int, window: Tensor | None) -> Tensor:
        y, spectrum = _through_spectrum(x, axis, new, window)
        ctx.axis, ctx.new = axis, new
        ctx.save_for_backward(x, window, spectrum if ctx.needs_input_grad[3] else None)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, Tensor | None]:
        x, window, spectrum = ctx.saved_tensors
        axis, new, old = ctx.axis, ctx.new, x.shape[ctx.axis]
        if torch.is_grad_enabled():  # for second derivatives
            to_x, to_window = grads_by_formula(
                lambda x, window: _through_spectrum(x, axis, new, window)[0], (x, window), grad
            )
            return to_x, None, None, to_window
        bins = min(old, new) // 2 + 1
        given = torch.fft.rfft(grad.to(working_dtype(x)), dim=axis).narrow(axis, 0, bins)
        grad_x = grad_window = None
        if spectrum is not None:
            # Real and imaginary parts are added last, because adding them in pairs first is far slower.
            axes = [d for d in range(x.dim()) if d != axis % x.dim()]
            products = torch.view_as_real(spectrum) * torch.view_as_real(given)
            products = (products.sum(dim=axes) if axes else products).sum(dim=-1)
            found = products * (_weight(x, bins, old, new, None).to(products.dtype) / old)
            grad_window = torch.zeros_like(window)
            grad_window[:bins] = found.to(window.dtype)
        if ctx.needs_input_grad[0]:
            weight = _weight(x, bins, old, new, window) / multiplicity(bins, old, old, x.device)
            grad_x = torch.fft.irfft(given.mul_(_along_axis(weight, axis, given)), n=old, dim=axis).to(x.dtype)
        return grad_x, None, None, grad_window
