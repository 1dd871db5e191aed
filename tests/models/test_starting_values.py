"""Initial weights of every registered network: kernels are not constant and differ, and signals stay alive."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from kernelfield import create_model
from kernelfield.layers.continuous.continuous_conv import ContinuousConv
from kernelfield.layers.group.kernel import GroupKernel
from kernelfield.layers.group.signal import GroupSignal
from kernelfield.models.registry import configuration

from .registered import NAMES, Example, example, small_by_default

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelfield.fields import Field

#: attention over many elements is slow, and the same as over few; so are the deepest networks of a family
CASES = small_by_default(NAMES, "_r1|_r8|gsanet_pcam|cifar_resnet_44|resnet44_p4|w3")
#: points at which a kernel is looked at
POINTS = 400


def begin(name: str) -> Example:
    """Return a registered network at a size at which statistics mean something, and white noise for it."""
    torch.manual_seed(3)
    family, given = configuration(name).build.__name__, configuration(name).arguments
    if family in ("FlexNet", "CIFARResNet"):
        net = create_model(name, in_channels=3, out_channels=4, size=16, channels=8, hidden=16)
        return Example(net, torch.randn(4, 3, 16, 16), {})
    if family in ("CCNN", "learned_ccnn", "CKCNN", "FlexTCN") and not given.get("vocabulary") and "dim" not in given:
        net = create_model(name, in_channels=3, out_channels=4, size=64, channels=12, hidden=16)
        return Example(net, torch.randn(4, 3, 64), {})
    return example(name, batch=4)


def smooth(noise: Tensor) -> Tensor:
    """Return noise of the same shape and variance whose neighbours are alike, as those of an image are."""
    mode = {3: "linear", 4: "bilinear", 5: "trilinear"}[noise.dim()]
    coarse = torch.randn(*noise.shape[:2], *(max(2, n // 4) for n in noise.shape[2:]))
    fine = nn.functional.interpolate(coarse, noise.shape[2:], mode=mode, align_corners=True)
    return fine / fine.std()


def kernels(net: nn.Module) -> Iterator[tuple[Field, Tensor]]:
    """Return every kernel field of a network and its values at points of its domain, (values, points)."""
    for module in net.modules():
        if isinstance(module, GroupKernel):
            yield module.field, module.field(torch.rand(POINTS, module.field.dim) * 2 - 1).mT
        elif isinstance(module, ContinuousConv):
            coords = torch.rand(POINTS, module.dim) * (1 if module.causal else 2) - (0 if module.causal else 1)
            if module.mask is not None:  # what lies beyond its support is never seen
                coords = coords * module.mask.support()[1].clamp(max=1)
            yield module.field, module.field(coords).mT


def constant_share(kernel: Tensor) -> float:
    """Return the share of the kernels' energy that lies in their means."""
    return (kernel.mean(dim=1).square().sum() * kernel.shape[1] / kernel.square().sum()).item()


def effective_rank(kernel: Tensor) -> float:
    """Return the exponential of the entropy of the kernels' squared singular values."""
    energy = torch.linalg.svdvals(kernel.double()).square()
    share = energy / energy.sum()
    return math.exp(torch.special.entr(share).sum().item())


def outputs(net: nn.Module, example: Example, x: Tensor) -> dict[str, Tensor]:
    """Return what every block of a network puts out for ``x``, and its predictions."""
    found: dict[str, Tensor] = {}

    def note(name: str) -> object:
        def hook(module: nn.Module, args: object, output: Tensor | GroupSignal) -> None:
            found[name] = output.values if isinstance(output, GroupSignal) else output

        return hook

    handles = [
        module.register_forward_hook(note(name))  # type: ignore[arg-type]
        for name, module in net.named_modules()
        if type(module).__name__.endswith("Block")
    ]
    found["predictions"] = net(x, **example.options)
    for handle in handles:
        handle.remove()
    return found


#: Most energy in the constant, and least effective rank, by starting values or field. Chapter 5's output biases are as
#: large as the rest of its kernels and larger; piecewise activations give smooth kernels; the kernels of chapter 3 lie
#: under masks of a few points.
KERNEL_BOUNDS: dict[str, tuple[float, float]] = {
    "ccnn": (0.7, 1.8),
    "siren": (0.8, 1.5),
    "flexconv": (0.995, 1.0),
    "partial": (0.05, 1.2),
    "MLP": (0.98, 1.1),
    "NJet": (0.9, 1.0),
    "SharedField": (0.5, 2.0),
    "Table": (0.9, 1.0),
    "BSpline": (0.9, 1.0),
}
#: kernels without a mask that begin with chapter 3's values: far from an average over the input
GLOBAL_BOUNDS = (0.3, 3.0)
#: least and most variance of a block's output for an input of variance 1
BLOCK_VARIANCE = (0.02, 100.0)
#: least and most variance of the predictions; chapter 2 draws the last map from N(0, 0.01²)
PREDICTION_VARIANCE = (1e-4, 100.0)
#: networks whose prediction is a faint signal, or no function of their input
FAINT = {"gridified_reconstruction": 1e-8}


@pytest.fixture(scope="module", params=CASES)
def network(request: pytest.FixtureRequest) -> tuple[str, Example]:
    """Return the name of a network, and the network, built once for all tests of it."""
    return request.param, begin(request.param)


@torch.no_grad()
def test_kernels_are_neither_constant_nor_equal(network: tuple[str, Example]) -> None:
    name, case = network
    for field, kernel in kernels(case.network):
        most, least = KERNEL_BOUNDS[field.start or type(field).__name__]
        if name.endswith("global") or name.startswith("dnarch"):
            most, least = GLOBAL_BOUNDS
        assert constant_share(kernel) < most
        assert effective_rank(kernel) > min(least, 0.99 * len(kernel))


@pytest.mark.parametrize("signal", ["white noise", pytest.param("smooth", marks=pytest.mark.slow)])
@torch.no_grad()
def test_blocks_keep_signals_alive(network: tuple[str, Example], signal: str) -> None:
    name, case = network
    if signal == "smooth" and not case.inputs.is_floating_point():
        pytest.skip("tokens are not smooth")
    x = case.inputs if signal == "white noise" else smooth(case.inputs)
    found = outputs(case.network, case, x)
    least, most = PREDICTION_VARIANCE
    assert FAINT.get(name, least) < found.pop("predictions").var().item() < most
    for block, output in found.items():
        assert BLOCK_VARIANCE[0] < output.var().item() < BLOCK_VARIANCE[1], block
