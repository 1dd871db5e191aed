"""Two processes with half the batch each give the losses of one, batch norms included, and resume bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kernelfield
from kernelfield.experiments.run import Run

SETTINGS = (
    *("model.channels=6", "model.blocks=1", "model.hidden=8", "training.epochs=2"),
    *("training.batch=240", "data.resolution=8", "shape.size=[64]", "test={}", "training.eval_batch=400"),
)


def run(folder: Path, *options: str) -> dict[str, object]:
    env = {**os.environ, "PYTHONPATH": str(Path(kernelfield.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    command = [sys.executable, "-m", "kernelfield", "train", "digits", "--accelerator", "cpu", "--json"]
    done = subprocess.run(
        [*command, "--out", str(folder), *settings, *options],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("one") / "run"
    assert run(folder)["steps"] == 10
    return Run(folder)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_with_half_the_batch(one: Run, tmp_path: Path, strategy: str) -> None:
    assert run(tmp_path / "two", "--devices", "2", "--strategy", strategy)["steps"] == 10
    two = Run(tmp_path / "two")
    for a, b in zip(one.read_rows("metrics.csv"), two.read_rows("metrics.csv"), strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-4)
        assert a["val_loss"] == pytest.approx(b["val_loss"], rel=1e-3)
    assert one.result()["metrics"]["test"]["loss"] == pytest.approx(two.result()["metrics"]["test"]["loss"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_interrupted_equals_uninterrupted(tmp_path: Path, strategy: str) -> None:
    """Dropout, batch norms, averages and loss sums included; one process asks both to stop."""
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "tests.experiments.distributed_program", strategy, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["difference"] == 0
    assert found["rows"][0] == found["rows"][1]
    together, alone = found["losses"]
    assert together[0] == pytest.approx(alone[0], rel=1e-4)
    assert together == pytest.approx(alone, rel=1e-2)  # rounding grows from step to step


@pytest.mark.slow
def test_a_sharded_run_resumes(tmp_path: Path) -> None:
    settings = ("training.ema=0.9", "training.clip=1.0", "schedule.name=constant", "schedule.warmup=0")
    options = ("--devices", "2", "--strategy", "fsdp", *(part for s in settings for part in ("--set", s)))
    whole = run(tmp_path / "whole", *options)
    run(tmp_path / "first", *options, "--set", "training.epochs=1")
    shutil.copytree(tmp_path / "first" / "checkpoints", tmp_path / "rest" / "checkpoints")
    rest = run(tmp_path / "rest", *options)
    assert rest["steps"] == whole["steps"] == 10
    for name in ("train_loss", "val_loss"):
        last = [Run(tmp_path / folder).read_rows("metrics.csv")[-1][name] for folder in ("rest", "whole")]
        assert last[0] == pytest.approx(last[1], rel=1e-5)
