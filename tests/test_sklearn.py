"""The estimators: scikit-learn's own checks, series of unequal length, images."""

from __future__ import annotations

import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from torch.nn import functional as F

from kernelfield import create_model
from kernelfield.data import preprocessing
from kernelfield.sklearn import CCNNClassifier, CCNNRegressor, RandomKernelClassifier, RandomKernelRegressor
from kernelfield.sklearn._blend import blend
from kernelfield.sklearn._ridge import _held_out, _solve

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = {"channels": 8, "blocks": 1, "epochs": 30, "random_kernels": 0}
SMALLEST = {"channels": 4, "blocks": 1, "epochs": 2, "networks": 1, "batch": 32, "lr": 0.05, "random_kernels": 10}
TINY = {"channels": 2, "blocks": 1, "epochs": 1, "networks": 1, "batch": 64, "lr": 0.05, "random_kernels": 20}
KERNELS = {"kernels": 20}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (RandomKernelClassifier, KERNELS),
        (RandomKernelRegressor, KERNELS),
        (CCNNClassifier, TINY),
        pytest.param(CCNNRegressor, TINY, marks=pytest.mark.slow),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
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


CLASSIFIERS = pytest.mark.parametrize(
    "make",
    [
        lambda: CCNNClassifier(**SMALL),
        lambda: CCNNClassifier(**SMALLEST),
        pytest.param(lambda: CCNNClassifier(**{**SMALLEST, "networks": 3}), marks=pytest.mark.slow),
        lambda: RandomKernelClassifier(kernels=50),
    ],
    ids=["network", "network and kernels", "three networks and kernels", "kernels"],
)


@CLASSIFIERS
def test_series(make: Callable[[], Any]) -> None:
    x, y = waves()
    fitted = make().fit(x, y)
    assert fitted.score(*waves(seed=1)) > 0.9
    chances = fitted.predict_proba(x)
    assert chances.shape == (40, 2)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    again = make().fit(x, y)
    np.testing.assert_array_equal(chances, again.predict_proba(x))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(x), chances)


@CLASSIFIERS
def test_unequal_lengths_and_missing_values(make: Callable[[], Any]) -> None:
    x, y = waves()
    lengths = np.random.default_rng(2).integers(14, 25, len(x))
    series = [s[:, :n] for s, n in zip(x, lengths, strict=True)]
    series[3][0, 5] = np.nan
    fitted = make().fit(series, y)
    assert fitted.score(series, y) > 0.9
    # Padding is no value: what lies beyond a series' end changes nothing.
    together = fitted.predict_proba(series)
    longer = [np.pad(s, ((0, 0), (0, 6)), constant_values=np.nan) for s in series]
    np.testing.assert_allclose(fitted.predict_proba(longer), together, atol=1e-5)
    # Nor do the other series.
    alone = np.concatenate([fitted.predict_proba([s]) for s in series[:8]])
    np.testing.assert_allclose(alone, together[:8], atol=1e-5)


@pytest.mark.parametrize("make", [lambda: CCNNClassifier(**SMALLEST), lambda: RandomKernelClassifier(kernels=20)])
def test_columns_of_a_data_frame_keep_their_names(make: Callable[[], Any]) -> None:
    pandas = pytest.importorskip("pandas")
    x, y = waves()
    frame = pandas.DataFrame(x[:, 0], columns=[f"t{i}" for i in range(x.shape[2])])
    fitted = make().fit(frame, y)
    assert fitted.feature_names_in_.tolist() == list(frame.columns)
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame[frame.columns[::-1]])
    np.testing.assert_array_equal(fitted.predict(frame), make().fit(x[:, 0], y).predict(x[:, 0]))


def test_missing_classes_are_refused() -> None:
    x, y = waves()
    for missing in (np.nan, None):
        with pytest.raises(ValueError, match="y must hold a class"):
            RandomKernelClassifier(kernels=5).fit(x, [missing, *map(str, y[1:])])


def test_equal_lengths_after_unequal_ones() -> None:
    fitted = CCNNClassifier(channels=4, blocks=1, epochs=1, random_kernels=10).fit(
        [np.ones(n) for n in (3, 5, 8, 4)], [0, 1, 0, 1]
    )
    alone = fitted.predict_proba([np.ones(4)])
    among = fitted.predict_proba([np.ones(4), np.ones(7)])
    np.testing.assert_allclose(alone[0], among[0], atol=1e-6)
    # Fitted to a table, the number of its columns counts.
    with pytest.raises(ValueError, match="X has 4 features, but CCNNRegressor is expecting 5 features as input"):
        CCNNRegressor(**SMALLEST).fit(np.ones((3, 5)), [0, 1, 2]).predict(np.ones((1, 4)))


@CLASSIFIERS
def test_images(make: Callable[[], Any]) -> None:
    x = np.random.default_rng(0).normal(size=(24, 1, 8, 8))
    y = np.arange(24) % 2
    x[y == 1, :, 2:6, 2:6] += 2
    fitted = make().fit(x, y)
    assert fitted.score(x, y) > 0.9
    assert fitted.predict(x[:3]).shape == (3,)


def test_regression_of_several_values() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2, 16))
    y = 100 + 50 * x.mean(axis=2)
    fitted = CCNNRegressor(**SMALL).fit(x, y)
    assert fitted.predict(x).shape == (60, 2)
    assert fitted.score(x, y) > 0.5
    assert fitted.set_params(epochs=1).fit(x, y[:, 0]).predict(x).shape == (60,)


def test_works_with_pipelines_and_cross_validation() -> None:
    x, y = waves()
    small = CCNNClassifier(channels=4, blocks=1, epochs=1, networks=1, random_kernels=10)
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
    with pytest.raises(ValueError, match=r"\bX must .*channels"):
        CCNNClassifier().fit([np.zeros((1, 4)), np.zeros((2, 4))], [0, 1])
    bad_numbers = {"batch": 0, "epochs": 0, "lr": -1.0, "weight_decay": -1.0, "dropout": 1.0, "patience": 3}
    bad_models = [("model", name) for name in ("p4cnn", "ckcnn_copy", "ccnn_4_410", "ccnn_4_16")]
    for name, value in (*bad_numbers.items(), *bad_models):
        with pytest.raises(ValueError, match=rf"\b{name}\b.*{value}"):
            CCNNClassifier(**{name: value}).fit(x, y)
    fitted = CCNNClassifier(channels=4, blocks=1, epochs=1, random_kernels=10).fit(x, y)
    with pytest.raises(ValueError, match=r"X .*got \(2, 24\)"):
        fitted.predict(np.zeros((3, 2, 24)))
    for name, value in {"kernels": 0, "field": "SIRENE"}.items():
        with pytest.raises(ValueError, match=rf"\b{name}\b.*{value}"):
            RandomKernelClassifier(**{name: value}).fit(x, y)


def test_networks_are_trusted_as_far_as_held_out_samples_allow() -> None:
    target = torch.randint(3, (60,))
    right, guesses, no_idea = 4 * F.one_hot(target, 3).double(), 4 * torch.randn(60, 3).double(), torch.zeros(60, 3)
    assert blend(right, guesses, target)[0] > 0.9
    share, factor = blend(guesses, no_idea.double(), target)
    assert share < 0.3 or factor < 0.3
    values = torch.randn(60, 2).double()
    assert blend(values, guesses[:, :2], values) == (1.0, 1.0)
    assert blend(guesses[:, :2], values, values) == (0.0, 1.0)


def test_several_networks_are_trained_without_parts_of_the_samples() -> None:
    x, y = waves(30)
    fitted = CCNNClassifier(**{**SMALLEST, "networks": 3}).fit(x, y)
    assert len({tuple(network.readout.linear.bias.tolist()) for network in fitted.networks_}) == 3
    share, factor = fitted._blend_
    inputs, _ = fitted.prepare(x)
    with torch.no_grad():
        trained = [(factor * network.double()(inputs.double())).softmax(dim=1) for network in fitted.networks_]
        fixed = fitted.random_kernels_(inputs.double()).softmax(dim=1)
    expected = share * torch.stack(trained).mean(dim=0) + (1 - share) * fixed
    np.testing.assert_allclose(fitted.predict_proba(x), expected.numpy(), atol=1e-9)
    values = CCNNRegressor(**{**SMALLEST, "networks": 2}).fit(x, x[:, 0, 0])
    assert values.predict(x).shape == (30,)


def test_largest_seed() -> None:
    x, y = waves(12)
    options = {**SMALLEST, "epochs": 1, "networks": 2}
    assert CCNNClassifier(**options, random_state=2**32 - 1).fit(x, y).predict(x).shape == (12,)
    with pytest.raises(ValueError, match="random_state must"):
        CCNNClassifier(**options, random_state=2**32).fit(x, y)


def test_number_of_networks() -> None:
    x, y = waves(12)
    quick = {"channels": 2, "blocks": 1, "epochs": 1, "random_kernels": 10, "device": "cpu"}
    for options, expected in (({}, 3), ({"networks": 2}, 2), ({"random_kernels": 0}, 1), ({"model": "ckcnn_2_30"}, 1)):
        given = {**quick, **options}
        given = {k: v for k, v in given.items() if "model" not in given or k not in ("channels", "blocks")}
        assert len(CCNNClassifier(**given).fit(x, y).networks_) == expected
    assert len(CCNNClassifier(**quick).fit(x[:8], y[:8]).networks_) == 1
    with pytest.raises(ValueError, match="networks must"):
        CCNNClassifier(**quick, networks=7).fit(x, y)


def test_held_out_samples_choose_the_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = waves(60)
    fitted = CCNNClassifier(**SMALL, validation_fraction=0.2, patience=2, verbose=1).fit(x, y)
    assert fitted.validation_score_ == max(row["val_accuracy"] for row in fitted.history_)
    assert fitted.n_iter_ < 30 * 3  # it stopped early: the waves are soon told apart
    printed = capsys.readouterr().out
    assert "validation accuracy" in printed
    assert "nan" not in printed  # reports of the speed alone have no loss
    assert fitted.score(*waves(seed=1)) > 0.9


def test_fitted_networks_are_exposed() -> None:
    x, y = waves()
    fitted = CCNNClassifier(**SMALLEST).fit(x, y)
    inputs, mask = fitted.prepare(x)
    assert mask is None
    with torch.no_grad():
        trained = fitted.network_(inputs).double().softmax(dim=1)
        fixed = fitted.random_kernels_(inputs.double()).softmax(dim=1)
    np.testing.assert_allclose((trained + fixed).numpy() / 2, fitted.predict_proba(x), atol=1e-5)
    assert CCNNClassifier(**{**SMALL, "epochs": 1}).fit(x, y).random_kernels_ is None


@pytest.mark.parametrize(
    "options",
    [{"model": "ckcnn_2_30"}, {"field": "SIREN"}, {"model": "p4cnn", "channels": 2}, {"options": {"norm": "layer"}}],
    ids=str,
)
def test_other_networks_and_fields(options: dict[str, Any]) -> None:
    x = np.random.default_rng(0).normal(size=(8, 1, 28, 28) if "channels" in options else (8, 1, 12))
    fitted = CCNNClassifier(epochs=1, random_kernels=10, **options).fit(x, np.arange(8) % 2)
    assert fitted.predict_proba(x).shape == (8, 2)


def test_leave_one_out_errors_are_those_of_refits() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(12, 6, dtype=torch.float64), torch.randn(12, 2, dtype=torch.float64)
    gram = (x - x.mean(dim=0)) @ (x - x.mean(dim=0)).T
    strength, held_out = _held_out(gram, y)[8]
    for i in range(12):
        rest = torch.arange(12) != i
        weight, bias = _solve(x[rest], y[rest], strength)
        torch.testing.assert_close(x[i] @ weight + bias, held_out[i])
    wide, _ = _solve(x[:4], y[:4], 0.1)  # fewer samples than features
    narrow = torch.linalg.solve(
        (z := x[:4] - x[:4].mean(dim=0)).T @ z + 0.1 * torch.eye(6, dtype=x.dtype), z.T @ (y[:4] - y[:4].mean(dim=0))
    )
    torch.testing.assert_close(wide, narrow)


def test_fitted_samples_keep_the_features_of_the_fit() -> None:
    # Mostly constant series: their responses are rounding errors, which differ between precisions and batches.
    x, y = waves(30)
    x[::3] = 0.1
    x *= 1000.0
    fitted = RandomKernelClassifier(kernels=30).fit(x, y)
    inputs, _ = fitted.prepare(x)
    with torch.no_grad():
        features = (fitted.network_.raw_features(inputs.double()) - fitted.network_.shift) * fitted.network_.scale
    assert features.mean(dim=0).abs().max() < 1e-6
    # Sums of batches of other sizes are ordered differently on some processors.
    np.testing.assert_allclose(fitted.predict_proba(x)[:2], fitted.predict_proba(x[:2]), rtol=1e-12)


def test_fits_in_threads_equal_sequential_fits() -> None:
    x, y = waves()
    estimators = [CCNNClassifier(**SMALLEST, random_state=seed) for seed in range(2)]
    serial = [clone(estimator).fit(x, y).predict_proba(x) for estimator in estimators]
    with ThreadPoolExecutor(2) as pool:
        beside = list(pool.map(lambda estimator: estimator.fit(x, y).predict_proba(x), estimators))
    for one, other in zip(serial, beside, strict=True):
        np.testing.assert_array_equal(one, other)


def test_fine_tuning_from_a_pretrained_weight() -> None:
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(12, 1, 256)), np.array([0, 1, 2] * 4)
    made = CCNNClassifier(start_from="ccnn_4_140.digits", epochs=1, lr=1e-9, random_kernels=0).fit(X, y)
    assert made.predict_proba(X).shape == (12, 3)
    weight = create_model("ccnn_4_140.digits", pretrained=True).stem.depthwise.mask.sigma
    torch.testing.assert_close(made.network_.stem.depthwise.mask.sigma, weight, rtol=0, atol=1e-4)
    assert CCNNRegressor(start_from="ccnn_4_140.digits", epochs=1, random_kernels=0).fit(X, X[:, 0, 0]) is not None


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"start_from": "ccnn_4_140.digts"}, "start_from"),
        ({"start_from": "ckcnn_adding.adding_100"}, "start_from"),
        ({"start_from": "full_gcnn_t2.rotmnist"}, "start_from"),
        ({"start_from": "ccnn_4_140.digits", "model": "ccnn_6_380"}, "model"),
        ({"start_from": "ccnn_4_140.digits", "channels": 8}, "channels"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must"):
        CCNNClassifier(epochs=1, **options).fit(np.random.default_rng(0).normal(size=(4, 1, 32)), [0, 1, 0, 1])


def test_images_for_a_weight_on_sequences_are_converted_by_its_preprocessing() -> None:
    X, y = np.random.default_rng(0).integers(0, 256, (6, 1, 20, 20)).astype(np.uint8), [0, 1] * 3
    clf = CCNNClassifier(start_from="flextcn_2.smnist", epochs=1, random_kernels=0)
    with pytest.raises(ValueError, match=r"^start_from must .*preprocessing\(create_model\('flextcn_2\.smnist'"):
        clf.fit(X, y)
    prepared = preprocessing(create_model("flextcn_2.smnist", pretrained=True))(X).numpy()
    assert clf.fit(prepared, y).predict_proba(prepared).shape == (6, 2)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.random.default_rng(0).normal(size=(12, 20, 20, 3)), "X must have shape .* channels seem to be last"),
        (np.random.default_rng(0).normal(size=(12, 30, 2)), "X must have shape .* channels seem to be last"),
        (1.7e9 + np.random.default_rng(0).normal(size=(12, 30)), "X must hold values that float32 can tell apart"),
        ([1.7e9 + np.arange(5.0 + i) / 9 for i in range(12)], "X must hold values that float32 can tell apart"),
        (np.where(np.arange(12)[:, None] == 4, np.nan, np.ones((12, 30))), "X must hold .* none in sample 4"),
    ],
    ids=["image", "series", "offset", "unequal", "empty"],
)
def test_samples_that_would_be_read_wrongly_are_refused(X, message):
    for estimator in (RandomKernelClassifier(), CCNNClassifier(epochs=1)):
        with pytest.raises(ValueError, match=message):
            estimator.fit(X, np.arange(12) % 2)


def test_predictions_that_depend_on_their_batch_are_announced():
    X = np.random.default_rng(0).normal(size=(12, 30))
    made = CCNNClassifier(model="ccnn_4_140_global", channels=4, blocks=1, epochs=1, random_kernels=0)
    with pytest.warns(UserWarning, match="depends on the other samples of its batch"):
        made.fit(X, np.arange(12) % 2)


def test_small_units_and_masked_arrays():
    X, y = np.random.default_rng(0).normal(size=(20, 30)), np.arange(20) % 2
    wanted = RandomKernelClassifier().fit(X, y).predict_proba(X)
    for unit in (1e-13, 1e-25):
        np.testing.assert_allclose(RandomKernelClassifier().fit(unit * X, y).predict_proba(unit * X), wanted, atol=1e-3)
    RandomKernelClassifier().fit(np.stack([X, np.full_like(X, 0.1)], axis=1), y)  # a constant is no offset
    gaps = np.where(X > 2, np.nan, X)
    masked = np.ma.masked_where(X > 2, X)
    wanted = RandomKernelClassifier().fit(gaps, y).predict_proba(gaps)
    np.testing.assert_array_equal(RandomKernelClassifier().fit(masked, y).predict_proba(masked), wanted)
