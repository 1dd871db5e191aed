"""scripts/results.py: rows are copied as they end, stop in time and continue."""

from __future__ import annotations

import itertools
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from kernelfield.experiments.effects import check_effects
from kernelfield.experiments.recipe import find_recipe, list_recipes, with_settings
from kernelfield.experiments.run import make_network
from tests.scripts import ROOT, load_script

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

SETTINGS = ("model.channels=4", "model.blocks=1", "model.hidden=4", "training.batch=4", "training.log_every=1")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(ROOT / "scripts" / "results.py")


def arguments(folder: Path, *further: str) -> list[str]:
    paths = [part for name in ("results", "runs") for part in (f"--{name}", str(folder / name))]
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    common = ("--synthetic", "--accelerator", "cpu", "--copy-every", "0", "--copy-to", str(folder / "out"))
    return ["digits", *paths, *settings, *common, *further]


def test_stopped_rows_continue_elsewhere(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELFIELD_CACHE", str(tmp_path / "cache"))
    record = tmp_path / "cache" / "kernels" / "digits.jsonl"
    record.parent.mkdir(parents=True)
    record.write_text("{}\n")
    options = script.parse(arguments(tmp_path, "--seeds", "2", "--epochs", "3"))
    calls = itertools.count()
    make_row = script.make_row
    with monkeypatch.context() as patch:
        patch.setattr(script, "make_row", lambda plan, o, _: make_row(plan, o, lambda: next(calls) >= 8))
        assert script.run(script.choose(options.sets), options) == 3
    assert not list((tmp_path / "results").iterdir())
    assert list((tmp_path / "out" / "runs" / "digits" / "seed-1" / "checkpoints").glob("step-*"))
    for folder in ("runs", "cache"):  # another machine has only the copy
        shutil.rmtree(tmp_path / folder)
    again = script.parse(arguments(tmp_path, "--seeds", "2", "--epochs", "3", "--continue-from", str(tmp_path / "out")))
    assert script.run(script.choose(again.sets), again) == 0
    assert record.read_text() == "{}\n"
    log = (tmp_path / "runs" / "digits" / "seed-0" / "log.txt").read_text()
    assert log.count("training digits") == 2
    copied = json.loads((tmp_path / "out" / "results" / "digits.json").read_text())
    assert copied["status"] == "done"
    assert list(copied["seeds"]) == ["0", "1"]
    assert copied["last"]["validation"]
    assert copied["settings"][0] == "training.epochs=3"


def test_a_row_below_its_floor_stops(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = script.parse(arguments(tmp_path, "--epochs", "3", "--floor", "2:1.5"))
    assert script.run(script.choose(options.sets), options) == 1
    result: dict[str, Any] = json.loads((tmp_path / "out" / "results" / "digits.json").read_text())
    assert "after epoch 2, floor 1.5" in result["error"]
    assert "digits: failed: stopped" in capsys.readouterr().out


def test_every_plan_is_a_recipe_that_takes_its_settings(script: ModuleType) -> None:
    options = script.parse(["memory"])
    for plan in (plan for plans in script.SETS.values() for plan in plans):
        assert plan.recipe in list_recipes()
        made = script.make_row(plan, options, None).resolved()
        assert made.training.epochs == plan.epochs


@pytest.mark.slow
def test_every_setting_of_a_plan_has_an_effect(script: ModuleType) -> None:
    plans = {(plan.recipe, plan.settings) for plans in script.SETS.values() for plan in plans}
    for name, settings in sorted(plans):
        recipe = with_settings(find_recipe(name), list(settings))
        check_effects(recipe, make_network(recipe))


def test_plans_and_settings(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    options = script.parse(["cifar", "--epochs", "2", "--set", "training.matmul=highest"])
    plans = script.choose(["cifar", "ch03-smnist-ccnn-6-380"])
    assert [plan.recipe for plan in plans[-2:]] == ["ch05-cifar16-flexnet-16-aliasing", "ch03-smnist-ccnn-6-380"]
    row = script.make_row(plans[0], options, None)
    assert row.settings[0] == "training.epochs=2"
    assert "training.matmul=highest" in row.settings
    assert "training.matmul=high" not in row.settings
    with pytest.raises(SystemExit, match="SET must be one of"):
        script.choose(["nothing"])
    with pytest.raises(SystemExit):
        script.parse(["cifar", "--floor", "ten"])
    assert "EPOCH:SCORE" in capsys.readouterr().err
