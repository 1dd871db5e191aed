"""Resampling in the frequency domain (chapter 6, section 2.4.2)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._checks import check_int
from .conv.fft import working_dtype
from .conv.shape import is_symbolic
from .graph_cache import kept

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["apply_along", "resample", "resample_matrix"]

#: up to this many samples a product with a small matrix takes less time than two FFTs
MATRIX_UP_TO = 128


def resample(x: Tensor, size: int | Sequence[int], *, window: Sequence[Tensor | None] | None = None) -> Tensor:
    r"""Resample ``x`` to ``size`` samples per axis by cropping or padding its spectrum.

    The samples are taken to cover one period each, sample s of N at s/N. Exact for signals that both grids can hold;
    sampling down removes what the new grid cannot hold, so nothing is aliased.

    .. math:: y = \tfrac{M}{N}\, \mathcal{F}^{-1}_M\big[\mathrm{crop\ or\ pad}\; m \cdot \mathcal{F}_N[x]\big]

    Args:
        x: (…, \*space) signal; the last ``len(size)`` axes are resampled.
        size: new length of the last axis, or of the last axes.
        window: what to multiply the spectrum by, m, for each of these axes: values at the frequencies 0, 1, … of at
            least the shorter grid, (min(M, N) // 2 + 1,), or None.

    Returns:
        (…, \*size) signal.

    >>> t = torch.arange(8) / 8
    >>> wave = torch.cos(2 * torch.pi * t)
    >>> finer = resample(wave, 12)
    >>> torch.allclose(finer, torch.cos(2 * torch.pi * torch.arange(12) / 12), atol=1e-6)
    True
    >>> half = torch.tensor([1.0, 0.5, 0.0, 0.0, 0.0])
    >>> torch.allclose(resample(wave, 8, window=[half]), wave / 2, atol=1e-6)
    True
    """
    if not (isinstance(x, Tensor) and x.is_floating_point()):
        raise TypeError(f"x must be a floating-point tensor, got {getattr(x, 'dtype', type(x).__name__)}")
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    if not 0 < len(sizes) <= x.dim():
        raise ValueError(f"size must be 1 to {x.dim()} ints for x of shape {tuple(x.shape)}, got {size!r}")
    windows: Sequence[Tensor | None] = (None,) * len(sizes) if window is None else window
    if len(windows) != len(sizes):
        raise ValueError(f"window must have an entry for each of the {len(sizes)} axes, got {len(windows)}")
    for axis, new in enumerate(sizes, start=x.dim() - len(sizes)):
        check_int("size", new)
        if x.shape[axis] == 0:
            raise ValueError(f"x must not be empty along axis {axis}, got {tuple(x.shape)}")
    for axis, (new, m) in enumerate(zip(sizes, windows, strict=True), start=x.dim() - len(sizes)):
        old = x.shape[axis]
        if m is None and (old is new or (not is_symbolic(old, new) and old == new)):
            continue
        if not is_symbolic(old, new) and max(old, new) <= MATRIX_UP_TO:
            x = apply_along(x, resample_matrix(old, new, new, old, window=m, like=x), axis)
        else:
            x = _resample_axis(x, axis, new, m)
    return x


def _resample_axis(x: Tensor, axis: int, new: int, window: Tensor | None) -> Tensor:
    plain = type(x) is Tensor and not torch.compiler.is_compiling()
    if plain and torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return _Resampled.apply(x, axis, new, window)
    return _through_spectrum(x, axis, new, window)[0]


def _through_spectrum(x: Tensor, axis: int, new: int, window: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the resampled signal, and the spectrum of ``x`` as far as both grids hold it."""
    old = x.shape[axis]
    bins = min(old, new) // 2 + 1
    spectrum = torch.fft.rfft(x.to(working_dtype(x)), dim=axis).narrow(axis, 0, bins)
    weight = _weight(x, bins, old, new, window) / _multiplicity(bins, new, new, x.device) * (new / old)
    product = spectrum * _laid_along(weight, axis, spectrum)
    return torch.fft.irfft(product, n=new, dim=axis).to(x.dtype), spectrum  # which fills it up with zeros


def _weight(x: Tensor, bins: int, old: int, new: int, window: Tensor | None) -> Tensor:
    """Return c · m of :func:`resample_matrix`, (bins,)."""
    counts = _multiplicity(bins, old, new, x.device)
    return counts.to(x.dtype if window is None else window.dtype) * (1.0 if window is None else window[:bins])


def _laid_along(weight: Tensor, axis: int, spectrum: Tensor) -> Tensor:
    # Of the spectrum's own dtype: a product of complex and real numbers takes twice the time.
    return weight.to(spectrum.dtype).view(-1, *(1,) * (spectrum.dim() - 1 - axis % spectrum.dim()))


class _Resampled(torch.autograd.Function):
    r"""Resampling whose gradient is a resampling, back to the former grid: two transforms, where torch would take four.

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
        if torch.is_grad_enabled():  # a gradient of the gradient is wanted
            y, _ = _through_spectrum(x, axis, new, window)
            wanted = [t for t, need in ((x, ctx.needs_input_grad[0]), (window, ctx.needs_input_grad[3])) if need]
            found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True))
            return next(found) if ctx.needs_input_grad[0] else None, None, None, next(found, None)
        bins = min(old, new) // 2 + 1
        given = torch.fft.rfft(grad.to(working_dtype(x)), dim=axis).narrow(axis, 0, bins)
        grad_x = grad_window = None
        if spectrum is not None:
            # Real and imaginary parts come last; adding them up first, two by two, would be far slower.
            axes = [d for d in range(x.dim()) if d != axis % x.dim()]
            products = torch.view_as_real(spectrum) * torch.view_as_real(given)
            products = (products.sum(dim=axes) if axes else products).sum(dim=-1)
            found = products * (_weight(x, bins, old, new, None).to(products.dtype) / old)
            grad_window = torch.zeros_like(window)
            grad_window[:bins] = found.to(window.dtype)
        if ctx.needs_input_grad[0]:
            weight = _weight(x, bins, old, new, window) / _multiplicity(bins, old, old, x.device)
            grad_x = torch.fft.irfft(given.mul_(_laid_along(weight, axis, given)), n=old, dim=axis).to(x.dtype)
        return grad_x, None, None, grad_window


def _multiplicity(bins: int, old: int | Tensor, new: int | Tensor, device: torch.device) -> Tensor:
    """Return how often each bin of a real spectrum counts, (bins,): once with its negative and once without, or once.

    The last bin of an even grid holds f and -f together. Sampling down joins the two, sampling up parts them.
    """
    k = torch.arange(bins, device=device)
    least = torch.minimum(old, new) if isinstance(old, Tensor) and isinstance(new, Tensor) else _least(old, new)
    last = 1 + (new < old)
    counts = torch.where(2 * k < least, 2, torch.where(2 * k == least, last, 0))
    return torch.where(k == 0, 1, counts)


def _least(old: int | Tensor, new: int | Tensor) -> int | Tensor:
    if isinstance(old, Tensor):
        return old.clamp(max=new)
    return new.clamp(max=old) if isinstance(new, Tensor) else torch.sym_min(old, new)


def resample_matrix(
    old: int | Tensor, new: int | Tensor, rows: int, columns: int, *, window: Tensor | None = None, like: Tensor
) -> Tensor:
    r"""Return the matrix by which :func:`resample` multiplies an axis of ``old`` samples to get ``new`` ones.

    .. math:: A_{ij} = \tfrac1N \sum_k c_k m_k \cos\big(2\pi k (i/M - j/N)\big), \qquad c_k \in \{0, 1, 2\}

    The two lengths may be integer tensors on a device: rows and columns beyond them are zero, the shape is fixed, and
    nothing waits for the device.

    Args:
        old: samples N before.
        new: samples M after.
        rows: number of rows, at least ``new``.
        columns: number of columns, at least ``old``.
        window: values m_k at the frequencies 0, 1, …, min(rows, columns) // 2, at least.
        like: a tensor of the wanted dtype and device; half precision is computed in float32 first.
    """
    dtype, device = working_dtype(like), like.device
    bins = min(rows, columns) // 2 + 1
    fixed = not (isinstance(old, Tensor) or isinstance(new, Tensor)) and _is_plain(like)
    after, before = (_waves if fixed else _waves.function)(old, new, rows, columns, bins, dtype, device)
    if window is not None:
        after = after * window[:bins].to(dtype).repeat(2)
    with torch.autocast(device.type, enabled=False):
        matrix = after @ before
    return matrix.to(like.dtype)


def _is_plain(x: Tensor) -> bool:
    """Return whether tensors made beside ``x`` may outlive the call: not those of a tracer or of inference mode."""
    return type(x) in (Tensor, torch.nn.Parameter) and not (
        torch.compiler.is_compiling() or torch.is_inference_mode_enabled()
    )


@kept(256)  # those that depend on two lengths alone are asked for at every step
@torch.no_grad()
def _waves(
    old: int | Tensor, new: int | Tensor, rows: int, columns: int, bins: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines at the new samples, (rows, 2 · bins), and at the old ones, (2 · bins, columns)."""
    weight = _multiplicity(bins, old, new, device).double() / old
    i, j, k = (torch.arange(n, device=device) for n in (rows, columns, bins))
    after, before = (_phases(torch.outer(m, k), n) for m, n in ((i, new), (j, old)))
    after = torch.cat([after.cos() * weight, after.sin() * weight], dim=1)
    before = torch.cat([before.cos(), before.sin()], dim=1)
    if isinstance(new, Tensor):
        after = torch.where((i < new).unsqueeze(1), after, 0.0)
    if isinstance(old, Tensor):
        before = torch.where((j < old).unsqueeze(1), before, 0.0)
    return after.to(dtype), before.T.contiguous().to(dtype)


def _phases(product: Tensor, period: int | Tensor) -> Tensor:
    """Return 2π · product / period in (-π, π]: whole turns are taken off while the numbers are whole."""
    return (((product + period // 2) % period) - period // 2).double() * (2 * math.pi) / period


def apply_along(x: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """Multiply the lines of ``x`` along ``axis`` by a matrix (after, before)."""
    with torch.autocast(x.device.type, enabled=False):  # as FFTs do, in the signal's own dtype
        if x.device.type == "cpu" and axis == x.dim() - 2 and x.dim() > 2 and not torch.compiler.is_compiling():
            # From the left, plane by plane: nothing is turned around in memory, and what comes out is contiguous.
            planes = x.flatten(0, -3)
            return torch.bmm(matrix.expand(len(planes), *matrix.shape), planes).unflatten(0, x.shape[:-2])
        # The axis last: one product for all lines, whose gradient by the matrix is one product too.
        return (x.movedim(axis, -1) @ matrix.T).movedim(-1, axis)
