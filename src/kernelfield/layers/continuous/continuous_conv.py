"""What all convolutions with a sampled kernel have in common."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ... import grids
from ..._checks import (
    check_bool,
    check_choice,
    check_dim,
    check_int,
    check_positive,
    floats_per_axis,
    ints_per_axis,
)
from ...fields import Field, build_field
from ...ops import conv, point_conv, point_sums
from ...ops.fused import drop
from .kernel_sampler import remember_kernel, sample_alone
from .kernel_support import KernelSupport
from .sampling import check_points, first_lag, sample_weight, seen_only, smooth_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...masks import Mask
    from .active_slice import ActiveSlice

__all__ = ["ContinuousConv"]


class ContinuousConv(nn.Module):
    r"""A convolution with a field for a kernel, under a mask or not, dense or depthwise.

    .. math::
        y_o(t) = b_o + \sum_c \sum_\tau (\psi_{oc} m)\big((t - \tau)/\mathrm{size}\big)\, x_c(\tau)\, \mathrm{step}^D

    What :class:`CKConv` and :class:`FlexConv` have in common; see there for the arguments.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        dim: int,
        size: int | Sequence[int],
        field: Callable[..., Field] | Field,
        mask: Mask | None,
        crop: bool,
        causal: bool,
        depthwise: bool,
        bias: bool,
        boundary: str,
        smooth: bool,
        neighbors: int | None,
        method: str,
        gain: float | str | None,
        kernel_dropout: float,
        mean_range: tuple[float, float],
    ) -> None:
        super().__init__()
        self.in_channels = check_int("in_channels", in_channels)
        self.out_channels = check_int("out_channels", out_channels)
        self.dim, self.size = check_dim(dim), ints_per_axis("size", size, dim)
        if dim > 3:
            raise ValueError(f"dim must be 1, 2 or 3, got {dim}")
        self.causal = check_bool("causal", causal)
        if causal and dim != 1:
            raise ValueError(f"causal must be False for dim={dim}: only a line has a past, got causal=True")
        if check_bool("depthwise", depthwise) and in_channels != out_channels:
            raise ValueError(f"out_channels must equal in_channels={in_channels} if depthwise, got {out_channels}")
        self.groups = in_channels if depthwise else 1
        self.boundary = check_choice("boundary", boundary, ("zero", "periodic"))
        self.smooth = check_bool("smooth", smooth)
        self.neighbors = neighbors if neighbors is None else check_int("neighbors", neighbors)
        self.method = check_choice("method", method, ("auto", "direct", "fft"))
        if not 0 <= kernel_dropout < 1:
            raise ValueError(f"kernel_dropout must be at least 0 and below 1, got {kernel_dropout}")
        self.kernel_dropout = kernel_dropout
        self.field = build_field(
            field,
            dim,
            out_channels * in_channels // self.groups,
            mean_range=mean_range,
            # Half of the training grid's Nyquist frequency: products of a few sines stay within what the grid can hold.
            bandwidth=min(self.size) / 4,
            beta=0.5,  # the thesis's envelopes, Gamma(α, 1) for coordinates that span [-1, 1] over one input
            # A table or spline has a coefficient for each offset of the training grid.
            size=self.size if causal else tuple(2 * n - 1 for n in self.size),
            spacing=tuple(1 / n for n in self.size),
            first=0.0 if causal else None,
            origin=0.5 if causal else 0.0,  # where the authors' coordinates, from -1 to 1 over an input, are 0
        )
        self.mask = mask
        self.bias = nn.Parameter(torch.zeros(out_channels)) if check_bool("bias", bias) else None
        cropped = check_bool("crop", crop) and mask is not None
        self.kernel_support = KernelSupport(mask, self.size) if cropped else None  # type: ignore[arg-type]
        self.register_load_state_dict_post_hook(_read_loaded)
        self.register_buffer("reach", torch.tensor(self.size, dtype=torch.get_default_dtype()), persistent=False)
        self.reach: Tensor
        self._frozen: dict[tuple[float, ...], Tensor] = {}
        if gain == "start":
            self._start_scale_()
        elif gain is not None:
            self.preserve_variance_(check_positive("gain", gain))

    def forward(
        self,
        x: Tensor,
        *,
        step: float | Sequence[float] = 1.0,
        coords: Tensor | None = None,
        mask: Tensor | None = None,
        density: Tensor | str | None = None,
        kernel: Tensor | None = None,
        active: ActiveSlice | None = None,
        add_bias: bool = True,
    ) -> Tensor:
        """Convolve a signal on a grid, or values at points.

        Args:
            x: (batch, in, *space) signal, or (batch, in, points) values if ``coords`` are given.
            step: sampling step of this input in training steps, one or one per axis. The change of measure is
                accounted for: outputs agree across steps.
            coords: (batch, points, dim) coordinates in training steps, or (points, dim) shared by the batch.
            mask: (batch, *space) or (batch, points) whether a sample was seen; unseen ones contribute nothing.
            density: (batch, points) samples per unit of space, by which their contributions are divided; "estimate"
                uses :func:`kernelfield.ops.sample_density`. Relative to one sample per ``step``.
            kernel: the kernel for this input, if :func:`sample_kernels` has sampled it before.
            active: ``x`` has only the first of the channels, ``active.channels[0]`` of them; for depthwise layers.
            add_bias: False leaves the bias out, for callers that add it in a cheaper place.

        Returns:
            (batch, out, *space) signal, or (batch, out, points) values at the same points.
        """
        steps = floats_per_axis("step", step, self.dim)
        points = check_points(x, coords, mask, self._channels(active), self.dim)
        x, weight = seen_only(x, mask), sample_weight(points, mask, density, steps)
        if points is not None:
            y = self._point_conv(x, points, weight, steps, mask)
        else:
            y = self._grid_conv(x if weight is None else x * weight.unsqueeze(1).to(x.dtype), steps, kernel)
        if self.bias is None or not add_bias:
            return y
        return y + self.bias[: y.shape[1]].view(-1, *(1,) * (y.dim() - 2)).to(y.dtype)

    def _channels(self, active: ActiveSlice | None) -> int:
        """Return how many channels the input has."""
        if active is None or active.channels is None:
            return self.in_channels
        channels = active.channels[0]
        if self.groups == 1 and self.in_channels > 1:
            raise ValueError(f"active must be None for a layer that is not depthwise, got {channels} channels")
        if not 0 < channels <= self.in_channels:
            raise ValueError(f"active must have 1 to {self.in_channels} channels, got {channels}")
        return channels

    def kernel(self, step: float | Sequence[float] = 1.0, *, measured: bool = True) -> Tensor:
        """Return the kernel sampled at ``step``: (out, in / groups, *points).

        Offsets as :func:`kernelfield.grids.kernel_grid` lists them; only where the mask, if there is one, is not zero.

        Args:
            step: sampling step in training steps, one or one per axis.
            measured: weighted by the piece of space that each point stands for, as the convolution uses it; else the
                values themselves, which are alike at all steps.
        """
        return self._sample(floats_per_axis("step", step, self.dim), None, measured)

    def freeze(self, step: float | Sequence[float] = 1.0) -> ContinuousConv:
        """Sample the kernel for ``step`` once and use it from now on, until :meth:`unfreeze` or training mode."""
        steps = floats_per_axis("step", step, self.dim)
        with torch.no_grad():
            self._frozen[steps] = self._sample(steps, None)
        return self

    def unfreeze(self) -> ContinuousConv:
        """Forget frozen kernels."""
        self._frozen.clear()
        return self

    def train(self, mode: bool = True) -> ContinuousConv:
        if mode:
            self.unfreeze()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ContinuousConv:
        self.unfreeze()  # parameters move to another device or dtype
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.unfreeze()
        super()._load_from_state_dict(*args, **kwargs)

    def _start_scale_(self) -> None:
        """Scale the kernel as the publication did whose starting values its field has; see :data:`.start.SCALING`."""
        if self.field.scaling == "measured":
            self.preserve_variance_()
        elif self.field.scaling == "points":
            terms = self.in_channels // self.groups * (self.neighbors or self._first_points())
            self.field.scale_(1 / math.sqrt(terms))

    def _first_points(self) -> int:
        """Return the number of kernel points, at the training step, that the mask leaves."""
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
        is right for a field of variance 1. Here the field's energy is measured, at up to ``samples`` of its
        :math:`|\Omega|` points, and divided out, which is right for any field under any mask.
        """
        self.field.scale_(gain / self.energy(samples).clamp(min=1e-30).sqrt())

    @torch.no_grad()
    def energy(self, samples: int = 4096) -> Tensor:
        """Return the variance to which the layer maps white noise of variance 1, from up to ``samples`` points."""
        spans = self._spans((1.0,) * self.dim, None)
        points = math.prod(n if self.causal else 2 * n - 1 for n in spans)
        if points <= samples:
            coords = grids.kernel_grid(self.size, dim=self.dim, causal=self.causal, limit=spans, **self._like())
        else:
            low = 0.0 if self.causal else -1.0
            span = torch.tensor([n / size for n, size in zip(spans, self.size, strict=True)], **self._like())
            coords = torch.empty(samples, self.dim, **self._like()).uniform_(low, 1.0) * span
        return self._values(coords).square().mean() * (points * self.in_channels / self.groups)

    # How the kernel is sampled.

    def _values(self, coords: Tensor, channels: int | None = None) -> Tensor:
        """Return field times mask at ``coords``: (…, dim) to (…, out · in / groups), or the first ``channels``."""
        values = self.field(coords, None if channels == self.in_channels else channels)
        return values if self.mask is None else values * self.mask(coords).unsqueeze(-1)

    def _spans(self, steps: tuple[float, ...], lengths: Sequence[int] | None) -> list[int]:
        """Return how many offsets of at least zero matter along each axis: to the input, and to the mask."""
        cut = self.size
        if self.kernel_support is not None:
            if not torch.compiler.is_compiling():
                self.kernel_support.refresh()
            cut = self.kernel_support.steps
        limits: Sequence[int | None] = (None,) * self.dim if lengths is None else lengths
        return [grids.reach(n, s, most) for n, s, most in zip(cut, steps, limits, strict=True)]

    def kernel_coords(self, lengths: Sequence[int] | None, steps: tuple[float, ...]) -> Tensor:
        """Return the (*points, dim) coordinates of the kernel for inputs of these ``lengths``, or of any."""
        # On a circle every offset of the kernel meets a sample; on a line those beyond the input's length do not.
        spans = self._spans(steps, None if self.boundary == "periodic" else lengths)
        return grids.kernel_grid(self.size, steps, dim=self.dim, causal=self.causal, limit=spans, **self._like())

    def lattice(self, lengths: Sequence[int] | None, steps: tuple[float, ...]) -> grids.KernelGrid:
        """Return the same grid by its numbers."""
        spans = self._spans(steps, None if self.boundary == "periodic" else lengths)
        return grids.KernelGrid.of(self.size, steps, causal=self.causal, limit=spans)

    def sampled_alike(self, lengths: Sequence[int], steps: tuple[float, ...]) -> tuple[Any, ...] | None:
        """Return what layers must share for their kernels to be sampled together; None for a layer on its own."""
        field = self.field.alike()
        if field is None or steps in self._frozen:
            return None
        spans = self._spans(steps, None if self.boundary == "periodic" else lengths)
        return (
            field,
            type(self.mask),
            self.size,
            self.causal,
            self.smooth,
            *spans,
            self.out_channels,
            self.reach.dtype,
        )

    def finish(self, kernel: Tensor, steps: tuple[float, ...], measured: bool = True) -> Tensor:
        """Smooth and measure kernels (…, out, in / groups, *points) of field times mask."""
        if self.smooth and min(steps) < 1:
            kernel = smooth_kernel(kernel, steps)
        return self._measured(kernel, steps) if measured else kernel

    def _sample(self, steps: tuple[float, ...], x: Tensor | None, measured: bool = True) -> Tensor:
        channels = self.in_channels if x is None or self.groups == 1 else x.shape[1]
        lengths = None if x is None else x.shape[2:]
        if measured and (kernel := sample_alone(self, lengths, steps, channels)) is not None:
            return kernel
        values = self._values(self.kernel_coords(lengths, steps), channels)
        kernel = self.finish(self._arranged(values), steps, measured)
        return remember_kernel((self, self.lattice(lengths, steps), channels), kernel) if measured else kernel

    def _arranged(self, values: Tensor) -> Tensor:
        """Return values (*points, out · in / groups) as a kernel (out, in / groups, *points)."""
        return values.movedim(-1, 0).unflatten(0, (-1, self.in_channels // self.groups))

    def sample_at(self, lengths: Sequence[int], steps: Sequence[Tensor], channels: int) -> Tensor:
        """Return the kernel for steps that only the device knows, (channels, 1, *points), for a depthwise layer.

        Nothing waits for the device and the shape is that of the finest grid: offsets of up to ``lengths`` samples,
        of which those beyond the trained domain are zero.

        Args:
            lengths: of the input, along each axis.
            steps: sampling step along each axis in training steps, 0-dimensional float64 tensors.
            channels: number of channels wanted, the first ones.
        """
        axes, inside = [], []
        for n, step, size in zip(lengths, steps, self.size, strict=True):
            index = torch.arange(0 if self.causal else 1 - n, n, dtype=torch.float64, device=step.device)
            axes.append((index * step / size).to(self.reach.dtype))
            inside.append(index.abs() < torch.ceil(size / step * (1 - 1e-12)))  # as grids.reach counts
        coords = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
        kept = torch.stack(torch.meshgrid(*inside, indexing="ij")).all(dim=0)
        kernel = self._arranged(self._values(coords, channels) * kept.unsqueeze(-1))
        measure = torch.stack(list(steps)).prod().to(kernel.dtype)
        kernel = kernel * measure
        return first_lag(kernel, measure) if self.causal else kernel

    def _measured(self, kernel: Tensor, steps: tuple[float, ...]) -> Tensor:
        r"""Weight each kernel point by the piece of space it stands for.

        That is a cell of the grid, :math:`\mathrm{step}^D`, but for the first point of a causal kernel. At the training
        step its cell is [-½, ½], half of it in the future, and kernels were learned with that. At another step it must
        still reach from -½ to step/2: a weight of (1 + step)/2. With a full cell, outputs would differ in the first
        order of the step; so they do in the second.
        """
        measure = math.prod(steps)
        if measure == 1:
            return kernel
        kernel = kernel * measure
        return first_lag(kernel, measure) if self.causal else kernel

    def _grid_conv(self, x: Tensor, steps: tuple[float, ...], kernel: Tensor | None) -> Tensor:
        if kernel is None and steps in self._frozen:
            kernel = self._crop_frozen(self._frozen[steps], None if self.boundary == "periodic" else x.shape[2:])
        elif kernel is None:
            kernel = self._sample(steps, x)
        groups = 1
        if self.groups > 1:  # of a depthwise layer as many as the signal has channels
            groups = x.shape[1]
            kernel = kernel if kernel.shape[0] == groups else kernel.narrow(0, 0, groups)
        if self.training and self.kernel_dropout:
            kernel = drop(kernel, self.kernel_dropout)
        if not torch.is_autocast_enabled(x.device.type):
            kernel = kernel.to(x.dtype)
        return conv(x, kernel, causal=self.causal, boundary=self.boundary, groups=groups, method=self.method)

    def _crop_frozen(self, kernel: Tensor, lengths: Sequence[int] | None) -> Tensor:
        for axis, most in enumerate(lengths or (), start=2):
            n = kernel.shape[axis]
            keep = min(n, most if self.causal else 2 * most - 1)
            kernel = kernel.narrow(axis, 0 if self.causal else (n - keep) // 2, keep)
        return kernel

    def _point_conv(
        self, x: Tensor, coords: Tensor, weight: Tensor | None, steps: tuple[float, ...], mask: Tensor | None
    ) -> Tensor:
        if self.boundary == "periodic":
            raise ValueError("coords must be None for a layer with boundary='periodic', got a tensor")
        coords = coords.to(self.reach.dtype)
        measure = math.prod(steps)
        # A number stays one: made into a tensor, it would have to be copied to the device, which no graph can hold.
        weighted = x * (measure if weight is None else (weight * measure).unsqueeze(1).to(x.dtype))
        groups, out = (self.groups, self.out_channels) if self.groups == 1 else (x.shape[1], x.shape[1])
        values = self._values if out == self.out_channels else partial(self._values, channels=out)
        y = (
            self._from_features(weighted, coords)
            if self._factors()
            else point_conv(
                weighted,
                coords,
                values,
                self.reach,
                out_channels=out,
                groups=groups,
                causal=self.causal,
                neighbors=self.neighbors,
                mask=mask,
                hidden=self.field.hidden_values(),
            )
        )
        if not self.causal:
            return y
        # The half of a training step's cell that lies in the future, in place of half of this sample's own: _measured.
        here = values(coords.new_zeros(1)).view(groups, -1, self.in_channels // self.groups)
        rest = (x * (weight > 0).unsqueeze(1) - weighted if weight is not None else x - weighted) / 2
        own = torch.einsum("goi,bgin->bgon", here.to(rest.dtype), rest.unflatten(1, (groups, -1)))
        return y + own.flatten(1, 2)

    def _factors(self) -> bool:
        """Whether a pair of points is cheaper by the field's features than by its values."""
        pairs = self.in_channels * self.out_channels // self.groups
        features = self.field.features(self.reach.new_zeros(1, self.dim)) if self.groups == 1 else None
        return features is not None and self.neighbors is None and 2 * (features.shape[-1] + 1) <= pairs

    def _from_features(self, weighted: Tensor, coords: Tensor) -> Tensor:
        """Convolve with the field's features, under the mask, and apply its last linear map to the sums.

        The map and the sum over points may change places, and there are far fewer features than pairs of channels.
        """

        def features(offsets: Tensor) -> Tensor:
            with torch.autocast(offsets.device.type, enabled=False):
                values = self.field.features(offsets)
            assert values is not None
            values = torch.cat([values, torch.ones_like(values[..., :1])], dim=-1)  # the last for the bias
            return values if self.mask is None else values * self.mask(offsets).unsqueeze(-1)

        sums = point_sums(weighted, coords, features, self.reach, causal=self.causal, hidden=self.field.hidden_values())
        weight, bias = self.field.readout()
        whole = torch.cat([weight, bias.unsqueeze(1)], dim=1).unflatten(0, (self.out_channels, self.in_channels))
        return torch.einsum("och,bchn->bon", whole.to(sums.dtype), sums)

    def _like(self) -> dict[str, Any]:
        return {"dtype": self.reach.dtype, "device": self.reach.device}

    def extra_repr(self) -> str:
        kind = "depthwise, " if self.groups > 1 else ""
        return f"{self.in_channels}, {self.out_channels}, {kind}dim={self.dim}, size={self.size}, causal={self.causal}"


def _read_loaded(layer: ContinuousConv, _: Any) -> None:
    """Read the reach of a loaded mask before a compiler needs it."""
    if layer.kernel_support is not None:
        layer.kernel_support.refresh()
