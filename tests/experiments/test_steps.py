"""What each setting of a training does to its steps, in numbers: clipping, averages, order of samples, selection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from kernelfield.data.base import Batch, Split
from kernelfield.experiments.checkpoint import latest_checkpoint, read_checkpoint
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.loop import Loop
from kernelfield.experiments.optim import Average
from kernelfield.experiments.run import make_network, make_task
from kernelfield.experiments.settings import Optimizer, Schedule, Training
from kernelfield.experiments.task import Task
from kernelfield.layers import kernel_l2

from .helpers import small_data, small_recipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SAMPLES, BATCH = 12, 4


class Recorder:
    """Leaves batches alone, and notes which samples were asked for and whether they were for training."""

    def __init__(self) -> None:
        self.trained: list[list[float]] = []
        self.others = 0

    def __call__(self, batch: Batch, training: bool) -> Batch:
        if training:
            self.trained.append(batch.inputs[:, 0, 0].tolist())
        else:
            self.others += 1
        return batch


def samples(prepare: Any = None, n: int = SAMPLES) -> Split:
    """Return samples whose first value is their number."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(n, 1, 5, generator=generator)
    inputs[:, 0, 0] = torch.arange(n)
    return Split(inputs, torch.arange(n) % 3, prepare=prepare)


def make_loop(
    train: Split | None = None,
    validation: Split | None = None,
    *,
    dropout: float = 0.0,
    folder: Path | None = None,
    before: Callable[[], Any] = lambda: None,
    **settings: Any,
) -> Loop:
    """Return a training of a linear map by plain gradient descent: 3 steps an epoch."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.Linear(5, 3))
    optimizer = Optimizer("sgd", lr=0.1, momentum=0.0)
    task = Task(network, out_channels=3, optimizer=optimizer, schedule=Schedule("constant"))
    before()
    settings = {"epochs": 1, "batch": BATCH, **settings}
    return Loop(task, samples() if train is None else train, validation, Training(**settings), folder=folder)


def weight(loop: Loop) -> torch.Tensor:
    found = loop.task.network[2].weight
    return found.detach().clone()


@torch.no_grad()
def loss_of(loop: Loop, split: Split) -> float:
    loop.task.eval()
    return float(nn.functional.cross_entropy(loop.task.network(split.inputs), split.target))


def weights_after_steps(loop: Loop) -> list[torch.Tensor]:
    """Train, and return the weights after each step."""
    found = []
    step = 0
    for _ in loop.steps():
        if loop.state.step > step:
            step = loop.state.step
            found.append(weight(loop))
    return found


def test_clipping_bounds_the_norm_of_the_gradient() -> None:
    loop = make_loop(clip=0.25)
    before = [p.detach().clone() for p in loop.task.parameters()]
    next(loop.steps())
    moved = torch.cat([(p - b).detach().flatten() for p, b in zip(loop.task.parameters(), before, strict=True)])
    # The first value of a sample is its number, so gradients are larger than the bound.
    assert float(moved.norm()) == pytest.approx(0.1 * 0.25, rel=1e-4)


def test_an_epoch_takes_whole_batches_of_each_sample_at_most_once_in_an_order_of_its_own() -> None:
    orders = {}
    for seed in (0, 1):
        record = Recorder()
        make_loop(samples(record, n=SAMPLES + 2), epochs=2, seed=seed).run()
        assert [len(batch) for batch in record.trained] == [BATCH] * 6
        epochs = [[i for batch in part for i in batch] for part in (record.trained[:3], record.trained[3:])]
        assert all(len(set(epoch)) == SAMPLES for epoch in epochs)
        assert epochs[0] != epochs[1]
        orders[seed] = epochs
    assert orders[0] != orders[1]


def test_samples_are_augmented_in_training_alone() -> None:
    train, validation = Recorder(), Recorder()
    loop = make_loop(samples(train), samples(validation), norm_batches=2, epochs=2)
    loop.run()
    assert len(train.trained) == 6
    assert validation.trained == []
    assert validation.others == 2 * SAMPLES // BATCH


def test_random_numbers_of_a_training_follow_from_its_seed_alone() -> None:
    def dropped(seed: int, drawn: int) -> torch.Tensor:
        loop = make_loop(dropout=0.5, seed=seed, before=lambda: torch.rand(drawn))
        return loop.task.network[1](torch.ones(64))

    assert torch.equal(dropped(0, 1), dropped(0, 2))
    assert not torch.equal(dropped(0, 1), dropped(1, 1))


@pytest.mark.parametrize("decay", [0.2, 0.9])
def test_a_moving_average_forgets_by_its_decay(decay: float) -> None:
    loop = make_loop(epochs=2, ema=decay)
    wanted = weight(loop)
    for step, now in enumerate(weights_after_steps(loop), start=1):
        kept = min(decay, (1 + step) / (10 + step))
        wanted = kept * wanted + (1 - kept) * now
    assert loop.average is not None
    torch.testing.assert_close(loop.average.shadow["2.weight"], wanted)


def test_a_plain_average_is_the_mean_of_all_updates() -> None:
    network = nn.Linear(2, 2)
    average, seen = Average(network, None), []
    for _ in range(3):
        with torch.no_grad():
            network.weight.copy_(torch.randn(2, 2))
        seen.append(network.weight.detach().clone())
        average.update()
    with average:
        torch.testing.assert_close(network.weight.detach(), torch.stack(seen).mean(dim=0))


def test_evaluations_use_averaged_weights_without_dropout_like_the_best_checkpoint(tmp_path: Path) -> None:
    loop = make_loop(None, samples(), dropout=0.5, ema=0.9, folder=tmp_path)
    row = loop.run().rows[-1]
    assert loop.average is not None
    assert loop.validation is not None
    average = loop.average.shadow["2.weight"].clone()
    path = latest_checkpoint(tmp_path, "best")
    assert path is not None
    assert torch.equal(read_checkpoint(path)[0]["network.2.weight"], average)
    with loop.average:
        assert row["val_loss"] == pytest.approx(loss_of(loop, loop.validation), rel=1e-5)
    assert row["val_loss"] != pytest.approx(loss_of(loop, loop.validation), rel=1e-5)


@pytest.mark.parametrize("ema", [None, 0.9])
def test_the_average_of_the_last_epochs_is_the_mean_of_their_weights(ema: float | None) -> None:
    loop = make_loop(epochs=4, select="average", average_last=2, ema=ema)
    average = loop.average
    ends = [
        weight(loop) if average is None else average.shadow["2.weight"].clone()
        for _ in loop.steps()
        if loop.state.position == 3
    ]
    assert len(ends) == 4
    loop.average_last()
    assert loop.tail is not None
    torch.testing.assert_close(loop.tail.shadow["2.weight"], (ends[2] + ends[3]) / 2)


def test_of_equal_scores_the_smaller_loss_is_the_best() -> None:
    loop = make_loop()
    loop.state.best, loop.state.best_loss = 0.5, 1.0
    cases = [(0.5, 0.9), (0.5, 1.0), (0.5, 1.1), (0.6, 2.0), (0.4, 0.1)]
    assert [loop._is_best(*case) for case in cases] == [True, False, False, True, False]


@pytest.mark.parametrize(("every", "wanted"), [(1, 4), (2, 6)])
def test_patience_counts_epochs_since_the_best_one(every: int, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = make_loop(None, samples(), epochs=12, evaluate_every=every, patience=3)
    monkeypatch.setattr(loop, "_is_best", lambda *_: loop.state.best is None)
    assert loop.run().epoch == wanted
    assert loop.state.best_step == 3 * every


def test_the_selected_epoch_is_tested_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loop, "_is_best", lambda loop, *_: loop.state.best is None)  # the first epoch
    data = small_data()
    run = fit(small_recipe("optimizer.lr=0.1"), tmp_path / "run", data=data, report=False)
    result, rows = run.result(), run.read_rows("metrics.csv")
    assert (result["chosen"]["epoch"], result["last"]["epoch"]) == (1, 3)
    for name, row in (("chosen", rows[0]), ("last", rows[-1])):
        assert result[name]["validation"]["loss"] == pytest.approx(row["val_loss"], rel=1e-6)
    losses = {}
    for select in (None, "best", "last"):
        with torch.no_grad():
            prediction = run.network(select=select)(data.test.inputs)
        losses[select] = float(nn.functional.cross_entropy(prediction, data.test.target))
    assert losses[None] == losses["best"] != losses["last"]
    assert result["metrics"]["test"]["loss"] == pytest.approx(losses["best"], rel=1e-5)
    assert result["chosen"]["test"] == result["metrics"]["test"]
    assert result["last"]["test"]["loss"] == pytest.approx(losses["last"], rel=1e-5)


def test_a_recipe_sets_the_loss() -> None:
    recipe = small_recipe("training.label_smoothing=0.2", "regularizers={kernel_l2: 0.5}", "metric=loss")
    task = make_task(recipe, make_network(recipe))
    assert (task.label_smoothing, task.metric) == (0.2, "loss")
    (penalty,) = task.penalties
    torch.testing.assert_close(penalty(task.network), 0.5 * kernel_l2(task.network))
