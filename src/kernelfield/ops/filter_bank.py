r"""Convolution of one signal with a bank of kernels of different lengths (chapter 10).

A bank of dilated kernels contains short and long ones. Each is computed by the cheapest of three methods:

- a sum over its points, for short kernels;
- a product of spectra, for long kernels, which share one transform of the signal;
- for splines, the identity

  .. math:: \sum_i w_i B^n(t/s - i) = \big(B^n(\cdot/s) * \textstyle\sum_i w_i\, \delta_{s i}\big)(t),

  which smooths every channel and then sums over the coefficients, whose number does not grow with the dilation.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .._arguments import checked
from .._checks import is_symbolic
from .._kinds import Choice, ListOf
from .._object_kinds import Instance, TensorOf
from ..fields.splines import cardinal_bspline
from .conv import conv
from .conv.cost import Work, seconds
from .conv.measured import on_change
from .conv.shape import centres

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Dilated", "conv_bank", "fit_kernel"]

PATHS = ("auto", "direct", "fft", "dilated")


class Dilated(NamedTuple):
    r"""A one-dimensional spline kernel, dilated by an integer: :math:`\sum_i w_i B^n(t/s - i)`.

    Args:
        weights: (out, in, coefficients) weights, with an odd number of coefficients.
        dilation: integer factor s.
        order: degree n of the splines.

    >>> Dilated(torch.ones(1, 1, 1), dilation=2, order=2).sampled()
    tensor([[[0.1250, 0.5000, 0.7500, 0.5000, 0.1250]]])
    """

    weights: Tensor
    dilation: int
    order: int = 2

    @property
    def points(self) -> int:
        """Number of samples at which the kernel is not zero."""
        return (self.weights.shape[-1] - 1) * self.dilation + 2 * self.radius + 1

    @property
    def radius(self) -> int:
        """Number of samples on either side at which one dilated spline may differ from zero."""
        if self.order == 0:  # a box that includes its upper end
            return self.dilation // 2
        return math.ceil((self.order + 1) / 2 * self.dilation) - 1

    def basis(self) -> Tensor:
        """Return one dilated spline at the samples: (2·radius + 1,)."""
        offset = torch.arange(-self.radius, self.radius + 1, device=self.weights.device, dtype=self._offset_dtype)
        return cardinal_bspline(offset / self.dilation, self.order).to(self.weights.dtype)

    @property
    def _offset_dtype(self) -> torch.dtype:
        """The dtype of offsets: in half precision, large offsets would be rounded to their neighbours."""
        return torch.promote_types(self.weights.dtype, torch.float32)

    def sampled(self) -> Tensor:
        """Return the kernel at all its samples: (out, in, points)."""
        out, into, count = self.weights.shape
        flat = self.weights.reshape(out * into, 1, count)
        if self.dilation == 1 and self.radius == 0:
            return self.weights * self.basis()
        return F.conv_transpose1d(flat, self.basis().view(1, 1, -1), stride=self.dilation).view(out, into, -1)

    def near(self, length: int) -> Tensor:
        """Return the kernel at the samples less than ``length`` from its centre: (out, in, 2·length - 1).

        Only coefficients whose splines reach these samples are read, so the cost does not depend on the dilation.
        """
        centre = (self.weights.shape[-1] - 1) // 2
        kept = min(centre, (length - 1 + self.radius) // self.dilation)
        new: dict[str, Any] = {"device": self.weights.device, "dtype": self._offset_dtype}
        offset = torch.arange(1 - length, length, **new) / self.dilation
        place = torch.arange(-kept, kept + 1, **new)
        splines = cardinal_bspline(offset - place.unsqueeze(1), self.order).to(self.weights.dtype)
        return self.weights.narrow(-1, centre - kept, 2 * kept + 1) @ splines


@checked(
    x=TensorOf("float", "batch, in, *space", empty=False),
    kernels=ListOf(TensorOf("float", "out, in, *points", empty=False) | Instance("kernelfield.ops.Dilated")),
    boundary=Choice("zero", "periodic"),
    method=Choice(*PATHS),
)
def conv_bank(
    x: Tensor, kernels: Sequence[Tensor | Dilated], *, boundary: str = "zero", method: str = "auto"
) -> list[Tensor]:
    r"""Convolve a signal with each of several kernels.

    The result equals ``[conv(x, k) for k in kernels]``, but kernels may be longer than twice the signal, and kernels
    that are computed by spectra share the transform of the signal.

    Args:
        x: (batch, in, \*space) signal.
        kernels: (out, in, \*points) kernels of any lengths, or :class:`Dilated` ones.
        boundary: values beyond the signal, "zero" or "periodic".
        method: "direct", "fft" or "dilated" for all kernels, or "auto" for the fastest method for each kernel by a cost
            model that was measured on this kind of device. "dilated" needs splines and boundary "zero"; other kernels
            then use "direct".

    Returns:
        (batch, out, \*space) signals, one for each kernel.

    >>> x = torch.randn(2, 3, 100)
    >>> bank = [Dilated(torch.randn(4, 3, 5), dilation=2**j) for j in range(4)]
    >>> [tuple(y.shape) for y in conv_bank(x, bank)]
    [(2, 4, 100), (2, 4, 100), (2, 4, 100), (2, 4, 100)]
    """
    for kernel in kernels:
        weights = kernel.weights if isinstance(kernel, Dilated) else kernel
        if weights.dim() != x.dim() or weights.shape[1] != x.shape[1]:
            raise ValueError(
                f"kernels must have the {x.shape[1]} channels and {x.dim() - 2} spatial axes of x, "
                f"got {tuple(weights.shape)}"
            )
    paths = _paths(x, kernels, boundary, method)
    results: dict[int, Tensor] = {}
    spectral = [i for i, path in enumerate(paths) if path == "fft"]
    if spectral:
        results |= dict(zip(spectral, _by_spectra(x, [kernels[i] for i in spectral], boundary), strict=True))
    for i, (kernel, path) in enumerate(zip(kernels, paths, strict=True)):
        if path == "dilated" and isinstance(kernel, Dilated):
            results[i] = _smoothed(x, kernel)
        elif path == "direct":
            results[i] = conv(x, _sampled(kernel, x, boundary), boundary=boundary, method="direct")
    return [results[i] for i in range(len(kernels))]


def _smoothed(x: Tensor, kernel: Dilated) -> Tensor:
    """Smooth every channel, then sum over the coefficients, which are ``dilation`` samples apart."""
    weights, dilation = kernel.weights, kernel.dilation
    reach = (weights.shape[-1] - 1) // 2 * dilation
    # Smoothing spreads the signal beyond its ends, where the sum reads it, so it is padded by the smaller reach.
    beyond = min(kernel.radius, reach)
    padded = F.pad(x, (beyond, beyond))
    basis = fit_kernel(kernel.basis().view(1, 1, -1), padded, "zero").to(weights.dtype)
    smooth = conv(padded, basis.expand(x.shape[1], -1, -1), groups=x.shape[1])
    # Torch's convolutions are correlations.
    flipped = weights.to(smooth.dtype).flip(-1)
    return F.conv1d(smooth, flipped, padding=reach - beyond, dilation=dilation)


def _by_spectra(x: Tensor, kernels: Sequence[Tensor | Dilated], boundary: str) -> list[Tensor]:
    """Convolve with all kernels at once, each padded to the length of the longest."""
    sampled = [_sampled(kernel, x, boundary) for kernel in kernels]
    longest = [max(k.shape[axis] for k in sampled) for axis in range(2, x.dim())]
    joined = torch.cat([_padded(kernel, longest) for kernel in sampled])
    counts = [len(kernel) for kernel in sampled]
    return list(conv(x, joined, boundary=boundary, method="fft").split(counts, dim=1))


def _padded(kernel: Tensor, points: Sequence[int]) -> Tensor:
    """Pad a kernel with zeros to ``points`` points, keeping it centred."""
    pads: list[int] = []
    for have, want in zip(reversed(kernel.shape[2:]), reversed(points), strict=True):
        before = (want - 1) // 2 - (have - 1) // 2
        pads += [before, want - have - before]
    return F.pad(kernel, pads)


def _sampled(kernel: Tensor | Dilated, x: Tensor, boundary: str) -> Tensor:
    """Return the kernel at the samples that overlap the signal."""
    if not isinstance(kernel, Dilated):
        return fit_kernel(kernel, x, boundary)
    length = x.shape[-1]
    if boundary == "zero" and not is_symbolic(length) and kernel.points > 2 * length - 1:
        return kernel.near(length)
    return fit_kernel(kernel.sampled(), x, boundary)


def fit_kernel(kernel: Tensor, x: Tensor, boundary: str) -> Tensor:
    """Return an equivalent kernel of at most twice the signal's length, without the points that never overlap it."""
    for axis, (points, length) in enumerate(zip(kernel.shape[2:], x.shape[2:], strict=True), start=2):
        if is_symbolic(points, length) or points <= 2 * length - 1:
            continue
        centre = (points - 1) // 2
        if boundary == "periodic":
            index = (torch.arange(points, device=kernel.device) - centre + (length - 1) // 2) % length
            shape = (*kernel.shape[:axis], length, *kernel.shape[axis + 1 :])
            kernel = kernel.new_zeros(shape).index_add(axis, index, kernel)
        else:
            kernel = kernel.narrow(axis, centre - (length - 1), 2 * length - 1)
    return kernel


def _paths(x: Tensor, kernels: Sequence[Tensor | Dilated], boundary: str, method: str) -> list[str]:
    """Return the path of each kernel."""
    splines = [isinstance(kernel, Dilated) and boundary == "zero" for kernel in kernels]
    if method == "dilated":
        return ["dilated" if spline else "direct" for spline in splines]
    if method != "auto":
        return [method] * len(kernels)
    shapes = tuple((*k.weights.shape[:2], k.points) if isinstance(k, Dilated) else tuple(k.shape) for k in kernels)
    forms = tuple(
        (k.weights.shape[-1], 2 * k.radius + 1) if spline and isinstance(k, Dilated) else None
        for k, spline in zip(kernels, splines, strict=True)
    )
    tensors = [k.weights if isinstance(k, Dilated) else k for k in kernels]
    training = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *tensors))
    # An unknown length is replaced by that of a short sound; the order of the methods hardly depends on it.
    shape = tuple((4096 if axis >= 2 else 8) if is_symbolic(n) else n for axis, n in enumerate(x.shape))
    if any(is_symbolic(*points) for _, _, *points in shapes):
        return ["fft"] * len(kernels)  # kernels of symbolic length are as long as the input
    shapes = tuple((*(8 if is_symbolic(n) else n for n in shape[:2]), *shape[2:]) for shape in shapes)
    key = (shape, shapes, forms, boundary == "periodic", x.device.type, training)
    if torch.compiler.is_compiling():
        return _cheapest_paths(*key)
    return _known_paths(*key)


def _cheapest_paths(
    shape: tuple[int, ...],
    shapes: tuple[tuple[int, ...], ...],
    forms: tuple[tuple[int, int] | None, ...],
    periodic: bool,
    device: str,
    training: bool,
) -> list[str]:
    """Return the methods of least total cost. The most expensive kernels share spectra as long as it pays off."""
    lengths = shape[2:]

    def work(kernel: tuple[int, ...], batch: tuple[int, ...] = shape) -> Work:
        most = batch[2:] if periodic else [2 * n - 1 for n in batch[2:]]
        points = tuple(min(k, n) for k, n in zip(kernel[2:], most, strict=True))
        return Work.of(batch, (*kernel[:2], *points), centres(points, False), [periodic] * len(lengths))

    alone: list[tuple[float, str]] = []
    for kernel, form in zip(shapes, forms, strict=True):
        options = [(seconds("direct", work(kernel), device, training), "direct")]
        if form is not None:
            taps, width = form
            smooth = work((shape[1], 1, width))
            cost = min(seconds(way, smooth, device, training) for way in ("direct", "fft"))
            options.append((cost + seconds("direct", work((*kernel[:2], taps)), device, training), "dilated"))
        alone.append(min(options))
    order = sorted(range(len(shapes)), key=lambda i: alone[i][0], reverse=True)
    best, chosen = sum(cost for cost, _ in alone), 0
    for count in range(1, len(order) + 1):
        together = order[:count]
        points = [max(shapes[i][axis] for i in together) for axis in range(2, len(shape))]
        joined = (sum(shapes[i][0] for i in together), shapes[0][1], *points)
        total = seconds("fft", work(joined), device, training) + sum(alone[i][0] for i in order[count:])
        if total < best:
            best, chosen = total, count
    spectral = set(order[:chosen])
    return ["fft" if i in spectral else alone[i][1] for i in range(len(shapes))]


# torch.compile calls the function while it traces: with dynamic=True the costs would be symbolic numbers, and it cannot
# sort those.
_cheapest_paths._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001

#: cached, and a separate function because a compiler does not trace through caches
_known_paths = functools.lru_cache(maxsize=10_000)(_cheapest_paths)
on_change(_known_paths.cache_clear)
