"""Predictions of a trained run: from files, folders, patterns, lists and arrays, without the training data."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import kernelfield as kf
from kernelfield.data.base import Split
from kernelfield.data.metadata import from_metadata, metadata
from kernelfield.data.registry import load
from kernelfield.data.transforms.to_sequence import map_splits
from kernelfield.experiments.evaluation import NonFiniteOutputs
from kernelfield.experiments.finished_run import export_run, export_run_stream
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.predict import find_files
from kernelfield.experiments.stream_input import stream_input
from kernelfield.streaming import ExportedStream
from tests.commands import call
from tests.experiments.helpers import small_data, small_recipe

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict") / "run"
    fit(small_recipe("training.epochs=4"), folder, data=small_data(), report=False)
    return folder


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    x = small_data().test.inputs.numpy()
    (tmp_path / "new" / "inner").mkdir(parents=True)
    paths = [tmp_path / "new" / "a.npy", tmp_path / "new" / "b.npy", tmp_path / "new" / "inner" / "c.npy"]
    for path, part in zip(paths, (x[:1], x[1:2], x[2:]), strict=True):
        np.save(path, part)
    (tmp_path / "new" / "notes.md").write_text("not a sample")
    return paths


def test_arrays_and_files_give_the_same_predictions(run: Path, files: list[Path]) -> None:
    loaded = kf.load_run(run)
    data = small_data()
    rows = loaded.predict(data.test.inputs)
    with torch.no_grad():
        shares = loaded.network(data.test.inputs).softmax(dim=1)
    for row, expected in zip(rows, shares, strict=True):
        assert list(row["probabilities"]) == ["one", "two", "three"]
        assert list(row["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-5)
        assert row["class"] == data.classes[int(expected.argmax())]
    found = loaded.predict(files)
    assert [row["probabilities"] for row in found] == [row["probabilities"] for row in rows]
    assert [(row["file"], row["sample"]) for row in found[:3]] == [(str(files[i]), 0) for i in range(3)]
    assert loaded.predict(files[0].parent) == found


def test_read_only_arrays_give_the_same_predictions_without_a_warning(run: Path) -> None:
    inputs = small_data().test.inputs.numpy()
    frozen = np.frombuffer(inputs.tobytes(), dtype=inputs.dtype).reshape(inputs.shape)  # as from a file or a socket
    assert not frozen.flags.writeable
    loaded = kf.load_run(run)
    assert loaded.predict(frozen) == loaded.predict(inputs)


def test_lists_and_files_with_labels_give_the_same_predictions(run: Path, tmp_path: Path) -> None:
    loaded, x = kf.load_run(run), small_data().test.inputs.numpy()
    expected = [row["probabilities"] for row in loaded.predict(x)]
    for same in (list(x), x.tolist(), x.astype(">f8"), np.asfortranarray(x)):
        assert [row["probabilities"] for row in loaded.predict(same)] == expected
    np.savez(tmp_path / "a.npz", x=x, y=np.array(["one"] * len(x)))
    assert [row["probabilities"] for row in loaded.predict(tmp_path / "a.npz")] == expected
    with pytest.raises(TypeError, match="source must hold"):
        loaded.predict(1j * x)


def test_the_step_of_the_data_is_that_of_predictions(tmp_path: Path) -> None:
    data = map_splits(small_data(), lambda split: replace(split, step=0.5))
    fit(small_recipe("training.epochs=1"), tmp_path / "run", data=data, report=False)
    loaded, x = kf.load_run(tmp_path / "run"), data.test.inputs
    with torch.no_grad():
        wanted = loaded.network(x, step=0.5).softmax(dim=1)
        assert not torch.allclose(loaded.network(x).softmax(dim=1), wanted, atol=1e-2)
        ready = loaded.prepare(x)
        torch.testing.assert_close(loaded.network(ready.inputs, **ready.sampling).softmax(dim=1), wanted)
    for raw in (False, True):
        rows = loaded.predict(x, raw=raw)
        found = torch.tensor([list(row["probabilities"].values()) for row in rows])
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    np.save(tmp_path / "x.npy", x[0].numpy())
    *_, last = stream_input(tmp_path / "run", tmp_path / "x.npy")
    assert last["probability"] == pytest.approx(float(wanted[0].max()), abs=1e-4)
    path, _ = export_run(tmp_path / "run")
    torch.testing.assert_close(torch.export.load(path).module()(x).softmax(dim=1), wanted, atol=1e-5, rtol=0)
    path, _, _ = export_run_stream(tmp_path / "run")
    exported = ExportedStream(path)
    for sample in x[:1].split(1, dim=2):
        y = exported.push(sample)
    torch.testing.assert_close(y.softmax(dim=1), wanted[:1], atol=1e-2, rtol=0)


def test_a_stream_takes_neither_times_nor_masks(tmp_path: Path) -> None:
    """A network that was trained with them would read every sample as observed, one step after the other."""
    draw = np.random.default_rng(0)
    for name, times in (("gaps", [0, 1, 2, 4, 5, 8]), ("points", [0, 0.3, 1.2, 2, 4.1, 8])):
        lines = [f"{i},{t},x,{draw.normal()},{i % 2}" for i in range(20) for t in times]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,time,channel,value,label", *lines]))
        small = ("--set", "model.channels=4", "--set", "model.blocks=1", "--set", "test={}", "--epochs", 1)
        call("train", tmp_path / f"{name}.csv", *small, "--accelerator", "cpu", "--out", tmp_path / name)
    with pytest.warns(UserWarning, match="trained with masks of missing values .* and a stream takes none"):
        export_run_stream(tmp_path / "gaps")
    with pytest.raises(ValueError, match="run must be on signals with a regular time grid to stream"):
        export_run_stream(tmp_path / "points")


def test_files_are_found(files: list[Path]) -> None:
    folder = files[0].parent
    assert find_files(folder) == files
    assert find_files(str(folder / "*.npy")) == files[:2]
    assert find_files(str(folder / "**" / "*.npy")) == files
    (folder / "list.txt").write_text("# the last and the first\ninner/c.npy\n\na.npy\n")
    assert find_files(folder / "list.txt") == [files[2], files[0]]
    assert find_files([files[1], str(folder / "in*" / "*")]) == [files[1], files[2]]
    with pytest.raises(FileNotFoundError, match="got none"):
        find_files(str(folder / "*.png"))


def test_a_text_is_no_list_of_files(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("a fox " * 1000)
    with pytest.raises(ValueError, match=r"file must list files.*book\.txt"):
        find_files(tmp_path / "book.txt")


def test_predictions_are_written_with_all_classes(run: Path, files: list[Path], tmp_path: Path) -> None:
    assert "12 predictions" in call("predict", run, *files, "--out", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "sample", "class", "probability", "p(one)", "p(two)", "p(three)"]
    call("predict", run, files[0].parent, "--out", tmp_path / "out.json")
    written = json.loads((tmp_path / "out.json").read_text())
    assert [row["class"] for row in written] == [row["class"] for row in rows]
    assert [float(row["p(two)"]) for row in rows] == [row["probabilities"]["two"] for row in written]
    assert "out must end in .csv or .json" in call("predict", run, files[0], "--out", tmp_path / "out.xls", code=2)
    lines = call("predict", run, *files).splitlines()
    assert lines[0].startswith(f"{files[0]} 0  class ")


def test_memory_is_bounded_by_one_batch(run: Path) -> None:
    loaded = kf.load_run(run)
    sizes = []
    loaded.network.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    assert len(loaded.predict(torch.randn(40, 1, 16))) == 40
    assert max(sizes) <= loaded.recipe.training.batch
    assert sum(sizes) == 40


def test_outputs_that_are_not_finite_are_refused(run: Path) -> None:
    loaded = kf.load_run(run)
    with torch.no_grad():
        next(loaded.network.parameters()).fill_(float("nan"))
    with pytest.raises(NonFiniteOutputs, match="not finite for sample 0"):
        loaded.predict(torch.zeros(2, 1, 16))


def test_inputs_of_another_shape_are_refused(run: Path) -> None:
    with pytest.raises(ValueError, match=r"inputs must hold samples of shape \(1, 16\), got \(2, 16\)"):
        kf.load_run(run).predict(torch.zeros(3, 2, 16))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("digits", {}),
        ("digits", {"sequence": True}),
        ("chirps", {"train": 16, "validation": 4, "test": 4}),
        ("solids", {"train": 16}),
        ("adding", {"T": 16}),
        ("copy_memory", {"T": 16}),
        ("listops", {"min_length": 20, "max_length": 60, "train": 4, "validation": 2, "test": 4}),
    ],
)
def test_metadata_reproduces_the_preprocessing(name: str, options: dict[str, object]) -> None:
    data = load(name, **options)
    stored = metadata(data)
    assert stored is not None
    again = from_metadata(json.loads(json.dumps(stored)))
    assert (again.classes, again.size, again.task) == (data.classes, data.size, data.task)
    test = data.test.take(slice(0, 3))
    same = Split(test.inputs, test.target, test.coords, test.mask, again.test.step, again.test.prepare)
    ours, theirs = same.batch(slice(None)), test.batch(slice(None))
    for field in ("inputs", "target", "coords", "mask"):
        a, b = getattr(ours, field), getattr(theirs, field)
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)


@pytest.mark.parametrize("select", ["best", "last", "average"])
def test_weights_are_selected(select: str, tmp_path: Path) -> None:
    averaged = ["training.average_last=2"] if select == "average" else []
    recipe = small_recipe(f"training.select={select}", "training.epochs=4", *averaged)
    run = fit(recipe, tmp_path / "run", data=small_data(), report=False)
    result = run.result()
    assert result["selected"] == select
    assert result["chosen"]["test"] == result["metrics"]["test"]
    if select != "best":
        assert {"best", "last"} <= set(result)
    for kind in ("last", *(["best"] if select != "best" else [])):
        network = run.network(select=kind)
        data = small_data().test
        with torch.no_grad():
            right = (network(data.inputs).argmax(dim=1) == data.target).float().mean()
        assert result[kind]["test"]["accuracy"] == pytest.approx(float(right))


def test_the_average_is_that_of_the_last_epochs(tmp_path: Path) -> None:
    """With one epoch the average is the last epoch; with more it differs from it."""
    for count in (1, 3):
        recipe = small_recipe("training.select=average", f"training.average_last={count}")
        run = fit(recipe, tmp_path / str(count), data=small_data(), report=False)
        last, mean = (dict(run.network(select=kind).named_parameters()) for kind in ("last", "average"))
        assert all(torch.equal(last[name], mean[name]) for name in last) == (count == 1)


def test_time_left_follows_the_remaining_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kernelfield.experiments import progress  # noqa: PLC0415

    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    callback = progress.time_left("test", "samples")
    now[0] += 50  # data are loaded
    for done in range(10, 110, 10):
        callback(done, 1000)
        now[0] += 1
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["test: about 2 minutes left, 40 of 1,000 samples"]  # 96 seconds, after three of them
