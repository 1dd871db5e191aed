"""Tasks: losses and metrics with masks, penalties, Lightning's Trainer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lightning import Trainer
from torch.nn import functional as F

from kernelfield import CCNN, create_model
from kernelfield.data.base import Batch
from kernelfield.experiments.metrics import Meter, is_better, main_metric, task_loss
from kernelfield.experiments.optim import Average
from kernelfield.experiments.recipe import Optimizer, Schedule
from kernelfield.experiments.regularizers import REGULARIZERS
from kernelfield.experiments.task import Task
from kernelfield.groups import SO2
from kernelfield.models.partial_gcnn import PartialGCNN

from .helpers import small_data

SEEN = torch.tensor([[True, True, False, True], [True, False, False, False]])


def batch_of(target: torch.Tensor, mask: torch.Tensor | None = None) -> Batch:
    return Batch(torch.zeros(len(target), 1, 4), target, mask=mask)


def test_dense_losses_ignore_masked_positions() -> None:
    prediction = torch.randn(2, 3, 4)
    classes = torch.randint(3, (2, 4))
    rows, labels = prediction.movedim(1, -1)[SEEN], classes[SEEN]
    for task in ("segmentation", "language"):
        loss = task_loss(task, prediction, batch_of(classes, SEEN))
        torch.testing.assert_close(loss, F.cross_entropy(rows, labels))
    values = torch.randn(2, 3, 4)
    loss = task_loss("dense-regression", prediction, batch_of(values, SEEN))
    torch.testing.assert_close(loss, F.mse_loss(rows, values.movedim(1, -1)[SEEN]))


def test_masked_positions_have_no_gradient() -> None:
    for task, target in (("segmentation", torch.randint(3, (2, 4))), ("dense-regression", torch.randn(2, 3, 4))):
        prediction = torch.randn(2, 3, 4, requires_grad=True)
        task_loss(task, prediction, batch_of(target, SEEN)).backward()
        assert prediction.grad is not None
        assert bool((prediction.grad.movedim(1, -1)[~SEEN] == 0).all())


def test_loss_of_no_samples_is_zero() -> None:
    none = torch.zeros(2, 4, dtype=torch.bool)
    assert task_loss("segmentation", torch.randn(2, 3, 4), batch_of(torch.randint(3, (2, 4)), none)) == 0
    assert task_loss("dense-regression", torch.randn(2, 3, 4), batch_of(torch.randn(2, 3, 4), none)) == 0


def test_ignored_targets_have_no_effect() -> None:
    target = torch.tensor([[0, 1, -100, 2]])
    prediction = torch.randn(1, 3, 4)
    meter = Meter("segmentation", 3)
    meter.update(prediction, Batch(torch.zeros(1, 1, 4), target))
    assert meter.confusion.sum() == 3


def test_part_iou_is_reported_where_the_data_know_parts() -> None:
    parts = ((0, 1), (2, 3, 4))
    target = torch.tensor([[0, 0, 1, 1], [2, 2, 2, -100], [3, 3, 4, 4]])
    right = torch.nn.functional.one_hot(target.clamp(min=0), 5).mT.float()
    wrong = right.clone()
    wrong[2, 2, :2] = 9  # part 3 taken for part 2, which is not there
    meter = Meter("segmentation", 5, parts=parts)
    inputs = torch.zeros(3, 1, 4)
    meter.update(wrong[:2], Batch(inputs[:2], target[:2]))
    meter.update(wrong[2:], Batch(inputs[2:], target[2:], mask=torch.tensor([[True, True, True, False]])))
    metrics = meter.compute()
    last = (0 + 0 + 1) / 3
    assert math.isclose(metrics["part_iou"], (1 + 1 + last) / 3, rel_tol=1e-6)
    assert math.isclose(metrics["part_iou_kinds"], (1 + (1 + last) / 2) / 2, rel_tol=1e-6)
    assert "part_iou" not in Meter("segmentation", 5).compute()
    with pytest.raises(ValueError, match=r"\bparts must"):
        Meter("language", 5, parts=parts)


def test_losses_of_other_tasks_are_those_of_torch() -> None:
    prediction = torch.randn(2, 3)
    torch.testing.assert_close(
        task_loss("multilabel", prediction, batch_of(torch.ones(2, 3))),
        F.binary_cross_entropy_with_logits(prediction, torch.ones(2, 3)),
    )
    torch.testing.assert_close(
        task_loss("regression", prediction[:, :1], batch_of(torch.zeros(2))), prediction[:, 0].square().mean()
    )
    smooth = task_loss("classification", prediction, batch_of(torch.tensor([0, 2])), 0.1)
    torch.testing.assert_close(smooth, F.cross_entropy(prediction, torch.tensor([0, 2]), label_smoothing=0.1))
    half = task_loss("classification", prediction.bfloat16(), batch_of(torch.tensor([0, 2])))
    assert half.dtype == torch.float32
    soft = prediction.softmax(dim=1)
    torch.testing.assert_close(
        task_loss("classification", prediction, batch_of(soft)), F.cross_entropy(prediction, soft)
    )
    for task, shape, target, wanted in (
        ("classification", (2, 3, 4), (2,), r"\(batch, out\)"),
        ("segmentation", (2, 3), (2, 4), r"\(batch, out, \*space\)"),
    ):
        with pytest.raises(ValueError, match=f"prediction must be {wanted} for task '{task}', got "):
            task_loss(task, torch.randn(shape), batch_of(torch.zeros(target, dtype=torch.long)))
    with pytest.raises(ValueError, match=r"\btask must"):
        task_loss("class", prediction, batch_of(torch.zeros(2)))
    with pytest.raises(ValueError, match=r"\bbatch must"):
        task_loss("classification", prediction, Batch(torch.zeros(2, 1, 4)))


@pytest.mark.parametrize(
    "task", ["classification", "segmentation", "language", "regression", "dense-regression", "multilabel"]
)
def test_meters_do_not_depend_on_how_batches_are_cut(task: str) -> None:
    dense = task in ("segmentation", "language", "dense-regression")
    prediction = torch.randn(10, 3, 4) if dense else torch.randn(10, 3)
    mask = torch.rand(10, 4) > 0.3 if dense else None
    target = {
        "classification": torch.randint(3, (10,)),
        "segmentation": torch.randint(3, (10, 4)),
        "language": torch.randint(3, (10, 4)),
        "regression": torch.randn(10, 3),
        "dense-regression": torch.randn(10, 3, 4),
        "multilabel": torch.randint(2, (10, 3)).float(),
    }[task]
    found = []
    for cut in ([10], [3, 7], [1] * 10):
        meter = Meter(task, 3)
        begin = 0
        for n in cut:
            part = slice(begin, begin + n)
            meter.update(prediction[part], batch_of(target[part], None if mask is None else mask[part]))
            begin += n
        found.append(meter.compute())
    for other in found[1:]:
        assert other == pytest.approx(found[0])
    assert main_metric(task) in found[0]
    whole = batch_of(target, mask)
    assert found[0]["loss"] == pytest.approx(float(task_loss(task, prediction, whole)), rel=1e-5)


def test_is_better_follows_the_direction_of_the_metric() -> None:
    assert is_better("accuracy", 0.5, None)
    assert not is_better("accuracy", float("nan"), 0.1)
    assert is_better("bits", 1.0, 2.0)


def test_average_of_weights() -> None:
    net = torch.nn.Linear(2, 2)
    average = Average(net, 0.9)
    start = net.weight.detach().clone()
    for _ in range(3):
        with torch.no_grad():
            net.weight.add_(1.0)
        average.update()
    live = net.weight.detach().clone()
    with average:
        inside = net.weight.detach().clone()
    assert torch.equal(net.weight, live)
    assert bool(((inside > start) & (inside < live)).all())
    with pytest.raises(ValueError, match=r"\bdecay must"):
        Average(net, 1.0)


def net(**options: Any) -> CCNN:
    return CCNN(1, 3, size=16, channels=4, blocks=1, hidden=8, **options)


def test_penalties_enter_by_name() -> None:
    batch = Batch(torch.randn(2, 1, 16), torch.tensor([0, 1]))
    torch.manual_seed(0)
    plain = Task(net(), out_channels=3)
    bare = plain.training_step(batch)
    for name in ("kernel_l2", "kernel_norm", "aliasing"):
        task = Task(plain.network, out_channels=3, regularizers={name: 2.0})
        wanted = bare + 2 * REGULARIZERS[name](plain.network)
        torch.testing.assert_close(task.training_step(batch), wanted)
    factor = {"aliasing": {"weight": 1.0, "nyquist_factor": 0.1}}
    assert Task(plain.network, out_channels=3, regularizers=factor).training_step(batch) > bare
    for wrong, message in (
        ({"l2": 1.0}, "regularizers .*got 'l2'"),
        ({"aliasing": {"nyquist_factor": 1.0}}, "regularizers.aliasing must"),
        ({"aliasing": {"weight": 1.0, "nyquist_factor": "x"}}, "aliasing.nyquist_factor .*got 'x'"),
        ({"aliasing": {"weight": 1.0, "with_mask": 1}}, "regularizers.aliasing.with_mask .*got 1"),
        (
            {"kernel_norm": {"weight": 1.0, "parameters": "x"}},
            "kernel_norm.parameters .*got 'x'",
        ),
        ({"complexity": 1.0}, "regularizers.complexity must .*CCNN"),
        ({"kernel_l2": -1}, "regularizers.kernel_l2 .*got -1"),
        ({"kernel_l2": {"weight": 1.0, "cut": 2}}, "regularizers.kernel_l2 takes weight, nothing; got 'cut'"),
    ):
        with pytest.raises((ValueError, TypeError), match=rf"\b{message}"):
            Task(plain.network, regularizers=wrong)


def test_networks_without_sampling_arguments() -> None:
    task = Task(PartialGCNN(1, 3, group=SO2(), samples=2, channels=(2, 2, 2, 2), kernel_size=3), out_channels=3)
    images = torch.randn(2, 1, 16, 16)
    assert task(Batch(images)).shape == (2, 3)
    with pytest.raises(ValueError, match=r"\bnetwork must"):
        task(Batch(images, step=0.5))


class Batches(torch.utils.data.IterableDataset[Batch]):
    """What Lightning's Trainer iterates over."""

    def __init__(self, split: Any, size: int) -> None:
        self.split, self.size = split, size

    def __iter__(self) -> Any:
        for start in range(0, len(self.split), self.size):
            yield self.split.batch(slice(start, start + self.size), training=True)

    def __len__(self) -> int:
        return (len(self.split) + self.size - 1) // self.size


def quiet_trainer(folder: Any, epochs: int) -> Trainer:
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return Trainer(max_epochs=epochs, accelerator="cpu", devices=1, default_root_dir=folder, **silent)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("schedule", [Schedule("cosine", warmup=1), Schedule("plateau", monitor="loss", split="train")])
def test_trains_in_the_lightning_trainer(tmp_path: Any, schedule: Schedule) -> None:
    data = small_data()
    task = Task(net(), out_channels=3, optimizer=Optimizer(lr=0.02), schedule=schedule)
    trainer = quiet_trainer(tmp_path, epochs=6)
    loaders = [torch.utils.data.DataLoader(Batches(s, 8), batch_size=None) for s in (data.train, data.validation)]
    before = trainer.test(task, loaders[0], verbose=False)[0]["test_loss"]
    trainer.fit(task, loaders[0], loaders[1])
    assert {"train_loss", "val_loss", "val_accuracy"} <= set(trainer.callback_metrics)
    after = trainer.test(task, loaders[0], verbose=False)[0]["test_loss"]
    assert after < before


@pytest.mark.filterwarnings("ignore")
def test_trains_with_a_plain_data_loader(tmp_path: Any) -> None:
    data = small_data(16)
    task = Task(net(), out_channels=3)
    trainer = quiet_trainer(tmp_path, epochs=1)
    pairs = torch.utils.data.TensorDataset(data.train.inputs, data.train.target)
    loader = torch.utils.data.DataLoader(pairs, batch_size=8)
    trainer.fit(task, loader, loader)
    assert {"train_loss", "val_accuracy"} <= set(trainer.callback_metrics)
    loss = trainer.test(task, loader, verbose=False)[0]["test_loss"]
    batch = Batch(data.train.inputs, data.train.target)
    torch.testing.assert_close(loss, float(task_loss("classification", task.eval()(batch), batch).detach()))
    inputs = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data.train.inputs), batch_size=8)
    predicted = trainer.predict(task, inputs)
    assert predicted is not None
    torch.testing.assert_close(torch.cat(predicted), task(data.train.inputs).detach())
    with pytest.raises(TypeError, match=r"\bbatch must"):
        task(("a", 1))


def test_monotonicity_compares_layers() -> None:
    network = create_model("partial_gcnn_e2", channels=(2, 2, 2, 2), kernel_size=3, samples=4)
    task = Task(network, out_channels=10, regularizers={"monotonicity": 1.0})
    (penalty,) = task.penalties
    assert float(penalty(network).detach()) == 0
    _, rotations = network.distributions()[2].parts
    with torch.no_grad():
        rotations.width.fill_(0.25)  # a narrow layer between wide ones: the next one grows by 0.75
    assert float(penalty(network).detach()) == pytest.approx(0.75)
    with torch.no_grad():
        for distribution in network.distributions():
            distribution.parts[1].width.fill_(0.25)
    assert float(penalty(network).detach()) == 0


class Recorded(Task):
    """A task that records the losses of its steps and what its plateau schedule observes."""

    losses: list[float]
    observed: list[float]

    def training_step(self, batch: Any, batch_idx: int = 0) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(float(loss.detach()))
        return loss

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        self.observed.append(float(metric))


@pytest.mark.filterwarnings("ignore")
def test_a_plateau_in_the_trainer_watches_the_mean_loss_of_an_epoch(tmp_path: Any) -> None:
    data = small_data(16)
    task = Recorded(net(), out_channels=3, schedule=Schedule("plateau", monitor="loss", split="train"))
    task.losses, task.observed = [], []
    quiet_trainer(tmp_path, epochs=1).fit(task, torch.utils.data.DataLoader(Batches(data.train, 4), batch_size=None))
    assert len(set(task.losses)) == 4
    assert task.observed == [pytest.approx(sum(task.losses) / 4, rel=1e-5)]


@pytest.mark.filterwarnings("ignore")
def test_schedules_know_the_length_of_the_trainer(tmp_path: Any) -> None:
    data = small_data(16)
    loader = torch.utils.data.DataLoader(Batches(data.train, 4), batch_size=None)
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)

    def fit(schedule: Schedule, **length: int) -> Task:
        task = Task(net(), out_channels=3, schedule=schedule)
        Trainer(accelerator="cpu", devices=1, default_root_dir=tmp_path, **length, **silent).fit(task, loader)
        return task

    by_steps = fit(Schedule("cosine", warmup=1), max_steps=6, max_epochs=-1)
    assert (by_steps.steps_per_epoch, by_steps.epochs) == (4, 2)
    by_epochs = fit(Schedule("cosine", warmup=1), max_epochs=2)
    assert (by_epochs.steps_per_epoch, by_epochs.epochs) == (4, 2)
    with pytest.raises(ValueError, match="max_epochs"):
        fit(Schedule("cosine"), max_epochs=-1)
    with pytest.raises(ValueError, match=r"schedule\.warmup"):
        fit(Schedule("plateau", monitor="loss", split="train", warmup=1), max_epochs=1)
