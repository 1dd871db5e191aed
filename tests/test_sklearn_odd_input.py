"""Input of unusual types and values: it is understood, or refused with the name of the argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils import estimator_checks

import kernelfield.sklearn as estimators
from kernelfield import CCNN, DNArch
from kernelfield.sklearn import (
    CCNNClassifier,
    CCNNForecaster,
    CCNNRegressor,
    GroupClassifier,
    RandomKernelClassifier,
    RandomKernelRegressor,
    WaveletClassifier,
)
from kernelfield.sklearn._base import check_no_gaps

TINY = {"channels": 2, "blocks": 1, "epochs": 1, "networks": 1, "random_kernels": 10}
TIMED = {"channels": 4, "blocks": 1, "epochs": 1}
CLASSES = np.array(["fast", "slow"] * 6)
#: scikit-learn's checks that need no samples
WITHOUT_SAMPLES = (
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
)


def series(seed: int = 0, n: int = 12, length: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, length))


def timed(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    source = np.random.default_rng(seed)
    times = [np.sort(source.uniform(0, 10, 8 + i % 3)) for i in range(12)]
    return [(t, np.sin((1 + i % 2) * t)) for i, t in enumerate(times)]


classifiers = pytest.mark.parametrize(
    "make", [lambda: CCNNClassifier(**TINY), lambda: RandomKernelClassifier(kernels=20)], ids=["network", "kernels"]
)
regressors = pytest.mark.parametrize(
    "make", [lambda: CCNNRegressor(**TINY), lambda: RandomKernelRegressor(kernels=20)], ids=["network", "kernels"]
)


@pytest.mark.parametrize("check", WITHOUT_SAMPLES)
@pytest.mark.parametrize("name", estimators.__all__)
def test_scikit_learns_checks_without_samples(name: str, check: str) -> None:
    if not hasattr(estimator_checks, check):
        pytest.skip(f"this version of scikit-learn has no {check}")
    getattr(estimator_checks, check)(name, getattr(estimators, name)())


@classifiers
class TestSamples:
    def test_arrays_of_objects_are_lists(self, make: Any) -> None:
        ragged = [row[: 10 + i % 4] for i, row in enumerate(series())]
        objects = np.empty(12, dtype=object)
        for rows in (ragged, list(series())):
            objects[:] = rows
            wanted = make().fit(rows, CLASSES).predict_proba(rows)
            np.testing.assert_array_equal(make().fit(objects, CLASSES).predict_proba(objects), wanted)

    def test_tensors_are_read_like_arrays(self, make: Any) -> None:
        fitted = make().fit(series(), CLASSES)
        wanted = fitted.predict_proba(series())
        tensor = torch.from_numpy(series())
        np.testing.assert_array_equal(fitted.predict_proba(tensor.requires_grad_()), wanted)
        assert make().fit(tensor.detach().bfloat16(), CLASSES).predict(tensor.detach().bfloat16()).shape == (12,)

    @pytest.mark.parametrize("dtype", [np.float16, np.int8, np.int64, bool, object, str])
    def test_numbers_of_any_type(self, make: Any, dtype: Any) -> None:
        x = (10 * series()).round()
        x = x > 0 if dtype is bool else x
        wanted = make().fit(x.astype(np.float64), CLASSES).predict_proba(x.astype(np.float64))
        np.testing.assert_array_equal(make().fit(x.astype(dtype), CLASSES).predict_proba(x.astype(dtype)), wanted)

    def test_values_in_another_unit_are_reported(self, make: Any) -> None:
        X = 1000 + series()
        fitted = make().fit(X, CLASSES)
        fitted.predict(X[:1])
        with pytest.warns(UserWarning, match="channel 0 of X has a mean of 10.*; its values must have the same unit"):
            fitted.predict(X / 100)

    def test_values_too_large_for_single_precision_are_refused(self, make: Any) -> None:
        with pytest.raises(ValueError, match="X must be finite"):
            make().fit(1e300 * series(), CLASSES)

    @pytest.mark.parametrize("constant", [7.0, np.nan])
    def test_channels_that_were_constant_in_fit_change_nothing(self, make: Any, constant: float) -> None:
        """Their weights were never trained."""
        x = np.stack([series(), np.full((12, 16), constant)], axis=1)
        fitted = make().fit(x, CLASSES)
        other = x.copy()
        other[:, 1] = series(1) + 5
        np.testing.assert_allclose(fitted.predict_proba(other), fitted.predict_proba(x), atol=1e-12)

    def test_partial_fit_reads_channels_that_vary_later(self, make: Any) -> None:
        model = make()
        if not hasattr(model, "partial_fit"):
            pytest.skip("no partial_fit")
        x = np.stack([series(), np.full((12, 16), 7.0)], axis=1)
        model.partial_fit(x, CLASSES, classes=["fast", "slow"])
        x[:, 1] += series(1)
        assert np.abs(model.prepare(x)[0][:, 1].numpy()).max() > 0.1


@classifiers
class TestClasses:
    def test_two_columns_are_refused(self, make: Any) -> None:
        with pytest.raises(ValueError, match=r"y must have shape \(n,\), got \(12, 2\)"):
            make().fit(series(), np.stack([CLASSES, CLASSES], axis=1))

    def test_one_class_is_named(self, make: Any) -> None:
        with pytest.raises(ValueError, match="y must hold at least 2 classes, got one class: 'fast'"):
            make().fit(series(), ["fast"] * 12)

    def test_missing_strings_of_pandas_are_refused(self, make: Any) -> None:
        pandas = pytest.importorskip("pandas")
        with pytest.raises(ValueError, match="y must hold a class for each sample"):
            make().fit(series(), pandas.Series([*CLASSES[:-1], pandas.NA], dtype="string"))


@regressors
class TestValues:
    @pytest.mark.parametrize(
        ("y", "message"),
        [
            (CLASSES, "y must hold numbers"),
            (np.arange(12).astype("M8[D]"), "y must hold numbers, got datetime64"),
            (np.arange(12).astype("m8[s]"), "y must hold numbers, got timedelta64"),
            (np.zeros((12, 2, 2)), r"y must have shape \(n,\) or \(n, outputs\)"),
            (1e-14 * np.arange(12), "y must have a standard deviation above 1e-12"),
            (1e20 * np.arange(12), r"y must have a mean and a standard deviation up to 1e\+12"),
            (np.where(np.arange(12) == 3, np.nan, 1), "y must be finite"),
        ],
        ids=["names", "dates", "durations", "3D", "tiny", "huge", "NaN"],
    )
    def test_other_targets_are_refused(self, make: Any, y: np.ndarray, message: str) -> None:
        with pytest.raises((TypeError, ValueError), match=message):
            make().fit(series(), y)

    def test_values_as_small_as_rounding_are_reported(self, make: Any) -> None:
        with pytest.warns(UserWarning, match="y varies by .* counts as constant"):
            make().fit(series(), 1e-20 * np.arange(12))

    def test_constants(self, make: Any) -> None:
        assert make().fit(series(), np.full(12, 1e-9)).predict(series()).shape == (12,)


class TestTimes:
    def test_the_index_of_pandas_holds_times(self) -> None:
        pandas = pytest.importorskip("pandas")
        start = pandas.Timestamp("2026-01-01")
        dates = [(start + pandas.to_timedelta(t, unit="h"), v) for t, v in timed()]
        wanted = CCNNClassifier(**TIMED).fit(dates, CLASSES).predict_proba(dates)
        rows = [pandas.Series(v, index=index) for index, v in dates]
        np.testing.assert_array_equal(CCNNClassifier(**TIMED).fit(rows, CLASSES).predict_proba(rows), wanted)
        floats = [pandas.Series(v, index=t) for t, v in timed()]
        np.testing.assert_allclose(
            CCNNClassifier(**TIMED).fit(floats, CLASSES).predict_proba(floats), wanted, atol=1e-4
        )
        with pytest.raises(ValueError, match="X must lie on a grid"):
            RandomKernelClassifier(kernels=20).fit(rows, CLASSES)

    def test_the_index_of_integers_counts_samples(self) -> None:
        pandas = pytest.importorskip("pandas")
        rows = [pandas.Series(row) for row in series()]
        wanted = RandomKernelClassifier(kernels=20).fit(series(), CLASSES).predict_proba(series())
        np.testing.assert_array_equal(RandomKernelClassifier(kernels=20).fit(rows, CLASSES).predict_proba(rows), wanted)

    def test_columns_of_frames_are_channels_by_name(self) -> None:
        pandas = pytest.importorskip("pandas")
        frames = [pandas.DataFrame({"a": v, "b": v**2}, index=t) for t, v in timed()]
        for frame in frames:
            frame.loc[frame.index[2], "b"] = np.nan
        dicts = [{"a": (t, v), "b": (np.delete(t, 2), np.delete(v**2, 2))} for t, v in timed()]
        wanted = CCNNClassifier(**TIMED).fit(dicts, CLASSES).predict_proba(dicts)
        fitted = CCNNClassifier(**TIMED).fit(frames, CLASSES)
        np.testing.assert_array_equal(fitted.predict_proba(frames), wanted)
        np.testing.assert_array_equal(fitted.predict_proba([frame[["b", "a"]] for frame in frames]), wanted)

    def test_lists_that_may_be_pairs_are_reported(self) -> None:
        lists = [[t.tolist(), v.tolist()] for t, v in timed()]
        with pytest.warns(UserWarning, match=r"tuple \(times, values\)"):
            RandomKernelClassifier(kernels=20).fit(lists, CLASSES)

    def test_another_unit_is_reported(self) -> None:
        fitted = CCNNClassifier(**TIMED).fit(timed(), CLASSES)
        fitted.predict(timed(1))
        with pytest.warns(UserWarning, match="same unit"):
            fitted.predict([(3600 * t, v) for t, v in timed(1)])

    @pytest.mark.parametrize(
        ("first", "message"),
        [
            ((["2026-01-01", "2026-01-02"], [1.0, 2.0]), "times of a series must be numbers"),
            (([0.0, 1.0], [np.nan, np.nan]), r"X\[0\] must hold at least one value"),
        ],
        ids=["text", "no values"],
    )
    def test_series_without_times_or_values_are_refused(self, first: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            CCNNClassifier(**TIMED).fit([first, *timed()[1:]], CLASSES)

    def test_networks_for_grids_refuse_times(self) -> None:
        with pytest.raises(ValueError, match="X must lie on a grid for a WaveletNet"):
            WaveletClassifier(epochs=1).fit(timed(), CLASSES)

    def test_forecasts_of_nothing_are_refused(self) -> None:
        model = CCNNForecaster(**TIMED)
        with pytest.raises(ValueError, match="y must hold at least one value"):
            model.fit(timed(), [(t, np.nan * v) for t, v in timed()])
        model.fit(timed(), timed())
        with pytest.raises(TypeError, match="at must be times"):
            model.predict(timed(), at=5.0)


class TestImages:
    def test_images_of_unequal_size_are_refused(self) -> None:
        source = np.random.default_rng(0)
        with pytest.raises(ValueError, match="X must hold samples of one shape"):
            GroupClassifier(epochs=1).fit([source.normal(size=(1, 8 + i % 2, 9)) for i in range(12)], CLASSES)

    def test_images_are_no_sounds(self) -> None:
        with pytest.raises(ValueError, match="X must hold sounds"):
            WaveletClassifier(epochs=1).fit(np.zeros((12, 1, 8, 8)), CLASSES)


def test_gaps_are_refused_only_for_networks_without_a_mask() -> None:
    seen = torch.ones(2, 8, dtype=torch.bool)
    check_no_gaps(DNArch(CCNN(1, 2, size=8, channels=4, blocks=1), learn=()), seen)  # passes its options on
    with pytest.raises(ValueError, match="X must have no missing values for a Linear"):
        check_no_gaps(torch.nn.Linear(8, 2), seen)


@classifiers
def test_series_of_another_length_are_announced(make: Any) -> None:
    """They may be sampled at another rate. Where the lengths in fit differed, other lengths are normal."""
    model = make().fit(series()[:, None], CLASSES)
    with pytest.warns(UserWarning, match="samples of X have length 20, and those in fit 16; they count as sampled"):
        model.predict(series(length=20)[:, None])
    ragged = [row[None, : 16 - i % 2] for i, row in enumerate(series())]
    make().fit(ragged, CLASSES).predict(series(length=20)[:, None])
