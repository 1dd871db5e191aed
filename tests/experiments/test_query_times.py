"""Training, testing, predicting and exporting at query times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield import CCNN
from kernelfield.data import Batch, Split
from kernelfield.data.base import TargetScale
from kernelfield.data.metadata import from_metadata, metadata
from kernelfield.data.registry import load
from kernelfield.experiments.evaluation import evaluate
from kernelfield.experiments.finished_run import export_run, run_test
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.losses import task_loss
from kernelfield.experiments.metrics import Meter
from kernelfield.experiments.recipe import find_recipe, with_settings
from kernelfield.experiments.task import Task

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
