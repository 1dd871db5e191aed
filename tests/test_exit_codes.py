"""Exit codes of every command, as the guide to training documents them."""

from __future__ import annotations

import re
import shutil
import signal
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import typer

from kernelfield.cli import DIVERGED, FAILED, NO_DATA, WRONG
from kernelfield.cli.common import INTERRUPTED, errors, stop_after_step
from kernelfield.experiments import fit
from kernelfield.experiments.checkpoint import latest_checkpoint, read_checkpoint, write_checkpoint
from kernelfield.experiments.fitting import make_fabric
from kernelfield.experiments.loop import Loop
from kernelfield.experiments.run_files import FolderLock
from tests.commands import call

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelfield.data.base import Batch

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SMALL = (
    *("--set", "model.channels=4", "--set", "model.blocks=1", "--set", "model.hidden=8", "--accelerator", "cpu"),
    *("--set", "data.resolution=8", "--set", "shape.size=[64]", "--epochs", "1", "--synthetic"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run, a damaged one, one with weights that are not finite, and files of samples."""
    made = tmp_path_factory.mktemp("codes")
    settings = [setting for setting in SMALL if "=" in setting]
    fit("digits", made / "run", settings=[*settings, "training.epochs=1"], synthetic=True, report=False)
    np.save(made / "x.npy", np.zeros((2, 1, 64)))
    np.save(made / "large.npy", np.full((2, 1, 64), 3e38))
    (made / "broken.npy").write_bytes(b"\x93NUMPY\x01\x00")
    (made / "broken.csv").write_text("label,a\nx,inf\ny,1\n")
    (made / "broken.yaml").write_text("a: [")
    for name in ("damaged", "nan"):
        shutil.copytree(made / "run", made / name)
    for path in (made / "damaged" / "checkpoints").glob("*/tensors.safetensors"):
        raw = bytearray(path.read_bytes())
        raw[-3] ^= 16
        path.write_bytes(bytes(raw))
    for kind in ("best", "step"):
        path = latest_checkpoint(made / "nan" / "checkpoints", kind)
        if path is not None:
            tensors, values = read_checkpoint(path)
            tensors = {k: torch.full_like(t, torch.nan) if t.is_floating_point() else t for k, t in tensors.items()}
            write_checkpoint(path.parent, path.name, tensors, values)
    return made


CODES = [
    (("test", "run"), 0),
    (("inspect", "run", "--json"), 0),
    (("predict", "run", "x.npy"), 0),
    (("list", "data"), 0),
    (("new-recipe", "new.yaml"), 0),
    (("calibrate", "--show", "--device", "cpu"), 0),
    (("calibrate", "--device", "abacus"), WRONG),
    (("calibrate", "--device", "cuda:99"), WRONG),
    (("calibrate", "--show", "--clear"), WRONG),
    (("calibrate", "--device", "cpu"), WRONG),  # tests turn the cache folder off
    (("list", "things"), WRONG),
    (("nothing",), WRONG),
    (("test", "run", "--nothing"), WRONG),
    *((command, WRONG) for command in (("test", "damaged"), ("inspect", "damaged"), ("predict", "damaged", "x.npy"))),
    *((command, WRONG) for command in (("test", "nan"), ("inspect", "nan"), ("predict", "nan", "x.npy"))),
    (("export", "damaged"), WRONG),
    (("export", "run", "--to", "zip"), WRONG),
    *((command, NO_DATA) for command in (("test", "none"), ("inspect", "none"), ("predict", "none", "x.npy"))),
    (("export", "none"), NO_DATA),
    (("predict", "run", "none.npy"), NO_DATA),
    (("predict", "run", "broken.npy"), WRONG),
    (("predict", "run", "large.npy", "--raw"), DIVERGED),
    (("train", "broken.csv"), WRONG),
    (("train", "broken.yaml"), WRONG),
    (("train", "none.yaml"), NO_DATA),
    (("train", "ch02-smnist-ckcnn-2-30", "--accelerator", "cpu", "--out", "new"), NO_DATA),
    (("new-recipe", "run/recipe.yaml"), WRONG),
    (("new-recipe", "mine.yaml", "--from", "none.csv"), NO_DATA),
    (("new-recipe", "none/mine.yaml"), NO_DATA),
    (("bench", "broken.yaml"), WRONG),
    (("reproduce", "none"), WRONG),
    (("demo", "--out", "run"), WRONG),
]


@pytest.mark.parametrize(
    ("command", "code"), CODES, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_exit_code(folder: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], code: int) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KERNELFIELD_DEBUG", "1")
    call(*command, code=code)


def test_a_locked_folder_and_an_interruption(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FolderLock(folder / "locked") as lock:
        lock.acquire()
        assert "no other run" in call("train", "--out", folder / "locked", *SMALL, code=FAILED)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kernelfield.experiments.fitting.recipe_data", interrupt)
    assert "interrupted" in call("train", "--out", folder / "new", *SMALL, code=130)


def test_an_unexpected_error_is_a_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a fault of the program")

    monkeypatch.delenv("KERNELFIELD_DEBUG", raising=False)
    monkeypatch.setattr("kernelfield.experiments.finished_run.run_test", fail)
    message = call("test", folder / "run", code=FAILED)
    assert "unexpected AssertionError: a fault of the program (KERNELFIELD_DEBUG=1 shows the traceback)" in message
    monkeypatch.setenv("KERNELFIELD_DEBUG", "1")
    with pytest.raises(AssertionError, match="a fault"):
        call("test", folder / "run")


@pytest.mark.parametrize("error", [MemoryError("x is large"), torch.OutOfMemoryError("CUDA is full. Now. And then.")])
def test_an_error_about_memory_says_what_needs_less(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as stopped, errors():
        raise error
    assert stopped.value.exit_code == FAILED
    line = capsys.readouterr().err
    assert "--set training.batch" in line
    assert "And then" not in line


def test_the_guide_lists_the_codes() -> None:
    guide = (Path(__file__).parents[1] / "docs" / "guides" / "training.md").read_text(encoding="utf-8")
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", guide, re.MULTILINE)}
    assert listed == {0, FAILED, WRONG, NO_DATA, DIVERGED, 130}


@pytest.fixture
def listening() -> Iterator[None]:
    """Listen to Ctrl-C, which processes in the background of a script ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("seeds", [1, 2])
def test_ctrl_c_stops_a_training_with_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: int) -> None:
    step, sent = Loop._step, []

    def interrupted(loop: Loop, batch: Batch) -> None:
        step(loop, batch)
        if not sent:
            sent.append(loop.state.step)
            signal.raise_signal(signal.SIGINT)

    command = ("train", "--out", tmp_path / "run", "--seeds", seeds, *SMALL, "--set", "training.batch=2")
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", interrupted)
        said = " ".join(call(*command, code=INTERRUPTED).split())
    assert f"--out {tmp_path / 'run'}" in said
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    first = tmp_path / "run" / "seed-0" if seeds > 1 else tmp_path / "run"
    path = latest_checkpoint(first / "checkpoints")
    assert path is not None
    assert path.name == "step-00000001"
    call(*command)


def test_an_ignored_ctrl_c_stays_ignored(listening: None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stop_after_step(make_fabric("cpu")) as should_stop:
        assert should_stop is None
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.usefixtures("listening")
def test_a_second_ctrl_c_stops_at_once() -> None:
    with stop_after_step(make_fabric("cpu")) as should_stop:
        assert should_stop is not None
        assert not should_stop()
        signal.raise_signal(signal.SIGINT)
        assert should_stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_wrong_arguments_are_refused_before_work(folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(folder / "run", tmp_path / "run")
    assert "--seconds" in call("card", run, "--shares", 0.5, "--seconds", 0, code=WRONG)
    assert not (run / "card").exists()
    assert "--epochs" in call("train", run, "--set", "training.epochs=abc", code=WRONG)
    for out in (tmp_path, tmp_path / "network", tmp_path / "network.onnx"):
        assert "out must" in call("export", run, "--out", out, code=WRONG)
    call("train", "--out", tmp_path / "new", "--log", "paper", *SMALL, code=WRONG)
    assert not (tmp_path / "new").exists()


def test_outputs_replace_no_other_files(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page, predictions or a run go only where they replace a file of their own kind."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder / "run", "run")
    shutil.copy(folder / "x.npy", "x.npy")
    Path("table.csv").write_text("t0,t1\n1,2\n")
    Path("mine").mkdir()
    Path("mine/report.html").write_text("mine")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    for command in (
        ("compare", "run", "--out", "run/recipe.yaml"),
        ("compare", "run", "--out", "run/report.html"),
        ("compare", "run", "--out", "missing/page.html"),
        ("compare", "run", "--out", "mine"),
        ("predict", "run", "x.npy", "--out", "run/data.json"),
        ("predict", "run", "table.csv", "--out", "table.csv"),
        ("predict", "run", ".", "--out", "table.csv"),
        ("train", *SMALL, "--out", "mine"),
        ("card", "run", "--out", "table.csv"),
        ("new-recipe", "mine/recipe.txt"),
        ("new-recipe", "table.csv"),
    ):
        assert re.search("out must|--out|file must", call(*command, code=WRONG)), command
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_options_without_effect_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    data = ("--data", "elsewhere")
    for command in (
        ("train", "digits", *data),
        ("sweep", "digits", "--over", "lr=0.1,0.2", *data),
        ("test", "run", *data),
        ("predict", "run", "x.npy", *data),
        ("card", "run", *data),
        ("card", "run", "--shares", "0.5", *data),
    ):
        assert "--data must be given only" in call(*command, code=WRONG)
    for command in (("train", "digits"), ("sweep", "digits", "--over", "lr=0.1,0.2")):
        assert "--download must be given only" in call(*command, "--download", code=WRONG)
    assert "--every must be given only with --stream" in call("predict", "run", "x.npy", "--every", 2, code=WRONG)


def test_errors_name_what_was_wrong(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    sweep = ("sweep", "digits", "--over")
    for command, code, message in (
        (("train", "digits", "--set", "training=3"), WRONG, "training must be a mapping, got 3"),
        (("train", "digits", "--model", "ccn"), WRONG, "model.name must be one of list_models(), got 'ccn'; the clos"),
        ((*sweep, "foo=1,2"), WRONG, "--over foo=1: 'foo' is not a key of a recipe"),
        ((*sweep, "lr=0.1,0.1"), WRONG, "--over must name each value once, got '0.1' twice"),
        (("test", "run", "--drop", "2"), WRONG, "drop must be a number of at least 0 and below 1, got 2.0"),
        (("list", "weights", "flextcn_2.smnis"), WRONG, "the closest is 'flextcn_2.smnist'"),
        (("reproduce", "ch99*"), WRONG, "got 'ch99*'"),
        (("reproduce", "ch02-adding-100", "--folds", "0,0"), WRONG, "folds must be different ints, got '0,0'"),
        (("--import", "", "list", "data"), WRONG, "--import must be"),
        (("compare", "run", "missing"), NO_DATA, "folders must be folders of runs, got missing"),
        (("train", "digits", "--set", "epochs"), WRONG, "--set must have the form a.b=c"),
        (("train", "digits", "--set", "trainign.epochs=3"), WRONG, "the closest is 'training'"),
        (("train", "digits", "--set", "foo.bar=3"), WRONG, "sections are data,"),
        (("train", "digits", "--devices", "2", "--strategy", "foo"), WRONG, "kernelfield: strategy must be one of"),
        (("test", "missing"), NO_DATA, "got missing, which does not exist"),
        (("predict", "run", "*.none"), NO_DATA, "got none in *.none; readable are .npy"),
        (("reproduce", "1"), WRONG, "chapter must be one with recipes (2, 3, 4, 5, 6"),
        (
            ("card", "flextcn_2.smnis"),
            WRONG,
            "RUN must be the folder of a run or a pretrained weight, got flextcn_2.smnis",
        ),
        (("card", "."), NO_DATA, "RUN must be a folder with a recipe.yaml in it"),
    ):
        assert message in call(*command, code=code)


def test_calibrate_checks_its_folder_before_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNELFIELD_CACHE", str(tmp_path / "file"))
    output = call("calibrate", "--device", "cpu", code=WRONG)
    assert "cannot read or write" in output
    assert "measuring" not in output


def test_a_folder_of_several_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        shutil.copytree(folder / "run", f"seeds/seed-{seed}")
    for command in (("test", "seeds"), ("predict", "seeds", "x.npy"), ("card", "seeds"), ("export", "seeds")):
        assert "which holds several runs; seeds/seed-0 is one of them" in call(*command, code=NO_DATA)
    assert "seeds/seed-0 is one of them" in call("train", "seeds", "--epochs", "3", code=WRONG)


def test_warnings_are_lines_without_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command shows what a warning says, and where it was raised only to those who debug."""
    former = warnings.formatwarning
    for debug in ("", "1"):
        monkeypatch.setenv("KERNELFIELD_DEBUG", debug)
        with errors():
            line = warnings.formatwarning(UserWarning("two columns are not read"), UserWarning, "here.py", 7)
        assert "two columns are not read" in line
        assert ("here.py" in line) == bool(debug)
    assert warnings.formatwarning is former
