"""Weight files from runs and checkpoints."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield import create_model
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.recipe import find_recipe, with_settings
from kernelfield.experiments.run_files import write_json
from kernelfield.experiments.weight import make_weight, read_trained, weight_recipe, weight_score
from kernelfield.models.pretrained import catalog, describe_weight

if TYPE_CHECKING:
    from pathlib import Path

    from kernelfield.experiments.run import Run

SMALL = [
    *("data.resolution=8", "model.channels=4", "model.blocks=1", "model.hidden=4", "training.epochs=1"),
    *("training.batch=128", "schedule.warmup=0", "training.seed=3", "test={}"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(with_settings(find_recipe("digits"), SMALL), tmp_path_factory.mktemp("runs") / "digits", report=False)


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(catalog.FOLDERS, str(tmp_path))
    return tmp_path


def test_a_run_becomes_a_weight(run: Run, out: Path) -> None:
    make_weight(read_trained(run.folder), "ccnn_4_140.mine", out, samples=50, notes="a test")
    described = describe_weight("ccnn_4_140.mine")
    assert described["score"]["value"] == run.result()["metrics"]["test"]["accuracy"]
    assert (described["training"]["seed"], described["notes"], described["layout"]) == (
        *(3, "a test"),
        {"image": [8, 8], "permute": None},
    )
    assert weight_recipe("ccnn_4_140.mine") == run.recipe()
    found, recorded = weight_score("ccnn_4_140.mine")
    assert found == pytest.approx(recorded)
    found, recorded = weight_score("ccnn_4_140.mine", samples=None)
    assert found == pytest.approx(recorded)
    x = torch.randn(1, 1, 64)
    with torch.no_grad():
        torch.testing.assert_close(create_model("ccnn_4_140.mine", pretrained=True).eval()(x), run.network()(x))


def test_a_weight_names_no_folder_of_this_machine(run: Run, out: Path) -> None:
    trained = read_trained(run.folder)
    training = replace(trained.recipe.training, start_from=str(run.folder), freeze=True)
    make_weight(replace(trained, recipe=replace(trained.recipe, training=training)), "ccnn_4_140.mine", out, samples=50)
    assert weight_recipe("ccnn_4_140.mine") == trained.recipe
    assert str(run.folder) not in (out / "ccnn_4_140.mine.safetensors").read_bytes().decode("latin-1")


def test_a_checkpoint_and_its_result_become_a_weight(run: Run, out: Path) -> None:
    folder = out / "runs" / "seed-3"
    shutil.copytree(run.checkpoints, folder / "checkpoints")
    result = {key: value for key, value in run.result().items() if key != "seed"}
    one = {key: result[key] for key in ("metrics", "best_step")}
    several = {**result, "settings": SMALL, "seed": [3, 4], "seeds": {"3": one, "4": {**one, "best_step": 1}}}
    file = write_json(out / "digits.json", several)
    trained = read_trained(folder, result=file)
    assert (trained.recipe.training.seed, trained.step) == (3, result["best_step"])
    make_weight(trained, "ccnn_4_140.mine", out, samples=10)
    assert describe_weight("ccnn_4_140.mine")["score"]["value"] == result["metrics"]["test"]["accuracy"]
    shutil.move(folder, out / "runs" / "seed-4")
    with pytest.raises(ValueError, match="path must hold the checkpoint of the result, at step 1"):
        read_trained(out / "runs" / "seed-4", result=file)
    shutil.move(out / "runs" / "seed-4", out / "runs" / "seed-5")
    with pytest.raises(ValueError, match="result must have seed 5"):
        read_trained(out / "runs" / "seed-5", result=file)


@pytest.mark.parametrize("name", ["p4cnn.mine", "ccnn_4_140", "ccnn_4_140.", "ccnn_4_140.a/b"])
def test_the_name_must_be_the_model_and_a_tag(run: Run, out: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"name must be ccnn_4_140\.TAG"):
        make_weight(read_trained(run.folder), name, out)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="path must be a run or a checkpoint"):
        read_trained(tmp_path)
