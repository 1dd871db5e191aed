"""``partial_fit``: training that goes on with every call."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from kernelfield.sklearn import CCNNClassifier, CCNNForecaster, CCNNRegressor

TINY = {"channels": 4, "blocks": 1, "batch": 8, "dropout": 0.2, "device": "cpu"}


def waves(n: int = 32, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(seed)
    labels = np.array(["slow", "fast"])[np.arange(n) % 2]
    speed = np.where(labels == "slow", 1, 4)[:, None]
    return np.sin(2 * np.pi * (speed * np.arange(24) / 24 + source.uniform(size=(n, 1))))[:, None], labels


def test_repeated_calls_learn() -> None:
    x, y = waves()
    model = CCNNClassifier(**TINY)
    for _ in range(12):
        model.partial_fit(x, y, classes=["fast", "slow"])
    assert model.score(*waves(seed=1)) > 0.9
    assert model.n_iter_ == 12 * 4
    assert [row["step"] for row in model.history_] == list(range(4, 52, 4))


def test_a_call_may_lack_classes_that_come_later() -> None:
    x, y = waves()
    model = CCNNClassifier(**TINY).partial_fit(x[y == "slow"], y[y == "slow"], classes=["slow", "fast", "none"])
    model.partial_fit(x, y)
    assert model.predict_proba(x).shape == (32, 3)


def weights(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.network_.parameters()])


def test_a_pickled_estimator_goes_on_as_the_original() -> None:
    x, y = waves()
    model = CCNNClassifier(**TINY).partial_fit(x, y, classes=["fast", "slow"])
    copy = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(weights(model.partial_fit(x, y)), weights(copy.partial_fit(x, y)), rtol=0, atol=0)


def test_later_calls_use_the_optimisers_state() -> None:
    x, y = waves()
    model = CCNNClassifier(**TINY).partial_fit(x, y, classes=["fast", "slow"])
    forgetful = pickle.loads(pickle.dumps(model))
    forgetful._optimizer_state_ = None
    assert not torch.equal(weights(model.partial_fit(x, y)), weights(forgetful.partial_fit(x, y)))


def test_random_numbers_outside_do_not_change() -> None:
    x, y = waves()
    before = torch.get_rng_state()
    CCNNClassifier(**TINY).partial_fit(x, y, classes=["fast", "slow"])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("networks", [1, 2])
def test_after_fit_the_networks_are_trained_further(networks: int) -> None:
    x, y = waves()
    model = CCNNClassifier(**TINY, epochs=2, random_kernels=10, networks=networks).fit(x, y)
    fitted, kernels, steps = weights(model), model.random_kernels_, model.n_iter_
    model.partial_fit(x, y).partial_fit(x, y)
    assert not torch.equal(weights(model), fitted)
    assert len(model.networks_) == networks
    assert model.random_kernels_ is kernels
    assert model.n_iter_ == steps + 8
    assert model.fit(x, y).n_iter_ == steps  # from the start


def test_regression_keeps_the_scale_of_the_first_call() -> None:
    x, _ = waves()
    y = 100 + 50 * x[:, 0, :4].mean(axis=1)
    model = CCNNRegressor(**TINY)
    for _ in range(15):
        model.partial_fit(x, y)
    assert model.score(x, y) > 0.5
    with pytest.raises(ValueError, match="y must"):
        model.partial_fit(x, np.stack([y, y], axis=1))


def test_forecasts() -> None:
    source = np.random.default_rng(0)
    times = [np.sort(source.uniform(0, 6, 20)) for _ in range(16)]
    X, y = ([(t[part], np.sin(t[part])) for t in times] for part in (slice(12), slice(12, None)))
    model = CCNNForecaster(**TINY)
    for _ in range(3):
        model.partial_fit(X, y)
    assert model.predict(X, at=[5.0, 6.0]).shape == (16, 2)
    assert model.history_[-1]["train_loss"] < model.history_[0]["train_loss"]


@pytest.mark.parametrize(
    ("options", "arguments", "name"),
    [
        ({}, {}, "classes"),
        ({}, {"classes": ["slow"]}, "classes"),
        ({}, {"classes": ["slow", "other"]}, "y"),
        ({"validation_fraction": 0.2}, {"classes": ["slow", "fast"]}, "validation_fraction"),
    ],
)
def test_mistakes_are_refused_by_name(options: dict[str, Any], arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must"):
        CCNNClassifier(**TINY, **options).partial_fit(*waves(), **arguments)


def test_later_calls_must_agree_with_the_first() -> None:
    x, y = waves()
    model = CCNNClassifier(**TINY).partial_fit(x, y, classes=["fast", "slow"])
    for arguments, name in (
        ((x, y, ["fast", "slow", "other"]), "classes"),
        ((x, np.full(32, "other")), "y"),
        ((np.zeros((2, 3, 24)), y[:2]), "X"),
    ):
        with pytest.raises(ValueError, match=f"^{name} must"):
            model.partial_fit(*arguments)
