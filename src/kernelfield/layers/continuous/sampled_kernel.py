"""A kernel that is sampled from a field: the part of a continuous convolution that does not depend on the input."""

from __future__ import annotations

import contextlib
import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import grids
from ..._arguments import checked
from ..._checks import floats_per_axis, is_symbolic, per_axis
from ..._hooks import has_hooks
from ..._kinds import POSITIVE, Choice, Int, PerAxis
from ..._module_state import ComputedBuffers, in_full_precision, keep_geometry, keep_values
from ...fields import Field, build_field
from .frozen import FrozenKernel
from .kernel_sampler import recall_kernel, remember_kernel, sample_grid
from .kernel_support import KernelSupport
from .smoothing import narrowed, smooth_kernel, widened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...masks import Mask

__all__ = ["SampledKernel"]

#: with chapter 3's starting values, a kernel of up to _FEW_POINTS points may be almost zero: of energy below _SILENT
_FEW_POINTS, _SILENT = 27, 1e-4


class SampledKernel(ComputedBuffers):
    r"""A field, with or without a mask, sampled on grids of any step: :math:`\psi(x)\, m(x)`.

    If the module is cast to half precision, its field and mask stay in float32; the other parameters are cast.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        size: reach of the kernel in training steps, one for all axes or one per axis.
        field: makes the kernel's field from ``(dim, channels)``; or a field.
        dim: number of spatial dimensions, 1 to 3.
        mask: a mask on the kernel, or None.
        crop: whether to sample only the mask's support.
        causal: whether the kernel has only lags of at least zero; needs dim 1.
        depthwise: whether each channel has its own kernel and channels are not mixed.
        smooth: whether to blur the kernel over a training step when it is sampled finer than in training.
        neighbors: number of points that the convolution sums over, which sets the initial scale.
        gain: initial scale, "start", a number or None; see :class:`ContinuousConv`.
        spread: largest initial distance of envelope centres from offset zero, for fields with envelopes.
    """

    @checked(dim=Int(1, 3), gain=POSITIVE | Choice("start") | None, spread=POSITIVE)
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        size: int | Sequence[int],
        field: Callable[..., Field] | Field,
        dim: int = 1,
        mask: Mask | None = None,
        crop: bool = False,
        causal: bool = False,
        depthwise: bool = False,
        smooth: bool = False,
        neighbors: int | None = None,
        gain: float | str | None = "start",
        spread: float = 1.0,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.dim, self.size, self.causal = dim, per_axis(size, dim), causal
        if causal and dim != 1:
            raise ValueError(f"causal must be False for dim={dim}: only a line has a past, got causal=True")
        if depthwise and in_channels != out_channels:
            raise ValueError(f"out_channels must equal in_channels={in_channels} if depthwise, got {out_channels}")
        if mask is not None and mask.dim != dim:
            raise ValueError(f"mask must have dim={dim}, got a mask of {mask.dim} axes")
        self.groups = in_channels if depthwise else 1
        self.smooth, self.neighbors = smooth, neighbors
        self.field = build_field(
            field,
            dim,
            out_channels * in_channels // self.groups,
            mean_range=(0.0 if causal else -spread, spread),
            # Half of the training grid's Nyquist frequency leaves room for products of a few sines.
            grid_bandwidth=min(self.size) / 4,
            beta=0.5,  # the thesis draws from Gamma(α, 1), for coordinates that span [-1, 1] over one input
            # A table or spline has a coefficient for each offset of the training grid.
            size=self.size if causal else tuple(2 * n - 1 for n in self.size),
            spacing=tuple(1 / n for n in self.size),
            first=0.0 if causal else None,
            origin=0.5 if causal else 0.0,  # the zero of the authors' coordinates, which span [-1, 1] over one input
        )
        self.mask = mask
        cropped = crop and mask is not None
        self.kernel_support = KernelSupport(mask, self.size) if cropped else None  # type: ignore[arg-type]
        keep_geometry(self, "size", "causal")
        self.register_load_state_dict_post_hook(_read_loaded)
        self.register_computed("reach", torch.tensor(self.size, dtype=torch.get_default_dtype()))
        self.reach: Tensor
        self._frozen: dict[tuple[float, ...], FrozenKernel] = {}
        #: whether to freeze the kernel for each step at its first use
        self._freezes_on_use = False
        if isinstance(gain, str):
            if not self.field._keeps_scale:  # noqa: SLF001
                self._apply_published_scale_()
        elif gain is not None:
            self.preserve_variance_(float(gain))
        self.field._keeps_scale = True  # noqa: SLF001  # another layer of the same field would change this one

    @checked(step=PerAxis(POSITIVE))
    def kernel(self, step: float | Sequence[float] = 1.0, *, measured: bool = True) -> Tensor:
        """Return the kernel sampled at ``step``: (out, in / groups, *points).

        Its offsets are those of :func:`kernelfield.grids.kernel_grid` at which the mask, if any, is not zero.

        Args:
            step: sampling step in training steps, one or one per axis.
            measured: whether to weight each point by the volume of its grid cell, as the convolution does. False
                returns the plain values, which do not depend on the step.
        """
        return self.sample(floats_per_axis("step", step, self.dim), measured=measured)

    def freeze(self, step: float | Sequence[float] = 1.0) -> SampledKernel:
        """Sample the kernel for ``step`` once and reuse it until :meth:`unfreeze` or ``train()`` is called."""
        steps = floats_per_axis("step", step, self.dim)
        with torch.inference_mode(False), torch.no_grad():
            self._frozen[steps] = FrozenKernel(self.sample(steps), self.causal)
        return self

    def unfreeze(self) -> SampledKernel:
        """Drop frozen kernels."""
        self._frozen.clear()
        return self

    @contextlib.contextmanager
    def freezing(self, kernels: dict[tuple[float, ...], FrozenKernel]) -> Iterator[None]:
        """Freeze kernels at their first use inside the ``with`` block, and keep them in ``kernels`` for later blocks.

        Args:
            kernels: frozen kernels by sampling step; empty at first.
        """
        before = self._frozen, self._freezes_on_use
        self._frozen, self._freezes_on_use = kernels, True
        try:
            yield
        finally:
            self._frozen, self._freezes_on_use = before

    def train(self, mode: bool = True) -> SampledKernel:
        if mode:
            self._frozen.clear()
        if self.kernel_support is not None:
            self.kernel_support.read_again()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SampledKernel:
        self._frozen.clear()  # parameters move to another device or dtype
        reach = self.reach
        super()._apply(fn, recurse=False)
        kernel = in_full_precision(fn)
        self.reach = kernel(reach)
        if self.reach is not reach:
            keep_values("reach", reach, self.reach)
        for child in self.children() if recurse else ():  # the field and the mask
            child._apply(kernel)  # noqa: SLF001 (there is no public way)
        if self.kernel_support is not None:
            self.kernel_support.converted = True
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._frozen.clear()
        super()._load_from_state_dict(*args, **kwargs)

    def _apply_published_scale_(self) -> None:
        """Scale the kernel as in the publication of the field's starting values; see :data:`.start.SCALING`."""
        scaling = self.field.scaling
        if scaling == "measured":
            self.preserve_variance_()
        elif scaling == "points":
            points = self._initial_points()
            self.field.scale_(1 / math.sqrt(self.in_channels // self.groups * (self.neighbors or points)))
            if points <= _FEW_POINTS and self.energy() < _SILENT:
                # Chapter 3's sines are 0 in the middle of a kernel, so a mask that keeps only the middle keeps nothing.
                self.field.spread_phases_()
                self.preserve_variance_()

    def _initial_points(self) -> int:
        """Return the number of kernel points at the training step inside the initial mask."""
        reach = [n - 1 for n in self.size]
        if self.mask is not None:
            low, high = self.mask.support()
            shares = torch.maximum(low.abs(), high.abs()).tolist()
            reach = [min(n - 1, int(share * n)) for share, n in zip(shares, self.size, strict=True)]
        return math.prod(n + 1 if self.causal else 2 * n + 1 for n in reach)

    @torch.no_grad()
    def preserve_variance_(self, gain: float | Tensor = 1.0, samples: int = 4096) -> None:
        r"""Scale the field so that the layer maps white noise of variance 1 to variance gain².

        Chapter 3 multiplies the last linear map of the kernel network by :math:`g/\sqrt{N_\mathrm{in} |\Omega|}`, which
        is correct for a field of variance 1. This method divides by the square root of the measured :meth:`energy`,
        which is correct for any field and mask.

        Args:
            gain: gain g, one for all outputs or one per value of the field.
            samples: number of points at which to measure the energy, at most.
        """
        self.field.scale_(gain / self.energy(samples).clamp(min=1e-30).sqrt())

    @torch.no_grad()
    def energy(self, samples: int = 4096) -> Tensor:
        """Return the variance to which the layer maps white noise of variance 1, from up to ``samples`` points."""
        grid = self.grid(None, (1.0,) * self.dim)
        like: dict[str, Any] = {"dtype": self.reach.dtype, "device": self.reach.device}
        if grid.points <= samples:
            coords = grid.coords(**like)
        else:
            reach = [(first + n) / size for first, n, size in zip(grid.first, grid.count, self.size, strict=True)]
            coords = torch.empty(samples, self.dim, **like).uniform_(0.0 if self.causal else -1.0, 1.0)
            coords = coords * torch.tensor(reach, **like)
        return self.values(coords).square().mean() * (grid.points * self.in_channels / self.groups)

    # Sampling

    def values(self, coords: Tensor, channels: int | None = None) -> Tensor:
        """Return field times mask at ``coords``: (…, dim) to (…, out · in / groups), or the first ``channels``."""
        values = self.field(coords, None if channels == self.in_channels else channels)
        return values if self.mask is None else values * self.mask(coords).unsqueeze(-1)

    def grid(self, lengths: Sequence[int] | None, steps: tuple[float, ...]) -> grids.KernelGrid:
        """Return the grid on which the kernel is sampled for inputs of these ``lengths``; None means any length."""
        compiling = torch.compiler.is_compiling()
        reach = self.size
        if self.kernel_support is not None:
            support = self.kernel_support
            if not compiling:
                support.refresh()
            reach = support.traced_steps(self.training) if compiling else support.steps
            if self.smooth and min(steps) < 1:  # blurred by up to 1.5 training steps beyond the mask
                reach = tuple(min(n + 2, size) for n, size in zip(reach, self.size, strict=True))
        make = _make_grid.__wrapped__ if compiling else _make_grid  # traced lengths cannot be hashed
        return make(self.size, reach, steps, None if lengths is None else tuple(lengths), self.causal)

    def batch_key(self, grid: grids.KernelGrid) -> tuple[Any, ...] | None:
        """Return a key that is equal for layers that can be sampled together, or None for a layer sampled alone.

        The grids of such layers are parts of one grid.
        """
        field = self.field.alike()
        if field is None or self._freezes_on_use or grid.step in self._frozen:
            return None
        if has_hooks(self.field, self.mask):
            return None  # hooks must see the call of their own field or mask
        groups = 1 if self.groups == 1 else 0
        where = grid.step, grid.size, self.causal, self.smooth
        return field, type(self.mask), where, groups, self.out_channels, self.reach.dtype

    def frozen(
        self, steps: tuple[float, ...], lengths: Sequence[int] | None, dtype: torch.dtype | None = None
    ) -> Tensor | None:
        """Return the frozen kernel for ``steps``, cut to inputs of these ``lengths``; None if there is none."""
        if self._freezes_on_use and steps not in self._frozen:
            self.freeze(steps)
        kernel = self._frozen.get(steps)
        if kernel is None:
            return None
        whole = kernel.values.shape[2:]
        limits = whole if lengths is None else [n if self.causal else 2 * n - 1 for n in lengths]
        return kernel.cut(tuple(map(min, whole, limits)), dtype or kernel.values.dtype)

    def sample(
        self,
        steps: tuple[float, ...],
        lengths: Sequence[int] | None = None,
        channels: int | None = None,
        *,
        measured: bool = True,
    ) -> Tensor:
        """Return the kernel (out, in / groups, *points) for inputs of these ``lengths``, or its first ``channels``."""
        grid = self.grid(lengths, steps)
        if not measured or (torch.compiler.is_compiling() and is_symbolic(*grid.count)):
            coords = self.wide(grid).coords(dtype=self.reach.dtype, device=self.reach.device)
            return self.finish(self._arranged(self.values(coords, channels)), grid, measured)
        key = (self, grid, channels or self.in_channels)
        known = recall_kernel(key)
        if known is not None:
            return known
        return remember_kernel(key, sample_grid([self], grid, None if channels == self.in_channels else channels)[0])

    def wide(self, grid: grids.KernelGrid) -> grids.KernelGrid:
        """Return the grid on which to sample the kernel that :meth:`finish` returns on ``grid``."""
        return widened(grid, self.causal) if self.smooth and min(grid.step) < 1 else grid

    def finish(self, kernel: Tensor, grid: grids.KernelGrid, measured: bool = True) -> Tensor:
        r"""Smooth kernels (…, out, in / groups, *points) of field times mask; weight each point by its cell's volume.

        The kernels are sampled on :meth:`wide` of ``grid`` and returned on ``grid``.

        The volume is :math:`\mathrm{step}^D`, except for the first point of a causal kernel. Kernels are learned at the
        training step, where the cell of the first point is [-½, ½]: half of it lies in the future. At another step that
        half is kept, so the cell is [-½, step/2] and the weight (1 + step)/2. Outputs at two steps then differ in
        second order of the step. With a cell of width ``step`` they would differ in first order.
        """
        if self.smooth and min(grid.step) < 1:
            kernel = narrowed(smooth_kernel(kernel, grid.step), self.wide(grid), grid)
        measure = math.prod(grid.step)
        if not measured or measure == 1:
            return kernel
        kernel = kernel * measure
        return _weight_first_lag(kernel, measure) if self.causal else kernel

    def _arranged(self, values: Tensor) -> Tensor:
        """Return values (*points, out · in / groups) as a kernel (out, in / groups, *points)."""
        return values.movedim(-1, 0).unflatten(0, (-1, self.in_channels // self.groups))

    def sample_at(self, lengths: Sequence[int], steps: Sequence[Tensor], channels: int) -> Tensor:
        """Return the kernel of a depthwise layer for steps that are tensors on the device, (channels, 1, *points).

        The host does not wait for the device. The shape is that of the finest grid: offsets of up to ``lengths``
        samples. The kernel is zero beyond the trained domain.

        Args:
            lengths: length of the input along each axis.
            steps: sampling step along each axis in training steps, 0-dimensional float64 tensors.
            channels: number of channels to sample, counted from the first.
        """
        axes, inside = [], []
        for n, step, size in zip(lengths, steps, self.size, strict=True):
            index = torch.arange(0 if self.causal else 1 - n, n, dtype=torch.float64, device=step.device)
            axes.append((index * step / size).to(self.reach.dtype))
            inside.append(index.abs() < torch.ceil(size / step * (1 - 1e-12)))  # as grids.reach counts
        coords = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
        kept = torch.stack(torch.meshgrid(*inside, indexing="ij")).all(dim=0)
        kernel = self._arranged(self.values(coords, channels) * kept.unsqueeze(-1))
        measure = torch.stack(list(steps)).prod().to(kernel.dtype)
        kernel = kernel * measure
        return _weight_first_lag(kernel, measure) if self.causal else kernel

    def extra_repr(self) -> str:
        kind = "depthwise, " if self.groups > 1 else ""
        return f"{self.in_channels}, {self.out_channels}, {kind}dim={self.dim}, size={self.size}, causal={self.causal}"


@functools.lru_cache(maxsize=1024)
def _make_grid(
    size: tuple[int, ...],
    reach: tuple[int, ...],
    steps: tuple[float, ...],
    lengths: tuple[int, ...] | None,
    causal: bool,
) -> grids.KernelGrid:
    """Return the grid of a kernel of ``size``, cut to ``reach`` training steps and to the input's ``lengths``."""
    limits: Sequence[int | None] = (None,) * len(size) if lengths is None else lengths
    spans = [grids.reach(n, step, most) for n, step, most in zip(reach, steps, limits, strict=True)]
    return grids.KernelGrid.of(size, steps, causal=causal, limit=spans)


def _read_loaded(layer: SampledKernel, _: Any) -> None:
    """Read the reach of a loaded mask before a compiler needs it."""
    if layer.kernel_support is not None:
        layer.kernel_support.refresh()


def _weight_first_lag(kernel: Tensor, measure: float | Tensor) -> Tensor:
    """Change the weight of a causal kernel's first point from ``measure`` to (1 + measure) / 2."""
    factor, points = (1 + measure) / (2 * measure), kernel.shape[-1]
    if torch.compiler.is_compiling() and is_symbolic(points):
        # torch.cat would exclude the dynamic length at which there is one other point.
        return torch.where(torch.arange(points, device=kernel.device) == 0, kernel * factor, kernel)
    first = kernel.narrow(-1, 0, 1) * factor
    return torch.cat([first, kernel.narrow(-1, 1, kernel.shape[-1] - 1)], dim=-1)
