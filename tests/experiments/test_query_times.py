"""Training, testing, predicting and exporting at query times."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kernelfield import CCNN, GridifiedNet, load_run
from kernelfield.cli import WRONG
from kernelfield.data import Batch, Data, Split
from kernelfield.data.base import TargetScale
from kernelfield.data.metadata import from_metadata, metadata
from kernelfield.data.registry import load
from kernelfield.data.transforms.clouds import ChoosePoints
from kernelfield.experiments.custom_data import check_network, recipe_for
from kernelfield.experiments.evaluation import evaluate
from kernelfield.experiments.finished_run import export_run, run_test
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.metrics import Meter, task_loss
from kernelfield.experiments.recipe import find_recipe, with_settings
from kernelfield.experiments.task import Task
from tests.commands import call

if TYPE_CHECKING:
    from pathlib import Path

TINY = [
    "data.train=16", "data.validation=4", "data.test=6", "data.seen=8", "data.asked=5", "data.length=16",
    "model.channels=4", "model.blocks=1", "model.hidden=8", "training.epochs=1", "training.batch=8",
]  # fmt: skip


def questions(target: torch.Tensor) -> Batch:
    queries = target.shape[-1]
    mask = torch.tensor([[True, False, False]] * len(target))
    at = torch.rand(len(target), queries, 1)
    return Batch(torch.zeros(len(target), 2, 3), target, coords=torch.rand(len(target), 3, 1), mask=mask, at=at)


def test_a_batch_hands_its_questions_to_the_network() -> None:
    batch = questions(torch.zeros(2, 1, 5))
    net = CCNN(2, 1, size=4, channels=4, blocks=1, readout="dense")
    assert net(batch.inputs, **batch.sampling).shape == (2, 1, 5)
    assert Task(net, "dense-regression", out_channels=1).training_step(batch).isfinite()


def test_a_split_keeps_questions_with_their_samples() -> None:
    at = torch.arange(12.0).view(4, 3, 1)
    split = Split(torch.zeros(4, 1, 2), torch.zeros(4, 1, 3), at=at)
    index = torch.tensor([2, 0])
    assert torch.equal(split.batch(index).at, at[index])
    assert torch.equal(split.take(index).at, at[index])
    assert torch.equal(split.cut((1, 3))[1].at, at[1:])
    assert split.to("cpu").at is not None
    assert split.batch(index).to(torch.float64).at.dtype == torch.float64


def test_unknown_answers_do_not_count() -> None:
    """Channels observed at different times: only the known ones are scored, whatever the samples' own mask says."""
    target = torch.tensor([[[1.0, torch.nan], [torch.nan, 2.0]]])
    batch = questions(target)
    prediction = torch.tensor([[[1.5, 7.0], [7.0, 2.5]]], requires_grad=True)
    loss = task_loss("dense-regression", prediction, batch)
    assert float(loss.detach()) == pytest.approx(0.25)
    loss.backward()
    assert prediction.grad is not None
    assert torch.equal(prediction.grad != 0, ~target.isnan())
    meter = Meter("dense-regression", 2)
    meter.update(prediction.detach(), batch)
    found = meter.compute()
    assert found["mse"] == pytest.approx(0.25)
    assert found["mae"] == pytest.approx(0.5)


def test_classes_at_queries_ignore_the_mask_of_the_samples() -> None:
    target = torch.tensor([[0, 1, 1, -100]])
    batch = questions(target)
    prediction = torch.zeros(1, 2, 4)
    prediction[0, 1, 1:] = 50.0
    prediction[0, 0, 0] = 50.0
    assert float(task_loss("segmentation", prediction, batch)) < 1e-6


def test_the_scale_of_targets_leaves_nan_out() -> None:
    scale = TargetScale.of(torch.tensor([[[1.0, torch.nan, 3.0]], [[torch.nan, 5.0, torch.nan]]]))
    assert scale.mean == (3.0,)
    assert scale.std[0] == pytest.approx((8 / 3) ** 0.5)


def test_metadata_keep_the_shape_of_the_questions() -> None:
    data = load("oscillators", train=4, asked=7)
    again = from_metadata(metadata(data))
    assert again.test.at is not None
    assert again.test.at.shape == (0, 7, 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "oscillators"
    fit(with_settings(find_recipe("oscillators"), TINY), folder)
    return folder


def test_a_recipe_trains_at_query_times(run: Path) -> None:
    tested = run_test(run, {})["test"]
    assert 0 < tested["mse"] < 5
    assert run_test(run, {"drop": [0.5]})["drop 0.5"]["mse"] != tested["mse"]


def test_a_run_at_query_times_is_exported(run: Path) -> None:
    path, error = export_run(run)
    assert path.exists()
    assert error < 1e-4


def test_a_network_learns_to_answer_between_samples() -> None:
    torch.manual_seed(0)
    data = load("oscillators", length=16, seen=16, asked=16, train=64, validation=0, test=32)
    net = CCNN(2, 1, size=16, channels=8, blocks=1, hidden=8, sigma=None, causal=False, readout="dense")
    task = Task(net, "dense-regression", out_channels=1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    before = evaluate(task, data.test).compute()["mse"]
    for _ in range(25):
        task.training_step(data.train.batch(slice(None), training=True)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert evaluate(task, data.test).compute()["mse"] < 0.6 * before


@pytest.fixture(scope="module")
def forecasts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two channels measured at different times, whose last third is predicted."""
    folder = tmp_path_factory.mktemp("forecasts")
    source = np.random.default_rng(0)
    lines = ["id,time,channel,value"]
    for i in range(24):
        for channel in "xy":
            times = 50 * i + np.sort(source.uniform(0, 10, size=6))
            lines += [f"{i},{t:.3f},{channel},{100 + np.sin(t - 50 * i):.4f}" for t in times]
    (folder / "long.csv").write_text("\n".join(lines) + "\n")
    small = ("--set", "model.channels=4", "--set", "model.blocks=1", "--set", "model.hidden=8")
    call(
        *("train", folder / "long.csv", "--set", "data.forecast=0.3", "--epochs", 1, *small),
        *("--accelerator", "cpu", "--out", folder / "run"),
    )
    return folder


def test_a_long_table_trains_to_forecast(forecasts: Path) -> None:
    recipe = find_recipe(forecasts / "run" / "recipe.yaml")
    assert recipe.shape.task == "dense-regression"
    assert recipe.shape.queries == 4
    assert recipe.shape.in_channels == 4
    assert "test" in call("test", forecasts / "run")
    assert json.loads(call("test", forecasts / "run", "--data", forecasts / "long.csv", "--json"))["test"]["mse"] > 0


@pytest.mark.filterwarnings("ignore:.*query times lie")
def test_predictions_at_times_that_are_asked_for(forecasts: Path) -> None:
    run, file = forecasts / "run", forecasts / "long.csv"
    rows = json.loads(call("predict", run, file, "--at", "60,61.5", "--json"))
    assert len(rows) == 24 * 2
    assert [row["time"] for row in rows[:2]] == [60, 61.5]
    assert rows[2]["series"] == "1"
    assert all(50 < value < 150 for row in rows[2:4] for value in row["values"])  # in the unit of the data
    # A prediction does not depend on what else is asked for, nor on padding.
    (forecasts / "at.csv").write_text("id,time\n" + "".join(f"{i},60\n" for i in range(24)) + "3,70\n")
    own = json.loads(call("predict", run, file, "--at", forecasts / "at.csv", "--json"))
    assert len(own) == 25
    assert own[1]["values"] == pytest.approx(rows[2]["values"], abs=1e-4)
    call("predict", run, file, "--at", "60,61.5", "--out", forecasts / "out.csv")
    assert (forecasts / "out.csv").read_text().splitlines()[0] == "file,sample,series,time,value 0,value 1"


@pytest.mark.filterwarnings("ignore:.*query times lie")
def test_predictions_without_times_or_at_wrong_ones(forecasts: Path, tmp_path: Path) -> None:
    run, file = forecasts / "run", forecasts / "long.csv"
    assert "at must" in call("predict", run, file, code=WRONG)
    assert "at, line 1" in call("predict", run, file, "--at", "nan", code=WRONG)
    (tmp_path / "at.csv").write_text("id,time\n0,1\n")
    assert "series '1'" in call("predict", run, file, "--at", tmp_path / "at.csv", code=WRONG)
    (tmp_path / "at.csv").write_text("id,time\n" + "".join(f"{i},40\n" for i in (*range(24), "x")))
    with pytest.warns(UserWarning, match="at holds times for 1 series that the files do not have: 'x'"):
        call("predict", run, file, "--at", tmp_path / "at.csv")


def test_a_run_with_labels_takes_no_query_times(tmp_path: Path) -> None:
    rows = [f"{i},{t},{i % 2},{'ab'[i % 2]}" for i in range(20) for t in (0, 0.31, 1.7)]
    (tmp_path / "long.csv").write_text("\n".join(["id,time,value,label", *rows]) + "\n")
    small = ("--set", "model.channels=4", "--set", "model.blocks=1", "--set", "model.hidden=8")
    call("train", tmp_path / "long.csv", "--epochs", 1, *small, "--accelerator", "cpu", "--out", tmp_path / "run")
    assert "at must be None" in call("predict", tmp_path / "run", tmp_path / "long.csv", "--at", "1", code=WRONG)


def test_arrays_are_predicted_at_coordinates(run: Path) -> None:
    opened = load_run(run)
    inputs = torch.randn(2, 2, 16)
    rows = opened.predict(inputs, at=[[1.0], [2.5], [40.0]])
    assert [row["time"] for row in rows] == [1.0, 2.5, 40.0] * 2
    assert all(len(row["values"]) == 1 for row in rows)
    with pytest.raises(ValueError, match=r"at must have shape \(queries, 1\)"):
        opened.predict(inputs, at=[[1.0, 2.0]])


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a gridified network with a value at each point; the name of the network fixes its readout."""
    folder = tmp_path_factory.mktemp("runs") / "clouds"
    tiny = ["data.train=8", "data.test=4", "data.points=20", "model.channels=4", "model.grid=3", "model.neighbors=3"]
    fit(with_settings(find_recipe("ch04-reconstruction"), [*tiny, "training.epochs=1", "training.batch=4"]), folder)
    return folder


def test_a_gridified_run_predicts_at_places(clouds: Path, tmp_path: Path) -> None:
    inputs, coords = torch.rand(2, 1, 15), 2 * torch.rand(2, 15, 3) - 1
    at = 2 * torch.rand(4, 3) - 1
    np.savez(tmp_path / "new.npz", inputs=inputs.numpy(), coords=coords.numpy())
    np.save(tmp_path / "at.npy", at.numpy())
    rows = json.loads(call("predict", clouds, tmp_path / "new.npz", "--at", tmp_path / "at.npy", "--json"))
    assert [row["place"] for row in rows[:4]] == [pytest.approx(place, abs=1e-6) for place in at.tolist()]
    with torch.no_grad():
        wanted = load_run(clouds).network(inputs, coords=coords, at=at)
    assert [row["values"][0] for row in rows] == pytest.approx(wanted.flatten().tolist(), abs=1e-5)
    np.save(tmp_path / "flat.npy", at[:, :2].numpy())
    wrong = call("predict", clouds, tmp_path / "new.npz", "--at", tmp_path / "flat.npy", code=WRONG)
    assert "at must have shape" in wrong


def test_clouds_with_query_points_train_a_gridified_network() -> None:
    torch.manual_seed(0)
    coords, at = 2 * torch.rand(12, 30, 3) - 1, 2 * torch.rand(12, 9, 3) - 1
    inputs, target = coords[..., :1].mT.contiguous(), at[..., :1].mT.contiguous()
    data = Data.from_splits(
        "own",
        Split(inputs, target, coords=coords, at=at).cut((8, 0, 4)),
        "dense-regression",
        out_channels=1,
        size=(2, 2, 2),
    )
    recipe = recipe_for(data, "own", {"name": "own"})
    assert recipe.model["name"] == "gridified_modelnet40"
    assert recipe.shape.queries == 9
    check_network(recipe, data)
    net = GridifiedNet(1, 1, grid=4, channels=8, blocks=0, neighbors=4, omega_0=1.0, readout="dense")
    task = Task(net, "dense-regression", out_channels=1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    before = evaluate(task, data.test).compute()["mse"]
    for _ in range(30):
        task.training_step(data.train.batch(slice(None), training=True)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert evaluate(task, data.test).compute()["mse"] < 0.5 * before


def test_chosen_points_leave_the_targets_of_queries_alone() -> None:
    target = torch.arange(6.0).view(1, 1, 6)
    batch = Batch(torch.zeros(1, 0, 9), target, coords=torch.rand(1, 9, 3), at=torch.rand(1, 6, 3))
    assert torch.equal(ChoosePoints(4)(batch, training=True).target, target)
