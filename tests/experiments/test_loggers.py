"""Loggers by name: files they write, and errors of what is missing or unknown."""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING

import pytest

from kernelfield.experiments import fit
from kernelfield.experiments.progress import Loggers
from kernelfield.experiments.recipe import with_settings

from .helpers import small_data, small_recipe

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")


def test_csv_and_tensorboard_hold_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    recipe = with_settings(small_recipe(), ["training.log=[csv]", "training.epochs=2"])
    run = fit(recipe, tmp_path / "run", data=small_data(), report=False, log=["tensorboard", "csv"])
    path = run.folder / "logs" / "csv" / "version_0" / "metrics.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    validated = [float(row["val_accuracy"]) for row in rows if row["val_accuracy"]]
    assert validated == pytest.approx([row["val_accuracy"] for row in run.read_rows("metrics.csv")])
    tested = [float(row["test accuracy"]) for row in rows if row["test accuracy"]]
    assert tested == pytest.approx([run.result()["metrics"]["test"]["accuracy"]])
    assert list((run.folder / "logs" / "tensorboard").rglob("events.out.tfevents.*"))


def test_no_logger_writes_nothing(tmp_path: Path) -> None:
    run = fit(small_recipe(), tmp_path / "run", data=small_data(), report=False)
    assert not (run.folder / "logs").exists()


def test_a_missing_logger_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'kernelfield\[wandb\]'"):
        Loggers(["wandb"], tmp_path, "a")


def test_unknown_loggers_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"training\.log must"):
        with_settings(small_recipe(), ["training.log=[comet]"])
    with pytest.raises(ValueError, match=r"\blog must"):
        Loggers(["comet"], tmp_path, "a")
