"""Made data never pass for real ones, and no finished result is lost."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kernelfield.experiments import fitting
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.reproduce import reproduce
from kernelfield.experiments.results import results_table
from kernelfield.experiments.run import Run
from kernelfield.experiments.run_files import to_json

from .helpers import small_data, small_recipe

if TYPE_CHECKING:
    from pathlib import Path

    from kernelfield.experiments.loop import Progress


def test_a_run_on_synthetic_data_is_no_result_on_real_data(tmp_path: Path) -> None:
    recipe = small_recipe("training.epochs=1")
    synthetic = fit(recipe, tmp_path / "synthetic", synthetic=True, report=False)
    assert synthetic.result()["synthetic"]
    assert fit(recipe, synthetic.folder, synthetic=True).result() == synthetic.result()
    with pytest.raises(ValueError, match=r"holds a run on synthetic data, .* real data cannot.* choose another folder"):
        fit(recipe, synthetic.folder, data=small_data(), report=False)
    (synthetic.folder / "synthetic.txt").unlink()
    with pytest.raises(ValueError, match="holds a run on synthetic data"):
        fit(recipe, synthetic.folder, data=small_data(), report=False)
    real = fit(recipe, tmp_path / "real", data=small_data(), report=False)
    with pytest.raises(ValueError, match=r"real holds a run on real data, .* synthetic data cannot"):
        fit(recipe, real.folder, synthetic=True, report=False)


def test_weights_trained_on_synthetic_data_are_not_reused(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def stop(_: Progress) -> None:
        raise Killed

    recipe = small_recipe("training.log_every=1", "training.batch=4")
    with pytest.raises(Killed):
        fit(recipe, tmp_path, synthetic=True, report=False, on_progress=stop)
    assert not Run(tmp_path).finished
    with pytest.raises(ValueError, match="holds a run on synthetic data"):
        fit(recipe, tmp_path, data=small_data(), report=False)


def test_a_file_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"\bout must"):
        fit(small_recipe(), tmp_path / "file", data=small_data())


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand in for a training: what is in here is the next one's result, or is raised."""
    next_one: dict[str, Any] = {}

    def pretended(recipe: Any, folder: Path, **options: Any) -> Any:
        if "error" in next_one:
            raise next_one["error"]
        result = {"status": "done", "recipe": recipe.name, "metric": "mse", "published": {}, **next_one}
        result |= {"synthetic": True} if options["synthetic"] else {}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").write_text(to_json(result))
        return Run(folder)

    def steps(*arguments: Any, **options: Any) -> Any:
        yield
        return pretended(*arguments, **options)

    monkeypatch.setattr(fitting.fit, "steps", steps)
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
    synthetic = row(synthetic=True)
    assert synthetic["synthetic"]
    assert stored() == first
    assert stored(tmp_path / "results" / "synthetic" / f"{NAME}.json")["synthetic"]
    assert (tmp_path / "runs" / "synthetic" / NAME / "result.json").exists()
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
    assert "| unknown |" in results_table(tmp_path / "a")


@pytest.mark.parametrize("split", ["train", "test"])
def test_splits_without_samples_are_refused(tmp_path: Path, split: str) -> None:
    data = small_data()
    none = replace(data.train, inputs=data.train.inputs[:0], target=data.train.target[:0])
    with pytest.raises(ValueError, match=f"data 'waves' must have samples in the {split} split, got "):
        fit(small_recipe(), tmp_path, data=replace(data, **{split: none}), report=False)
