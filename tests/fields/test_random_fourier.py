"""Random Fourier features: the contract, and how the frequencies are drawn."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch

from kernelfield.fields import RandomFourier
from tests.contracts.fields import FieldContract


class TestRandomFourier(FieldContract):
    traced = "compiles"
    field = RandomFourier
    # 16 frequencies and phases, one hidden layer of 32, the last linear map.
    counts: ClassVar = {(1, 1): 32 + 1056 + 33, (3, 5): 64 + 1056 + 33 * 5}
    bad_arguments: ClassVar = [
        ("hidden", 0, ValueError, "hidden .*got 0"),
        ("layers", 1, ValueError, "layers .*got 1"),
        ("features", 0, ValueError, "features .*got 0"),
        ("omega_0", -1.0, ValueError, r"omega_0 .*got -1\.0"),
        (
            "activation",
            "tanh",
            ValueError,
            "activation .*got 'tanh'",
        ),
        ("learn_frequencies", 0, TypeError, "learn_frequencies .*got 0"),
    ]


class TestFixedFrequencies(FieldContract):
    traced = False
    field = RandomFourier
    arguments: ClassVar = {"features": 128, "layers": 5, "learn_frequencies": False, "activation": "relu"}
    counts: ClassVar = {(2, 3): 257 * 32 + 2 * 1056 + 33 * 3}
    bad_arguments: ClassVar = [("features", 1.5, TypeError, r"features .*got 1\.5")]

    def test_frequencies_are_state_but_not_learned(self) -> None:
        field = self.build()
        learned = {name for name, _ in field.named_parameters()}
        assert not {"frequency", "phase"} & learned
        assert {"frequency", "phase"} <= set(field.state_dict())


@pytest.mark.parametrize("omega_0", [0.1, 3.0])
def test_frequencies_are_normal_in_cycles_per_unit(omega_0: float) -> None:
    field = RandomFourier(2, 1, features=5000, omega_0=omega_0)
    assert field.frequency.std().item() == pytest.approx(2 * math.pi * omega_0, rel=0.05)
    assert (field.phase == 0).all()


def test_formula() -> None:
    field = RandomFourier(2, 3, hidden=4, layers=2).double()
    coords = torch.rand(5, 2, dtype=torch.float64)
    z = coords @ field.frequency.T + field.phase
    (linear,) = field.linears
    torch.testing.assert_close(field(coords), linear(torch.cat([z.cos(), z.sin()], dim=-1)))


def test_variance_is_kept_from_the_features_to_the_values() -> None:
    field = RandomFourier(2, 400, hidden=512, layers=2, omega_0=2.0)
    features_power = 0.5  # of a cosine and of a sine
    assert field(torch.rand(500, 2)).square().mean().item() == pytest.approx(features_power, rel=0.1)
