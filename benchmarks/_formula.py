"""The choice of how operators compute, forced: our methods in turn, or the plain formulas."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING
from unittest import mock

from _convolutions import formula_conv

import kernelfield as kf
from kernelfield.layers.group.correlate import DIRECT_POINTS
from kernelfield.ops import backend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

__all__ = ["forced", "formula"]


class _NoDevice(dict):  # type: ignore[type-arg]
    """The devices on which Triton kernels run, as the operators see them: none."""

    def get(self, *_: object) -> bool:
        return False


@contextlib.contextmanager
def forced(method: str, fused: bool) -> Iterator[None]:
    """Let "auto" mean ``method`` wherever it can convolve, and turn all other Triton kernels on or off.

    Args:
        method: "triton", "fft", or "formula" for torch.fft padded to twice the length; there kernels of at most 15
            points along each axis, which nobody transforms, are summed directly by torch's convolutions.
        fused: whether the other Triton kernels may run.
    """
    conv = sys.modules["kernelfield.ops.conv"]  # the package's attribute of that name is the function
    choose = conv.cheapest

    def choice(x: Tensor, kernel: Tensor, causal: bool, boundary: tuple[str, ...]) -> str:
        if method == "formula" and max(kernel.shape[2:]) <= DIRECT_POINTS:
            return "direct"
        able = method != "triton" or conv.obstacle(x, kernel, causal, boundary) is None
        return method if able else choose(x, kernel, causal, boundary)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(conv, "cheapest", choice))
        stack.enter_context(mock.patch.object(conv, "_plans", {}))
        stack.enter_context(mock.patch.dict(conv.METHODS, formula=formula_conv))
        if not fused and method == "triton":  # its kernels run, and those of no other operator
            stack.enter_context(mock.patch.object(backend, "_running", _NoDevice()))
            stack.enter_context(mock.patch.object(backend, "_kernels_run", return_value=True))
        elif not fused:
            stack.enter_context(kf.ops.use_fast_paths(False))
        yield


@contextlib.contextmanager
def formula() -> Iterator[None]:
    """Compute by the plain formulas: torch operations, convolutions by torch.fft, and all pairs of points."""
    points = sys.modules["kernelfield.ops.points.point_conv"]
    with forced("formula", fused=False), mock.patch.object(points, "choose_method", return_value=("pairs", None)):
        yield
