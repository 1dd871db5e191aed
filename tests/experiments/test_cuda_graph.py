"""Steps that are replayed as CUDA graphs train as eager ones do, also side by side. Needs a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield.data.sets.images.digits import digits
from kernelfield.experiments.fitting import fit, make_fabric
from kernelfield.experiments.loop import Loop, TrainingInterrupted
from kernelfield.experiments.recipe import with_settings
from kernelfield.experiments.run import Run, make_network, make_task
from kernelfield.experiments.seeds import fit_seeds
from kernelfield.models import create_model

from .helpers import small_data, small_recipe

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("training.ema=0.9", "training.clip=0.5"),
        ("training.precision=bf16",),
        ("optimizer.lr=0.05",),
        ("optimizer.name=adam", "optimizer.weight_decay=0.0001", "optimizer.decayed=[all]"),
        ("optimizer.name=sgd",),
        ("optimizer.name=sgd", "optimizer.nesterov=true", "schedule.name=steps", "schedule.milestones=[3]"),
        ("optimizer.name=adadelta", "optimizer.lr=1.0", "schedule.name=constant"),
    ],
)
def test_replayed_steps_train_as_eager_ones(tmp_path: Path, settings: tuple[str, ...]) -> None:
    losses = {}
    for capture in ("true", "false"):
        recipe = small_recipe("training.epochs=6", f"training.capture={capture}", "model.dropout=0.0", *settings)
        run = fit(recipe, tmp_path / capture, data=small_data(), report=False)
        losses[capture] = [row["train_loss"] for row in run.read_rows("metrics.csv")]
    assert losses["true"] == pytest.approx(losses["false"], rel=0.05, abs=0.02)


def test_steps_are_replayed() -> None:
    recipe, data = small_recipe("training.epochs=4"), small_data()
    task = make_task(recipe, make_network(recipe, data))
    loop = Loop(task, data.train, data.validation, recipe.training, fabric=make_fabric())
    loop.run()
    assert loop.captured is not None
    assert not loop.captured.refusal
    assert loop.captured._graphs


@pytest.mark.parametrize(
    ("name", "replayed"), [("partial_gcnn_se2", True), ("augerino_se2", True), ("partial_gcnn_mirror", False)]
)
def test_learned_subsets_are_captured_where_their_size_is_fixed(name: str, replayed: bool) -> None:
    """A subset of a continuous group keeps its size within an epoch; that of a discrete group is drawn at each step."""
    recipe, data = small_recipe("training.epochs=3", "shape.out_channels=10", "optimizer.subset_lr=10.0"), digits(16)
    network = create_model(name, channels=(2, 2, 2, 2), kernel_size=3)
    task = make_task(recipe, network)
    loop = Loop(task, data.train, data.validation, recipe.training, fabric=make_fabric())
    loop.run()
    assert loop.captured is not None
    assert bool(loop.captured._graphs) == replayed
    assert bool(loop.captured.refusal) != replayed


def test_steps_that_cannot_be_captured_run_eagerly() -> None:
    recipe, data = small_recipe("training.epochs=4"), small_data()
    network = make_network(recipe, data)
    network.register_forward_hook(lambda _m, _i, out: out * (1 + 0 * float(out.detach().sum())))
    task = make_task(recipe, network)
    loop = Loop(task, data.train, data.validation, recipe.training, fabric=make_fabric())
    state = loop.run()
    assert loop.captured is not None
    assert loop.captured.refusal
    assert state.step == loop.total
    assert state.rows[-1]["train_loss"] < state.rows[0]["train_loss"]


@pytest.mark.parametrize("settings", [(), ("training.ema=0.9", "training.precision=bf16"), ("training.capture=false",)])
def test_seeds_side_by_side_equal_single_runs(tmp_path: Path, settings: tuple[str, ...]) -> None:
    """With dropout, so that a seed that drew another's random numbers would have other losses."""
    recipe = small_recipe("training.epochs=4", "optimizer.lr=0.001", *settings)
    fit_seeds(recipe, tmp_path / "both", seeds=3, data=small_data(), report=False)
    for seed in range(3):
        single = with_settings(recipe, [f"training.seed={seed}"])
        alone = fit(single, tmp_path / f"{seed}", data=small_data(), report=False)
        both = Run(tmp_path / "both" / f"seed-{seed}")
        losses = [[row["train_loss"] for row in run.read_rows("metrics.csv")] for run in (alone, both)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_side_by_side_resumes(tmp_path: Path) -> None:
    recipe = small_recipe("training.epochs=4", "optimizer.lr=0.001")
    calls = iter(range(10_000))
    options = {"data": small_data(), "report": False}
    with pytest.raises(TrainingInterrupted):
        fit_seeds(recipe, tmp_path / "parts", seeds=2, should_stop=lambda: next(calls) > 20, **options)
    fit_seeds(recipe, tmp_path / "parts", seeds=2, **options)
    fit_seeds(recipe, tmp_path / "whole", seeds=2, **options)
    for seed in ("seed-0", "seed-1"):
        last = [Run(tmp_path / name / seed).read_rows("metrics.csv")[-1]["train_loss"] for name in ("parts", "whole")]
        assert last[0] == pytest.approx(last[1], rel=1e-3)
