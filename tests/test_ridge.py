"""Ridge regression of random kernels: held-out predictions, strengths and temperatures by their definitions."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernelfield.sklearn import _ridge
from kernelfield.sklearn._ridge import best_temperature, fit_ridge

PARTS = (6, 2)


def samples(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(n, sum(PARTS), dtype=torch.float64)
    return x, x[:, :1] + 2 * x[:, 7:] + 0.5 * torch.randn(n, 1, dtype=torch.float64)


def factors_of(share: float) -> torch.Tensor:
    """Return the factor of each feature, in two groups with shares of the penalty."""
    first, second = PARTS
    return torch.tensor([((1 - share) / first) ** 0.5] * first + [(share / second) ** 0.5] * second).double()


def solved(x: torch.Tensor, y: torch.Tensor, strength: float) -> tuple[torch.Tensor, torch.Tensor]:
    centred, shift = x - x.mean(0), y.mean(0)
    weight = torch.linalg.solve(centred.T @ centred + strength * torch.eye(x.shape[1]), centred.T @ (y - shift))
    return weight, shift - x.mean(0) @ weight


def test_held_out_predictions_are_those_of_refits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ridge, "AVERAGED", 1)
    x, y = samples(20)
    found = fit_ridge(x, PARTS, y)
    scaled = x * factors_of(found.share)
    for i in range(20):
        others = torch.arange(20) != i
        weight, bias = solved(scaled[others], y[others], found.strength)
        torch.testing.assert_close(found.held_out[i], scaled[i] @ weight + bias)


@pytest.mark.parametrize("selecting", [30, 10])
def test_the_penalty_grows_with_the_number_of_samples(selecting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ridge, "MOST_SAMPLES", selecting)
    monkeypatch.setattr(_ridge, "AVERAGED", 1)
    monkeypatch.setattr(_ridge, "AVERAGED_OF_MANY", 1)
    x, y = samples(30)
    found = fit_ridge(x, PARTS, y)
    assert len(found.rows) == selecting
    factors = factors_of(found.share)
    weight, bias = solved(x * factors, y, found.strength * 30 / selecting)
    torch.testing.assert_close(found.weight, factors.unsqueeze(1) * weight)
    torch.testing.assert_close(found.bias, bias)


def test_the_best_temperature_has_the_least_cross_entropy() -> None:
    torch.manual_seed(0)
    logits = 3 * torch.randn(400, 4)
    classes = torch.distributions.Categorical(logits=logits).sample()
    for scale in (1.0, 4.0):  # the right factor on shrunken scores undoes the shrinking
        assert best_temperature(logits / scale, classes) == pytest.approx(scale, rel=0.5)
    assert best_temperature(F.one_hot(classes, 4).float(), classes) == 16
    assert best_temperature(logits, classes[torch.randperm(400)]) == 0.5
