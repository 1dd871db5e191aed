"""Wavelet networks as classifiers of sounds, and networks on groups as classifiers of images."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from kernelfield import groups
from kernelfield.sklearn import GroupClassifier, WaveletClassifier

SOUND = {"channels": 16, "epochs": 30, "device": "cpu"}
IMAGE = {"channels": 2, "epochs": 8, "device": "cpu"}


def tones(n: int = 24, length: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return tones of two timbres at any pitch: it is the form of a wave that a wavelet network tells apart."""
    source = np.random.default_rng(seed)
    labels = np.array(["chord", "pure"])[np.arange(n) % 2]
    phase = source.uniform(0.15, 0.3, (n, 1)) * np.arange(length) + source.uniform(0, 6, (n, 1))
    return np.sin(phase) + np.where(labels == "chord", 1.0, 0.0)[:, None] * np.sin(3.3 * phase), labels


def stripes(n: int = 24, size: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return images with wide or narrow stripes along a random axis, and which they are."""
    source = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    waves = np.sin(np.where(labels, 0.6, 2.0)[:, None] * np.arange(size) + source.uniform(0, 6, (n, 1)))
    images = np.repeat(waves[:, None, :, None], size, axis=3)
    turned = source.random(n) < 0.5
    images[turned] = images[turned].swapaxes(2, 3)
    return images + 0.2 * source.normal(size=images.shape), labels


def test_sounds() -> None:
    x, y = tones()
    fitted = WaveletClassifier(**SOUND).fit(x, y)
    assert fitted.score(*tones(seed=1)) > 0.9
    assert fitted.random_kernels_ is None
    assert type(fitted.network_).__name__ == "WaveletNet"
    np.testing.assert_allclose(fitted.predict_proba(x).sum(axis=1), 1)


def test_sounds_of_unequal_length() -> None:
    x, y = tones()
    sounds = [s[: 200 + 4 * i] for i, s in enumerate(x)]
    assert WaveletClassifier(**SOUND).fit(sounds, y).predict(sounds).shape == (24,)


@pytest.mark.parametrize("length", [2, 17, 64, 2000])
def test_the_default_wavelet_network_suits_the_length(length: int) -> None:
    x, y = tones(8, length)
    fitted = WaveletClassifier(channels=2, epochs=1, device="cpu").fit(x, y)
    assert fitted.predict_proba(x).shape == (8, 2)
    assert len(fitted.network_.stages) == (3 if length == 2000 else 2)


def test_images() -> None:
    x, y = stripes()
    fitted = GroupClassifier(**IMAGE).fit(x, y)
    assert fitted.score(*stripes(seed=1)) > 0.9
    assert fitted.random_kernels_ is None


@pytest.mark.parametrize(
    ("options", "transform"),
    [({}, np.rot90), ({"options": {"group": groups.Dihedral(4)}}, lambda x, axes: x[..., ::-1])],
    ids=["p4", "p4m"],
)
def test_transformed_images_get_the_same_probabilities(options: dict[str, Any], transform: Any) -> None:
    x, y = stripes(8)
    fitted = GroupClassifier(**{**IMAGE, "epochs": 1}, **options).fit(x, y)
    turned = np.ascontiguousarray(transform(x, axes=(2, 3)))
    np.testing.assert_allclose(fitted.predict_proba(turned), fitted.predict_proba(x), atol=1e-9)
    assert np.ptp(fitted.predict_proba(x)) > 1e-6


SOUNDS = (lambda **more: WaveletClassifier(**{**SOUND, "epochs": 1} | more), tones)
IMAGES = (lambda **more: GroupClassifier(**{**IMAGE, "epochs": 1} | more), stripes)
CASES = pytest.mark.parametrize(("make", "data"), [SOUNDS, IMAGES], ids=["sounds", "images"])


@CASES
def test_repeated_cloned_and_pickled_estimators_agree(make: Any, data: Any) -> None:
    x, y = data(8)
    fitted = make().fit(x, y)
    expected = fitted.predict_proba(x)
    np.testing.assert_array_equal(clone(fitted).fit(x, y).predict_proba(x), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(x), expected)
    assert not np.array_equal(make(random_state=1).fit(x, y).predict_proba(x), expected)


@CASES
def test_partial_fit(make: Any, data: Any) -> None:
    x, y = data(8)
    model = make().partial_fit(x, y, classes=np.unique(y)).partial_fit(x, y)
    assert model.n_iter_ == 2
    assert model.predict(x).shape == (8,)


@pytest.mark.parametrize(
    ("make", "data"), [pytest.param(*SOUNDS, marks=pytest.mark.slow), IMAGES], ids=["sounds", "images"]
)
def test_scikit_learns_own_checks(make: Any, data: Any) -> None:
    # Checks with tables are not for images. Tables of two columns are no sounds, but random kernels tell them apart.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(make(channels=2, random_kernels=20, batch=64), on_fail=None, on_skip=None)
    assert {r["check_name"]: r["exception"] for r in results if r["status"] not in ("passed", "skipped")} == {}


def test_mistakes_are_refused_by_name() -> None:
    x, y = stripes(8)
    with pytest.raises(ValueError, match="X must have no missing values"):
        GroupClassifier(**IMAGE).fit(np.where(x > 1, np.nan, x), y)
    fitted = GroupClassifier(**{**IMAGE, "epochs": 1}).fit(x, y)
    with pytest.raises(ValueError, match="X must have no missing values"):
        fitted.predict(np.where(x > 1, np.nan, x))
    with pytest.raises(ValueError, match="X must hold images"):
        GroupClassifier(**IMAGE).fit(*tones(8))
    with pytest.raises(ValueError, match="X must hold sounds"):
        WaveletClassifier(**SOUND).fit(x, y)
    with pytest.raises(ValueError, match=r"\bmodel\b.*resnet44_p5"):
        GroupClassifier(model="resnet44_p5").fit(x, y)
