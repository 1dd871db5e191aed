"""New data whose classes, characters or scale differ from those of a run."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kernelfield.cli import WRONG
from kernelfield.data.labelled import labelled_split
from kernelfield.data.registry import load
from kernelfield.experiments.finished_run import run_test
from kernelfield.experiments.reproduce import reproduce
from tests.commands import call

if TYPE_CHECKING:
    from pathlib import Path

TINY = (
    *("--accelerator", "cpu", "--set", "model.channels=4", "--set", "model.blocks=1", "--set", "model.hidden=8"),
    *("--set", "test={}", "--epochs", 1),
)
TEXT = "a quick brown fox " * 40


def write(path: Path, classes: tuple[str, str], factor: float = 1.0) -> Path:
    x, y = np.random.default_rng(0).normal(size=(40, 1, 8)), np.arange(40) % 2
    x[y == 1] += 3
    np.savez(path, inputs=factor * x, target=np.array(classes)[y])
    return path


def test_the_test_split_of_other_data_is_read_as_in_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    path = write(tmp_path / "a.npz", ("cat", "dog"))
    call("train", path, *TINY, "--out", run)
    found = run_test(run, {}, folder=str(path), split="test")
    assert found == run_test(run, {})
    # Other statistics do not hide another unit.
    large = write(tmp_path / "b.npz", ("cat", "dog"), 100.0)
    with pytest.warns(UserWarning, match="same unit"):
        assert run_test(run, {}, folder=str(large), split="test")["test"]["loss"] > 1.5 * found["test"]["loss"]
    other = write(tmp_path / "c.npz", ("dog", "cow"))
    with pytest.raises(ValueError, match="classes"):
        run_test(run, {}, folder=str(other), split="test")


def test_new_text_has_the_characters_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(TEXT)
    data = load("text", tmp_path / "book.txt", length=16)
    (tmp_path / "new.txt").write_text("fox box")
    split = labelled_split(data, tmp_path / "new.txt", {"name": "text"})
    read = [*split.inputs[split.mask].tolist(), int(split.target[split.mask][-1])]
    assert "".join(data.classes[i] for i in read) == "fox box<eos>"
    (tmp_path / "other.txt").write_text(TEXT.replace("a", "Z"))  # as many characters, with other ids
    with pytest.raises(ValueError, match="characters"):
        labelled_split(data, tmp_path / "other.txt", {"name": "text"})


def test_other_characters_are_embedded_afresh(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(TEXT)
    (tmp_path / "other.txt").write_text(TEXT.replace("a", "Z"))
    length = ("--set", "data.length=16")
    call("train", tmp_path / "book.txt", *TINY, *length, "--out", tmp_path / "run")
    start = ("--start-from", tmp_path / "run")
    output = call("train", tmp_path / "other.txt", *TINY, *length, *start, "--out", tmp_path / "new")
    assert "embedding.weight" in output
    call("train", tmp_path / "other.txt", *TINY, *length, *start, "--freeze", "--out", tmp_path / "frozen", code=WRONG)


def test_no_trial_and_no_row_is_of_other_data(tmp_path: Path) -> None:
    """A sweep trains nothing beside trials on former data, and a finished row is no result on new ones."""
    path, out = write(tmp_path / "a.npz", ("cat", "dog")), tmp_path / "sweep"
    sweep = ("sweep", path, "--over", "optimizer.lr=0.01,0.02", *TINY[:-2], "--set", "training.epochs=1", "--out", out)
    call(*sweep)
    shutil.rmtree(out / "trial-001")
    recipe, runs = str(out / "trial-000" / "recipe.yaml"), tmp_path / "runs"
    found = reproduce(recipe, tmp_path / "results", runs, report=False)
    assert found["status"] == "done"
    stored = dict(np.load(path))
    np.savez(path, **{**stored, "inputs": np.roll(stored["inputs"], 2, axis=0)})  # by the same number of each class
    assert "trial-000 was trained, but they have changed" in call(*sweep, code=WRONG)
    assert not (out / "trial-001").exists()
    result = reproduce(recipe, tmp_path / "results", runs, report=False)
    assert result["status"] == "failed"
    assert "have changed" in result["error"]
    assert "kept" in result
    path.unlink()  # without the data there is nothing to compare
    found = reproduce(recipe, tmp_path / "results", runs, report=False)
    assert found["status"] == "done"


def test_trainings_of_other_data_are_no_part_of_a_run(tmp_path: Path) -> None:
    """Neither shares of other data for the card of a run, nor other seeds."""
    path, out = write(tmp_path / "a.npz", ("cat", "dog")), tmp_path / "run"
    call("train", path, *TINY, "--seeds", 2, "--out", out)
    shutil.rmtree(out / "seed-1")
    stored = dict(np.load(path))
    np.savez(path, **{**stored, "inputs": np.roll(stored["inputs"], 2, axis=0)})  # by the same number of each class
    assert "have changed" in call("card", out / "seed-0", "--shares", 0.5, "--seconds", 0.02, code=WRONG)
    assert "have changed" in call("train", path, *TINY, "--seeds", 2, "--out", out, code=WRONG)
    (out / "result.json").unlink()
    (out / "seed-0").rename(tmp_path / "seed-0")
    call("train", path, *TINY, "--seeds", 2, "--out", out)
    shutil.rmtree(out / "seed-0")
    (tmp_path / "seed-0").rename(out / "seed-0")
    with pytest.warns(UserWarning, match="seed-0 and seed-1 have different samples"):
        call("compare", out / "seed-0", out / "seed-1", "--out", tmp_path / "page.html")
