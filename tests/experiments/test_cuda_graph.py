"""Steps replayed as CUDA graphs: the same training, on a GPU alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield.data.sets.images.digits import digits
from kernelfield.experiments.fitting import fit, make_fabric
from kernelfield.experiments.loop import Loop
from kernelfield.experiments.run import make_network, make_task
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
def test_captured_training_is_training(tmp_path: Path, settings: tuple[str, ...]) -> None:
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


@pytest.mark.parametrize(("name", "replayed"), [("partial_gcnn_se2", True), ("partial_gcnn_mirror", False)])
def test_learned_subsets(name: str, replayed: bool) -> None:
    """A subset of a continuous group has a number of elements until the next epoch; of a discrete one it is drawn."""
    recipe, data = small_recipe("training.epochs=3", "shape.out_channels=10", "optimizer.subset_lr=10.0"), digits(16)
    network = create_model(name, channels=(2, 2, 2, 2), kernel_size=3)
    task = make_task(recipe, network)
    loop = Loop(task, data.train, data.validation, recipe.training, fabric=make_fabric())
    loop.run()
    assert loop.captured is not None
    assert bool(loop.captured._graphs) == replayed
    assert bool(loop.captured.refusal) != replayed


def test_what_cannot_be_captured_is_called_as_it_is() -> None:
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
