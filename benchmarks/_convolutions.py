"""Convolutions to measure, and the methods that compute them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from kernelfield.ops import conv
from kernelfield.ops.conv.cost import Work, cheapest, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Case", "Problem", "formula_conv"]

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class Case:
    """A convolution to measure; kernels of a depthwise one have one input channel."""

    batch: int
    channels: int
    lengths: tuple[int, ...]
    points: tuple[int, ...]
    causal: bool = False
    depthwise: bool = True

    @property
    def kind(self) -> str:
        """Name of the entry of the cost model."""
        return f"{len(self.lengths)}d-{'depthwise' if self.depthwise else 'dense'}"

    @property
    def groups(self) -> int:
        return self.channels if self.depthwise else 1

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.batch, self.channels, *self.lengths)

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        return (self.channels, self.channels // self.groups, *self.points)

    @property
    def work(self) -> Work:
        """Inputs of the cost model for this convolution."""
        middles = tuple(0 if self.causal else (k - 1) // 2 for k in self.points)
        return Work.of(self.shape, self.kernel_shape, middles, [False] * len(self.lengths))

    def estimate(self, method: str, device: torch.device, training: bool) -> float:
        """Return the seconds that the cost model expects."""
        return seconds(method, self.work, device.type, training)

    def floor_bytes(self, training: bool) -> int:
        """Return the bytes of float32 that every method must read and write.

        Forward x, k and y; backward the gradient of y, x, k and the gradients of these two.
        """
        signal, kernel = math.prod(self.shape), math.prod(self.kernel_shape)
        forward = 2 * signal + kernel
        return 4 * (forward + (3 * signal + 2 * kernel if training else 0))


def formula_conv(x: Tensor, kernel: Tensor, *, causal: bool, boundary: Sequence[str], groups: int) -> Tensor:
    """Convolve by the plain formula: pad to 2L, transform, multiply, crop.

    Signals of half precision are transformed in float32.
    """
    if (dtype := x.dtype) in (torch.bfloat16, torch.float16):
        return formula_conv(x.float(), kernel.float(), causal=causal, boundary=boundary, groups=groups).to(dtype)
    if causal:  # later points meet no sample, and would wrap around
        kernel = kernel[..., : x.shape[-1]]
    axes = tuple(range(2, x.dim()))
    sizes = tuple(n if name == "periodic" else 2 * n for n, name in zip(x.shape[2:], boundary, strict=True))
    spectrum = torch.fft.rfftn(x, s=sizes, dim=axes)
    kernel_spectrum = torch.fft.rfftn(kernel, s=sizes, dim=axes)
    if groups == 1:
        product = torch.einsum("bi...,oi...->bo...", spectrum, kernel_spectrum)
    elif kernel.shape[:2] == (groups, 1):
        product = spectrum * kernel_spectrum.squeeze(1)
    else:
        parts = spectrum.unflatten(1, (groups, -1)), kernel_spectrum.unflatten(0, (groups, -1))
        product = torch.einsum("bgi...,goi...->bgo...", *parts).flatten(1, 2)
    y = torch.fft.irfftn(product, s=sizes, dim=axes)
    for axis, name in zip(axes, boundary, strict=True):
        first = 0 if causal else (kernel.shape[axis] - 1) // 2
        y = y.roll(-first, axis) if name == "periodic" else y.narrow(axis, first, x.shape[axis])
    return y


class Problem:
    """The tensors of a case, and its calls."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        self.x = torch.randn(case.shape, device=device)
        # Outputs of order one, so that no method meets denormals or infinities.
        self.kernel = torch.randn(case.kernel_shape, device=device) / math.sqrt(math.prod(case.kernel_shape[1:]))
        self.grad = torch.randn(case.shape, device=device)

    def call(self, method: str, training: bool) -> Callable[[], object]:
        """Return a call that computes the output, or for ``training`` the output and both gradients."""
        function = getattr(self, method)
        if not training:

            def forward() -> Tensor:
                with torch.no_grad():
                    return function(self.x, self.kernel)

            return forward
        x, kernel = self.x.detach().requires_grad_(), self.kernel.detach().requires_grad_()

        def step() -> tuple[Tensor, ...]:
            return torch.autograd.grad(function(x, kernel), (x, kernel), self.grad)

        return step

    def chosen(self, training: bool) -> str:
        """Return the method that "auto" chooses."""
        boundary = ("zero",) * len(self.case.lengths)
        return cheapest(self.x.detach().requires_grad_(training), self.kernel, self.case.causal, boundary)

    def auto(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Compute it by the method that "auto" chooses."""
        return self._ours(x, kernel, "auto")

    def fft(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Compute it by our FFT."""
        return self._ours(x, kernel, "fft")

    def direct(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Compute it by our direct sum: torch's convolution with a flipped kernel."""
        return self._ours(x, kernel, "direct")

    def _ours(self, x: Tensor, kernel: Tensor, method: str) -> Tensor:
        return conv(x, kernel, causal=self.case.causal, groups=self.case.groups, method=method)

    def plain(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Compute it by the plain formula."""
        boundary = ("zero",) * len(self.case.lengths)
        return formula_conv(x, kernel, causal=self.case.causal, boundary=boundary, groups=self.case.groups)

    def torch_direct(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Compute it by torch's own convolution, which does not flip the kernel."""
        if self.case.causal:
            return F.conv1d(F.pad(x, (kernel.shape[-1] - 1, 0)), kernel, groups=self.case.groups)
        padding = tuple(k // 2 for k in kernel.shape[2:])
        return _CONV[x.dim() - 2](x, kernel, padding=padding, groups=self.case.groups)
