"""Filter networks: the contract, their initialisations, and the bound on their frequencies."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

import kernelfield as kf
from kernelfield.fields import FilterNetwork, FourierFilter, GaborFilter, MAGNet
from tests.contracts.fields import FieldContract

if TYPE_CHECKING:
    from collections.abc import Callable

BAD_SIZES = [
    ("hidden", 0, ValueError, "hidden .*got 0"),
    ("layers", 0, ValueError, "layers .*got 0"),
    ("layers", 2.0, TypeError, r"layers .*got 2\.0"),
    ("omega_0", -2.0, ValueError, r"omega_0 .*got -2\.0"),
    ("omega_0", math.nan, ValueError, "omega_0 .*got nan"),
    ("bandwidth", 0, ValueError, "bandwidth .*got 0"),
    ("start", "siren", ValueError, "start .*got 'siren'"),
]
BAD_ENVELOPES = [
    *BAD_SIZES,
    ("alpha", 0, ValueError, "alpha .*got 0"),
    ("beta", -1.0, ValueError, r"beta .*got -1\.0"),
    (
        "mean_range",
        (1.0, 1.0),
        ValueError,
        r"mean_range .*got \(1\.0, 1\.0\)",
    ),
]


# Chapter 5: a MAGNet has 3,680 + 33·N parameters in 1D, 4,064 + 33·N in 2D. Isotropic envelopes save one
# inverse width for each of 4·32 units in 2D; plain sines save all of the envelopes, 2·4·32 in 1D.
class TestMAGNet(FieldContract):
    field = MAGNet
    counts: ClassVar = {(1, 1): 3680 + 33, (1, 30): 3680 + 33 * 30, (2, 7): 4064 + 33 * 7}
    bad_arguments: ClassVar = BAD_ENVELOPES


class TestGaborFilter(FieldContract):
    traced = False
    field = GaborFilter
    counts: ClassVar = {(1, 30): 3680 + 33 * 30, (2, 7): 4064 + 33 * 7 - 128}
    bad_arguments: ClassVar = BAD_ENVELOPES


class TestFourierFilter(FieldContract):
    traced = False
    field = FourierFilter
    counts: ClassVar = {(1, 30): 3680 + 33 * 30 - 256, (2, 7): 4064 + 33 * 7 - 512}
    bad_arguments: ClassVar = BAD_SIZES


@pytest.mark.parametrize("field", [MAGNet, GaborFilter, FourierFilter])
def test_formula(field: type[FilterNetwork]) -> None:
    network = field(2, 3, hidden=4, layers=2).double()
    coords = torch.rand(6, 2, dtype=torch.float64) * 2 - 1
    filters = []
    for l in range(3):
        g = torch.sin(coords @ network.frequency[l].T + network.phase[l])
        if field is not FourierFilter:
            offsets = network.gamma[l] * (coords[:, None] - network.mean[l])
            g = g * torch.exp(-0.5 * offsets.square().sum(dim=-1))
        filters.append(g)
    h = filters[0]
    for linear, g in zip(network.linears, filters[1:], strict=True):
        h = linear(h) * g
    torch.testing.assert_close(network(coords), network.out(h))


def test_magnet_draws_inverse_widths_from_gamma_distributions_that_widen() -> None:
    gamma = MAGNet(2, 1, hidden=4000, layers=3).gamma
    assert gamma.shape == (4, 4000, 2)
    for l, drawn in enumerate(gamma, start=1):
        # Gamma(6/l, 1) has its mean and its variance at 6/l.
        assert drawn.mean().item() == pytest.approx(6 / l, rel=0.05)
        assert drawn.var().item() == pytest.approx(6 / l, rel=0.1)


@pytest.mark.parametrize("field", [MAGNet, GaborFilter])
def test_both_starts_of_the_envelopes_can_be_chosen(field: type[FilterNetwork]) -> None:
    means = {kind: field(2, 1, hidden=1500, envelopes=kind).gamma.mean(dim=(1, 2)) for kind in ("equal", "varied")}
    torch.testing.assert_close(means["equal"], torch.full((4,), 6 / 4), atol=0.1, rtol=0)
    torch.testing.assert_close(means["varied"], 6 / torch.arange(1, 5), atol=0.15, rtol=0)
    with pytest.raises(ValueError, match=r"envelopes .*got 'wide'"):
        field(2, 1, envelopes="wide")


def test_gabor_draws_all_inverse_widths_from_one_distribution() -> None:
    gamma = GaborFilter(2, 1, hidden=4000, layers=3, beta=2.0).gamma
    assert gamma.shape == (4, 4000, 1)
    for drawn in gamma:
        assert drawn.mean().item() == pytest.approx(6 / 4 / 2, rel=0.08)


@pytest.mark.parametrize("dim", [1, 2])
def test_a_published_scale_multiplies_the_inverse_widths(dim: int) -> None:
    network = MAGNet(dim, 1, hidden=2000, omega_0=3.0, mean_range=(0.0, 0.5))
    cycles = network.frequency / network.gamma / (2 * math.pi * 3.0)
    assert 0.95 / math.sqrt(dim) < cycles.abs().max() <= (1 + 1e-5) / math.sqrt(dim)
    assert 0 <= network.mean.min() < 0.05
    assert 0.45 < network.mean.max() <= 0.5


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("field", [MAGNet, GaborFilter, FourierFilter])
def test_without_a_scale_sines_are_spread_over_the_bandwidth(field: type[FilterNetwork], dim: int) -> None:
    cycles = field(dim, 1, hidden=1000, bandwidth=10.0).frequency.abs() / (2 * math.pi)
    assert cycles.max() <= 10.0 * (1 + 1e-6)
    torch.testing.assert_close(cycles.mean(dim=(1, 2)), torch.full((4,), 5.0), rtol=0.08, atol=0)


@pytest.mark.parametrize("options", [{"omega_0": 2.0}, {"start": "flexconv"}])
@pytest.mark.parametrize("field", [MAGNet, GaborFilter, FourierFilter])
def test_a_bandwidth_without_an_effect_is_refused(field: type[FilterNetwork], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="bandwidth"):
        field(1, 1, bandwidth=10.0, **options)
    with pytest.raises(ValueError, match="bandwidth"):
        kf.CKConv(1, 1, size=16, field=partial(field, bandwidth=10.0, **options))
    kf.CKConv(1, 1, size=16, field=partial(field, **options))  # the bandwidth of its grid is no error


def energy_above(field: FilterNetwork, frequency: float, samples: int) -> float:
    """Return the part of a field's energy on [-1, 1]^D that lies above ``frequency`` along some axis.

    The mean does not count: it is no oscillation, and a large one would make any part look small. A Hann
    window keeps the cut at the domain's edges, which is not the field's, out of the spectrum.
    """
    axes = tuple(range(field.dim))
    axis = 2 * torch.arange(samples) / samples - 1
    window = torch.hann_window(samples)
    cycles = torch.fft.fftfreq(samples, 2 / samples).abs()
    assert cycles.max() > 1.5 * frequency  # with room above the bound for what should not be there
    coords = torch.stack(torch.meshgrid(*[axis] * field.dim, indexing="ij"), dim=-1)
    with torch.no_grad():
        values = field(coords)
    values = values - values.mean(dim=axes, keepdim=True)
    above = torch.zeros([samples] * field.dim, dtype=torch.bool)
    for d in axes:
        shape = [-1] + [1] * (field.dim - 1 - d)
        values = values * window.reshape(*shape, 1)
        above |= (cycles > frequency).reshape(shape)
    energy = torch.fft.fftn(values, dim=axes).abs().square().sum(dim=-1)
    return (energy[above].sum() / energy.sum()).item()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("dim", "samples"), [(1, 4096), (2, 320)], ids=["1d", "2d"])
@pytest.mark.parametrize(
    "build",
    [
        partial(MAGNet, omega_0=2.0),
        partial(MAGNet, omega_0=0.5),
        partial(MAGNet, alpha=12.0, omega_0=1.0),
        partial(GaborFilter, omega_0=2.0),
        partial(FourierFilter, omega_0=15.0),
        partial(FourierFilter, omega_0=5.0, layers=1),
    ],
    ids=["magnet", "slow magnet", "narrow magnet", "gabor", "fourier", "shallow fourier"],
)
def test_under_one_percent_of_the_energy_lies_above_the_bound(
    build: Callable[[int, int], FilterNetwork], dim: int, samples: int, seed: int
) -> None:
    torch.manual_seed(seed)
    field = build(dim, 4)
    assert energy_above(field, field.max_frequency().item(), samples) < 0.01


@pytest.mark.parametrize("dim", [1, 2])
def test_the_bound_is_reached(dim: int) -> None:
    # One unit a filter: (sin(a x) + 1) sin(b x) has its fastest part at a + b, with an eighth of the energy.
    field = FourierFilter(dim, 1, hidden=1, layers=1)
    with torch.no_grad():
        field.frequency.copy_(2 * math.pi * torch.tensor([12.0, 20.0])[:, None, None])
        field.linears[0].weight.fill_(1.0)
        field.linears[0].bias.fill_(1.0)
    assert field.max_frequency().item() == pytest.approx(32.0)
    samples = 1024 if dim == 1 else 256
    assert energy_above(field, 31.0, samples) > 0.05
    assert energy_above(field, 34.0, samples) < 1e-4


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("build", [MAGNet, GaborFilter])
def test_an_envelope_widens_the_spectrum_by_as_much_as_counted(build: Callable[..., FilterNetwork], axis: int) -> None:
    # One Gabor function and a filter that is one: a Gaussian of deviation γ/2π about the sine's line.
    field = build(2, 1, hidden=1, layers=1)
    with torch.no_grad():
        field.mean.zero_()
        field.frequency.zero_()
        field.frequency[0, 0, axis] = 2 * math.pi * 20
        field.gamma.copy_(torch.tensor([9.0, 0.0])[:, None, None])
        field.phase.copy_(torch.tensor([0.0, math.pi / 2])[:, None])
    assert field.max_frequency().item() == pytest.approx(20 + 2 * 9 / (2 * math.pi))
    assert energy_above(field, field.max_frequency().item(), 256) < 0.01
    # Not by much more: two deviations leave out a fifth of a percent, one leaves out 8 percent.
    assert energy_above(field, field.max_frequency(cut=1.0).item(), 256) > 0.04


def test_the_wider_axis_of_an_envelope_does_not_hide_the_narrower() -> None:
    field = MAGNet(2, 1, hidden=1, layers=1)
    with torch.no_grad():
        field.frequency.zero_()
        field.gamma.copy_(torch.tensor([[[0.1, 9.0]], [[0.0, 0.0]]]))
    assert field.max_frequency().item() == pytest.approx(2 * 9 / (2 * math.pi))


def test_max_frequency_is_the_sum_of_the_bandwidths_and_differentiable() -> None:
    field = MAGNet(2, 3)
    assert field.bandwidths().shape == (4,)
    torch.testing.assert_close(field.bandwidths().sum(), field.max_frequency())
    field.max_frequency().backward()
    assert (field.frequency.grad != 0).any(dim=2).any(dim=1).all()
    assert (field.gamma.grad != 0).any(dim=2).any(dim=1).all()


def test_the_base_class_has_no_envelope() -> None:
    field = FilterNetwork(1, 1, hidden=2, layers=1, omega_0=1.0, start="ccnn", gamma=torch.ones(()))
    with pytest.raises(NotImplementedError):
        field(torch.zeros(1, 1))
    with pytest.raises(NotImplementedError):
        field.max_frequency()
