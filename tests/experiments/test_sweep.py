"""Sweeps and comparisons: the same table whether interrupted or not, chosen by validation data."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

from kernelfield.cli import WRONG, app
from kernelfield.experiments.combine import combine_results
from kernelfield.experiments.comparison import (
    by_validation,
    compare_runs,
    comparison_lines,
    comparison_table,
    write_comparison_page,
)
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.recipe import find_recipe, with_settings
from kernelfield.experiments.seeds import fit_seeds
from kernelfield.experiments.sweep import Range, _score, grid, read_over, sweep

from .helpers import small_data, small_recipe

if TYPE_CHECKING:
    from pathlib import Path

OVER = {"optimizer.lr": ["0.001", "0.02"], "model.dropout": ["0.0", "0.3"]}


def scores(results: list[dict[str, Any]]) -> list[Any]:
    return [(r["status"], r["metrics"], r["chosen"]["validation"]) for r in results]


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("sweep") / "sweep"
    return sweep(small_recipe("training.epochs=2"), folder, OVER, at_once=2, data=small_data())


def test_a_grid_trains_every_combination(complete: Any) -> None:
    assert complete.trials == grid(OVER)
    assert [result["status"] for result in complete.results] == ["done"] * 4
    assert len({json.dumps(score) for score in scores(complete.results)}) > 1
    assert (complete.folder / "sweep.html").stat().st_size > 10_000


def test_trials_are_what_they_are_alone(complete: Any, tmp_path: Path) -> None:
    alone = fit(small_recipe("training.epochs=2", *complete.trials[2]), tmp_path / "a", data=small_data(), report=False)
    assert alone.result()["metrics"] == complete.results[2]["metrics"]


def test_an_interrupted_sweep_continues_to_the_same_table(complete: Any, tmp_path: Path) -> None:
    recipe, calls = small_recipe("training.epochs=2"), iter(range(10_000))
    stopped = sweep(recipe, tmp_path / "s", OVER, at_once=2, data=small_data(), should_stop=lambda: next(calls) > 9)
    assert {result["status"] for result in stopped.results} != {"done"}
    resumed = sweep(recipe, tmp_path / "s", OVER, at_once=2, data=small_data())
    assert scores(resumed.results) == scores(complete.results)


def test_the_best_by_validation_comes_first(complete: Any) -> None:
    runs = complete.compared()
    table = comparison_table(runs)
    best = max(run.validation for run in runs)
    assert table[1][1] == f"{100 * best:.2f}"
    assert table[0][-2:] == ["optimizer.lr", "model.dropout"]
    assert len(comparison_lines(table)) == 5


def test_a_failed_trial_does_not_end_the_others(tmp_path: Path) -> None:
    recipe = small_recipe("training.epochs=1")
    found = sweep(recipe, tmp_path / "s", {"optimizer.lr": ["0.01", "1e9"]}, data=small_data())
    assert [result["status"] for result in found.results] == ["done", "failed"]
    assert "not finite" in found.results[1]["error"]


def test_several_seeds_have_a_mean(tmp_path: Path) -> None:
    recipe = small_recipe("training.epochs=1")
    found = sweep(recipe, tmp_path / "s", {"optimizer.lr": ["0.01"]}, seeds=2, data=small_data())
    assert found.results[0]["seed"] == [0, 1]
    assert len(found.compared()[0].curves) == 2


def test_wrong_settings_are_refused_before_any_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'lrr'"):
        sweep(small_recipe(), tmp_path / "s", {"optimizer.lrr": ["0.1"]}, data=small_data())
    assert not list((tmp_path / "s").glob("trial-*"))


def test_a_folder_of_another_sweep_is_refused(complete: Any) -> None:
    with pytest.raises(ValueError, match="out must be the folder of the same sweep"):
        sweep(small_recipe("training.epochs=2"), complete.folder, {"optimizer.lr": ["0.1"]}, data=small_data())


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="out must be a new folder"):
        sweep(small_recipe(), tmp_path, OVER, data=small_data())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("text", ["optimizer.lr", "=1,2", "a.b=", "a.b=2:1", "a.b=0:1:log", "a.b=1:x", "a.b=1:2:3"])
def test_unreadable_values_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--over"):
        read_over([text])


def test_commas_in_brackets_do_not_split() -> None:
    assert read_over(["model.field=MLP(hidden=8, depth=2),SIREN"]) == {
        "model.field": ["MLP(hidden=8, depth=2)", "SIREN"]
    }


def test_a_grid_takes_no_range() -> None:
    with pytest.raises(ValueError, match=r"--over.*optimizer\.lr"):
        grid({"optimizer.lr": Range(0.1, 1.0)})


class TestSamplers:
    def test_draws_continue_alike(self, tmp_path: Path) -> None:
        pytest.importorskip("optuna")
        over = read_over(["optimizer.lr=0.001:0.1:log", "training.batch=4:12"])
        recipe, options = small_recipe("training.epochs=1"), {"sampler": "tpe", "trials": 3, "at_once": 2}
        whole = sweep(recipe, tmp_path / "a", over, data=small_data(), **options)
        first = sweep(recipe, tmp_path / "b", over, data=small_data(), **{**options, "trials": 2})
        assert first.trials == whole.trials[:2]
        rest = sweep(recipe, tmp_path / "b", over, data=small_data(), **options)
        assert rest.trials == whole.trials
        assert scores(rest.results) == scores(whole.results)
        assert len({tuple(point) for point in whole.trials}) == 3

    def test_trials_are_asked_for(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="trials must be given"):
            sweep(small_recipe(), tmp_path / "s", OVER, sampler="tpe", data=small_data())


class TestComparison:
    def test_runs_differ_in_what_is_shown(self, tmp_path: Path) -> None:
        for name, lr in (("a", "0.001"), ("b", "0.02")):
            fit(
                small_recipe("training.epochs=1", f"optimizer.lr={lr}"),
                tmp_path / name,
                data=small_data(),
                report=False,
            )
        fit_seeds(small_recipe("training.epochs=1"), tmp_path / "c", seeds=2, data=small_data(), report=False)
        runs = compare_runs([tmp_path / name for name in "abc"])
        assert [run.name for run in runs] == ["a", "b", "c"]
        assert [run.settings["optimizer.lr"] for run in runs] == [0.001, 0.02, 0.01]
        assert set(runs[0].settings) == {"optimizer.lr"}
        assert [len(run.curves) for run in runs] == [1, 1, 2]
        page = write_comparison_page(tmp_path / "page.html", runs).read_text(encoding="utf-8")
        assert "optimizer.lr" in page
        assert "data:image/png" in page

    def test_scores_of_other_metrics_are_not_put_in_order(self, complete: Any) -> None:
        first, second = complete.compared()[:2]
        other = replace(second, result={**second.result, "metric": "loss"})
        for runs in ([first, other], [other, first]):
            assert by_validation(runs) == runs

    def test_the_same_run_twice_is_refused(self, complete: Any) -> None:
        folder = complete.folder / "trial-000"
        with pytest.raises(ValueError, match="folders"):
            compare_runs([folder, folder])

    def test_a_folder_without_a_run_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="folders"):
            compare_runs([tmp_path])


class TestCommands:
    def test_sweep_and_compare(self, tmp_path: Path) -> None:
        folder = str(tmp_path / "sweep")
        over = ["--over", "optimizer.lr=0.01,0.02", "--set", "training.epochs=1", "--synthetic", "--out", folder]
        swept = CliRunner().invoke(app, ["sweep", "digits", *over, "--accelerator", "cpu"])
        assert swept.exit_code == 0, swept.output
        assert "optimizer.lr" in swept.output
        page = str(tmp_path / "page.html")
        runs = [f"{folder}/trial-000", f"{folder}/trial-001"]
        compared = CliRunner().invoke(app, ["compare", *runs, "--out", page, "--json"])
        assert compared.exit_code == 0, compared.output
        assert [row["settings"] for row in json.loads(compared.output)] == [
            {"optimizer.lr": 0.01},
            {"optimizer.lr": 0.02},
        ]

    def test_own_data(self, tmp_path: Path) -> None:
        """A path of data takes the place of a recipe, as for train."""
        file = tmp_path / "waves.npz"
        x = np.random.default_rng(0).normal(size=(40, 1, 16)).astype(np.float32)
        np.savez(file, x=x, y=np.arange(40) % 2)
        small = ["model.channels=4", "model.blocks=1", "training.epochs=1"]
        options = [part for setting in small for part in ("--set", setting)]
        options += ["--over", "optimizer.lr=0.01,0.02", "--out", str(tmp_path / "sweep"), "--accelerator", "cpu"]
        swept = CliRunner().invoke(app, ["sweep", str(file), "--model", "ccnn_4_140", *options, "--json"])
        assert swept.exit_code == 0, swept.output
        assert [row["status"] for row in json.loads(swept.stdout)] == ["done", "done"]
        refused = CliRunner().invoke(app, ["sweep", str(file), "--data", str(tmp_path), *options])
        assert refused.exit_code == WRONG
        assert "--data" in refused.output

    @pytest.mark.slow
    def test_a_killed_sweep_ends_with_the_same_table(self, tmp_path: Path) -> None:
        small = ("model.channels=4", "model.blocks=1", "model.hidden=8", "training.epochs=3", "training.batch=100")
        options = ["--over", "optimizer.lr=0.003,0.01,0.03", "--at-once", "2", "--accelerator", "cpu", "--json"]
        options += [part for setting in small for part in ("--set", setting)]

        def start(name: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "kernelfield", "sweep", "digits", *options, "--out", str(tmp_path / name)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
            )

        def table(process: subprocess.Popen[str]) -> list[Any]:
            rows = json.loads(process.communicate(timeout=600)[0])
            return [(row["settings"], *score) for row, score in zip(rows, scores(rows), strict=True)]

        killed = start("killed")
        while killed.poll() is None and not list((tmp_path / "killed").glob("trial-00[01]/checkpoints/*")):
            time.sleep(0.01)
        killed.kill()
        killed.communicate()
        assert killed.returncode == -signal.SIGKILL
        assert not list((tmp_path / "killed").glob("trial-002/result.json"))
        whole = table(start("whole"))
        assert len(whole) == 3
        assert table(start("killed")) == whole

    def test_wrong_values_have_the_exit_code_of_wrong_arguments(self) -> None:
        found = CliRunner().invoke(app, ["sweep", "digits", "--over", "optimizer.lr"])
        assert found.exit_code == WRONG
        assert "--over" in found.output


def test_a_score_that_is_not_a_number_is_never_the_best(complete: Any) -> None:
    runs = complete.compared()
    lost = replace(runs[0], result={**runs[0].result, "chosen": {"validation": {"accuracy": float("nan")}}})
    for order in ([lost, *runs[1:]], [*runs[1:], lost], [runs[1], lost, *runs[2:]]):
        assert by_validation(order)[-1] is lost


def test_a_sampler_passes_over_scores_that_are_not_numbers() -> None:
    done: dict[str, Any] = {"status": "done", "chosen": {"validation": {"auc": None, "loss": 0.5}}}
    assert _score(done, "auc") is None
    assert _score(done, "loss") == 0.5
    with pytest.raises(ValueError, match=r"data\.validation"):
        _score(done, "accuracy")


def test_ends_of_ranges_are_checked_before_any_training(tmp_path: Path) -> None:
    over = read_over(["training.label_smoothing=0:3"])
    with pytest.raises(ValueError, match="label_smoothing"):
        sweep(small_recipe(), tmp_path / "s", over, sampler="random", trials=2, data=small_data())
    assert not (tmp_path / "s").exists()


def test_seeds_may_lack_a_test_or_a_score() -> None:
    """A metric is not a number if a class is missing; a network may refuse a changed input."""
    first = {
        "status": "done",
        "seconds": 1.0,
        "metrics": {"test": {"auc": None, "loss": 1.0}, "step 2.0": {"auc": 0.5}},
    }
    second = {"status": "done", "seconds": 1.0, "metrics": {"test": {"auc": 0.5, "loss": 2.0}}}
    for kind in ("seeds", "folds"):
        found = combine_results({0: first, 1: second}, kind)
        assert list(found["metrics"]) == list(found["deviation"]) == ["test"]
        assert found["metrics"]["test"]["loss"] == 1.5
        assert math.isnan(found["metrics"]["test"]["auc"])
        assert math.isnan(found["deviation"]["test"]["auc"])


def test_numbers_of_several_seeds_are_not_those_of_the_first() -> None:
    """The errors of each value, the constant prediction of each fold, skipped tests, memory and architectures."""
    done: dict[str, Any] = {"status": "done", "seconds": 1.0, "metrics": {}}
    first = {
        **done,
        "outputs": [{"mse": 1.0}, {"mse": 10.0}],
        "constant": {"mse": 4.0, "outputs": [{"mse": 2.0}, {"mse": None}]},
        "architecture": ["depth 3"],
        "peak_bytes": 10,
        "notes": "of ours; complexity 0.90",
    }
    second = {
        **done,
        "outputs": [{"mse": 3.0}, {"mse": 30.0}],
        "constant": {"mse": 6.0, "outputs": [{"mse": 4.0}, {"mse": 1.0}]},
        "architecture": ["depth 5"],
        "peak_bytes": 20,
        "notes": "of ours; complexity 0.80",
        "skipped": {"step 2.0": "too short"},
    }
    found = combine_results({0: first, 1: second}, "folds")
    assert found["outputs"] == [{"mse": 2.0}, {"mse": 20.0}]
    assert (found["constant"]["mse"], found["constant"]["outputs"][0]) == (5.0, {"mse": 3.0})
    assert math.isnan(found["constant"]["outputs"][1]["mse"])
    assert "architecture" not in found
    assert [each["architecture"] for each in found["folds"].values()] == [["depth 3"], ["depth 5"]]
    assert (found["peak_bytes"], found["skipped"]) == (20, {"step 2.0": "too short"})
    assert found["notes"] == "of ours; complexity 0.90; complexity 0.80"


def test_seeds_that_stop_early_have_a_mean_length() -> None:
    runs = [{"status": "done", "seconds": 1.0, "metrics": {}, "epochs": n, "steps": 10 * n} for n in (12, 30, 20)]
    found = combine_results(dict(enumerate(runs)), "seeds")
    assert (found["epochs"], found["steps"]) == (21, 207)
    assert [each["epochs"] for each in found["seeds"].values()] == [12, 30, 20]


def test_settings_of_one_section_may_omit_it() -> None:
    assert read_over(["lr=0.1,0.2", "epochs=1,2"]) == {"optimizer.lr": ["0.1", "0.2"], "training.epochs": ["1", "2"]}
    with pytest.raises(ValueError, match=r"--over must name each setting once, got 'optimizer\.lr' twice"):
        read_over(["lr=0.1", "optimizer.lr=0.2"])
    recipe = find_recipe("digits")
    assert with_settings(recipe, ["lr=0.5"]) == with_settings(recipe, {"optimizer.lr": 0.5})
    with pytest.raises(ValueError, match="'rate' is not a key"):
        with_settings(recipe, ["rate=0.5"])
