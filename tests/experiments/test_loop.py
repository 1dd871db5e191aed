"""The training loop learns, resumes bit for bit, and stops where it should."""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from kernelfield.experiments import loop_state
from kernelfield.experiments.checkpoint import CheckpointMismatch, latest_checkpoint, read_checkpoint
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.loop import Loop, NonFiniteLoss, Progress
from kernelfield.experiments.run import Run, make_network, make_task

from .helpers import small_data, small_recipe, weights

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different


@pytest.mark.usefixtures("pictures")
def test_a_run_is_a_folder(tmp_path: Path) -> None:
    seen: list[Progress] = []
    run = fit(small_recipe("training.epochs=8"), tmp_path / "run", data=small_data(), on_progress=seen.append)
    result = run.result()
    assert result["status"] == "done"
    assert result["metrics"]["test"]["accuracy"] > 0.6
    assert result["steps"] == 48
    assert {p.name for p in run.folder.iterdir()} >= {
        *("recipe.yaml", "log.txt", "metrics.csv", "masks.csv", "result.json", "kernels.png", "report.html"),
    }
    rows = run.read_rows("metrics.csv")
    assert [row["epoch"] for row in rows] == list(range(1, 9))
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    assert seen[-1].step == seen[-1].steps == 48
    assert seen[0].rate > 0
    page = (run.folder / "report.html").read_text()
    assert "http" not in page.replace("http://www.w3.org", "")
    assert page.count("data:image/png;base64,") >= 4
    # A finished run is returned unchanged, and not for another recipe.
    assert fit(small_recipe("training.epochs=8"), run.folder, data=small_data()).result() == result
    with pytest.raises(ValueError, match=r"another recipe \(training: epochs 8 in the folder, 7 in this recipe\)"):
        fit(small_recipe("training.epochs=7"), run.folder, data=small_data())


class Killed(Exception):
    pass


def fit_until(folder: Path, step: int, *settings: str) -> None:
    """Train, and stop at a step without any clean-up."""

    def stop(now: Progress) -> None:
        if now.step >= step:
            raise Killed

    with pytest.raises(Killed):
        fit(small_recipe(*settings), folder, data=small_data(), report=False, on_progress=stop)


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ((), 4),
        (("training.ema=0.9", "training.clip=0.5"), 15),
        (("schedule.name=plateau", "schedule.patience=0", "training.precision=bf16"), 15),
        *(
            pytest.param(settings, step, marks=pytest.mark.slow)
            for settings, step in (
                (("optimizer.name=sgd", "optimizer.nesterov=true", "training.evaluate_every=2"), 10),
                (("optimizer.name=adadelta", "schedule.name=steps", "schedule.milestones=[1, 2]"), 15),
            )
        ),
    ],
    ids=["plain", "ema", "plateau", "sgd", "adadelta"],
)
def test_resumes_bit_for_bit(tmp_path: Path, settings: tuple[str, ...], step: int) -> None:
    whole = fit(small_recipe(*settings), tmp_path / "whole", data=small_data(), report=False)
    fit_until(tmp_path / "parts", step, *settings)
    assert not Run(tmp_path / "parts").finished
    parts = fit(small_recipe(*settings), tmp_path / "parts", data=small_data(), report=False)
    assert_same(weights(whole.folder), weights(parts.folder))
    drop = {"seconds"}
    for name in ("metrics.csv", "masks.csv"):
        first, second = (
            [{k: v for k, v in r.items() if k not in drop} for r in x.read_rows(name)] for x in (whole, parts)
        )
        assert first == second
    assert whole.result()["metrics"] == parts.result()["metrics"]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread: their number changes sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train_slowly(folder: Path, pipe: Connection) -> None:
    """Train with a pause after each report, and send the steps."""
    torch.set_num_threads(1)

    def report(now: Progress) -> None:
        pipe.send(now.step)
        time.sleep(0.2)

    fit(small_recipe(), folder, data=small_data(), report=False, on_progress=report)


@pytest.mark.slow  # killed commands are resumed in tests/fuzz/test_kills.py
@pytest.mark.usefixtures("one_thread")
def test_killed_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=train_slowly, args=(tmp_path / "killed", theirs))
    process.start()
    while ours.recv() < 10:
        pass
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    path = latest_checkpoint(tmp_path / "killed" / "checkpoints")
    assert path is not None
    assert read_checkpoint(path)[1]["state"]["position"] > 0
    seen: list[Progress] = []
    for name in ("killed", "whole"):
        fit(small_recipe(), tmp_path / name, data=small_data(), report=False, on_progress=seen.append)
    assert seen[0].step > 6
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


def test_a_mismatched_network_is_refused(tmp_path: Path) -> None:
    fit_until(tmp_path / "run", 8)
    data = small_data()
    recipe = small_recipe("model.channels=5", "model.blocks=2")
    loop = Loop(
        make_task(recipe, make_network(recipe)),
        data.train,
        None,
        recipe.training,
        folder=tmp_path / "run" / "checkpoints",
    )
    before = {k: t.clone() for k, t in loop.task.network.state_dict().items()}
    with pytest.raises(CheckpointMismatch) as error:
        loop.run()
    text = str(error.value)
    assert "does not fit the network:" in text
    assert "blocks.0.norm.bias: (6,) in the checkpoint, (5,) in the network" in text
    assert "more" in text.splitlines()[-1]
    assert_same(before, loop.task.network.state_dict())


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_non_finite_loss_stops_training(tmp_path: Path, checkpoints: bool) -> None:
    data = small_data()
    inputs = data.train.inputs.clone()
    calls: list[int] = []

    def spoil(batch: Any, training: bool) -> Any:
        if training:
            calls.append(1)
            if len(calls) == 8:
                return replace(batch, inputs=batch.inputs * float("nan"))
        return batch

    data = replace(data, train=replace(data.train, inputs=inputs, prepare=spoil))
    setting = "training.checkpoint_every=2" if checkpoints else "training.checkpoint_every=1000"
    epochs = "training.evaluate_every=1" if checkpoints else "training.evaluate_every=3"
    with pytest.raises(NonFiniteLoss) as error:
        fit(small_recipe(setting, epochs), tmp_path / "run", data=data)
    text = str(error.value)
    assert "not finite at step 7 (epoch 1) of recipe 'small'" in text
    good = latest_checkpoint(tmp_path / "run" / "checkpoints")
    if checkpoints:
        assert good is not None
        assert f"the last good checkpoint is {good}" in text
        tensors, _ = read_checkpoint(good)
        assert all(bool(torch.isfinite(t).all()) for k, t in tensors.items() if t.is_floating_point())
    else:
        assert "there is no checkpoint before it" in text


def test_patience_stops_early(tmp_path: Path) -> None:
    recipe = small_recipe("training.epochs=30", "training.patience=2", "optimizer.lr=1e-9")
    run = fit(recipe, tmp_path / "run", data=small_data(), report=False)
    assert run.result()["epochs"] < 30


def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    runs = [
        fit(small_recipe(f"training.seed={seed}"), tmp_path / name, data=small_data(), report=False)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    first, second, third = (weights(run.folder) for run in runs)
    assert_same(first, second)
    assert not torch.equal(first["network.stem.pointwise.weight"], third["network.stem.pointwise.weight"])


def test_an_unknown_metric_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\bmetric must"):
        fit(small_recipe("metric=auc"), tmp_path / "run", data=small_data())


def test_without_validation_the_last_network_is_kept(tmp_path: Path) -> None:
    data, said = replace(small_data(), validation=None), []
    recipe = replace(small_recipe("training.ema=0.5", "training.patience=1"), given=frozenset())
    run = fit(recipe, tmp_path / "run", data=data, report=False, on_message=said.append)
    assert any("patience" in line for line in said)  # it has no effect
    assert latest_checkpoint(run.checkpoints, "best") is None
    tensors = weights(run.folder)
    kept = run.network().state_dict()["stem.pointwise.weight"]
    assert torch.equal(kept, tensors["average.stem.pointwise.weight"])
    assert not torch.equal(kept, tensors["network.stem.pointwise.weight"])


class Linear(torch.nn.Module):
    """A network that compiles in a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(1))


@pytest.mark.parametrize("kind", ["linear", pytest.param("ccnn", marks=pytest.mark.slow)])
def test_a_compiled_network_learns_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # This backend traces the same graphs as the default one, without a C++ compiler.
    whole = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: whole(module, backend="aot_eager"))
    recipe = small_recipe("model.dropout=0.0")
    data = small_data()
    losses = []
    for compiled in (False, True):
        settings = replace(recipe.training, compile=compiled, epochs=1)
        torch.manual_seed(0)
        network = Linear() if kind == "linear" else make_network(recipe)
        loop = Loop(make_task(recipe, network), data.train, None, settings)
        losses.append(loop.run().rows[-1]["train_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_results_are_plain_json(tmp_path: Path) -> None:
    run = fit(small_recipe(), tmp_path / "run", data=small_data(), report=False)
    assert json.loads((run.folder / "result.json").read_text())["machine"]["torch"] == torch.__version__
    for path in run.checkpoints.iterdir():
        assert {p.name for p in path.iterdir()} == {"tensors.safetensors", "values.json", "sha256.txt"}


def small_loop(folder: Path | None = None, **settings: Any) -> Loop:
    """Return a loop of a linear network over the small data."""
    recipe, data = small_recipe("schedule.warmup=0"), small_data()
    task = make_task(recipe, Linear())
    return Loop(task, data.train, data.validation, replace(recipe.training, **settings), folder=folder)


def test_the_training_loss_of_an_epoch_does_not_depend_on_the_reports() -> None:
    losses = []
    for every in (1, 4, 1000):
        torch.manual_seed(0)
        rows = small_loop(log_every=every, evaluate_every=2, epochs=4).run().rows
        losses.append([row["train_loss"] for row in rows])
    assert len(losses[0]) == 2
    assert losses[1:] == [pytest.approx(losses[0])] * 2


def test_the_end_of_an_epoch_without_evaluation_has_its_checkpoint(tmp_path: Path) -> None:
    loop = small_loop(tmp_path, epochs=4, evaluate_every=4, checkpoint_every=6)  # an epoch has 6 steps
    found = []
    for _ in loop.steps():
        path = latest_checkpoint(tmp_path)
        found.append(0 if path is None else int(path.name.partition("-")[2]))
    assert found[5:7] == [6, 6]
    assert found[12] == 12


def test_the_best_network_outlives_a_kill_between_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last state on disk and the best network on disk belong together."""
    write = loop_state.write_checkpoint

    def killed(folder: Path, name: str, *rest: Any) -> Path:
        if name == "step-00000012":  # the second epoch, whose network was the best and has been written
            raise Killed
        return write(folder, name, *rest)

    torch.manual_seed(0)
    loop = small_loop(tmp_path, checkpoint_every=1000)
    monkeypatch.setattr(loop_state, "write_checkpoint", killed)
    with pytest.raises(Killed):
        loop.run()
    assert loop.state.best_step == 12
    again = small_loop(tmp_path, checkpoint_every=1000)
    assert again.resume()
    best = latest_checkpoint(tmp_path, "best")
    assert best is not None
    assert int(best.name.partition("-")[2]) == again.state.best_step == 6


def test_an_average_of_no_epochs_is_that_of_the_evaluated_weights() -> None:
    loop = small_loop(epochs=10, ema=0.5, select="average", average_last=1)
    steps = loop.steps()
    for _ in range(3):
        next(steps)
    assert loop.average is not None
    wanted = loop.average.shadow["linear.weight"].clone()
    loop.average_last()  # as after a training that has stopped early
    assert loop.average.shadow["linear.weight"].equal(wanted)


@pytest.mark.parametrize(("epochs", "kept"), [(2, 2), (3, 0), (20, 0)])
def test_a_longer_training_does_not_average_the_last_epochs_of_the_shorter(
    tmp_path: Path, epochs: int, kept: int
) -> None:
    small_loop(tmp_path, epochs=2, select="average", average_last=2).run()
    again = small_loop(tmp_path, epochs=epochs, select="average", average_last=2)
    again.resume()
    assert again.tail is not None
    assert again.tail.steps == kept
