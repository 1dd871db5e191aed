"""Optimisers, parameter groups and learning-rate schedules."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch

from kernelfield import CCNN, CKCNN, create_model
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.loop import Loop
from kernelfield.experiments.optim import Average, LearningRate, make_optimizer, parameter_groups, parameter_kinds
from kernelfield.experiments.recipe import Optimizer, Schedule, recipe_from, with_settings
from kernelfield.experiments.run import make_network, make_task
from kernelfield.groups import SO2, Cyclic
from kernelfield.models.gcnn import GCNN
from kernelfield.models.partial_gcnn import PartialGCNN

from .helpers import small_data, small_recipe

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "adadelta": torch.optim.Adadelta,
}


def net(**options: Any) -> CCNN:
    return CCNN(1, 3, size=16, channels=4, blocks=1, hidden=8, **options)


def decayed_names(network: torch.nn.Module, decayed: list[str]) -> set[str]:
    groups = parameter_groups(network, lr=1.0, weight_decay=0.5, decayed=decayed)
    by_id = {id(p): name for name, p in network.named_parameters()}
    seen = [id(p) for group in groups for p in group["params"]]
    assert len(seen) == len(set(seen)) == len(by_id)
    return {by_id[id(p)] for group in groups if group["weight_decay"] for p in group["params"]}


def test_weights_alone_are_decayed_by_default() -> None:
    network = create_model("flextcn_2", in_channels=1, out_channels=3, size=16)
    groups = {g["name"]: g for g in parameter_groups(network, lr=0.1, weight_decay=0.5, mask_lr=0.1)}
    assert groups["masks"]["lr"] == pytest.approx(0.01)
    assert decayed_names(network, ["weights"]) == {"blocks.0.shortcut.weight", "readout.linear.weight"}


def test_decayed_parameters_are_named() -> None:
    network = net()
    kinds = parameter_kinds(network)
    assert decayed_names(network, ["all"]) == set(kinds)
    assert decayed_names(network, ["weights", "masks"]) == {n for n, k in kinds.items() if k in ("weights", "masks")}
    assert decayed_names(network, ["readout.*"]) == {n for n in kinds if n.startswith("readout.")}
    with pytest.raises(ValueError, match=r"decayed .*got 'nothing\.\*'"):
        decayed_names(network, ["nothing.*"])


def test_masks_keep_their_learning_rate_if_they_are_decayed() -> None:
    groups = {g["name"]: g for g in parameter_groups(net(), lr=2.0, weight_decay=0.5, decayed=["all"], mask_lr=0.1)}
    assert set(groups) == {"decayed", "masks, decayed"}
    assert groups["masks, decayed"]["lr"] == pytest.approx(0.2)
    assert {g["weight_decay"] for g in groups.values()} == {0.5}


def test_subsets_and_tables() -> None:
    network = PartialGCNN(1, 3, group=SO2(), samples=4, channels=(2, 2, 2, 2), kernel_size=3)
    groups = {g["name"]: g for g in parameter_groups(network, lr=1.0, weight_decay=0.5, subset_lr=0.1)}
    learned = {id(p) for d in network.distributions() for p in d.parameters()}
    assert {id(p) for p in groups["subsets"]["params"]} == learned
    assert groups["subsets"]["lr"] == pytest.approx(0.1)
    table = GCNN(1, 3, group=Cyclic(4), channels=2)
    fields = {name for name in parameter_kinds(table) if "field" in name}
    assert fields
    assert fields <= decayed_names(table, ["weights"])


@pytest.mark.parametrize("name", CLASSES)
def test_optimizers_are_torchs_own(name: str) -> None:
    optimizer = make_optimizer(net(), Optimizer(name=name))
    assert type(optimizer) is CLASSES[name]


def test_momentum_reaches_sgd() -> None:
    (group, *_) = make_optimizer(net(), Optimizer(name="sgd", momentum=0.5, nesterov=True)).param_groups
    assert group["momentum"] == 0.5
    assert group["nesterov"] is True


@pytest.mark.parametrize(
    # Coupled decay is part of the gradient, which Adam's first step normalises to one.
    ("name", "wanted"),
    [("adam", 2.0 - 0.1), ("sgd", 2.0 - 0.1 * 0.5 * 2.0), ("adamw", 2.0 * (1 - 0.1 * 0.5))],
)
def test_adam_and_sgd_couple_decay_and_adamw_does_not(name: str, wanted: float) -> None:
    layer = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(layer.weight, 2.0)
    optimizer = make_optimizer(layer, Optimizer(name=name, lr=0.1, weight_decay=0.5, decayed=["all"]))
    for p in layer.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert layer.weight.item() == pytest.approx(wanted, rel=1e-5)


def test_layers_notice_a_mask_that_grows() -> None:
    network = net(sigma=0.1)
    optimizer = make_optimizer(network, Optimizer(lr=0.3))
    conv = network.stem.depthwise
    before = conv.kernel_support.steps
    conv.mask.sigma.grad = torch.full_like(conv.mask.sigma, -1.0)
    optimizer.step()
    assert conv.kernel_support.steps > before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "lion"}, r"name .*got 'lion'"),
        ({"nesterov": True}, r"optimizer\.nesterov .* got it for 'adamw'"),
        ({"name": "adam", "momentum": 0.5}, r"optimizer\.momentum .* got it for 'adam'"),
        ({"name": "sgd", "momentum": 0.0, "nesterov": True}, r"optimizer\.nesterov"),
        ({"name": "sgd", "betas": [0.9, 0.99]}, r"optimizer\.betas .* got them for 'sgd'"),
        ({"decayed": []}, r"decayed must"),
    ],
)
def test_optimizer_settings_that_exclude_each_other(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Optimizer(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "step"}, r"name .*got 'step'"),
        ({"name": "steps"}, r"milestones must"),
        ({"milestones": [3]}, r"milestones .*got \[3\]"),
        ({"name": "steps", "milestones": [3, 3]}, r"milestones must"),
        ({"name": "steps", "milestones": [0]}, r"milestones"),
        ({"monitor": "loss"}, r"monitor .* got it for 'cosine'"),
        ({"name": "plateau", "monitor": "los"}, r"monitor .*got 'los'"),
        ({"name": "plateau", "split": "test"}, r"split .*got 'test'"),
        ({"name": "constant", "final": 0.1}, r"schedule\.final .* got it for 'constant'"),
    ],
)
def test_schedule_settings_that_exclude_each_other(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**settings)


def test_settings_are_checked_together() -> None:
    recipe = with_settings(small_recipe(), ["schedule.name=steps", "schedule.milestones=[2, 4]"])
    assert recipe.schedule.milestones == [2, 4]
    assert recipe_from(recipe.to_dict()) == recipe
    with pytest.raises(ValueError, match=r"milestones"):
        with_settings(recipe, ["schedule.name=cosine", "schedule.milestones=[3]"])


@pytest.mark.parametrize("epochs", [1, 3, 10, 11, 24, 26, 40])
def test_shortened_trainings_reach_their_learning_rate_and_lower_it(epochs: int) -> None:
    recipe = with_settings(
        small_recipe(),
        ["training.epochs=100", "schedule.name=steps", "schedule.warmup=10", "schedule.milestones=[40, 80]"],
    )
    schedule = with_settings(recipe, [f"training.epochs={epochs}"]).schedule
    # A warm-up of 10 epochs ends before the first milestone of trainings of more than 25 epochs.
    assert schedule.warmup == pytest.approx(10 if epochs > 25 else epochs / 10)
    assert schedule.milestones == pytest.approx([0.4 * epochs, 0.8 * epochs])
    rate = LearningRate(schedule, steps_per_epoch=50, epochs=epochs)
    factors = [rate.factor(step) for step in range(50 * epochs)]
    assert max(factors) == 1.0
    assert factors[-1] == pytest.approx(schedule.factor**2)
    top = factors.index(1.0)
    assert all(a <= b for a, b in pairwise(factors[: top + 1]))
    assert all(a >= b for a, b in pairwise(factors[top:]))


def test_a_milestone_in_the_warmup_is_refused() -> None:
    with pytest.raises(ValueError, match=r"schedule\.milestones must not lie in the warm-up of 2 epochs, got \[1\]"):
        Schedule("steps", warmup=2, milestones=[1])


def test_a_plateau_in_the_warmup_does_not_let_the_rate_jump() -> None:
    rate = LearningRate(Schedule("plateau", warmup=4, factor=0.1, patience=0), steps_per_epoch=10, epochs=8)
    factors = []
    for epoch in range(8):
        factors += [rate.factor(step) for step in range(10 * epoch, 10 * epoch + 10)]
        if epoch in (0, 1):  # the second epoch is no better than the first
            rate.observe({"epoch": epoch + 1, "train_loss": 1.0, "val_accuracy": 0.5})
    assert factors[19] == pytest.approx(0.5)
    assert max(factors[20:]) == pytest.approx(0.1)


def test_settings_that_are_given_are_not_scaled() -> None:
    recipe = with_settings(small_recipe(), ["training.epochs=100", "schedule.warmup=10"])
    assert with_settings(recipe, ["training.epochs=2", "schedule.warmup=1.5"]).schedule.warmup == 1.5
    assert with_settings(recipe, ["training.epochs=200"]).schedule.warmup == 10


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Schedule("cosine", warmup=4), r"warmup must be at most the 3 epochs of training, got 4"),
        (Schedule("steps", milestones=[1, 3]), r"milestones must be below the 3 epochs of training, got \[1, 3\]"),
    ],
)
def test_schedules_beyond_the_training(schedule: Schedule, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LearningRate(schedule, steps_per_epoch=5, epochs=3)


def test_cosine() -> None:
    rate = LearningRate(Schedule("cosine", warmup=2, final=0.1), steps_per_epoch=5, epochs=10)
    values = [rate.factor(step) for step in range(51)]
    assert values[:10] == [(i + 1) / 10 for i in range(10)]
    assert values[10] == 1.0
    assert all(a >= b for a, b in pairwise(values[10:]))
    assert values[50] == pytest.approx(0.1)


def test_steps_agree_with_torch() -> None:
    milestones, factor = [2, 3, 6], 0.1
    rate = LearningRate(Schedule("steps", milestones=milestones, factor=factor), steps_per_epoch=1, epochs=8)
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)
    theirs = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=factor)
    for epoch in range(8):
        assert rate.factor(epoch) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("monitor", ["accuracy", "loss"])
def test_plateaus_agree_with_torch(monitor: str) -> None:
    torch.manual_seed(0)
    rate = LearningRate(Schedule("plateau", factor=0.5, patience=2, monitor=monitor), 1, 60)
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)
    mode: Any = "min" if monitor == "loss" else "max"
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode=mode, factor=0.5, patience=2)
    for epoch in range(60):
        value = round(float(torch.rand(())), 1)
        theirs.step(value)
        rate.observe({"epoch": epoch + 1, "train_loss": 0.0, f"val_{monitor}": value})
        assert rate.factor(epoch) == pytest.approx(optimizer.param_groups[0]["lr"])
        copy = LearningRate(rate.settings, 1, 60)
        copy.load_state_dict(rate.state_dict())
        rate = copy
    assert rate.scale < 1


def test_a_plateau_watches_its_monitor() -> None:
    row = {"epoch": 1.0, "train_loss": 3.0, "val_loss": 2.0, "val_accuracy": 0.5}
    for settings, value in (({}, 0.5), ({"monitor": "loss"}, 2.0), ({"monitor": "loss", "split": "train"}, 3.0)):
        rate = LearningRate(Schedule("plateau", **settings), 1, 1)
        rate.observe(row)
        assert rate.best == value
    rate = LearningRate(Schedule("plateau"), 1, 1)
    rate.observe({"epoch": 1.0, "train_loss": 3.0})
    assert rate.best == 3.0
    with pytest.raises(ValueError, match=r"monitor .*got val_iou"):
        LearningRate(Schedule("plateau", monitor="iou"), 1, 1).observe(row)


def test_a_plateau_on_validation_data_needs_a_validation_split() -> None:
    recipe, data = small_recipe("schedule.name=plateau", "schedule.split=validation"), small_data()
    task = make_task(recipe, make_network(recipe, data))
    with pytest.raises(ValueError, match=r"split must"):
        Loop(task, data.train, None, recipe.training)


def test_a_plateau_of_a_training_metric(tmp_path: Path) -> None:
    recipe = small_recipe(
        "schedule.name=plateau", "schedule.split=train", "schedule.monitor=accuracy", "training.epochs=2"
    )
    run = fit(recipe, tmp_path / "run", data=small_data(), report=False)
    assert all(0 <= row["train_accuracy"] <= 1 for row in run.read_rows("metrics.csv"))


def test_an_average_leaves_shared_weights_as_they_were() -> None:
    """A language model has one weight under two names, in its embedding and in its readout."""
    network = CKCNN(4, 5, size=8, channels=(4, 4), vocabulary=5, readout="dense")
    average = Average(network, 0.5)
    with torch.no_grad():
        network.embedding.weight.add_(1)
    average.update()
    before = network.embedding.weight.clone()
    with average:
        assert not network.embedding.weight.equal(before)
    assert network.embedding.weight.equal(before)
