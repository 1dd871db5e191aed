"""Figures of wavelets and of equivariance to dilations, layer by layer (chapter 10)."""

from __future__ import annotations

import math

import pytest
import torch

from kernelfield.fields import BSpline
from kernelfield.groups import Cyclic, Scale
from kernelfield.layers.group import LiftingConv
from kernelfield.models import GCNN, WaveletNet
from kernelfield.models.wavelet_net import Stage
from kernelfield.viz.wavelets import plot_scale_equivariance, plot_wavelets, scale_equivariance, wavelets_of


def smooth(length=1024):
    """A signal that a dilation by two leaves within the band of the grid, and that is zero at its ends."""
    t = torch.arange(float(length)) - length / 2
    bells = [
        torch.exp(-((t - c) / w).square()) * torch.sin(2 * math.pi * t / p) for c, w, p in ((0, 90, 40), (30, 60, 18))
    ]
    return torch.stack([sum(bells)])


def network(pool=1):
    torch.manual_seed(0)
    stages = [Stage(4, 9, pool=pool), Stage(4, 3, interactions=2), Stage(4, 3, interactions=2)]
    return WaveletNet(1, 3, stages=stages, scales=5)


def test_a_wavelet_at_twice_the_dilation_is_half_as_high_and_twice_as_wide():
    one, two, *_ = wavelets_of(LiftingConv(1, 3, group=Scale(3), field=BSpline, kernel_size=9))
    middle = one.shape[-1] // 2
    wide = two[..., two.shape[-1] // 2 - 2 * middle :: 2][..., : one.shape[-1]]
    torch.testing.assert_close(2 * wide, one, rtol=1e-4, atol=1e-6)


def test_layers_without_pooling_are_equivariant_to_dilations():
    errors = scale_equivariance(network(), smooth())
    assert list(errors) == ["stages.0.conv", "stages.1.conv", "stages.2.conv"]
    assert errors["stages.0.conv"] < 1e-3
    assert max(errors.values()) < 0.1
    # Pooling keeps the largest of neighbouring samples, and a dilated signal has other neighbours.
    assert scale_equivariance(network(pool=4), smooth())["stages.1.conv"] > errors["stages.1.conv"]


def test_figures_are_drawn(tmp_path):
    net = network()
    before, after = net.stages[0].conv, network(2).stages[0].conv
    plot_wavelets({"before": before, "after": after}, tmp_path / "wavelets.png", channels=2)
    plot_scale_equivariance({"none": net, "pooled": network(2)}, smooth(), tmp_path / "errors.png")
    assert all((tmp_path / f"{name}.png").stat().st_size > 1000 for name in ("wavelets", "errors"))
    with pytest.raises(ValueError, match=r"\blift must"):
        wavelets_of(LiftingConv(1, 2, group=Cyclic(4)))
    with pytest.raises(ValueError, match=r"\bmodel must"):
        scale_equivariance(GCNN(group=Cyclic(4)), smooth())
    with pytest.raises(ValueError, match=r"\blifts must"):
        plot_wavelets({}, tmp_path / "none.png")
