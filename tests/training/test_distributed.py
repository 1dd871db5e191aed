"""Two processes at half the batch give the losses of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernelfield
from kernelfield.training.run import Run

SETTINGS = (
    *("model.channels=6", "model.blocks=1", "model.hidden=8", "model.norm=layer", "training.epochs=2"),
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


def test_two_processes_at_half_the_batch(tmp_path: Path) -> None:
    one, two = run(tmp_path / "one"), run(tmp_path / "two", "--devices", "2")
    assert one["steps"] == two["steps"] == 10
    first, second = (Run(tmp_path / name).read_rows("metrics.csv") for name in ("one", "two"))
    for a, b in zip(first, second, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-4)
        assert a["val_loss"] == pytest.approx(b["val_loss"], rel=1e-3)
