"""Multilayer perceptrons: the contract, their initialisations, and what only sines fit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import pytest
import torch

from kernelfield.fields import MLP, SIREN
from tests.contracts.fields import FieldContract

if TYPE_CHECKING:
    from kernelfield.fields import Field

BAD_SIZES = [
    ("hidden", 0, ValueError, "hidden .*got 0"),
    ("hidden", 8.0, TypeError, r"hidden .*got 8\.0"),
    ("layers", 1, ValueError, "layers .*got 1"),
    ("omega_0", 0, ValueError, "omega_0 .*got 0"),
    ("omega_0", -30.0, ValueError, r"omega_0 .*got -30\.0"),
    ("omega_0", math.nan, ValueError, "omega_0 .*got nan"),
    ("omega_0", math.inf, ValueError, "omega_0 .*got inf"),
    ("omega_0", "30", TypeError, "omega_0 .*got '30'"),
    ("weight_norm", 1, TypeError, "weight_norm .*got 1"),
]


class TestMLP(FieldContract):
    traced = False
    field = MLP
    counts: ClassVar = {(1, 1): 64 + 1056 + 33, (2, 5): 96 + 1056 + 33 * 5}
    bad_arguments: ClassVar = [
        *BAD_SIZES,
        (
            "activation",
            "tanh",
            ValueError,
            "activation .*got 'tanh'",
        ),
        ("knots", "random", ValueError, "knots .*got 'random'"),
        ("norm", None, TypeError, "norm .*got None"),
    ]


class TestNormalisedSwish(FieldContract):
    traced = False
    field = MLP
    arguments: ClassVar = {"activation": "swish", "norm": True, "weight_norm": True, "knots": "zero"}
    # A length for each of the 32, 32 and N rows; a gain and a bias for each normalised unit.
    counts: ClassVar = {(1, 1): 96 + 1088 + 34 + 2 * 64, (3, 2): 160 + 1088 + 34 * 2 + 2 * 64}
    bad_arguments: ClassVar = [("knots", 3, TypeError, "knots .*got 3")]


class TestSIREN(FieldContract):
    field = SIREN
    counts: ClassVar = {(1, 1): 64 + 1056 + 33, (2, 5): 96 + 1056 + 33 * 5}
    bad_arguments: ClassVar = [
        *BAD_SIZES,
        ("hidden_omega_0", 0, ValueError, "hidden_omega_0 .*got 0"),
        ("start", "ccnn", ValueError, "start .*got 'ccnn'"),
    ]


class TestWeightNormalisedSIREN(FieldContract):
    traced = False
    field = SIREN
    arguments: ClassVar = {"weight_norm": True}
    # Chapter 2's kernel networks: 96 + 1,088 + 34·N.
    counts: ClassVar = {(1, n): 96 + 1088 + 34 * n for n in (1, 30, 900)}
    bad_arguments: ClassVar = BAD_SIZES


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "swish", "gelu", "sine"])
def test_formula(activation: str) -> None:
    functions = {
        "relu": lambda z: max(z, 0.0),
        "leaky_relu": lambda z: z if z > 0 else 0.01 * z,
        "swish": lambda z: z / (1 + math.exp(-z)),
        "gelu": lambda z: z * (1 + math.erf(z / math.sqrt(2))) / 2,
        "sine": lambda z: math.sin(3.0 * z),
    }
    field = MLP(1, 1, hidden=2, layers=2, activation=activation, omega_0=3.0).double()
    (w1, b1), (w2, b2) = ((linear.weight.tolist(), linear.bias.tolist()) for linear in field.linears)
    for x in (-0.7, 0.4):
        hidden = [functions[activation](w1[i][0] * x + b1[i]) for i in range(2)]
        expected = sum(w * h for w, h in zip(w2[0], hidden, strict=True)) + b2[0]
        assert field(torch.tensor([x], dtype=torch.float64)).item() == pytest.approx(expected)


def test_uniform_knots_lie_on_the_grid() -> None:
    field = MLP(1, 1)
    first, second, _ = field.linears
    points = torch.linspace(-1, 1, 32)[:, None]
    torch.testing.assert_close((-first.bias / first.weight[:, 0])[:, None], points, atol=1e-5, rtol=0)
    # Unit i of the second layer bends where the network meets point i.
    bends = second(torch.relu(first(points))).diagonal()
    assert bends.abs().max() < 1e-5


def test_zero_knots_lie_at_the_origin() -> None:
    assert all((linear.bias == 0).all() for linear in MLP(1, 1, knots="zero").linears)


@pytest.mark.parametrize("weight_norm", [False, True])
@pytest.mark.parametrize(("dim", "omega_0"), [(1, 30.0), (2, 30.0), (3, 5.0)])
def test_siren_draws_its_weights_from_the_ranges_of_the_paper(weight_norm: bool, dim: int, omega_0: float) -> None:
    field = SIREN(dim, 200, hidden=128, omega_0=omega_0, weight_norm=weight_norm)
    # A forward recomputes a normalised weight: an initialisation that missed its parts would be lost here.
    field(torch.rand(3, dim))
    hidden = math.sqrt(6 / 128) / omega_0
    for linear, bound in zip(field.linears, (1 / dim, hidden, hidden), strict=True):
        weight = linear.weight.detach()
        assert 0.95 * bound < weight.abs().max() <= bound * (1 + 1e-5)
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("omega_0", [5.0, 30.0])
def test_siren_spreads_its_phases_over_one_period(omega_0: float) -> None:
    *hidden, last = SIREN(1, 4, hidden=1000, omega_0=omega_0).linears
    for linear in hidden:
        phase = omega_0 * linear.bias.detach()
        assert phase.abs().max() <= math.pi * (1 + 1e-5)
        # A uniform phase has every quarter of the period equally often.
        quarters = torch.histc(phase, 4, -math.pi, math.pi)
        assert ((quarters - 250).abs() < 60).all()
    assert (last.bias == 0).all()


def test_weight_norm_changes_nothing_at_initialisation() -> None:
    torch.manual_seed(3)
    plain = SIREN(2, 4)
    torch.manual_seed(3)
    split = SIREN(2, 4, weight_norm=True)
    coords = torch.rand(20, 2)
    torch.testing.assert_close(split(coords), plain(coords), atol=1e-5, rtol=1e-4)


# Chapter 2, section 4.2: a kernel as long as sequential MNIST, 784 points, noise included, which a network of
# 1,153 parameters can still hold.
LENGTH = 784
TIME = torch.arange(LENGTH) / LENGTH
TARGETS = {
    "sawtooth": 2 * (8 * TIME % 1) - 1,
    "step": 2 * (TIME > 0.5).float() - 1,
    "noise": torch.randn(LENGTH, generator=torch.Generator().manual_seed(0)),
}


def fitting_error(field: Field, target: torch.Tensor, rate: float) -> float:
    coords, steps = torch.linspace(-1, 1, LENGTH)[:, None], 500
    optimizer = torch.optim.Adam(field.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        (field(coords)[:, 0] - target).square().mean().backward()
        optimizer.step()
        schedule.step()
    return (field(coords)[:, 0] - target).square().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["noise", "sawtooth", "step"])
def test_sines_fit_what_piecewise_activations_do_not(name: str) -> None:
    target = TARGETS[name]
    siren = fitting_error(SIREN(1, 1, omega_0=200.0), target, rate=2e-3)
    assert siren < 1e-3 * target.var()
    # Noise is what no rate helps with; for the others, the better of two rates, both above that of the sines.
    cases = [("relu", (1e-2,))] if name == "noise" else [(a, (1e-2, 3e-2)) for a in ("relu", "leaky_relu", "swish")]
    for activation, rates in cases:
        other = min(fitting_error(MLP(1, 1, activation=activation), target, rate) for rate in rates)
        assert 10 * siren < other, activation


def test_weights_of_another_frequency_scale_warn() -> None:
    """The scale is no parameter, so the weights fit a field that is another function."""
    slow, fast = SIREN(1, 2, omega_0=10.0), SIREN(1, 2, omega_0=30.0)
    with pytest.warns(UserWarning, match=r"weights of omega_0=10\.0, .* were loaded into SIREN of omega_0=30\.0"):
        fast.load_state_dict(slow.state_dict())
    with pytest.warns(UserWarning, match="weights of activation=relu were loaded into MLP of activation=gelu"):
        MLP(1, 2, activation="gelu").load_state_dict(MLP(1, 2).state_dict())
    MLP(1, 2, omega_0=3.0).load_state_dict(MLP(1, 2).state_dict())  # only sines use it: no warning
