"""The folder of a run: locked, whole after a full disk, made again where something is missing, and closed to links."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kernelfield._files import atomic_write, write_text
from kernelfield.experiments import fit
from kernelfield.experiments.checkpoint import check_weights, latest_checkpoint, read_checkpoint, write_checkpoint
from kernelfield.experiments.evaluation import NonFiniteOutputs, evaluate
from kernelfield.experiments.metrics import Meter
from kernelfield.experiments.recipe import recipe_from
from kernelfield.experiments.run import Run, make_network, make_task
from kernelfield.experiments.run_files import FolderLock, read_json, write_json
from tests.experiments.helpers import small_data, small_recipe, weights

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.synchronize import Event
    from pathlib import Path

#: these tests compare all files of runs, pictures included
PICTURES = True
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(small_recipe("training.epochs=1"), tmp_path_factory.mktemp("runs") / "run", data=small_data())


@contextlib.contextmanager
def small_disk(size: int) -> Iterator[None]:
    """Let no file grow beyond ``size`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def hold(folder: Path, held: Event, done: Event) -> None:
    with FolderLock(folder) as lock:
        lock.acquire()
        held.set()
        done.wait(60)


def test_a_second_process_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    first = context.Process(target=hold, args=(tmp_path / "run", held, done))
    first.start()
    assert held.wait(60)
    monkeypatch.setattr("kernelfield.experiments.fitting.recipe_data", lambda *_, **__: pytest.fail("loads data"))
    with pytest.raises(BlockingIOError, match=r"\bout must be a folder that no other run"):
        fit(small_recipe(), tmp_path / "run")
    done.set()
    first.join(60)
    assert not (tmp_path / "run").exists()  # nothing was written to it
    with FolderLock(tmp_path / "run") as lock:
        lock.acquire()


def test_a_refused_run_leaves_no_folder(tmp_path: Path) -> None:
    empty = small_data(0)
    with pytest.raises(ValueError, match="waves"):
        fit(small_recipe(), tmp_path / "new" / "run", data=empty)
    assert not (tmp_path / "new").exists()


def test_a_full_disk_keeps_the_previous_file(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", "before")
    with small_disk(100), pytest.raises(OSError, match="large"):
        write_text(path, "x" * 1000)
    with contextlib.suppress(KeyError), atomic_write(path) as draft:
        draft.write_text("half")
        raise KeyError
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("size", "report"), [(300, False), (5_000, False), pytest.param(30_000, True, marks=pytest.mark.slow)]
)
def test_a_full_disk_is_repaired_by_the_next_call(tmp_path: Path, finished: Run, size: int, report: bool) -> None:
    recipe, run = small_recipe("training.epochs=1"), Run(tmp_path / "run")
    with small_disk(size), pytest.raises(OSError, match="run"):
        fit(recipe, run.folder, data=small_data(), report=report)
    for path in run.folder.rglob("*.json"):
        json.loads(path.read_text())
    for path in run.checkpoints.glob("[!.]*"):
        read_checkpoint(path)
    fit(recipe, run.folder, data=small_data(), report=report)
    assert all(torch.equal(t, weights(finished.folder)[name]) for name, t in weights(run.folder).items())
    assert run.result()["metrics"] == finished.result()["metrics"]
    if report:
        assert {p.name for p in run.folder.iterdir()} == {p.name for p in finished.folder.iterdir()}


@pytest.mark.parametrize("names", [("report.html", "kernels.png"), ("result.json", "confusion.json", "data.json")])
def test_missing_files_are_written_again(
    tmp_path: Path, finished: Run, names: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    if "report.html" not in names:
        request.getfixturevalue("no_pictures")
    run = Run(shutil.copytree(finished.folder, tmp_path / "run"))
    for name in names:
        (run.folder / name).unlink()
    fit(small_recipe("training.epochs=1"), run.folder, data=small_data())
    assert {p.name for p in run.folder.iterdir()} == {p.name for p in finished.folder.iterdir()}
    assert run.result()["metrics"] == finished.result()["metrics"]


@pytest.mark.parametrize("name", ["checkpoints", "log.txt", "attention.png"])
def test_links_out_of_the_run_are_not_written_to(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir() if name == "checkpoints" else outside.write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(outside)
    with pytest.raises(ValueError, match=f"{name} must lie in the run"):
        fit(small_recipe("training.epochs=1"), tmp_path / "run", data=small_data())
    assert not list(outside.iterdir()) if name == "checkpoints" else outside.read_text() == ""


def test_links_out_of_the_run_are_not_read_nor_followed_in_writing(tmp_path: Path, finished: Run) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text((finished.folder / "result.json").read_text())
    (tmp_path / "run").mkdir()
    run = Run(tmp_path / "run")
    (run.folder / "result.json").symlink_to(outside)
    with pytest.raises(ValueError, match=r"result\.json must lie in the run"):
        run.result()
    run.write("result.json", "{}")
    assert run.result() == {}
    assert read_json(outside) == read_json(finished.folder / "result.json")


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/b", "a\\b", "..", ".", "", "a\0b", "a\nb", "x" * 300])
def test_a_name_cannot_leave_the_runs_folder(name: str) -> None:
    with pytest.raises(ValueError, match=r"\bname must be the name of a file"):
        recipe_from({**small_recipe().to_dict(), "name": name})


def test_weights_that_are_not_finite_are_refused(tmp_path: Path, finished: Run) -> None:
    path = latest_checkpoint(finished.checkpoints, "best")
    assert path is not None
    tensors, values = read_checkpoint(path)
    name = next(key for key in tensors if key.startswith("network.") and tensors[key].is_floating_point())
    tensors[name].view(-1)[0] = float("nan")
    write_text(tmp_path / "recipe.yaml", (finished.folder / "recipe.yaml").read_text())
    write_checkpoint(tmp_path / "checkpoints", path.name, tensors, values)
    with pytest.raises(ValueError, match=f"must hold finite weights.*{name.removeprefix('network.')}"):
        Run(tmp_path).network()
    check_weights({"count": torch.tensor([1])}, tmp_path)


def test_outputs_that_are_not_finite_have_no_class() -> None:
    data, recipe = small_data(), small_recipe()
    network = make_network(recipe, data)
    with torch.no_grad():
        next(iter(network.parameters())).fill_(float("nan"))
    task = make_task(recipe, network, data)
    with pytest.raises(NonFiniteOutputs, match="12 samples"):
        evaluate(task, data.test, 5)
    meter = Meter("classification", 3)
    meter.update(torch.tensor([[0.0, 1.0, 0.0], [float("nan")] * 3]), data.test.batch(slice(0, 2)))
    assert np.isnan(list(meter.compute().values())).all()


def test_a_checkpoint_that_was_being_replaced_comes_back(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(2)}
    path = write_checkpoint(tmp_path, "step-00000001", tensors, {"n": 1})
    assert read_checkpoint(write_checkpoint(tmp_path, "step-00000001", tensors, {"n": 2}))[1]["n"] == 2
    assert list(tmp_path.iterdir()) == [path]
    os.rename(path, tmp_path / ".step-00000001.replaced")  # noqa: PTH104 (as a kill between two renames leaves it)
    (tmp_path / ".best-00000001.abc").mkdir()  # as a kill in the middle of writing leaves it
    from kernelfield.experiments.checkpoint import restore_replaced  # noqa: PLC0415

    restore_replaced(tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    assert read_checkpoint(path)[1]["n"] == 2


def test_scores_that_are_not_numbers_are_read_as_such(tmp_path: Path) -> None:
    lost = {"auc": float("nan")}
    epoch = {"epoch": 1, "validation": lost, "test": lost}
    result = {"status": "done", "metrics": {"test": lost}, "chosen": epoch, "best": epoch, "last": epoch}
    write_json(tmp_path / "result.json", result)
    found = Run(tmp_path).result()
    scores = [found["metrics"]["test"], *(found[kind]["test"] for kind in ("chosen", "best", "last"))]
    assert all(np.isnan(score["auc"]) for score in scores)
    assert found["chosen"]["epoch"] == 1
