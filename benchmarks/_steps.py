"""Training steps in a custom loop, and counts of their launches and Python calls."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

import kernelfield as kf

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

__all__ = ["CASES", "Case", "Noise", "call_profiled", "launches", "make_step", "python_calls"]

#: functions of the driver and of the runtime that start work on the device
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")


@dataclass(frozen=True)
class Case:
    """A network or a layer, and a batch for it.

    Args:
        name: of the row.
        batch: samples of a batch.
        build: makes the network.
        inputs: makes the arguments of its forward pass for a number of samples: "x", and others by name.
        recipe: name of the recipe that gives the sizes, if there is one.
    """

    name: str
    batch: int
    build: Callable[[], nn.Module]
    inputs: Callable[[int], dict[str, Tensor]]
    recipe: str = ""


@dataclass(frozen=True)
class Noise:
    """Inputs of one shape."""

    shape: tuple[int, ...]

    def __call__(self, batch: int) -> dict[str, Tensor]:
        return {"x": torch.randn(batch, *self.shape)}


def _case(name: str, model: str, batch: int, *shape: int, **options: Any) -> Case:
    build = partial(kf.create_model, model, in_channels=shape[0], out_channels=10, **options)
    return Case(name, batch, build, Noise(shape))


#: the networks of the guide to speed
CASES = {
    case.name: case
    for case in (
        _case("CCNN_4,140", "ccnn_4_140", 100, 1, 784, dim=1, size=784, dropout=0.1, dropout_kind="channels"),
        _case("FlexTCN-2", "flextcn_2", 64, 1, 784, size=784, norm="batch", dropout=0.1),
        _case("FlexNet-16", "flexnet_16", 64, 3, 32, 32, size=32),
        _case("p4-CNN", "p4cnn", 128, 1, 28, 28),
        _case("attentive p4-CNN", "p4cnn", 128, 1, 28, 28, attention="full"),
    )
}


def make_step(net: nn.Module, autocast: str | None = None) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    """Return a training step of a network, in bfloat16 where ``autocast`` names a kind of device.

    The step takes the arguments of the network and labels 0 and 1, which all networks with classes have.
    """
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

    def step(inputs: dict[str, Tensor], labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(autocast or "cpu", torch.bfloat16, enabled=autocast is not None):
            loss = _loss(net(**inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def _loss(y: Any, labels: Tensor) -> Tensor:
    """Return the cross-entropy of class predictions, or the mean square of the outputs of a layer."""
    values: Tensor = getattr(y, "values", y) if not isinstance(y, torch.Tensor) else y
    if values.dim() == 2 and values.shape[1] > 1:
        return F.cross_entropy(values, labels)
    return values.float().square().mean()


def launches(call: Callable[[], object], device: torch.device) -> int | None:
    """Return how many calls of the driver start work on the device; None on a CPU."""
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    return sum(event.count for event in profiler.key_averages() if event.key.startswith(LAUNCHES))


def python_calls(call: Callable[[], object]) -> int:
    """Return how many Python functions are called in this thread."""
    count = 0

    def profile(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event == "call"

    call_profiled(call, profile)
    return count


def call_profiled(call: Callable[[], object], profile: Callable[[Any, str, Any], None]) -> None:
    """Call a function with a profile of this thread."""
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
