"""Every figure function that docs/thesis.yaml names draws from a fresh, small network.

By default networks take one training step. The slow variant trains each of them for a while first.
"""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kernelfield import CCNN, GCNN, CKConv, GSANet, PartialGCNN, WaveletNet, create_model
from kernelfield.experiments.evaluation import mask_sizes
from kernelfield.fields import MLP, SIREN
from kernelfield.groups import O2, SO2, Cyclic
from kernelfield.layers import Gridify
from kernelfield.models.wavelet_net import Stage
from kernelfield.viz import (
    architecture,
    attention,
    clouds,
    coattention,
    families,
    fits,
    groups,
    kernels,
    scalograms,
    self_attention,
    wavelets,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
LISTED = {
    maker.removeprefix("figure ")
    for entries in runpy.run_path(str(ROOT / "scripts" / "thesis_page.py"))["read_entries"]().values()
    for entry in entries
    for maker in entry["made"]
    if maker.startswith("figure ")
}


def trained(net: nn.Module, *shape: int, steps: int, each: Callable[[int], Any] | None = None) -> Any:
    """Return a network after ``steps`` steps on random samples of a shape, in three classes."""
    torch.manual_seed(0)
    x, y = torch.randn(6, *shape), torch.arange(6) % 3
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        if each is not None:
            each(step)
    return net


def _line(steps: int) -> nn.Module:
    return trained(CCNN(1, 3, size=24, channels=4, blocks=2, hidden=4), 1, 24, steps=steps)


def _turns(steps: int, **options: Any) -> nn.Module:
    return trained(GCNN(1, 3, group=Cyclic(4), channels=3, **options), 1, 28, 28, steps=steps)


def _partial(group: Any, steps: int, each: Any = None) -> nn.Module:
    net = PartialGCNN(1, 3, group=group, samples=4, channels=(2, 2, 2, 2), kernel_size=3)
    return trained(net, 1, 12, 12, steps=steps, each=None if each is None else lambda step: each(net, step))


def _waves(steps: int) -> nn.Module:
    stages = [Stage(4, 9), Stage(4, 3, interactions=2)]
    return trained(WaveletNet(1, 3, stages=stages, scales=4), 1, 256, steps=steps)


def _signal() -> torch.Tensor:
    t = torch.arange(512.0) - 256
    return (torch.exp(-(t / 60).square()) * torch.sin(2 * math.pi * t / 30))[None]


def _plot_history(path: Path, steps: int) -> None:
    net = create_model("dnarch_4_140", dim=1, size=16, in_channels=1, out_channels=3, channels=4, blocks=2, hidden=4)
    rows = [{"epoch": 0.0, **mask_sizes(net)}]
    if steps > 1:  # the first step of a learned architecture takes seconds
        trained(net, 1, 16, steps=steps, each=lambda step: rows.append({"epoch": step + 1.0, **mask_sizes(net)}))
    architecture.plot_history(rows, path)


def _plot_subset_history(path: Path, steps: int) -> None:
    rows: list[dict[str, float]] = []
    _partial(O2(), steps, lambda net, step: rows.append({"epoch": step + 1.0, **mask_sizes(net)}))
    groups.plot_subset_history(rows, path)


def _plot_attention(path: Path, steps: int) -> None:
    image = torch.randn(1, 28, 28)
    maps = attention.attention_maps(_turns(steps, attention="input"), image[None])
    attention.plot_attention(image, maps["lift"][0], Cyclic(4), path)


DRAWN: dict[str, Callable[[Path, int], object]] = {
    "architecture.plot_history": _plot_history,
    "attention.plot_attention": _plot_attention,
    "attention.plot_equivariance": lambda p, n: attention.plot_equivariance(
        _turns(n, attention="gate"), torch.randn(1, 28, 28), Cyclic(4), p, layers=["lift", "last"]
    ),
    "clouds.plot_gridification": lambda p, _: clouds.plot_gridification(
        Gridify(3, 4, dim=2, grid=4, neighbors=2), 2 * torch.rand(20, 2) - 1, p
    ),
    "coattention.plot_co_attention": lambda p, n: coattention.plot_co_attention(
        _turns(n, attention="co_filter", readout="sum", bias=True), torch.randn(1, 28, 28), p, channels=2
    ),
    "families.plot_between_samples": lambda p, n: families.plot_between_samples(
        next(m for m in _line(n).modules() if hasattr(m, "kernel") and hasattr(m, "field")), p
    ),
    "families.plot_families": lambda p, _: families.plot_families(p, length=20, discrete=4),
    "families.plot_output_histograms": lambda p, n: families.plot_output_histograms(
        {"a": _line(n)}, torch.randn(2, 1, 24), p
    ),
    "families.plot_size_accuracy": lambda p, _: families.plot_size_accuracy({"a": {1e3: 80.0, 1e4: 90.0}}, p),
    "fits.plot_bandwidth": lambda p, _: fits.plot_bandwidth({"MAGNet": {1.0: 1e-4, 2.0: 1e-3}}, p),
    "fits.plot_curve_fits": lambda p, n: fits.plot_curve_fits({"SIREN": SIREN, "ReLU": MLP}, p, steps=max(2, n)),
    "groups.plot_prediction_under_rotation": lambda p, n: groups.plot_prediction_under_rotation(
        _partial(SO2(), n), torch.randn(1, 12, 12), p, turns=8
    ),
    "groups.plot_subset_history": _plot_subset_history,
    "groups.plot_subsets": lambda p, n: groups.plot_subsets(_partial(O2(), n), p),
    "kernels.plot_channel_images": lambda p, n: kernels.plot_channel_images(_line(n), p),
    "kernels.plot_frequencies": lambda p, n: kernels.plot_frequencies({"a": _line(n)}, p),
    "kernels.plot_kernels": lambda p, n: kernels.plot_kernels(_line(n), p, channels=2),
    "scalograms.plot_scalograms": lambda p, n: scalograms.plot_scalograms(
        {"before": _waves(0).stages[0].conv, "after": _waves(n).stages[0].conv}, _signal(), p, channels=2
    ),
    "self_attention.plot_position_attention": lambda p, n: self_attention.plot_position_attention(
        trained(GSANet(1, 3, group=Cyclic(4), channels=4, widths=((4,),), heads=2, neighborhood=3), 1, 8, 8, steps=n),
        torch.randn(1, 8, 8),
        p,
        positions=[(2, 3)],
    ),
    "wavelets.plot_scale_equivariance": lambda p, n: wavelets.plot_scale_equivariance({"a": _waves(n)}, _signal(), p),
    "wavelets.plot_wavelets": lambda p, n: wavelets.plot_wavelets(
        {"before": _waves(0).stages[0].conv, "after": _waves(n).stages[0].conv}, p, channels=2
    ),
}


def test_every_listed_figure_is_drawn_here() -> None:
    assert set(DRAWN) == LISTED


#: figures that no call of tests/fuzz/calls draws
ONLY_HERE = (
    *("attention.plot_equivariance", "coattention.plot_co_attention", "groups.plot_subset_history"),
    *("groups.plot_subsets", "self_attention.plot_position_attention"),
    *("wavelets.plot_scale_equivariance", "wavelets.plot_wavelets"),
)


@pytest.mark.parametrize("steps", [1, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [name if name in ONLY_HERE else pytest.param(name, marks=pytest.mark.slow) for name in DRAWN]
)
def test_figures_draw_from_a_fresh_network(tmp_path: Path, name: str, steps: int) -> None:
    torch.manual_seed(0)
    DRAWN[name](tmp_path / "figure.png", steps)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure.png").stat().st_size > 1_000


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_drawn_kernels_are_the_first_of_the_layer(dim: int, smooth: bool) -> None:
    layer = CKConv(2, 3, dim=dim, size=4, smooth=smooth)
    wanted = layer.kernel(0.5, measured=False).detach().flatten(0, 1)[:4]
    wanted = wanted[:, wanted.shape[1] // 2] if dim == 3 else wanted
    torch.testing.assert_close(kernels.first_kernels(layer, 0.5, 4), wanted)
