"""Fields are fitted to values, and what they can hold shows in the error."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield import CKConv
from kernelfield.fields import MLP, SIREN, MAGNet, NJet, fit_field
from kernelfield.viz.fits import plot_bandwidth, plot_curve_fits, targets_of_chapter_2

if TYPE_CHECKING:
    from pathlib import Path


def grid(count: int) -> torch.Tensor:
    axis = torch.linspace(-1, 1, count)
    return torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1).view(-1, 2)


def test_magnets_hold_frequencies_that_njets_cannot() -> None:
    """Chapter 5's bandwidth experiment, small: a tenth of the error of an N-Jet of order 9, or less."""
    torch.manual_seed(0)
    coords = grid(33)
    wave = torch.cos(32 * coords.sum(dim=1) / math.sqrt(2))
    target = (wave * torch.exp(-0.5 * coords.square().sum(dim=1) / 0.33**2))[:, None]
    errors = fit_field(MAGNet(2, 1, omega_0=2.0, start="flexconv"), coords, target, steps=80)
    best = math.inf
    for sigma in torch.linspace(1, 12, 12).tolist():
        features = NJet(2, 1, order=9, sigma=sigma, spacing=1 / 16).double().features(coords.double()).detach()
        fit = features @ torch.linalg.lstsq(features, target.double(), driver="gelsd").solution
        best = min(best, float((fit - target).square().mean()))
    assert errors[-1] < best / 10


def test_a_layer_leaves_a_fitted_field_as_it_is() -> None:
    field, coords = SIREN(1, 6), torch.linspace(-1, 1, 9)[:, None]
    fit_field(field, coords, torch.randn(9, 6), steps=2)
    wanted = field(coords)
    CKConv(2, 3, size=8, field=field)
    assert torch.equal(field(coords), wanted)


def test_a_linear_field_reaches_the_least_squares_error() -> None:
    coords, target = grid(9), torch.randn(81, 1)
    field = NJet(2, 1, order=2, sigma=2.0, spacing=0.25)
    features = field.features(coords).detach()
    best = (features @ torch.linalg.lstsq(features, target).solution - target).square().mean()
    field.log_sigma.requires_grad_(False)
    assert fit_field(field, coords, target, steps=800, lr=0.1)[-1] == pytest.approx(best.item(), rel=1e-3)


def test_values_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"values .*got \(5, 2\)"):
        fit_field(SIREN(1, 1), torch.rand(5, 1), torch.rand(5, 2))
    with pytest.raises(ValueError, match=r"coords .*got \(0, 1\)"):
        fit_field(SIREN(1, 1), torch.rand(0, 1), torch.rand(0, 1))


@pytest.mark.slow  # by default test_sines_fit_what_piecewise_activations_do_not shows it of noise
def test_sines_fit_steps_and_noise_better_than_relus(tmp_path: Path) -> None:
    torch.manual_seed(0)
    fields = {"sine": partial(SIREN, omega_0=30.0), "relu": partial(MLP, activation="relu")}
    errors = plot_curve_fits(fields, tmp_path / "fits.png", steps=150)
    assert (tmp_path / "fits.png").stat().st_size > 10_000
    for target in ("steps", "noise"):
        assert errors["sine"][target] < 0.5 * errors["relu"][target]


def test_targets_are_reproducible_and_bounded() -> None:
    first, second = targets_of_chapter_2(60), targets_of_chapter_2(60)
    for name, values in first.items():
        assert values.equal(second[name])
        assert values.abs().max() <= 1


def test_the_bandwidth_figure_is_drawn(tmp_path: Path) -> None:
    errors = {"MAGNet": {0.2: 1e-6, 2.5: 1e-5}, "N-Jet 9": {0.2: 1e-8, 2.5: 1e-2}}
    images = {name: {"Gabor": torch.rand(9, 9)} for name in ("target", "MAGNet")}
    plot_bandwidth(errors, tmp_path / "a.png", kernels=images)
    plot_bandwidth(errors, tmp_path / "b.png")
    assert (tmp_path / "a.png").stat().st_size > (tmp_path / "b.png").stat().st_size > 5_000
    with pytest.raises(ValueError, match="errors"):
        plot_bandwidth({}, tmp_path / "c.png")
