"""Estimators on a GPU learn what they learn on a CPU, and leave it as they found it."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from kernelfield.sklearn import CCNNClassifier, CCNNForecaster, CCNNRegressor, GroupClassifier, WaveletClassifier

from .test_sklearn_partial import waves
from .test_sklearn_sounds_and_images import stripes, tones

if TYPE_CHECKING:
    from torch import nn

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TINY: dict[str, Any] = {"channels": 4, "blocks": 1, "batch": 8, "epochs": 20, "device": "cuda"}


def devices_of(networks: list[nn.Module]) -> set[str]:
    return {p.device.type for network in networks for p in network.parameters()}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
@pytest.mark.parametrize("make", [CCNNClassifier, WaveletClassifier])
def test_a_missing_gpu_is_refused_by_name(make: Any) -> None:
    x, y = waves(8)
    with pytest.raises(ValueError, match=r"\bdevice must.*'cuda'"):
        make(epochs=1, device="cuda").fit(x, y)
    with pytest.raises(ValueError, match=r"\bdevice must.*'cuda'"):
        make(epochs=1, device="cuda").partial_fit(x, y, classes=["fast", "slow"])


@needs_gpu
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_unequal_lengths_and_missing_values(device: str) -> None:
    x, y = waves(48)
    x[:, :, 5::7] = np.nan
    series = [one[:, : 24 - i % 5] for i, one in enumerate(x)]
    model = CCNNClassifier(**{**TINY, "device": device}).fit(series, y)
    assert model.score(series, y) > 0.9
    assert devices_of(model.networks_) == {"cpu"}
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(series), model.predict_proba(series))


@needs_gpu
def test_fits_repeat_by_their_seed_and_leave_random_numbers_alone() -> None:
    x, y = waves()
    torch.manual_seed(5)
    before = torch.cuda.get_rng_state()
    first, second = (CCNNClassifier(**TINY, random_state=1).fit(x, y).predict_proba(x) for _ in range(2))
    np.testing.assert_allclose(first, second, atol=1e-4)
    assert torch.equal(torch.cuda.get_rng_state(), before)


@needs_gpu
def test_partial_fit_moves_between_devices() -> None:
    x, y = waves()
    model = CCNNClassifier(**TINY)
    for i in range(12):
        model.set_params(device="cpu" if i % 4 == 0 else "cuda").partial_fit(x, y, classes=["fast", "slow"])
    assert model.score(*waves(seed=1)) > 0.9
    assert devices_of([model.network_]) == {"cpu"}


@needs_gpu
@pytest.mark.parametrize(
    ("make", "data"),
    [
        (lambda: WaveletClassifier(channels=16, epochs=30, device="cuda"), tones),
        (lambda: GroupClassifier(channels=2, epochs=8, device="cuda"), stripes),
    ],
)
def test_sounds_and_images(make: Any, data: Any) -> None:
    x, y = data()
    assert make().fit(x, y).score(x, y) > 0.9


@needs_gpu
def test_values_and_forecasts() -> None:
    x, y = waves()
    level = np.where(y == "slow", 0.0, 1.0)
    assert CCNNRegressor(**TINY).fit(x, level).score(x, level) > 0.5
    source = np.random.default_rng(0)
    times = [np.sort(source.uniform(0, 6, 20)) for _ in range(16)]
    X, later = ([(t[part], np.sin(t[part])) for t in times] for part in (slice(12), slice(12, None)))
    model = CCNNForecaster(**TINY).fit(X, later)
    assert model.score(X, later) > 0.5
    assert model.predict(X, at=[5.0, 6.0]).shape == (16, 2)
