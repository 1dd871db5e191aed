"""Base class of convolutions with a sampled kernel, on grids and on points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor, nn

from ..._arguments import checked
from ..._checks import floats_per_axis
from ..._kinds import POSITIVE, RATE, Choice, Int, PerAxis
from ..._object_kinds import TensorOf
from ...ops import conv
from ...ops.filter_bank import fit_kernel
from ...ops.fused import drop
from ...ops.points.finite import fill_padding
from ...ops.points.point_conv import METHODS as POINT_METHODS
from .point_path import convolve_points
from .sampled_kernel import SampledKernel
from .sampling import sample_weight, seen_only

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Required

    from ...ops import PointPlan
    from .active_slice import ActiveSlice

__all__ = ["ContinuousConv", "ConvOptions"]


class ConvOptions(TypedDict, total=False):
    """Options of every continuous convolution, described in :class:`ContinuousConv` and :class:`SampledKernel`."""

    size: Required[int | Sequence[int]]
    bias: bool
    depthwise: bool
    boundary: str
    smooth: bool
    neighbors: int | None
    method: str
    gain: float | str | None
    kernel_dropout: float
    point_method: str
    tolerance: float


class ContinuousConv(SampledKernel):
    r"""A convolution whose kernel is a field, with or without a mask, dense or depthwise.

    .. math::
        y_o(t) = b_o + \sum_c \sum_\tau (\psi_{oc} m)\big((t - \tau)/\mathrm{size}\big)\, x_c(\tau)\, \mathrm{step}^D

    Base class of :class:`CKConv` and :class:`FlexConv`, which take these options too.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        bias: whether to add a bias, initially zero.
        boundary: values beyond the ends of the signal, "zero" or "periodic".
        method: how to convolve; see :func:`kernelfield.ops.conv`.
        kernel_dropout: probability to set a value of the sampled kernel to zero, in training, on grids.
        point_method: how to convolve values at points: "pairs", "cells", "grid" or "auto"; see
            :func:`kernelfield.ops.point_conv`.
        tolerance: error of the point method "grid", relative to the kernel.
        depthwise: whether each channel has its own kernel and channels are not mixed.
        smooth: whether to blur the kernel over a training step if the input's step is finer, on grids. The blur removes
            frequencies that training never saw (chapter 2, appendix "Dealing with High-Frequency Components").
        neighbors: with ``coords``, sum over only this many nearest points.
        gain: "start" scales the kernel as in the publication of the field's starting values
            (:mod:`kernelfield.fields.start`). With a number, the layer maps white noise of variance 1 to variance
            gain² at initialisation (chapter 3, section 4.1). None leaves the field as it was drawn. A field that is
            passed itself is scaled once: "start" leaves it as it is if another layer uses it, or if it was fitted
            (:func:`kernelfield.fields.fit_field`) or loaded from a state.
        kernel: further arguments of :class:`SampledKernel`: dim, size, field, mask, crop, causal, spread.

    Attributes:
        point_plan: a plan for convolving at points, so that calls need not measure them; see :func:`use_point_plans`.

    >>> from kernelfield.fields import SIREN
    >>> layer = ContinuousConv(4, 8, dim=1, size=16, field=SIREN)
    >>> layer(torch.randn(2, 4, 16)).shape
    torch.Size([2, 8, 16])
    """

    @checked(
        boundary=Choice("zero", "periodic"),
        method=Choice("auto", "direct", "fft"),
        kernel_dropout=RATE,
        point_method=Choice("auto", *POINT_METHODS),
        tolerance=POSITIVE,
    )
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        bias: bool = True,
        boundary: str = "zero",
        method: str = "auto",
        kernel_dropout: float = 0.0,
        point_method: str = "auto",
        tolerance: float = 1e-4,
        **kernel: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, **kernel)
        self.boundary, self.method, self.kernel_dropout = boundary, method, kernel_dropout
        self.point_method, self.tolerance = point_method, tolerance
        self.point_plan: PointPlan | None = None
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    @checked(
        x=TensorOf("float", "batch, channels, *space"),
        step=PerAxis(POSITIVE),
        coords=TensorOf("float") | None,
        mask=TensorOf("bool", "batch, *space") | None,
        density=TensorOf("float", "batch|1, *space") | Choice("estimate") | None,
        kernel=TensorOf("float") | None,
        at=TensorOf("float") | None,
        queries=Int(0),
    )
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
        at: Tensor | None = None,
        queries: int = 0,
    ) -> Tensor:
        """Convolve a signal on a grid, or values at points.

        Args:
            x: (batch, in, *space) signal, or (batch, in, points) values if ``coords`` are given.
            step: sampling step of this input in training steps, one or one per axis. The change of measure is
                accounted for, so outputs agree across steps.
            coords: (batch, points, dim) coordinates in training steps, or (points, dim) shared by the batch.
            mask: (batch, *space) or (batch, points), True where a sample was seen; unseen samples contribute nothing.
            density: (batch, points) samples per unit of space; each sample's contribution is divided by its density.
                "estimate" uses :func:`kernelfield.ops.sample_density`. One sample per ``step`` changes nothing.
            kernel: the kernel for this input, if :func:`sample_kernels` has already sampled it.
            active: the channels in use, for depthwise layers; ``x`` has only the first ``active.channels[0]``.
            add_bias: whether to add the bias; False for callers that add it elsewhere at a lower cost.
            at: (batch, queries, dim) or (queries, dim) coordinates of the outputs, in training steps, if they differ
                from ``coords``, which must be given.
            queries: number of query points, which come last. Queries get outputs but contribute nothing; their values,
                ``mask`` and ``density`` are ignored.

        Returns:
            (batch, out, *space) signal, or (batch, out, points) values at the same points, or at ``at``.
        """
        steps = (1.0,) * self.dim if step == 1.0 else floats_per_axis("step", step, self.dim)
        channels = self.in_channels if active is None else self._channels(active)
        if queries:
            at = _check_query_count(x, coords, at, queries)
            x, coords = x[..., :-queries], at[..., :-queries, :]
            mask = None if mask is None else mask[..., :-queries]
            density = density[..., :-queries] if isinstance(density, Tensor) else density
        points = _check_points(x, coords, mask, channels, self.dim)
        query_coords = None if at is None else _check_queries(at, points, self.dim)
        if queries and query_coords is not None and points is not None:  # coordinates of unseen points may be NaN
            query_coords = torch.cat([points, query_coords[:, -queries:].expand(points.shape[0], -1, -1)], dim=1)
        weight = None
        if mask is not None or density is not None:
            x, weight = seen_only(x, mask), sample_weight(points, mask, density, steps, self.causal)
        if points is not None:
            y = convolve_points(self, x, points, weight, steps, mask, query_coords)
        else:
            if not torch.compiler.is_compiling() and 0 in x.shape[2:]:
                raise ValueError(f"x must have at least one sample along each axis, got {tuple(x.shape)}")
            y = self._grid_conv(x if weight is None else x * weight.unsqueeze(1).to(x.dtype), steps, kernel)
        if self.bias is None or not add_bias:
            return y
        bias = self.bias if y.shape[1] == self.out_channels else self.bias[: y.shape[1]]
        return y + bias.view(-1, *(1,) * (y.dim() - 2)).to(y.dtype)

    def _channels(self, active: ActiveSlice) -> int:
        """Return the number of input channels in use."""
        if active.channels is None:
            return self.in_channels
        channels = active.channels[0]
        if self.groups == 1 and self.in_channels > 1:
            raise ValueError(f"active must be None for a layer that is not depthwise, got {channels} channels")
        if not 0 < channels <= self.in_channels:
            raise ValueError(f"active must have 1 to {self.in_channels} channels, got {channels}")
        return channels

    def penalised_kernel(self) -> Tensor:
        """Return the kernel, or any tensor of the same norm, for penalties on kernels."""
        return self.kernel()

    def input_lengths(self, lengths: Sequence[int]) -> Sequence[int] | None:
        """Return the lengths that limit the kernel; None if periodic, where every offset reaches a sample."""
        return None if self.boundary == "periodic" else lengths

    def _grid_conv(self, x: Tensor, steps: tuple[float, ...], kernel: Tensor | None) -> Tensor:
        # The kernel of a depthwise layer has as many channels as the signal.
        channels = self.in_channels if self.groups == 1 else x.shape[1]
        groups = 1 if self.groups == 1 else channels
        if kernel is None:
            lengths = self.input_lengths(x.shape[2:])
            kernel = self.frozen(steps, lengths, _dtype(x))
            if kernel is None:
                kernel = self.sample(steps, lengths, channels)
        if self.groups > 1 and kernel.shape[0] > channels:
            kernel = kernel[:channels]
        if self.training and self.kernel_dropout:
            kernel = drop(kernel, self.kernel_dropout)
        if not torch.is_autocast_enabled(x.device.type):
            kernel = kernel.to(x.dtype)
        if self.boundary == "periodic":  # a long kernel reaches a short signal more than once
            kernel = fit_kernel(kernel, x, self.boundary)
        return conv(x, kernel, causal=self.causal, boundary=self.boundary, groups=groups, method=self.method)


def _dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of kernels for ``x``."""
    if x.dtype != torch.float64 and torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def _check_query_count(x: Tensor, coords: Tensor | None, at: Tensor | None, queries: int) -> Tensor:
    """Check ``queries`` against ``x``, ``coords`` and ``at``; return the coordinates of all outputs."""
    if coords is None or at is not None:
        raise ValueError(f"queries must be 0 without coords or with at, got {queries}")
    if queries >= x.shape[-1]:
        raise ValueError(f"queries must be less than the {x.shape[-1]} points of x, got {queries}")
    return coords


def _check_points(x: Tensor, coords: Tensor | None, mask: Tensor | None, channels: int, dim: int) -> Tensor | None:
    """Check that ``x``, ``coords`` and ``mask`` fit together; return ``coords`` with a batch axis, or None.

    Coordinates of unseen points, which may be NaN, become finite.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a torch.Tensor, got {type(x).__name__}")
    axes, space = (dim, "*space") if coords is None else (1, "points")
    if x.dim() != 2 + axes or x.shape[1] != channels:
        given = "without" if coords is None else "with"
        raise ValueError(
            f"x must have shape (batch, {channels}, {space}) with {axes} axes after the channels, {given} coords, "
            f"got {tuple(x.shape)}"
        )
    if mask is not None:
        if mask.dtype != torch.bool:
            raise TypeError(f"mask must be a bool tensor, got {mask.dtype}")
        wanted = (x.shape[0], *x.shape[2:])
        if mask.shape != wanted:
            raise ValueError(f"mask must have shape {wanted} like x without channels, got {tuple(mask.shape)}")
    if coords is None:
        return None
    points = coords.unsqueeze(0) if coords.dim() == 2 else coords
    fits = points.dim() == 3 and points.shape[1:] == (x.shape[2], dim) and points.shape[0] in (1, x.shape[0])
    if not fits:
        raise ValueError(
            f"coords must have shape (batch, points, dim) = {(x.shape[0], x.shape[2], dim)} or (points, dim) to go "
            f"with x, got {tuple(coords.shape)}"
        )
    if not points.is_floating_point():
        raise TypeError(f"coords must be a floating-point tensor, got {points.dtype}")
    return fill_padding(points, mask)


def _check_queries(at: Tensor, points: Tensor | None, dim: int) -> Tensor:
    """Check that outputs can be computed ``at`` these coordinates; return them with a batch axis."""
    if points is None:
        raise ValueError("at must be None without coords, got a tensor")
    queries = at.unsqueeze(0) if at.dim() == 2 else at
    if (
        queries.dim() != 3
        or queries.shape[-1] != dim
        or (queries.shape[0] != 1 and points.shape[0] not in (1, queries.shape[0]))
    ):
        raise ValueError(
            f"at must have shape (batch, queries, {dim}) or (queries, {dim}) to go with coords, got {tuple(at.shape)}"
        )
    if queries.shape[1] == 0:
        raise ValueError(f"at must hold at least one query, got shape {tuple(at.shape)}")
    return queries
