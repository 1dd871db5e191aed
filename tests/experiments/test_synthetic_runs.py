"""Made data never pass for real ones, and no finished result is lost."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kernelfield.experiments import fitting
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.reproduce import reproduce, results_table
from kernelfield.experiments.run import Run

from .helpers import small_data, small_recipe

if TYPE_CHECKING:
    from pathlib import Path

    from kernelfield.experiments.loop import Progress


def test_a_finished_run_on_made_data_is_no_result_of_real_ones(tmp_path: Path) -> None:
    recipe = small_recipe("training.epochs=1")
    made = fit(recipe, tmp_path / "made", made=True, report=False)
    assert made.result()["made"]
    assert fit(recipe, made.folder, made=True).result() == made.result()
    with pytest.raises(ValueError, match=r"made holds a run on made data, .* real data cannot.* name another folder"):
        fit(recipe, made.folder, data=small_data(), report=False)
    (made.folder / "made.txt").unlink()  # as earlier versions left it
    with pytest.raises(ValueError, match="holds a run on made data"):
        fit(recipe, made.folder, data=small_data(), report=False)
    real = fit(recipe, tmp_path / "real", data=small_data(), report=False)
    with pytest.raises(ValueError, match=r"real holds a run on real data, .* made data cannot"):
        fit(recipe, real.folder, made=True, report=False)


def test_weights_trained_on_made_data_are_not_taken_up(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def stop(_: Progress) -> None:
        raise Killed

    recipe = small_recipe("training.log_every=1", "training.batch=4")
    with pytest.raises(Killed):
        fit(recipe, tmp_path, made=True, report=False, on_progress=stop)
    assert not Run(tmp_path).finished
    with pytest.raises(ValueError, match="holds a run on made data"):
        fit(recipe, tmp_path, data=small_data(), report=False)


def test_a_file_is_no_folder_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="out must be a folder, there already or not, got the file"):
        fit(small_recipe(), tmp_path / "file", data=small_data())


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand in for a training: what is in here is the next one's result, or is raised."""
    next_one: dict[str, Any] = {}

    def pretended(recipe: Any, folder: Path, **options: Any) -> Any:
        if "error" in next_one:
            raise next_one["error"]
        result = {"status": "done", "recipe": recipe.name, "metric": "mse", "published": {}, **next_one}
        result |= {"made": True} if options["made"] else {}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").write_text(json.dumps(result))
        return Run(folder)

    monkeypatch.setattr(fitting, "fit", pretended)
    return next_one


NAME = "ch02-adding-100"


def test_finished_results_are_kept(tmp_path: Path, trained: dict[str, Any]) -> None:
    def row(**options: Any) -> dict[str, Any]:
        return reproduce(NAME, tmp_path / "results", tmp_path / "runs", **options)

    def stored(path: Path = tmp_path / "results" / f"{NAME}.json") -> dict[str, Any]:
        return json.loads(path.read_text())

    trained["error"] = RuntimeError("out of memory")
    assert "kept" not in row()
    assert stored()["status"] == "failed"
    del trained["error"]
    trained |= {"metrics": {"test": {"mse": 0.25, "l2": float("nan")}}}
    assert not {"kept", "former"} & set(row())
    first = stored()
    assert first["metrics"]["test"] == {"mse": 0.25, "l2": None}
    # Made data.
    made = row(made=True)
    assert made["made"]
    assert stored() == first
    assert stored(tmp_path / "results" / "made" / f"{NAME}.json")["made"]
    assert (tmp_path / "runs" / "made" / NAME / "result.json").exists()
    # A failure.
    trained["error"] = ValueError("holds a run of another recipe")
    failed = row()
    assert failed["status"] == "failed"
    assert failed["kept"] == str(tmp_path / "results" / f"{NAME}.json")
    assert stored() == first
    # The same run with another note, then another run.
    del trained["error"]
    assert "former" not in row(note="on a Sunday")
    noted = stored()
    assert noted["notes"].endswith("on a Sunday")
    trained |= {"metrics": {"test": {"mse": 0.125}}}
    former = row()["former"]
    assert stored()["metrics"]["test"]["mse"] == 0.125
    assert json.loads((tmp_path / "results" / "former" / f"{NAME}-1.json").read_text()) == noted
    assert former == str(tmp_path / "results" / "former" / f"{NAME}-1.json")
    assert "former" not in stored()
    trained |= {"metrics": {"test": {"mse": 0.5}}}
    assert row()["former"].endswith("-2.json")


def test_unknown_metrics_are_null_in_files_and_nan_in_python(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write("result.json", '{"status": "done", "metrics": {"test": {"auc": null, "accuracy": 0.5}}}')
    metrics = run.result()["metrics"]["test"]
    assert math.isnan(metrics["auc"])
    assert metrics["accuracy"] == 0.5
    row = {"status": "done", "recipe": "a", "metric": "auc", "metrics": {"test": {"auc": None}}, "seconds": 1.0}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "a.json").write_text(json.dumps({**row, "parameters": 1, "epochs": 1}))
    assert "| not known |" in results_table(tmp_path / "a")


@pytest.mark.parametrize("split", ["train", "test"])
def test_splits_without_samples_are_refused(tmp_path: Path, split: str) -> None:
    data = small_data()
    none = replace(data.train, inputs=data.train.inputs[:0], target=data.train.target[:0])
    with pytest.raises(ValueError, match=f"data 'waves' must have samples in the {split} split, got "):
        fit(small_recipe(), tmp_path, data=replace(data, **{split: none}), report=False)
