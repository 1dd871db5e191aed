"""Scores of a constant prediction, and of each predicted value: a plausible number beside one that means something."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from sklearn.metrics import roc_auc_score

from kernelfield.data.base import Batch, Data, Split
from kernelfield.experiments.baseline import constant_scores
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.metrics import Meter
from kernelfield.experiments.progress import summary
from kernelfield.experiments.recipe import recipe_from

from .helpers import small_data, small_recipe

if TYPE_CHECKING:
    from pathlib import Path


def stays(deaths: tuple[int, int], n: int = 20) -> Data:
    """Return data of two classes; ``deaths`` are the numbers of the rarer class in training and test data."""
    splits = [
        Split(torch.randn(n, 1, 16, generator=torch.Generator().manual_seed(i)), (torch.arange(n) < count).long())
        for i, count in enumerate(deaths)
    ]
    return Data.from_splits("stays", [splits[0], None, splits[1]], classes=("lives", "dies"))


def test_the_area_of_two_classes_is_that_of_scikit_learn() -> None:
    torch.manual_seed(0)
    logits, target = torch.randn(50, 2).round(decimals=1), torch.randint(2, (50,))
    meter = Meter("classification", 2)
    for part in (slice(0, 7), slice(7, 50)):
        meter.update(logits[part], Batch(torch.zeros(len(target[part]), 1, 1), target[part]))
    assert meter.compute()["auc"] == pytest.approx(roc_auc_score(target, logits[:, 1] - logits[:, 0]))


def test_the_most_frequent_class_of_training_is_the_constant() -> None:
    assert constant_scores(stays((3, 5)))["accuracy"] == 0.75
    assert constant_scores(stays((17, 5)))["accuracy"] == 0.25  # not the one of the test data


def test_the_mean_of_training_is_the_constant_for_each_known_value() -> None:
    nan = float("nan")
    train = Split(torch.zeros(2, 1, 3), torch.tensor([[[100.0, nan]], [[300.0, nan]]]), at=torch.zeros(2, 2, 1))
    test = Split(torch.zeros(1, 1, 3), torch.tensor([[[190.0, nan]]]), at=torch.zeros(1, 2, 1))
    data = Data.from_splits("load", [train, None, test], "dense-regression", out_channels=1)
    found = constant_scores(data)
    assert (found["mse"], found["mae"]) == (100, 10)
    assert "outputs" not in found
    values = Split(torch.zeros(2, 1, 3), torch.tensor([[1.0, 100.0], [3.0, 300.0]]))
    found = constant_scores(Data.from_splits("two", [values, None, values], "regression", out_channels=2))
    assert found["outputs"] == [{"mse": 1.0, "mae": 1.0}, {"mse": 10000.0, "mae": 100.0}]


def test_masked_positions_do_not_count() -> None:
    mask = torch.tensor([[True, True, False]])
    part = Split(torch.zeros(1, 1, 3), torch.tensor([[[1.0, 3.0, 500.0]]]), mask=mask)
    found = constant_scores(Data.from_splits("padded", [part, None, part], "dense-regression", out_channels=1))
    assert found["mse"] == 1


def test_tasks_without_a_constant() -> None:
    assert constant_scores(replace(small_data(), task="multilabel")) == {}


def test_a_training_that_learned_nothing_says_so(tmp_path: Path) -> None:
    recipe = recipe_from(
        {
            "name": "stays",
            "data": {"name": "digits"},
            "shape": {"in_channels": 1, "out_channels": 2, "size": [16]},
            "model": {"name": "ccnn_4_140", "channels": 4, "blocks": 1, "hidden": 8},
            "training": {"epochs": 1, "batch": 20},
        }
    )
    result = fit(recipe, tmp_path / "run", data=stays((3, 3)), report=False).result()
    assert result["constant"] == {"accuracy": 0.85}
    assert 0 <= result["metrics"]["test"]["auc"] <= 1
    lines = summary({**result, "metrics": {"test": {"accuracy": 0.85, "auc": 0.5}}})
    assert [line.split()[-1] for line in lines[:3]] == ["85.0%", "85.0%", "50.0%"]
    assert "most frequent class" in lines[1]
    good = summary({**result, "metrics": {"test": {"accuracy": 0.99, "auc": 0.5}}})
    assert not any("most frequent" in line for line in good)


def test_the_error_of_each_value_is_shown_beside_that_of_its_mean() -> None:
    result = {
        "metric": "mse",
        "metrics": {"test": {"mse": 50.0}},
        "targets": ["load", "price"],
        "outputs": [{"mse": 99.0}, {"mse": 1.0}],
        "constant": {"mse": 101.0, "outputs": [{"mse": 201.0}, {"mse": 1.0}]},
        "parameters": 1,
        "epochs": 1,
        "seconds": 1.0,
    }
    lines = summary(result)
    assert [line.split()[:2] for line in lines[1:3]] == [["of", "load"], ["of", "price"]]
    assert lines[2].split()[2] == "1"
    assert "201" in lines[1]


def test_no_training_fails_for_its_constant(tmp_path: Path) -> None:
    run = fit(small_recipe("training.epochs=1"), tmp_path / "run", data=small_data(16), report=False)
    assert run.result()["constant"]["accuracy"] == pytest.approx(1 / 3)
