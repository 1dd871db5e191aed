"""Figures of chapters 2 and 3 about what kernels can express and how networks begin."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield import CCNN, CKConv
from kernelfield.fields import SIREN
from kernelfield.viz.families import (
    kernel_families,
    plot_between_samples,
    plot_families,
    plot_output_histograms,
    plot_size_accuracy,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_families_decay_grow_end_and_go_on(tmp_path: Path) -> None:
    families = kernel_families(60, discrete=10)
    decaying, growing, discrete, continuous = families.values()
    assert (decaying.diff(dim=1) <= 0).all()
    assert (growing.diff(dim=1) >= 0).all()
    assert (discrete[:, 10:] == 0).all()
    assert (continuous[:, 30:].diff(dim=1).sign().diff(dim=1) != 0).any()  # it still oscillates
    plot_families(tmp_path / "families.png", length=60)
    assert (tmp_path / "families.png").stat().st_size > 10_000


def test_sines_oscillate_between_the_samples(tmp_path: Path) -> None:
    torch.manual_seed(0)
    fast = CKConv(1, 1, size=32, causal=True, field=partial(SIREN, omega_0=500.0))
    slow = CKConv(1, 1, size=32, causal=True, field=partial(SIREN, omega_0=5.0))
    excess = {}
    for name, layer in (("fast", fast), ("slow", slow)):
        coarse, between = plot_between_samples(layer, tmp_path / f"{name}.png", fine=8)
        torch.testing.assert_close(between[::8], coarse, atol=1e-4, rtol=1e-3)
        # Along a straight line between the samples the total variation of both would be the same.
        excess[name] = (between.diff().abs().sum() / coarse.diff().abs().sum()).item()
    assert excess["fast"] > 2
    assert excess["slow"] < 1.1
    with pytest.raises(TypeError, match=r"layer .*Linear"):
        plot_between_samples(torch.nn.Linear(1, 1), tmp_path / "a.png")


def test_the_initialisation_keeps_the_variance_of_outputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    make = partial(CCNN, 3, 10, size=64, channels=16, blocks=4, norm="none", sigma=0.3)
    spread = plot_output_histograms(
        {"with": make(gain="start"), "without": make(gain=None)}, torch.randn(8, 3, 64), tmp_path / "histogram.png"
    )
    assert 0.1 < spread["with"] < 10
    assert not 0.1 < spread["without"] < 10
    assert (tmp_path / "histogram.png").stat().st_size > 5_000


def test_accuracy_is_drawn_against_size(tmp_path: Path) -> None:
    published = {"CCNN": {6_545: 82.0, 14_401: 83.0, 207_709: 84.44}, "PointNet": {3.5e6: 89.2}}
    plot_size_accuracy(published, tmp_path / "sizes.png")
    assert (tmp_path / "sizes.png").stat().st_size > 5_000
    with pytest.raises(ValueError, match="points"):
        plot_size_accuracy({}, tmp_path / "b.png")
