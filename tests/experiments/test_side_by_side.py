"""Trainings side by side: each has the results it has alone."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image

from kernelfield.experiments.checkpoint import _copied_together, latest_checkpoint, read_checkpoint
from kernelfield.experiments.combine import pool_progress
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.jobs import Job, fit_many
from kernelfield.experiments.loop import Progress, TrainingInterrupted
from kernelfield.experiments.reproduce import Row, reproduce, reproduce_rows
from kernelfield.experiments.results import compare
from kernelfield.experiments.run import Run
from kernelfield.experiments.seeds import fit_seeds
from kernelfield.experiments.side_by_side import Turn, exhaust, side_by_side

from .helpers import small_data, small_recipe, weights

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from kernelfield.data.base import Batch, Data


def noisy_data() -> Data:
    """Return small data with augmentation that draws from torch's global generator."""

    def add_noise(batch: Batch, training: bool) -> Batch:
        return replace(batch, inputs=batch.inputs + 0.1 * torch.randn_like(batch.inputs)) if training else batch

    data = small_data()
    return replace(data, train=replace(data.train, prepare=add_noise))


def differing(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> list[str]:
    assert first.keys() == second.keys()
    return [name for name in first if not torch.equal(first[name], second[name])]


def metrics_without_time(run: Run) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in run.read_rows("metrics.csv")]


def count(n: int, seen: list[int] | None = None) -> Generator[int, None, int]:
    for i in range(n):
        if seen is not None:
            seen.append(n)
        yield i
    return n


def test_turns_alternate_until_each_training_ends() -> None:
    seen: list[int] = []
    ended: list[int] = []
    outcomes = side_by_side([lambda: count(3, seen), lambda: count(2, seen)], on_end=lambda i, _: ended.append(i))
    assert [o.get() for o in outcomes] == [3, 2]
    assert seen == [3, 2, 3, 2, 3]
    assert ended == [1, 0]


def test_at_once_limits_the_trainings_in_progress() -> None:
    seen: list[int] = []
    side_by_side([lambda n=n: count(n, seen) for n in (2, 3, 4)], at_once=2)
    assert seen.index(4) > 3
    with pytest.raises(ValueError, match="at_once"):
        side_by_side([lambda: count(1)], at_once=0)


def test_a_failure_does_not_stop_the_others() -> None:
    def fail() -> Generator[None, None, int]:
        yield
        raise ValueError("broken")

    first, second = side_by_side([fail, lambda: count(4)])
    assert second.get() == 4
    with pytest.raises(ValueError, match="broken"):
        first.get()


def test_an_interrupt_closes_all_trainings() -> None:
    closed: list[int] = []

    def wait(n: int) -> Generator[None, None, int]:
        try:
            while True:
                yield
        finally:
            closed.append(n)

    def interrupt() -> Generator[None, None, int]:
        yield
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        side_by_side([lambda: wait(1), interrupt, lambda: wait(2)])
    assert sorted(closed) == [1, 2]


def test_a_turn_keeps_global_state_apart() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    before = torch.get_float32_matmul_precision()
    turn = Turn("cpu")
    with turn:
        torch.manual_seed(1)
        torch.set_float32_matmul_precision("medium")
        first = torch.rand(2)
    assert torch.get_float32_matmul_precision() == before
    assert torch.equal(torch.rand(3), expected)
    with turn:
        assert torch.get_float32_matmul_precision() == "medium"
        second = torch.rand(2)
    torch.manual_seed(1)
    assert torch.equal(torch.cat([first, second]), torch.cat([torch.rand(2), torch.rand(2)]))


def test_seeds_side_by_side_equal_single_runs(tmp_path: Path) -> None:
    settings = ["training.ema=0.9", "training.epochs=2"]
    recipe = small_recipe(*settings)
    seen: list[Progress] = []
    options: dict[str, Any] = {"data": noisy_data(), "report": False}
    both = fit_seeds(recipe, tmp_path / "both", seeds=2, on_progress=seen.append, **options)
    result = both.result()
    assert seen[-1].step == seen[-1].steps == 24
    for seed in (0, 1):
        single = small_recipe(*settings, f"training.seed={seed}")
        alone = fit(single, tmp_path / f"{seed}", data=noisy_data(), report=False)
        run = Run(tmp_path / "both" / f"seed-{seed}")
        assert not differing(weights(alone.folder), weights(run.folder))
        assert metrics_without_time(alone) == metrics_without_time(run)
        assert result["seeds"][str(seed)]["metrics"] == alone.result()["metrics"]
        assert result["seeds"][str(seed)]["last"] == alone.result()["last"]
    assert differing(weights(tmp_path / "0"), weights(tmp_path / "1"))
    scores = [r["metrics"]["test"]["loss"] for r in result["seeds"].values()]
    assert result["metrics"]["test"]["loss"] == pytest.approx(sum(scores) / 2)
    assert result["deviation"]["test"]["loss"] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5)
    assert result["seed"] == [0, 1]
    with pytest.raises(ValueError, match=r"\bout must"):
        fit_seeds(recipe, tmp_path / "0", seeds=2, data=noisy_data())


def stop_after(calls: int) -> Callable[[], bool]:
    """Return a function that is true from its ``calls``-th call on."""
    counted = iter(range(1, 10_000))
    return lambda: next(counted) >= calls


@pytest.mark.parametrize("step", [5, 6])
def test_stopped_seeds_resume(tmp_path: Path, step: int) -> None:
    """Also in the last step of an epoch, whose evaluation is still to come."""
    options: dict[str, Any] = {"data": noisy_data(), "report": False}
    recipe = small_recipe("training.epochs=2", "training.checkpoint_every=100", "training.ema=0.9")
    with pytest.raises(TrainingInterrupted, match=f"step {step} "):
        fit(recipe, tmp_path / "parts" / "seed-0", **options, should_stop=stop_after(step))
    parts = fit_seeds(recipe, tmp_path / "parts", seeds=2, **options)
    whole = fit_seeds(recipe, tmp_path / "whole", seeds=2, **options)
    for seed in ("seed-0", "seed-1"):
        assert not differing(weights(parts.folder / seed), weights(whole.folder / seed))
        assert metrics_without_time(Run(parts.folder / seed)) == metrics_without_time(Run(whole.folder / seed))


def test_progress_of_several_trainings_is_that_of_one() -> None:
    """Two of three trainings run one after the other: a finished one has no rate, a waiting one takes its time."""
    seen: list[Progress] = []
    first, second, _ = pool_progress(3, seen.append)
    report = Progress(step=50, steps=100, epoch=1, loss=1.0, lr=0.1, rate=8.0, seconds_left=10.0, metrics={})
    first(report)
    assert (seen[-1].step, seen[-1].steps, seen[-1].rate, seen[-1].seconds_left) == (50, 300, 8.0, 50.0)
    first(replace(report, step=100, seconds_left=0.0))
    second(report)
    assert (seen[-1].step, seen[-1].steps, seen[-1].rate, seen[-1].seconds_left) == (150, 300, 8.0, 30.0)


def test_jobs_need_folders_of_their_own(tmp_path: Path) -> None:
    job = Job(small_recipe(), tmp_path / "run")
    with pytest.raises(ValueError, match=r"\bout must"):
        fit_many([job, job])


def test_jobs_share_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(recipe: Any, **_: Any) -> Data:
        loaded.append(recipe.name)
        return small_data()

    monkeypatch.setattr("kernelfield.experiments.jobs.recipe_data", load)
    recipes = [small_recipe("training.epochs=1", f"training.seed={seed}") for seed in (0, 1)]
    other = small_recipe("training.epochs=1", "data.name=waves")
    jobs = [Job(r, tmp_path / f"{i}", {"report": False}) for i, r in enumerate((*recipes, other))]
    outcomes = fit_many(jobs)
    assert all(o.get().finished for o in outcomes)
    assert len(loaded) == 2


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    first = fit.steps(small_recipe(), tmp_path / "run", data=small_data(), report=False)
    next(first)
    with pytest.raises(BlockingIOError, match="out must"):
        fit(small_recipe(), tmp_path / "run", data=small_data(), report=False)
    assert exhaust(first).finished
    again = fit(small_recipe(), tmp_path / "run", data=small_data(), report=False)
    assert again.finished


def test_the_best_checkpoint_holds_averaged_weights(tmp_path: Path) -> None:
    run = fit(small_recipe("training.ema=0.9", "training.epochs=1"), tmp_path / "run", data=small_data(), report=False)
    best = latest_checkpoint(run.checkpoints, "best")
    assert best is not None
    tensors, last = read_checkpoint(best)[0], weights(run.folder)
    name = "stem.pointwise.weight"
    assert torch.equal(tensors[f"network.{name}"], last[f"average.{name}"])
    assert not torch.equal(tensors[f"network.{name}"], last[f"network.{name}"])


def test_tensors_are_copied_together() -> None:
    weight = torch.randn(3, 4)
    tensors = {"weight": weight, "tied": weight, "turned": weight.T, "scalar": torch.tensor(2.0)}
    copies = _copied_together(tensors)
    assert not differing(tensors, copies)
    storages = {copy.untyped_storage().data_ptr() for copy in copies.values()}
    assert len(storages) == 4


def test_the_result_tells_chosen_and_last_epoch(tmp_path: Path) -> None:
    run = fit(small_recipe(), tmp_path / "run", data=small_data(), report=False)
    result, rows = run.result(), run.read_rows("metrics.csv")
    assert result["last"]["epoch"] == 3
    assert result["last"]["validation"]["loss"] == pytest.approx(rows[-1]["val_loss"], rel=1e-6)
    best = max(rows, key=lambda row: (row["val_accuracy"], -row["val_loss"]))
    assert result["chosen"]["epoch"] == best["epoch"]
    assert result["chosen"]["test"] == result["metrics"]["test"]
    assert result["seconds_per_epoch"] == pytest.approx(result["seconds"] / 3, abs=0.01)


SHORT = ("training.epochs=1", "model.channels=4", "model.blocks=1", "model.hidden=4", "training.batch=8")


def test_rows_side_by_side(tmp_path: Path) -> None:
    rows = [
        Row("digits", (*SHORT, f"optimizer.lr={lr}"), seeds=seeds, options={"synthetic": True, "report": False})
        for lr, seeds in ((0.01, 2),)
    ]
    rows.append(Row("ch03-smnist-ccnn-4-140", SHORT, note="short", options={"synthetic": True, "report": False}))
    written: list[str] = []

    def check(row: Row, result: dict[str, Any]) -> None:
        assert json.loads((tmp_path / "results" / f"{row.recipe}.json").read_text())["status"] == result["status"]
        written.append(row.recipe)

    found = reproduce_rows(rows, tmp_path / "results", tmp_path / "runs", on_result=check)
    assert sorted(written) == ["ch03-smnist-ccnn-4-140", "digits"]
    assert list(found[0]["seeds"]) == ["0", "1"]
    assert found[0]["settings"] == [*SHORT, "optimizer.lr=0.01"]
    assert "short" in found[1]["notes"]
    assert "seeds" not in found[1]


def test_an_interrupted_row_is_not_written(tmp_path: Path) -> None:
    options = {"synthetic": True, "report": False, "should_stop": lambda: True}
    found = reproduce_rows([Row("digits", SHORT, options=options)], tmp_path / "results", tmp_path / "runs")
    assert found[0]["status"] == "interrupted"
    assert not list((tmp_path / "results").iterdir())
    del options["should_stop"]
    found = reproduce_rows([Row("digits", SHORT, options=options)], tmp_path / "results", tmp_path / "runs")
    assert found[0]["status"] == "done"


def test_seeds_and_folds_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\bseeds must"):
        reproduce("digits", tmp_path, tmp_path, seeds=2, folds=(0, 1))


def test_a_damaged_result_is_found_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "digits.json").write_text("{")
    with pytest.raises(ValueError, match=r"digits\.json"):
        reproduce_rows([Row("digits", SHORT)], tmp_path / "results", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_photographs_are_averaged(tmp_path: Path) -> None:
    for name, shift in (("a", 0), ("b", 90)):
        pixels = (np.indices((6, 8)).sum(0)[..., None] * (5, 7, 9) + shift).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    settings = ["training.epochs=1", "shape.size=[6,8]", "data.repeat=3", "data.pixels=5"]
    result = reproduce(
        *("ch05-kodak-siren", tmp_path / "results", tmp_path / "runs"),
        settings=settings,
        folds=(0, 1),
        folder=str(tmp_path),
    )
    assert result["status"] == "done"
    each = [one["metrics"]["test"]["psnr"] for one in result["photographs"].values()]
    assert each[0] != each[1]
    assert result["metrics"]["test"]["psnr"] == pytest.approx(sum(each) / 2)
    assert (tmp_path / "runs" / "ch05-kodak-siren" / "image-1" / "recipe.yaml").exists()
    assert compare(result)[0]["published"] == 25.665


def hold(folder: Path, begun: Any, done: Any) -> None:
    steps = fit.steps(small_recipe(), folder, data=small_data(), report=False)
    next(steps)
    begun.set()
    done.wait()


@pytest.mark.slow
def test_another_process_is_refused_until_it_is_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    begun, done = context.Event(), context.Event()
    process = context.Process(target=hold, args=(tmp_path / "run", begun, done))
    process.start()
    assert begun.wait(60)
    with pytest.raises(BlockingIOError, match="out"):
        fit(small_recipe(), tmp_path / "run", data=small_data(), report=False)
    process.kill()
    process.join()
    assert fit(small_recipe(), tmp_path / "run", data=small_data(), report=False).finished
