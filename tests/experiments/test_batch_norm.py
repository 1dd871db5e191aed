"""Batch-norm statistics re-estimated before evaluations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from kernelfield.data.base import Split
from kernelfield.experiments.checkpoint import latest_checkpoint, read_checkpoint
from kernelfield.experiments.evaluation import batches_to_use, norms_with_statistics, reestimate
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.loop import Loop
from kernelfield.experiments.settings import Training
from kernelfield.experiments.task import Task

from .helpers import small_data, small_recipe

if TYPE_CHECKING:
    from pathlib import Path


def small_task() -> tuple[Task, Split]:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4)
    )
    network = nn.Sequential(*network, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 3))
    return Task(network, out_channels=3), Split(5 * torch.randn(96, 1, 16) + 1, torch.randint(3, (96,)))


def test_evaluation_agrees_with_the_statistics_of_all_samples() -> None:
    task, split = small_task()
    reestimate(task, split, batch=96, batches=1)
    found = task.eval()(split.batch(slice(None)))
    for m in task.network.modules():
        if isinstance(m, nn.BatchNorm1d):
            m.train()  # normalises by the batch, which is all there is
    torch.testing.assert_close(found, task(split.batch(slice(None))), rtol=0.01, atol=0.01)


def test_statistics_of_batches_are_those_of_their_union() -> None:
    task, split = small_task()
    norm = task.network[1]
    reestimate(task, split, batch=12, batches=8)
    parts = norm.running_mean.clone(), norm.running_var.clone()
    reestimate(task, split, batch=96, batches=1)
    torch.testing.assert_close(parts[0], norm.running_mean)
    torch.testing.assert_close(parts[1], norm.running_var, rtol=0.02, atol=1e-3)


def test_nothing_else_changes() -> None:
    task, split = small_task()
    statistics = {f"{i}.{part}" for i in (1, 5) for part in ("running_mean", "running_var")}
    before = {name: t.clone() for name, t in task.network.state_dict().items()}
    state = torch.get_rng_state()
    reestimate(task.train(), split, batch=8, batches=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(m.training for m in task.modules())
    assert {m.momentum for m in norms_with_statistics(task.network)} == {0.1}
    changed = {name for name, t in task.network.state_dict().items() if not torch.equal(t, before[name])}
    assert changed == statistics


def test_networks_without_running_statistics_are_left_alone() -> None:
    network = nn.Sequential(nn.BatchNorm1d(1, track_running_stats=False), nn.Flatten(), nn.Linear(4, 3))
    reestimate(Task(network, out_channels=3), Split(torch.randn(8, 1, 4), torch.zeros(8).long()), batch=4, batches=2)
    assert network[0].running_mean is None


@pytest.mark.parametrize(
    ("settings", "steps", "per_epoch", "wanted"),
    [
        ({}, 5_000, 500, 50),
        ({}, 5_001, 500, 0),
        ({}, 60, 6, 6),
        ({"norm_batches": 0}, 60, 6, 0),
        ({"norm_batches": 20}, 99_999, 500, 20),
    ],
)
def test_short_trainings_are_reestimated(settings: dict[str, Any], steps: int, per_epoch: int, wanted: int) -> None:
    assert batches_to_use(Training(**settings), steps, per_epoch) == wanted


@pytest.mark.parametrize("more", [(), ("training.ema=0.9",)], ids=["weights", "average"])
def test_evaluations_and_checkpoints_have_them(tmp_path: Path, more: tuple[str, ...]) -> None:
    data = small_data()
    validation = {}
    for batches in (0, 3):
        recipe = small_recipe("training.epochs=1", f"training.norm_batches={batches}", "optimizer.lr=0.05", *more)
        run = fit(recipe, tmp_path / str(batches), data=data, report=False)
        path = latest_checkpoint(run.checkpoints)
        assert path is not None
        tensors, _ = read_checkpoint(path)
        prefix = "average." if more else "network."
        validation[batches] = [t for name, t in tensors.items() if name.startswith(prefix) and "running_var" in name]
        # The checkpoint has the statistics by which the run was evaluated.
        assert run.result()["metrics"]["test"]
    assert validation[0]
    assert all(not torch.equal(a, b) for a, b in zip(validation[0], validation[3], strict=True))


@pytest.mark.parametrize("mean", [0.0, 1e2, 1e4])
def test_the_variance_survives_a_large_mean(mean: float) -> None:
    network = nn.Sequential(nn.BatchNorm1d(1, affine=False), nn.Flatten())
    x = mean + torch.randn(64, 1, 32, generator=torch.Generator().manual_seed(0))
    reestimate(Task(network, out_channels=32), Split(x, torch.zeros(64).long()), batch=16, batches=4)
    assert float(network[0].running_var) == pytest.approx(float(x.double().var()), rel=0.02)


@pytest.mark.parametrize(("batches", "reestimated"), [(None, True), (0, False)])
def test_averaged_weights_of_a_long_training_have_statistics_of_their_own(
    monkeypatch: pytest.MonkeyPatch, batches: int | None, reestimated: bool
) -> None:
    monkeypatch.setattr("kernelfield.experiments.evaluation.SHORT_TRAINING", 0)
    task, split = small_task()
    settings = Training(epochs=3, batch=32, select="average", average_last=2, norm_batches=batches)
    loop = Loop(task, split, split.take(torch.arange(8)), settings)
    loop.run()
    before = loop.tail.shadow["1.running_var"].clone()
    loop.average_last()
    statistics = loop.tail.shadow["1.running_var"].clone()
    assert torch.equal(statistics, before) != reestimated
    with loop.tail:
        reestimate(task, split, batch=32, batches=3, seed=loop.state.epoch)
        assert torch.allclose(statistics, task.network[1].running_var, rtol=1e-5) == reestimated
