"""Rotated digits to masks, from the recipe to predictions, files and export: a class for each pixel of an image."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import kernelfield as kf
from kernelfield.cli import WRONG
from kernelfield.data.base import Split
from kernelfield.data.registry import load
from kernelfield.experiments.evaluation import evaluate
from kernelfield.experiments.finished_run import export_run
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.recipe import find_recipe, list_recipes, with_settings
from kernelfield.experiments.run import make_network, make_task
from kernelfield.groups import Cyclic, Dihedral
from kernelfield.testing import assert_equivariant
from tests.commands import call

if TYPE_CHECKING:
    from pathlib import Path

PICTURES = True
ROWS = {"z2": None, "p4": Cyclic(4), "p4m": Dihedral(4)}


def canvases(count: int = 2) -> torch.Tensor:
    return load("digit_masks").test.batch(slice(0, count)).inputs.double()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masks") / "run"
    recipe = with_settings(
        find_recipe("unet-digit-masks-p4"),
        ["training.epochs=1", "training.batch=128", "data.resolution=16", "model.channels=2", "model.depth=1"],
    )
    fit(recipe, folder)
    return folder


def test_the_rows_differ_in_their_group_alone() -> None:
    assert list_recipes("unet-digit-masks-*") == sorted(f"unet-digit-masks-{row}" for row in ROWS)
    recipes = [find_recipe(f"unet-digit-masks-{row}").to_dict() for row in ROWS]
    shared = [{k: v for k, v in r.items() if k not in ("name", "title", "model")} for r in recipes]
    assert shared[0] == shared[1] == shared[2]
    sizes = [sum(p.numel() for p in make_network(find_recipe(r["name"])).parameters()) for r in recipes]
    assert max(sizes) < 1.2 * min(sizes)


@pytest.mark.parametrize("row", ROWS)
def test_the_prediction_of_a_rotated_canvas_is_the_rotated_prediction(row: str) -> None:
    torch.manual_seed(0)
    net = make_network(find_recipe(f"unet-digit-masks-{row}")).double().train()
    x = canvases()
    net(canvases(8))  # running means of the batch norms, as after training
    net.eval()
    scores, turned = net(x).detach(), net(x.rot90(1, (2, 3))).detach()
    equal = torch.allclose(turned, scores.rot90(1, (2, 3)), rtol=1e-10, atol=1e-12)
    assert equal == (row != "z2")
    if equal:
        assert torch.equal(turned.argmax(dim=1), scores.argmax(dim=1).rot90(1, (1, 2)))
        assert_equivariant(net, ROWS[row], x, rtol=1e-10, atol=1e-12)


def test_a_rotated_test_set_has_the_same_scores() -> None:
    """Rotating images and masks leaves the accuracy and the intersection over union of a p4 network unchanged."""
    torch.manual_seed(0)
    recipe, data = find_recipe("unet-digit-masks-p4"), load("digit_masks")
    task = make_task(recipe, make_network(recipe).double(), data)
    x, y = data.test.inputs[:8].double(), data.test.target[:8]
    splits = [Split(x, y), Split(x.rot90(1, (2, 3)).contiguous(), y.rot90(1, (1, 2)).contiguous())]
    scores = [evaluate(task, split, 4).compute() for split in splits]
    assert scores[0]["iou"] == pytest.approx(scores[1]["iou"], rel=1e-12)
    assert scores[0]["accuracy"] == scores[1]["accuracy"]


def test_scores_are_those_of_the_predicted_pixels(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    data, loaded = load("digit_masks", resolution=16), kf.load_run(run)
    rows = loaded.predict(data.test.inputs)
    index = {name: i for i, name in enumerate(data.classes)}
    found = torch.tensor([[[index[name] for name in line] for line in row["classes"]] for row in rows])
    assert found.shape == data.test.target.shape
    right = found == data.test.target
    assert result["metric"] == "iou"
    assert result["metrics"]["test"]["accuracy"] == pytest.approx(float(right.double().mean()), abs=1e-6)
    shares = []
    for c in range(10):
        both = ((found == c) & (data.test.target == c)).sum()
        either = ((found == c) | (data.test.target == c)).sum()
        shares.append(float(both / either))
    assert result["metrics"]["test"]["iou"] == pytest.approx(float(np.mean(shares)), abs=1e-5)
    counts = torch.tensor(json.loads((run / "confusion.json").read_text())["counts"])
    assert int(counts.sum()) == data.test.target.numel()
    assert int(counts.diagonal().sum()) == int(right.sum())


def test_the_commands(run: Path, tmp_path: Path) -> None:
    data = load("digit_masks", resolution=16)
    np.save(tmp_path / "new.npy", data.test.inputs[:2].numpy())
    printed = json.loads(call("predict", run, tmp_path / "new.npy", "--json"))
    assert np.array(printed[0]["classes"]).shape == (16, 16)
    assert set(np.array(printed[0]["classes"]).flatten()) <= set(data.classes)
    call("predict", run, tmp_path / "new.npy", "--out", tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text()) == printed
    assert "out must end in .json" in call(
        "predict", run, tmp_path / "new.npy", "--out", tmp_path / "found.csv", code=WRONG
    )
    stored = json.loads((run / "result.json").read_text())["metrics"]["test"]
    assert json.loads(call("test", run, "--json"))["test"] == pytest.approx(stored, rel=1e-6)
    turned = json.loads(call("test", run, "--turn", 90, "--json"))["turn 90.0"]
    assert turned == pytest.approx(stored, abs=1e-3)  # scores of two classes may tie in float32


def test_the_export_gives_the_same_scores(run: Path) -> None:
    path, error = export_run(run, "pt2")
    assert error < 1e-4
    x = kf.load_run(run).prepare(load("digit_masks", resolution=16).test.inputs[:3]).inputs
    with torch.no_grad():
        expected = kf.load_run(run).network(x)
    torch.testing.assert_close(torch.export.load(path).module()(x), expected, rtol=1e-4, atol=1e-4)


def test_the_report_shows_samples_with_their_masks(run: Path) -> None:
    assert (run / "worst.png").exists()
    assert "Test samples with the largest errors" in (run / "report.html").read_text()
