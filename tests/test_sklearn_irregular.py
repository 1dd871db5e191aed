"""Estimators of series at irregular times: classification, regression, and forecasts at query times."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from kernelfield import load_run
from kernelfield.experiments.custom_data import recipe_for_path
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.recipe import with_settings
from kernelfield.sklearn import CCNNClassifier, CCNNForecaster, CCNNRegressor, RandomKernelClassifier
from kernelfield.sklearn._irregular import irregular

if TYPE_CHECKING:
    from pathlib import Path

SMALL: dict[str, Any] = {"channels": 8, "blocks": 1, "epochs": 12, "options": {"hidden": 8}}
TINY: dict[str, Any] = {**SMALL, "channels": 4, "epochs": 1}


def waves(n: int = 32, seed: int = 0) -> tuple[list[Any], np.ndarray]:
    """Return slow and fast waves of two channels, each observed at its own random times after its own origin."""
    source = np.random.default_rng(seed)
    speed = np.where(np.arange(n) % 2, 3.0, 1.0)
    series = []
    for i, f in enumerate(speed):
        phase = source.uniform(0, 6)
        times = {c: np.sort(source.uniform(0, 6, source.integers(10, 15))) for c in "ab"}
        series.append({c: (100 * i + t, 10 + np.sin(f * t + phase + (c == "b"))) for c, t in times.items()})
    return series, speed


def test_channels_keep_their_own_times() -> None:
    points = irregular([{"a": ([2.0, 1.0], [5.0, 4.0]), "b": ([1.5], [7.0])}, {"b": ([3.0], [1.0])}])
    assert points.times.tolist() == [[1, 1.5, 2], [3, 3, 3]]
    assert points.mask.tolist() == [[True] * 3, [True, False, False]]
    assert points.values[0].nan_to_num(-1).tolist() == [[4, -1, 5], [-1, 7, -1]]
    assert points.values[1].nan_to_num(-1).tolist() == [[-1, -1, -1], [1, -1, -1]]


def test_pairs_and_dicts_give_the_same_points() -> None:
    times, values = [0.5, 1.0, 4.0], np.array([[1.0, np.nan, 3.0], [np.nan, 2.0, np.nan]])
    pair = irregular([(times, values)])
    parts = irregular([{0: ([0.5, 4.0], [1.0, 3.0]), 1: ([1.0], [2.0])}])
    for one, other in zip(pair, parts, strict=True):
        assert torch.equal(
            one.nan_to_num() if one.is_floating_point() else one,
            other.nan_to_num() if one.is_floating_point() else other,
        )


def test_classes_of_series_at_irregular_times() -> None:
    X, speed = waves()
    model = CCNNClassifier(**{**SMALL, "epochs": 40}).fit(X, speed > 2)
    assert model.score(X, speed > 2) > 0.85
    inputs, mask = model.prepare(X)
    assert inputs.shape[1] == 4  # two channels, and where each was observed
    assert mask is not None
    # Neither the origin of the times nor the order of points and channels matters.
    moved = [{c: (pair[0][::-1] + 1000, pair[1][::-1]) for c, pair in reversed(series.items())} for series in X]
    np.testing.assert_allclose(model.predict_proba(moved), model.predict_proba(X), atol=1e-5)


def test_values_of_series_at_irregular_times() -> None:
    X, speed = waves(12)
    assert CCNNRegressor(**TINY).fit(X, speed).predict(X).shape == (12,)
    pairs = [series["a"] for series in X]
    assert CCNNRegressor(**TINY).fit(pairs, speed).predict(pairs[:3]).shape == (3,)


def test_forecasts_at_query_times() -> None:
    source = np.random.default_rng(0)
    times = [np.sort(source.uniform(0, 8, 24)) for _ in range(48)]
    start = source.uniform(0, 6, 48)
    X = [(t[::2], 50 + np.sin(t[::2] + p)) for t, p in zip(times, start, strict=True)]
    y = [(t[1::2], 50 + np.sin(t[1::2] + p)) for t, p in zip(times, start, strict=True)]
    model = CCNNForecaster(**{**SMALL, "epochs": 30}).fit(X, y)
    assert model.score(X, y) > 0.8
    found = model.predict(X, at=[1.0, 2.0])
    assert found.shape == (48, 2)
    assert 48 < found.mean() < 52  # in the unit of y
    own = model.predict(X, at=[np.array([2.0])] + [np.array([1.0, 5.0, 2.0])] * 47)
    assert [len(values) for values in own[:2]] == [1, 3]
    np.testing.assert_allclose(own[0][0], found[0, 1], atol=1e-6)
    np.testing.assert_allclose(own[1][[0, 2]], found[1], atol=1e-6)
    with pytest.warns(UserWarning, match="96 of 96 query times lie .*; the network has not learned to predict there"):
        model.predict(X, at=[60.0, 120.0])  # minutes instead of hours


@pytest.mark.filterwarnings("ignore:.*query times lie")
def test_targets_of_several_channels_at_different_times() -> None:
    X, _ = waves(10)
    y = [{"z": (series["a"][0][:3], [1.0, 2.0, 3.0]), "w": (series["b"][0][-2:], [5.0, 6.0])} for series in X]
    model = CCNNForecaster(**TINY).fit(X, y)
    assert model.predict(X, at=[3.0]).shape == (10, 2, 1)
    assert np.isfinite(model.score(X, y))


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (([0.0, np.nan], [1.0, 2.0]), r"X\[1\] must have finite times"),
        (([0.0, 1.0], [1.0, np.inf]), r"X\[1\] must have finite values"),
        (([0.0, 1.0], [1.0]), r"X\[1\] must have times"),
        (([], []), r"X\[1\] must not be empty"),
        (([0.0, 1.0], [[1.0, 2.0], [3.0, 4.0]]), "X must hold series with the same number of channels"),
    ],
)
def test_bad_series_are_refused_by_name(series: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CCNNClassifier(**TINY).fit([([0.0, 1.0], [1.0, 2.0]), series], [0, 1])


def test_bad_dicts_are_refused_by_name() -> None:
    good = {"a": ([0.0, 1.0], [1.0, 2.0])}
    with pytest.raises(ValueError, match=r"X\[1\]\['a'\] must have one value"):
        CCNNClassifier(**TINY).fit([good, {"a": ([0.0, 0.0], [1.0, 2.0])}], [0, 1])
    with pytest.raises(ValueError, match=r"X\[1\] must not be empty"):
        CCNNClassifier(**TINY).fit([good, {}], [0, 1])
    model = CCNNRegressor(**TINY).fit([good] * 4, [0, 1, 2, 3])
    with pytest.raises(ValueError, match=r"X must have only the channels .*'q'"):
        model.predict([{"q": ([0.0], [1.0])}])
    with pytest.raises(ValueError, match="X must have times"):
        model.predict(np.zeros((2, 1, 8)))
    with pytest.raises(ValueError, match="X must lie on a grid"):
        RandomKernelClassifier(kernels=10).fit([good] * 4, [0, 1, 0, 1])


def test_bad_questions_are_refused_by_name() -> None:
    X = [([0.0, 1.0, 2.5], [1.0, 2.0, 3.0])] * 4
    with pytest.raises(ValueError, match="y must be a list"):
        CCNNForecaster(**TINY).fit(X, [1.0] * 4)
    with pytest.raises(ValueError, match="y must hold"):
        CCNNForecaster(**TINY).fit(X, X[:2])
    with pytest.raises(ValueError, match="X must be a list"):
        CCNNForecaster(**TINY).fit(np.zeros((4, 1, 8)), X)
    model = CCNNForecaster(**TINY).fit(X, X)
    for at in ([np.nan], [], [[1.0]] * 3):
        with pytest.raises(ValueError, match="at must be"):
            model.predict(X, at=at)


def test_dates_have_one_unit_whatever_their_type() -> None:
    X, speed = waves(12)
    pairs = [series["a"] for series in X]
    start = np.datetime64("2024-01-31T12:00:00", "ns")

    def dated(kind: str) -> list[Any]:
        return [((start + (1e9 * times).round().astype("m8[ns]")).astype(kind), values) for times, values in pairs]

    model = CCNNClassifier(**TINY).fit(dated("M8[ms]"), speed > 2)
    wanted = model.predict_proba(dated("M8[ms]"))
    for kind in ("M8[us]", "M8[ns]"):
        np.testing.assert_allclose(model.predict_proba(dated(kind)), wanted, atol=1e-4)
    listed = [(times.tolist(), values) for times, values in dated("M8[ms]")]  # Python's own dates
    np.testing.assert_allclose(model.predict_proba(listed), wanted, atol=1e-12)
    with pytest.raises(ValueError, match=r"X\[0\] must have times that are dates"):
        model.predict(pairs)
    with pytest.raises(ValueError, match=r"X\[0\] must have times that are numbers"):
        CCNNClassifier(**TINY).fit(pairs, speed > 2).predict(dated("M8[s]"))


def test_forecasts_at_dates() -> None:
    times = [np.arange(8.0) + i for i in range(6)]
    X = [(t[:6], np.sin(t[:6])) for t in times]
    y = [(t[6:], np.sin(t[6:])) for t in times]

    def dated(series: list[Any]) -> list[Any]:
        return [(np.datetime64("2024-01-31", "s") + (3600 * t).astype("m8[s]"), v) for t, v in series]

    hours = [(3600 * t, v) for t, v in X], [(3600 * t, v) for t, v in y]
    numbers, dates = CCNNForecaster(**TINY).fit(*hours), CCNNForecaster(**TINY).fit(dated(X), dated(y))
    at = [t for t, _ in dated(y)]
    for one, other in zip(
        dates.predict(dated(X), at), numbers.predict(hours[0], [t for t, _ in hours[1]]), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert dates.score(dated(X), dated(y)) == pytest.approx(numbers.score(*hours), abs=1e-5)
    with pytest.raises(ValueError, match="at must have times that are dates"):
        dates.predict(dated(X), [24.0, 36.0])


def test_series_keep_the_form_of_fit() -> None:
    X, speed = waves(12)
    model = CCNNClassifier(**TINY).fit(X, speed > 2)
    pairs = [(series["a"][0], np.stack([series["a"][1]] * 2)) for series in X]
    with pytest.raises(ValueError, match="X must hold dicts"):
        model.predict(pairs)
    with pytest.raises(ValueError, match="X must hold pairs"):
        CCNNClassifier(**TINY).fit(pairs, speed > 2).predict(X)
    forecaster = CCNNForecaster(**TINY).fit(pairs, X)
    with pytest.raises(ValueError, match="y must hold dicts"):
        forecaster.score(pairs, pairs)


def test_times_keep_the_unit_of_the_weights(tmp_path: Path) -> None:
    times = np.cumsum(np.random.default_rng(0).uniform(30, 90, size=(16, 9)), axis=1)
    lines = [f"{i},{t:.3f},{np.sin(t):.3f},{i % 2}" for i, row in enumerate(times) for t in row]
    (tmp_path / "long.csv").write_text("\n".join(["id,time,value,label", *lines]))
    recipe = with_settings(
        recipe_for_path(tmp_path / "long.csv"),
        ["training.epochs=1", "model.channels=4", "model.blocks=1", "model.hidden=4"],
    )
    run = fit(recipe, tmp_path / "run", report=False)
    X, y = [(row / 10, np.sin(row)) for row in times], np.arange(16) % 2
    made = CCNNClassifier(start_from=str(run.folder), epochs=1, random_kernels=0).fit(X, y)
    unit = load_run(run.folder).data.unit
    torch.testing.assert_close(
        made.coordinates(X)[0, :, 0], torch.from_numpy((times[0] - times[0, 0]) / 10 / unit).float()
    )
    dates = [(np.datetime64("2024-01-01") + np.arange(9), row) for _, row in X]
    with pytest.raises(ValueError, match="X must have times that are numbers"):
        CCNNClassifier(start_from=str(run.folder), epochs=1, random_kernels=0).fit(dates, y)


def test_dates_with_and_without_a_time_zone_are_not_mixed() -> None:
    naive = [datetime(2024, 3, 31, hour) for hour in range(4)]
    aware = [t.replace(tzinfo=timezone.utc) for t in naive]
    assert irregular([(aware, range(4))]).times.equal(irregular([(naive, range(4))]).times)
    for mixed in ([(naive[:2] + aware[2:], range(4))], [{"x": (naive, range(4)), "y": (aware, range(4))}]):
        with pytest.raises(ValueError, match="times of a series must all have a time zone"):
            irregular(mixed)


def test_times_that_float64_rounds_are_refused() -> None:
    start, gaps = np.datetime64("2024-03-31", "ns"), 300 * np.arange(8)
    values = np.zeros(8)
    for times in (start + gaps.astype("m8[ns]"), 1.7e18 + gaps):
        with pytest.raises(ValueError, match=r"X\[0\] must have times that float64 can tell apart"):
            irregular([(times, values)])
    since = irregular([(gaps.astype("m8[ns]"), values)]).times  # durations are exact
    np.testing.assert_allclose(since[0], 3e-7 * np.arange(8), rtol=1e-12)


def test_forecasts_do_not_mix_dates_with_and_without_a_time_zone() -> None:
    naive = [(np.datetime64("2024-03-31T00", "s") + np.arange(6) * 3600, np.arange(6.0))] * 4
    aware = [([t.replace(tzinfo=timezone.utc) for t in times.tolist()], values) for times, values in naive]
    for X, y in ((naive, aware), (aware, naive)):
        with pytest.raises(ValueError, match=r"y must have dates .* X\[0\]"):
            CCNNForecaster(**TINY).fit(X, y)
        model = CCNNForecaster(**TINY).fit(X, X)
        model.predict(X, at=list(X[0][0]))
        for at in (list(y[0][0]), [list(y[0][0])] * 4):
            with pytest.raises(ValueError, match=r"at must have dates .* X\[0\]"):
                model.predict(X, at=at)


def test_channels_that_were_always_observed_are_missed() -> None:
    X, speed = waves(12)
    model = CCNNClassifier(**TINY).fit(X, speed > 2)
    with pytest.warns(UserWarning, match=r"1 of 2 series of X .* 'b'"):
        model.predict([{"a": X[0]["a"]}, X[1]])
    grid = np.random.default_rng(0).normal(size=(12, 2, 8))
    model = CCNNClassifier(**TINY).fit(grid, speed > 2)
    grid[3, 1] = np.nan
    with pytest.warns(UserWarning, match="1 of 12 series of X .* channel 1"):
        model.predict(grid)
    X[5].pop("b")
    CCNNClassifier(**TINY).fit(X, speed > 2).predict([{"a": X[0]["a"]}])  # without a warning


def test_times_without_a_value_are_no_samples() -> None:
    source = np.random.default_rng(0)
    times = [np.sort(source.uniform(0, 6, 12)) for _ in range(8)]
    X, y = [(t, np.sin(t)) for t in times], np.arange(8) % 2
    gaps = [(np.insert(t, [0, 5], [-0.5, t[4] + 1e-3]), np.insert(np.sin(t), [0, 5], np.nan)) for t in times]
    model = CCNNClassifier(channels=4, blocks=1, epochs=1).fit(X, y)
    assert np.array_equal(model.predict_proba(gaps), model.predict_proba(X))
    again = CCNNClassifier(channels=4, blocks=1, epochs=1).fit(gaps, y)
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    channels = [{"a": (t, v), "b": (np.append(t[:3], 9.0), np.append(v[:3], np.nan))} for t, v in X]
    assert irregular(channels).times.max() < 6
