"""Convolutions whose kernel is a sum of damped oscillations: a long kernel with a recurrent form."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._checks import check_positive
from .._kinds import POSITIVE, PerAxis
from .._object_kinds import TensorOf
from ..layers import seen_only
from ..ops import conv

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RecurrentConv"]

#: parameters that stay in float32 in a network of half precision
OSCILLATIONS = ("log_damping", "frequency", "cosine", "sine")


class RecurrentConv(nn.Module):
    r"""A causal convolution whose kernels are sums of damped oscillations.

    .. math:: k(\tau) = \sum_{n=1}^{N} e^{-\alpha_n \tau} \big(a_n \cos \omega_n \tau + b_n \sin \omega_n \tau\big)
        = \mathrm{Re} \sum_n c_n \lambda_n^\tau, \qquad 0 \le \tau < \mathrm{reach}

    with poles :math:`\lambda = e^{-\alpha + i\omega}` inside the unit circle and :math:`c = a - ib`. ``forward``
    convolves a signal as a whole, in parallel. :func:`~kernelfield.streaming.stream` uses the recurrence

    .. math:: s_n(t) = \lambda_n s_n(t-1) + x(t) - \lambda_n^{\mathrm{reach}} x(t - \mathrm{reach}), \qquad
        y(t) = \mathrm{Re} \sum_n c_n s_n(t),

    whose work and memory per sample are constant. Without a reach the last term is absent and the kernel never ends.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        order: number of oscillations of each kernel.
        reach: length of the kernel in training steps; None for kernels without an end.
        depthwise: one kernel per channel, and no mixing of channels.
        bias: whether to add a bias, initially zero.

    >>> layer = RecurrentConv(4, 4, order=3, depthwise=True)
    >>> layer(torch.randn(2, 4, 50)).shape
    torch.Size([2, 4, 50])
    >>> layer.kernel(20).shape
    torch.Size([4, 1, 20])
    """

    @checked(reach=POSITIVE | None)
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        order: int,
        reach: float | None = None,
        depthwise: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        if depthwise and in_channels != out_channels:
            raise ValueError(f"out_channels must equal in_channels={in_channels} if depthwise, got {out_channels}")
        self.groups = in_channels if depthwise else 1
        self.order = order
        lags = torch.tensor(math.inf if reach is None else reach, dtype=torch.float64)
        self.register_buffer("reach", lags)
        shape = (out_channels * in_channels // self.groups, order)
        #: logarithm of the damping α per training step
        self.log_damping = nn.Parameter(torch.empty(shape).uniform_(-5, -1))
        #: frequency ω in radians per training step
        self.frequency = nn.Parameter(torch.empty(shape).uniform_(0, 1))
        #: weight a of the cosine and b of the sine
        self.cosine = nn.Parameter(torch.randn(shape) / math.sqrt(order * in_channels / self.groups))
        self.sine = nn.Parameter(torch.randn(shape) / math.sqrt(order * in_channels / self.groups))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    reach: Tensor

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RecurrentConv:
        # In half precision a frequency would be wrong by radians after a few hundred lags, and a reach by whole lags.
        reach = self.reach
        kept = {name: getattr(self, name).data for name in OSCILLATIONS}
        super()._apply(fn, recurse)
        self.reach = reach.to(self.reach.device)
        for name, before in kept.items():
            after = getattr(self, name)
            if after.dtype in (torch.bfloat16, torch.float16):
                after.data = before.to(after.device, torch.promote_types(before.dtype, torch.float32))
        return self

    @property
    def kernels(self) -> int:
        """Number of kernels, out · in / groups."""
        return self.log_damping.shape[0]

    def lags(self, step: float = 1.0) -> int | None:
        """Return the number of lags of the kernel at a sampling step, or None if it never ends."""
        reach = float(self.reach)
        return None if math.isinf(reach) else math.ceil(reach / check_positive("step", step) * (1 - 1e-12))

    def powers(self, times: Tensor, step: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return the real and imaginary parts of λ^t, (kernels, order, times), for times in samples, in float64.

        Phases of many thousand samples need more digits than float32 has.
        """
        at = times.double() * step
        size = torch.exp(-self.log_damping.double().exp().unsqueeze(-1) * at)
        phase = self.frequency.double().unsqueeze(-1) * at
        return size * phase.cos(), size * phase.sin()

    def kernel(self, points: int, step: float = 1.0) -> Tensor:
        """Return the first lags of the kernel, weighted as a convolution at ``step`` needs, (out, in / groups, points).

        Args:
            points: number of lags; fewer are returned if the kernel is shorter.
            step: sampling step in training steps.
        """
        most = self.lags(step)
        points = points if most is None else min(points, most)
        # The power aB + b is the product of powers aB and b: only 2√points powers are computed.
        block = math.isqrt(max(points - 1, 0)) + 1
        device = self.log_damping.device
        coarse = self.powers(block * torch.arange(-(-points // block), device=device), step)
        fine = self.powers(torch.arange(block, device=device), step)
        dtype = self.cosine.dtype
        a, b = self.cosine.double().unsqueeze(-1), self.sine.double().unsqueeze(-1)
        # c λ^(aB) with c = a - ib
        left = torch.cat([a * coarse[0] + b * coarse[1], b * coarse[0] - a * coarse[1]], dim=1).to(dtype)
        right = torch.cat(fine, dim=1).to(dtype)
        values = (left.transpose(1, 2) @ right).flatten(1)[:, :points]
        return self._measured(values, step).unflatten(0, (self.out_channels, -1))

    def first_weight(self, step: float) -> float:
        """Return the weight of lag 0, whose cell reaches from -1/2 to step/2 as in :class:`ContinuousConv`."""
        return (1 + step) / 2

    def _measured(self, values: Tensor, step: float) -> Tensor:
        if step == 1:
            return values
        return torch.cat([values[:, :1] * self.first_weight(step), values[:, 1:] * step], dim=1)

    @checked(
        x=TensorOf("float", "batch, .in_channels, times"),
        step=PerAxis(POSITIVE),
        mask=TensorOf("bool", "batch, times") | None,
    )
    def forward(
        self,
        x: Tensor,
        *,
        step: float | Sequence[float] = 1.0,
        coords: Tensor | None = None,
        mask: Tensor | None = None,
        add_bias: bool = True,
        **_: Any,
    ) -> Tensor:
        """Convolve a signal as a whole.

        Args:
            x: (batch, in, length) signal.
            step: sampling step of this input in training steps.
            coords: must be None: a recurrence needs a grid.
            mask: (batch, length) whether a sample was seen; unseen ones contribute nothing.
            add_bias: False leaves the bias out.

        Returns:
            (batch, out, length) signal.
        """
        if coords is not None:
            raise ValueError(
                "coords must be None for a distilled network, got a tensor: a recurrence needs a regular grid"
            )
        if x.dim() != 3 or x.shape[1] != self.in_channels:
            raise ValueError(f"x must have shape (batch, {self.in_channels}, length), got {tuple(x.shape)}")
        one = float(step if isinstance(step, (int, float)) else next(iter(step)))
        kernel = self.kernel(x.shape[-1], one)
        if not torch.is_autocast_enabled(x.device.type):
            kernel = kernel.to(x.dtype)
        y = conv(seen_only(x, mask), kernel, causal=True, groups=self.groups)
        return y if self.bias is None or not add_bias else y + self.bias.unsqueeze(-1).to(y.dtype)

    def extra_repr(self) -> str:
        kind = "depthwise, " if self.groups > 1 else ""
        reach = float(self.reach)
        return f"{self.in_channels}, {self.out_channels}, {kind}order={self.order}, reach={reach:g}"
