"""The estimators: scikit-learn's own checks, series of unequal length, images."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from kernelfield.sklearn import CCNNClassifier, CCNNRegressor

SMALL = {"channels": 8, "blocks": 1, "epochs": 30}


SMALLEST = {"channels": 4, "blocks": 1, "epochs": 4, "batch": 32, "lr": 0.05}


@pytest.mark.parametrize(
    ("kind", "options"),
    [(CCNNClassifier, SMALLEST), pytest.param(CCNNRegressor, SMALL, marks=pytest.mark.slow)],
    ids=["classifier", "regressor"],
)
def test_scikit_learns_own_checks(kind: type, options: dict) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, of what is missing here or will change there
        results = check_estimator(kind(**options), on_fail=None, on_skip=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] not in ("passed", "skipped")}
    assert failed == {}
    assert len(results) > 40


def waves(n: int = 40, length: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(seed)
    labels = np.array(["slow", "fast"])[np.arange(n) % 2]
    speed = np.where(labels == "slow", 1, 4)[:, None]
    phase = source.uniform(0, 2 * np.pi, (n, 1))
    return np.sin(2 * np.pi * speed * np.arange(length) / length + phase)[:, None], labels


def test_series() -> None:
    x, y = waves()
    fitted = CCNNClassifier(**SMALL).fit(x, y)
    assert fitted.score(*waves(seed=1)) > 0.9
    chances = fitted.predict_proba(x)
    assert chances.shape == (40, 2)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    again = CCNNClassifier(**SMALL).fit(x, y)
    np.testing.assert_array_equal(chances, again.predict_proba(x))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(x), chances)


def test_unequal_lengths_and_missing_values() -> None:
    x, y = waves()
    lengths = np.random.default_rng(2).integers(14, 25, len(x))
    series = [s[:, :n] for s, n in zip(x, lengths, strict=True)]
    series[3][0, 5] = np.nan
    fitted = CCNNClassifier(**SMALL).fit(series, y)
    assert fitted.score(series, y) > 0.9
    # Padding is no value: what lies beyond a series' end changes nothing.
    together = fitted.predict_proba(series)
    longer = [np.pad(s, ((0, 0), (0, 6)), constant_values=np.nan) for s in series]
    np.testing.assert_allclose(fitted.predict_proba(longer), together, atol=1e-5)


def test_equal_lengths_after_unequal_ones() -> None:
    fitted = CCNNClassifier(channels=4, blocks=1, epochs=1).fit([np.ones(n) for n in (3, 5, 8, 4)], [0, 1, 0, 1])
    alone = fitted.predict_proba([np.ones(4)])
    among = fitted.predict_proba([np.ones(4), np.ones(7)])
    np.testing.assert_allclose(alone[0], among[0], atol=1e-6)
    # Fitted to a table, the number of its columns counts.
    with pytest.raises(ValueError, match="X has 4 features, but CCNNRegressor is expecting 5 features as input"):
        CCNNRegressor(channels=4, blocks=1, epochs=1).fit(np.ones((3, 5)), [0, 1, 2]).predict(np.ones((1, 4)))


def test_images() -> None:
    x = np.random.default_rng(0).normal(size=(24, 1, 8, 8))
    y = np.arange(24) % 2
    x[y == 1, :, 2:6, 2:6] += 2
    fitted = CCNNClassifier(**SMALL).fit(x, y)
    assert fitted.score(x, y) > 0.9
    assert fitted.predict(x[:3]).shape == (3,)


def test_regression_of_several_values() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2, 16))
    y = 100 + 50 * x.mean(axis=2)
    fitted = CCNNRegressor(**SMALL).fit(x, y)
    assert fitted.predict(x).shape == (60, 2)
    assert fitted.score(x, y) > 0.5
    assert fitted.fit(x, y[:, 0]).predict(x).shape == (60,)


def test_in_scikit_learns_company() -> None:
    x, y = waves()
    small = CCNNClassifier(channels=4, blocks=1, epochs=3)
    assert cross_val_score(make_pipeline(small), x, y, cv=2).shape == (2,)
    assert clone(small).get_params() == small.get_params()


def test_errors_name_the_argument_and_what_came() -> None:
    x, y = waves(8)
    for kind in (CCNNClassifier, CCNNRegressor):
        with pytest.raises(NotFittedError):
            kind().predict(x)
    with pytest.raises(ValueError, match=r"\by must"):
        CCNNClassifier().fit(x, np.zeros(8))
    with pytest.raises(ValueError, match=r"\by must"):
        CCNNClassifier().fit(x, y[:7])
    with pytest.raises(ValueError, match="same number of channels"):
        CCNNClassifier().fit([np.zeros((1, 4)), np.zeros((2, 4))], [0, 1])
    bad_numbers = {"batch": 0, "epochs": 0, "lr": -1.0, "weight_decay": -1.0, "dropout": 1.0}
    bad_models = [("model", name) for name in ("p4cnn", "flexnet_16", "ckcnn_copy", "ccnn_4_410")]
    for name, value in (*bad_numbers.items(), *bad_models):
        with pytest.raises(ValueError, match=rf"\b{name}\b.*{value}"):
            CCNNClassifier(**{name: value}).fit(x, y)
    fitted = CCNNClassifier(channels=4, blocks=1, epochs=1).fit(x, y)
    with pytest.raises(ValueError, match=r"X .*got \(2, 24\)"):
        fitted.predict(np.zeros((3, 2, 24)))
