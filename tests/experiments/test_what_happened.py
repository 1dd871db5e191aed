"""Results and messages say what happened: unfinished runs, other weights than asked for, changed data, early stops."""

from __future__ import annotations

import json
import math
import re
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kernelfield import load_run
from kernelfield.experiments.checkpoint import latest_checkpoint
from kernelfield.experiments.finished_run import export_run, run_data, run_test
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.loop import TrainingInterrupted
from kernelfield.experiments.run import Run
from kernelfield.experiments.seeds import fit_seeds
from kernelfield.experiments.shares import read_shares, train_on_shares
from kernelfield.experiments.start_from import find_start
from tests.experiments.helpers import small_data, small_recipe

if TYPE_CHECKING:
    from kernelfield.experiments.recipe import Recipe


def stopped(recipe: Recipe, folder: Path, steps: int = 3, **options: object) -> Run:
    """Return a run that was stopped after some steps."""
    calls: list[int] = []

    def should_stop() -> bool:
        calls.append(1)
        return len(calls) >= steps

    with pytest.raises(TrainingInterrupted):
        fit(recipe, folder, report=False, should_stop=should_stop, **options)
    return Run(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    return fit(small_recipe("training.epochs=1"), folder, data=small_data(), report=False).folder


def test_the_weights_of_an_unfinished_run_are_named(tmp_path: Path) -> None:
    run = stopped(small_recipe(), tmp_path / "run", data=small_data())
    text = f"run {re.escape(str(run.folder))} is not finished, because it has no result.json; .* step-00000003"
    with pytest.warns(UserWarning, match=text):
        load_run(run.folder)
    with pytest.warns(UserWarning, match=text):
        export_run(run.folder, out=tmp_path / "network.pt2")
    with pytest.warns(UserWarning, match=text):
        find_start(run.folder).network()


def test_weights_that_a_run_does_not_have_are_named(trained: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"has no 'average' weights; those of its last epoch are used, checkpoint step"
    ):
        load_run(trained, select="average")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for select in (None, "best", "last"):
            load_run(trained, select=select)


def test_a_continued_run_forgets_the_average_of_the_shorter_training(tmp_path: Path) -> None:
    short = small_recipe("training.epochs=2", "training.select=average")
    run = fit(short, tmp_path / "run", data=small_data(), report=False)
    assert latest_checkpoint(run.checkpoints, "average") is not None
    stopped(small_recipe("training.epochs=4", "training.select=average"), run.folder, data=small_data())
    assert latest_checkpoint(run.checkpoints, "average") is None


def test_an_unfinished_run_on_synthetic_data_is_not_tested_on_real_data(tmp_path: Path) -> None:
    run = stopped(small_recipe(), tmp_path / "run", synthetic=True)
    assert run_data(run, run.recipe(), None).name == "synthetic"
    with pytest.warns(UserWarning, match="not finished"):
        run_test(run.folder, {})


def test_a_finished_run_is_no_result_on_changed_data(trained: Path, tmp_path: Path) -> None:
    recipe, run = small_recipe("training.epochs=1"), Run(Path(shutil.copytree(trained, tmp_path / "run")))
    messages: list[str] = []
    fit(recipe, run.folder, data=small_data(), report=False, on_message=messages.append)
    assert messages == [f"{run.folder} holds the finished run of this recipe; nothing is trained"]
    with pytest.raises(ValueError, match=r"data must be .* they have changed \(.*choose another folder"):
        fit(recipe, run.folder, data=small_data(samples=56), report=False)


def test_a_run_that_stopped_early_is_not_continued_without_training(tmp_path: Path) -> None:
    early = ("training.patience=1", "optimizer.lr=1e-9", "schedule.warmup=0")
    run = fit(small_recipe("training.epochs=6", *early), tmp_path / "run", data=small_data(), report=False)
    assert run.result()["epochs"] < 6
    with pytest.raises(
        ValueError, match=r"training\.epochs must be 6 .*stopped after \d epochs because of .*patience=1"
    ):
        fit(small_recipe("training.epochs=9", *early), run.folder, data=small_data(), report=False)


def test_a_validation_score_without_a_value_is_announced(tmp_path: Path) -> None:
    """The area under the ROC curve needs both classes."""
    data = small_data()
    two = {
        name: getattr(data, name).take((getattr(data, name).target < 2).nonzero()[:, 0]) for name in ("train", "test")
    }
    one = data.validation.take((data.validation.target == 0).nonzero()[:, 0])
    data = replace(data, **two, validation=one, out_channels=2, classes=("one", "two"))
    recipe = small_recipe("shape.out_channels=2", "metric=auc", "training.epochs=2")
    with pytest.warns(UserWarning, match="validation auc is NaN after epoch 1 of 'small', because no sample") as found:
        run = fit(recipe, tmp_path / "run", data=data, report=False)
    assert len(found) == 1
    assert math.isnan(run.read_rows("metrics.csv")[0]["val_auc"])


def test_the_result_of_fewer_epochs_does_not_stand_for_seeds_that_continue(tmp_path: Path) -> None:
    options = {"seeds": 2, "data": small_data(), "report": False}
    fit_seeds(small_recipe("training.epochs=1"), tmp_path, **options)
    with pytest.raises(TrainingInterrupted):
        fit_seeds(small_recipe("training.epochs=2"), tmp_path, should_stop=lambda: True, **options)
    assert not (tmp_path / "result.json").exists()
    assert json.loads((tmp_path / "result-after-1-epochs.json").read_text())["epochs"] == 1
    assert fit_seeds(small_recipe("training.epochs=2"), tmp_path, **options).result()["epochs"] == 2


def test_seeds_of_another_recipe_are_not_replaced(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "seed-0")
    other = small_recipe("training.epochs=1", "training.seed=3", "optimizer.lr=0.5")
    with pytest.raises(ValueError, match="seed-0 holds a run of another recipe"):
        fit_seeds(other, tmp_path, seeds=1, data=small_data(), report=False)


def test_a_card_leaves_out_shares_of_a_shorter_training(trained: Path, tmp_path: Path) -> None:
    run = Run(Path(shutil.copytree(trained, tmp_path / "run")))
    train_on_shares(run.folder, (0.5,), data=small_data())
    assert [point["share"] for point in read_shares(run)] == [0.5, 1.0]
    fit(small_recipe("training.epochs=3"), run.folder, data=small_data(), report=False)
    with pytest.warns(UserWarning, match=r"share-0\.5 was trained for another number of steps"):
        assert [point["share"] for point in read_shares(run)] == [1.0]


@pytest.mark.parametrize("name", ["none.npy", "none.npz"])
def test_a_file_without_samples_has_no_prediction(trained: Path, tmp_path: Path, name: str) -> None:
    empty = np.zeros((0, 1, 16), np.float32)
    np.save(tmp_path / "none.npy", empty)
    np.savez(tmp_path / "none.npz", inputs=empty)
    with pytest.raises(ValueError, match=rf"file must hold at least one sample, found none in {name}"):
        load_run(trained).predict(tmp_path / name, raw=True)


def test_classes_without_samples_are_announced(tmp_path: Path) -> None:
    data = small_data()
    data = replace(data, test=data.test.take((data.test.target > 0).nonzero()[:, 0]))
    messages: list[str] = []
    options = {"data": data, "report": False, "on_message": messages.append}
    fit(small_recipe("training.epochs=1"), tmp_path / "run", **options)
    assert "1 of 3 classes has no test sample: one" in messages


def test_epochs_with_a_score_are_not_announced(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(small_recipe("training.epochs=1"), tmp_path / "run", data=small_data(), report=False)
    assert torch.isfinite(torch.tensor(Run(tmp_path / "run").read_rows("metrics.csv")[0]["val_loss"]))
