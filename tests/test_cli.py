"""The command: what it prints, writes and exits with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kernelfield.cli import DIVERGED, FAILED, NO_DATA, WRONG
from kernelfield.data.sets.images.digits import digits
from kernelfield.experiments.run import Run
from kernelfield.experiments.stream_input import stream_input
from kernelfield.streaming import ExportedStream
from tests.commands import call

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SMALL = (
    *("--set", "model.channels=4", "--set", "model.blocks=1", "--set", "model.hidden=8"),
    *("--set", "data.resolution=8", "--set", "shape.size=[64]", "--epochs", "1"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    output = call("train", "--out", folder, "--accelerator", "cpu", *SMALL)
    assert "test accuracy " in output
    assert "same weights, every second sample" in output
    assert "trained 1 epoch in" in output
    # Where there is no terminal: sizes of the splits and the expected time.
    assert "1,294 samples for training, 144 for validation, 359 for testing" in output
    assert re.search(r"digits: about \d+ seconds? left, step 4 of 20", output)
    assert f"kernels: {folder / 'kernels.png'}" in output
    return folder


@pytest.mark.usefixtures("no_pictures")  # of single runs; the page of all seeds has its own
def test_seeds_are_trained_side_by_side(tmp_path: Path) -> None:
    options = ("--seeds", "2", "--seed", "3", "--out", tmp_path / "run", "--accelerator", "cpu", "--synthetic")
    found = json.loads(call("train", *options, *SMALL, "--json"))
    assert list(found["seeds"]) == ["3", "4"]
    assert found["seed"] == [3, 4]
    assert set(found["deviation"]["test"]) == {"loss", "accuracy"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Seeds" in page
    assert page.count("<tr><td>") == 2
    assert "data:image/png;base64," in page


def test_a_finished_run_prints_its_result_again(run: Path) -> None:
    found = json.loads(call("train", "--out", run, "--accelerator", "cpu", *SMALL, "--json"))
    assert found["status"] == "done"
    assert found["folder"] == str(run)


def test_the_demo_prints_what_train_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    monkeypatch.setattr("kernelfield.cli.training.train", lambda recipe, **options: seen.update(options, recipe=recipe))
    call("demo", "--out", tmp_path / "demo", "--epochs", "2", "--seed", "3")
    assert seen["recipe"] == "digits"
    assert (seen["epochs"], seen["seed"]) == (2, 3)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "result.json").write_text("{}")
    assert "choose another folder with --out" in call("demo", "--out", tmp_path / "demo", code=WRONG)


def test_the_command_test_reports_each_change_of_the_samples(run: Path) -> None:
    output = call("test", run, "--step", "2", "--step", "0.5", "--drop", "0.3")
    assert [line.split("  ")[0] for line in output.splitlines()][-3:] == ["step 2.0", "step 0.5", "drop 0.3"]
    found = json.loads(call("test", run, "--json"))
    result = json.loads((run / "result.json").read_text())
    assert found["test"]["accuracy"] == pytest.approx(result["metrics"]["test"]["accuracy"])
    assert "turn must be 0 for data other than images" in call("test", run, "--turn", "45", code=WRONG)


def test_predict_while_the_input_arrives(run: Path, tmp_path: Path) -> None:
    sample = digits(8, sequence=True).test.inputs[0]
    np.savetxt(tmp_path / "x.csv", sample[0].numpy(), delimiter=",")
    rows = [json.loads(line) for line in call("predict", run, tmp_path / "x.csv", "--stream", "--json").splitlines()]
    assert [row["samples"] for row in rows] == list(range(1, 65))
    whole = json.loads(call("predict", run, tmp_path / "x.csv", "--json"))[0]
    assert rows[-1]["class"] == whole["class"]
    assert rows[-1]["probability"] == pytest.approx(whole["probability"], abs=1e-4)
    lines = call("predict", run, "--stream", tmp_path / "x.csv", "--every", "20").splitlines()
    assert [line.split("  ")[0] for line in lines] == ["samples 20", "samples 40", "samples 60", "samples 64"]
    assert "--stream must have one file" in call("predict", run, "a", "b", "--stream", code=WRONG)
    assert "file must be an existing file" in call("predict", run, tmp_path / "none.csv", "--stream", code=NO_DATA)


@pytest.mark.parametrize("ending", [".npy", "-"])
def test_streams_of_every_kind_predict_the_same(run: Path, tmp_path: Path, ending: str) -> None:
    sample = digits(8, sequence=True).test.inputs[0].float()
    np.save(tmp_path / "x.npy", sample.numpy())
    lines = ["value", *(str(float(value)) for value in sample[0])]
    source = "-" if ending == "-" else tmp_path / "x.npy"
    found = list(stream_input(run, source, every=32, lines=lines))
    assert [row["samples"] for row in found] == [32, 64]
    whole = json.loads(call("predict", run, tmp_path / "x.npy", "--json"))[0]
    assert found[-1]["class"] == whole["class"]


@pytest.mark.parametrize(
    ("lines", "says"),
    [(["1", "a"], "line 2"), (["1", "2 3"], "line 2"), (["1 2"], "1 values per time step"), (["1", "nan"], "sample 2")],
)
def test_streams_of_bad_lines(run: Path, lines: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        list(stream_input(run, "-", every=2, lines=lines))


def test_export_of_a_stream(run: Path) -> None:
    output = call("export", run, "--stream")
    assert "kept: a short kernel" in output
    assert "differs from the network by at most" in output
    sample = digits(8, sequence=True).test.batch(slice(0, 1)).inputs
    exported = ExportedStream(run / "stream.pt2")
    for value in sample.split(1, dim=-1):
        found = exported.push(value)
    torch.testing.assert_close(found, Run(run).network().eval()(sample).detach(), rtol=1e-3, atol=1e-3)


def test_the_report_shows_accuracy_while_the_input_arrives(run: Path) -> None:
    heard = json.loads((run / "heard.json").read_text())
    assert heard["heard"][-1] == 1.0
    result = json.loads((run / "result.json").read_text())
    assert heard["accuracy"][-1] == pytest.approx(result["metrics"]["test"]["accuracy"], abs=0.01)
    assert "received share of the input" in (run / "report.html").read_text()


def test_inspect_describes_the_layers_of_a_run(run: Path) -> None:
    assert "stem.depthwise" in call("inspect", run)
    assert json.loads(call("inspect", run, "--json"))["status"] == "done"
    assert "recipe.yaml in it" in call("inspect", run.parent, code=NO_DATA)


def test_predict_reads_arrays_and_tables(run: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(3, 1, 64)))
    assert len(call("predict", run, tmp_path / "x.npy").splitlines()) == 3
    sample = digits(8, sequence=True).test
    for name, x in (("x", sample.inputs), ("ready", sample.batch(slice(0, 1)).inputs)):
        (tmp_path / f"{name}.csv").write_text("value\n" + "\n".join(repr(v) for v in x[0, 0].tolist()))
    rows = json.loads(call("predict", run, tmp_path / "x.csv", "--json"))
    assert set(rows[0]) == {"file", "sample", "class", "probability", "probabilities"}
    ready = json.loads(call("predict", run, tmp_path / "ready.csv", "--json", "--raw"))
    assert [row["probabilities"] for row in rows] == [row["probabilities"] for row in ready]
    np.save(tmp_path / "two.npy", np.zeros((3, 2, 64)))
    assert "file two.npy must hold samples of shape (1, 64), got (2, 64)" in call(
        "predict", run, tmp_path / "two.npy", code=WRONG
    )
    call("predict", run, tmp_path / "none.npy", code=NO_DATA)


@pytest.mark.parametrize("to", ["pt2", pytest.param("onnx", marks=pytest.mark.slow)])
def test_export(run: Path, to: str) -> None:
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    output = call("export", run, "--to", to)
    assert f"network.{to}: differs from the network by at most" in output
    assert "inputs: input (batch, 1, 64)" in output
    assert f"it accepts inputs of {'any length' if to == 'pt2' else 'length 64 only'}" in output
    assert (run / f"network.{to}").exists()


def test_list_shows_networks_data_and_recipes() -> None:
    assert "ccnn_4_140" in call("list", "models")
    assert "smnist" in call("list", "data")
    assert set(json.loads(call("list", "recipes", "ch03-smnist-ccnn*", "--json"))) == {
        "ch03-smnist-ccnn-4-140",
        "ch03-smnist-ccnn-6-380",
    }
    call("list", "things", code=WRONG)


def test_one_name_shows_its_options() -> None:
    shown = call("list", "data", "csv_series")
    assert "label (default" in shown
    described = json.loads(call("list", "data", "chirps", "--json"))
    assert described["options"]["length"]["default"] == 256
    assert "group (default 'Cyclic(4)')" in call("list", "models", "p4cnn")
    assert "name: digits" in call("list", "recipes", "digits")
    assert "'nothing'" in call("list", "data", "nothing", code=WRONG)


OWN_MODULE = """
import torch
from kernelfield.data import Data, Split, register

def tones(length=32):
    target = torch.arange(60) % 2
    inputs = torch.sin((1 + 2 * target[:, None, None]) * torch.arange(length) / 4) + 0.1 * torch.randn(60, 1, length)
    return Data.from_splits("tones", Split(inputs, target).cut((40, 10, 10)), classes=("low", "high"))

register("tones_of_my_own", tones, "low and high tones")

class Pooled(torch.nn.Module):
    def __init__(self, in_channels, out_channels, width=8):
        super().__init__()
        self.conv = torch.nn.Conv1d(in_channels, width, 5, padding=2)
        self.linear = torch.nn.Linear(width, out_channels)

    def forward(self, x):
        return self.linear(self.conv(x).relu().mean(dim=-1))
"""


@pytest.mark.usefixtures("no_pictures")
def test_own_data_sets_and_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_tones.py").write_text(OWN_MODULE)
    monkeypatch.chdir(tmp_path)
    here = ("--import", "own_tones")
    options = ("--accelerator", "cpu", "--epochs", "1")
    assert "length (default 32)" in call(*here, "list", "data", "tones_of_my_own")
    small = ("--set", "model.channels=4", "--set", "model.blocks=1", "--set", "model.field=SIREN(hidden=8)")
    output = call(*here, "train", "tones_of_my_own", *options, *small, "--out", "a")
    assert "test accuracy " in output
    recipe = {"name": "mine", "data": {"name": "tones_of_my_own"}, "model": {"name": "own_tones:Pooled", "width": 4}}
    recipe |= {"shape": {"in_channels": 1, "out_channels": 2, "size": [32]}}
    (tmp_path / "mine.yaml").write_text(json.dumps(recipe))
    call(*here, "train", "mine.yaml", *options, "--out", "b")
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 32)))
    assert "class" in json.loads(call(*here, "predict", "b", "x.npy", "--json"))[0]
    assert "--import" in call("--import", "no_such_module", "list", "data", code=WRONG)


def test_bench_of_clouds_has_as_many_points_as_the_data() -> None:
    options = [
        "--seconds",
        "0.1",
        "--accelerator",
        "cpu",
        "--json",
        "--set",
        "data.points=96",
        "--set",
        "training.batch=2",
    ]
    assert json.loads(call("bench", "ch04-chair-monitor-gridified", *options))["points"] == 96


def test_bench() -> None:
    found = json.loads(call("bench", "--seconds", "0.1", "--accelerator", "cpu", "--json", "--set", "model.channels=4"))
    assert found["milliseconds"] > 0


def test_a_closed_pipe_ends_a_command_quietly() -> None:
    listing = subprocess.Popen(
        [sys.executable, "-m", "kernelfield", "list", "models"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert listing.stdout is not None
    listing.stdout.close()
    assert listing.stderr is not None
    assert listing.stderr.read() == b""
    listing.stderr.close()
    assert listing.wait() == 0


@pytest.mark.usefixtures("no_pictures")
def test_reproduce_writes_results_and_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelfield.experiments.results import results_table  # noqa: PLC0415

    monkeypatch.chdir(tmp_path)
    options = ("--accelerator", "cpu", "--set", "training.epochs=1", "--set", "training.batch=4")
    output = call("reproduce", "ch02-adding-100", "--synthetic", *options, "--note", "made up")
    assert re.search(r"test mse: published [\d.]+, ours ", output)
    # What came of synthetic data lies apart; as if it were real, to see it in a table.
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["synthetic"]
    finished = tmp_path / "results" / "ch02-adding-100.json"
    finished.write_text((tmp_path / "results" / "synthetic" / finished.name).read_text())
    failed = call("reproduce", "ch02-smnist-ckcnn-2-30", *options, code=FAILED)
    assert "failed: root must be the folder" in failed
    table = results_table(tmp_path / "results").splitlines()
    assert len({line.count("|") for line in table}) == 1
    assert "made up" in table[2]
    assert "failed: root must be" in table[3]
    again = call("reproduce", "ch02-adding-100", *options, "--set", "data.T=1", code=FAILED)
    assert f"{finished.relative_to(tmp_path)} is kept, because it holds a finished result" in again


@pytest.mark.usefixtures("no_pictures")
def test_own_images_and_series(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    source = np.random.default_rng(0)
    for name, level in (("dark", 60), ("light", 180)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(20):
            pixels = (level + 30 * source.normal(size=(8, 8))).clip(0, 255).astype(np.uint8)
            image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{i}.png")
    options = ("--accelerator", "cpu", "--epochs", "1", "--set", "model.channels=8", "--set", "model.blocks=1")
    output = call("train", tmp_path / "pictures", "--out", tmp_path / "images", *options)
    assert "test accuracy " in output
    picture = tmp_path / "pictures" / "dark" / "0.png"
    assert json.loads(call("predict", tmp_path / "images", picture, "--json"))[0]["class"] in ("dark", "light")
    rows = [["label", *map(str, range(20))]]
    for i in range(40):
        wave = np.sin(np.arange(20) * (1 + i % 2)) + 0.1 * source.normal(size=20)
        rows.append([["slow", "fast"][i % 2], *(f"{v:.4f}" for v in wave)])
    (tmp_path / "waves.csv").write_text("\n".join(",".join(row) for row in rows) + "\n")
    call("new-recipe", tmp_path / "mine.yaml", "--from", tmp_path / "waves.csv")
    assert "test accuracy " in call("train", tmp_path / "mine.yaml", "--out", tmp_path / "series", *options)


def test_short_options_do_not_contradict_settings() -> None:
    for option, setting in (("--epochs=2", "training.epochs=50"), ("--seed=3", "seed=4"), ("--freeze", "freeze=false")):
        output = call("train", "digits", option, "--set", setting, code=WRONG)
        assert f"{option.partition('=')[0]} must not contradict --set {setting}" in output


def test_a_named_data_set_is_read_from_the_folder_of_the_option(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 1, 8)), np.arange(20) % 2
    np.savez(tmp_path / "own.npz", inputs=x, target=y)
    small = ("--epochs", 1, "--set", "model.channels=4", "--set", "model.blocks=1")
    call("train", "arrays", "--data", tmp_path / "own.npz", "--out", tmp_path / "run", *small)
    assert Run(tmp_path / "run").finished


def test_exit_codes(tmp_path: Path) -> None:
    message = call("train", "digits", "--set", "training.epoch=3", code=WRONG)
    assert "'epoch' is not a key of training; the closest is 'epochs'" in message
    assert "the closest is 'digits'" in call("train", "digit", code=WRONG)
    assert "does not exist" in call("train", "missing.csv", code=NO_DATA)
    assert "--data" in call("train", "smnist", code=NO_DATA)
    assert "root must be the folder that holds MNIST" in call(
        "train", "ch02-smnist-ckcnn-2-30", "--accelerator", "cpu", "--out", tmp_path / "a", code=NO_DATA
    )
    wild = ("--set", "optimizer.lr=1e12", "--set", "training.log_every=1", "--set", "schedule.warmup=0")
    output = call("train", *SMALL, *wild, "--accelerator", "cpu", "--out", tmp_path / "b", code=DIVERGED)
    assert "not finite at step" in output
    assert call("--version").startswith("kernelfield ")


def test_errors_are_one_line_and_an_exit_code(tmp_path: Path) -> None:
    cpu = ("--accelerator", "cpu")
    for setting, message in (
        ("training.batch=0", "training.batch must be an int of at least 1, got 0"),
        ("optimizer.lr=-1", "optimizer.lr must be a finite number above 0, got -1.0"),
        ("regularizers.kernel_l2=much", "regularizers.kernel_l2 must be a weight"),
    ):
        assert message in call("train", *SMALL, "--set", setting, *cpu, "--out", tmp_path / "a", code=WRONG)
    (tmp_path / "file").write_text("x")
    assert "out must be a folder" in call("train", *SMALL, *cpu, "--out", tmp_path / "file", code=WRONG)
    below = call("train", *SMALL, *cpu, "--out", tmp_path / "file" / "run", code=WRONG)
    assert "cannot read or write" in below
    options = ("--accelerator", "cpu", "--results", tmp_path / "file", "--synthetic")
    assert "folds must be ints such as 0,1,2, got 'a'" in call(
        "reproduce", "ch02-adding-100", *options, "--folds", "a", code=WRONG
    )
    assert "cannot read or write" in call("reproduce", "ch02-adding-100", *options, code=WRONG)
    assert "accelerator must be one of 'auto', 'cpu', 'cuda', got 'gpus'" in call(
        "train", *SMALL, "--accelerator", "gpus", "--out", tmp_path / "a", code=WRONG
    )
    if not torch.cuda.is_available():
        message = call("train", *SMALL, "--accelerator", "cuda", "--out", tmp_path / "a", code=WRONG)
        assert "accelerator must be available on this machine, got 'cuda' with devices=1" in message
    assert not (tmp_path / "a").exists()


@pytest.mark.usefixtures("no_pictures")
def test_runs_on_synthetic_and_real_data_share_no_folder(tmp_path: Path) -> None:
    options = ("--accelerator", "cpu", *SMALL, "--out", tmp_path / "run")
    assert "synthetic noise of the right shape" in call("train", "--synthetic", *options)
    assert "holds a run on synthetic data" in call("train", *options, code=WRONG)


def test_json_without_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "kernelfield.experiments.finished_run.run_test", lambda *_, **__: {"test": {"auc": float("nan")}}
    )
    assert call("test", tmp_path, "--json").strip() == '{"test": {"auc": null}}'
