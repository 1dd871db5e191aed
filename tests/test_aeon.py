"""The estimators as aeon's classes: aeon's own checks, and agreement with the scikit-learn classes."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("aeon", reason="aeon is not installed")

from aeon.testing.estimator_checking import parametrize_with_checks
from sklearn.base import clone

from kernelfield import aeon as estimators
from kernelfield import sklearn as plain

ALL = [getattr(estimators, name) for name in estimators.__all__]


@pytest.mark.filterwarnings("ignore")  # aeon's own
@parametrize_with_checks(ALL)
def test_aeons_own_checks(check: Any) -> None:
    check()


def waves(n: int = 24, length: int = 20, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Return two-channel series of unequal length with missing values, and their classes."""
    source = np.random.default_rng(seed)
    labels = np.array(["fast", "slow"])[np.arange(n) % 2]
    series = []
    for label in labels:
        at = np.arange(source.integers(length - 6, length + 1)) + source.uniform(0, 20)
        wave = np.sin((1.2 if label == "fast" else 0.3) * at)
        series.append(np.stack([wave, source.normal(size=len(at))]))
        series[-1][:, source.integers(len(at))] = np.nan
    return series, labels


TINY = {"channels": 4, "blocks": 1, "epochs": 2, "networks": 1, "random_kernels": 10, "device": "cpu"}
CASES = pytest.mark.parametrize(
    ("name", "options"),
    [("CCNNClassifier", TINY), ("CCNNRegressor", TINY), ("RandomKernelClassifier", {}), ("RandomKernelRegressor", {})],
)


def targets(name: str, labels: np.ndarray) -> np.ndarray:
    return (labels == "slow") + 0.01 * np.arange(len(labels)) if name.endswith("Regressor") else labels


@CASES
def test_predictions_are_those_of_the_scikit_learn_class(name: str, options: dict[str, Any]) -> None:
    X, labels = waves()
    y = targets(name, labels)
    ours = getattr(estimators, name)(**options).fit(X, y)
    theirs = getattr(plain, name)(**options).fit(X, y)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    if hasattr(theirs, "predict_proba"):
        np.testing.assert_array_equal(ours.predict_proba(X), theirs.predict_proba(X))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ours)).predict(X), ours.predict(X))


@CASES
def test_arguments_and_defaults_are_those_of_the_scikit_learn_class(name: str, options: dict[str, Any]) -> None:
    ours, theirs = getattr(estimators, name), getattr(plain, name)
    assert ours().get_params() == theirs().get_params()
    assert clone(ours(**options)).get_params() == theirs(**options).get_params()


def test_early_stopping_and_progress(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = waves()
    options = {**TINY, "epochs": 20, "validation_fraction": 0.25, "patience": 1, "verbose": 1}
    fitted = estimators.CCNNClassifier(**options).fit(X, y)
    assert len(fitted.estimator_.history_) < 20
    assert "validation accuracy" in capsys.readouterr().out


def test_an_argument_is_refused_by_name() -> None:
    X, y = waves()
    for name, value in {"device": "tpu", "epochs": 0, "model": "ccnn_4_410"}.items():
        with pytest.raises(ValueError, match=rf"\b{name}\b.*{value}"):
            estimators.CCNNClassifier(**{name: value}).fit(X, y)


def test_partial_fit_continues_as_in_scikit_learn() -> None:
    X, y = waves()
    ours, theirs = estimators.CCNNClassifier(**TINY), plain.CCNNClassifier(**TINY)
    for rows in (slice(12), slice(12, None)):
        ours.partial_fit(X[rows], y[rows], classes=["slow", "fast"])
        theirs.partial_fit(X[rows], y[rows], classes=["slow", "fast"])
    assert ours.is_fitted
    assert ours.n_classes_ == 2
    np.testing.assert_array_equal(ours.predict_proba(X), theirs.predict_proba(X))
    values = targets("Regressor", y)
    twice = estimators.CCNNRegressor(**TINY).partial_fit(X, values).partial_fit(X, values)
    assert twice.estimator_.n_iter_ == 4
    with pytest.raises(ValueError, match="classes must"):
        estimators.CCNNClassifier(**TINY).partial_fit(X, y)


def test_columns_of_a_data_frame_keep_their_order() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(12, 16)), columns=[f"t{i}" for i in range(16)])
    fitted = estimators.RandomKernelClassifier(kernels=20).fit(frame, np.arange(12) % 2)
    assert fitted.predict(frame).shape == (12,)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[frame.columns[::-1]])
