"""Trainings whose processes share samples: the command, checkpoints on other numbers of processes, workers that die."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import kernelfield
from kernelfield.experiments.checkpoint import latest_checkpoint
from kernelfield.experiments.processes import is_launched, launched_sizes, wait_for_rendezvous
from kernelfield.experiments.run import Run

SETTINGS = (
    *("model.channels=6", "model.blocks=1", "model.hidden=8", "model.dropout=0.2", "training.epochs=2"),
    *("training.batch=240", "data.resolution=8", "shape.size=[64]", "test={}", "training.eval_batch=400"),
)
CHANGES = [part for setting in SETTINGS for part in ("--set", setting)]
TRAIN = ("train", "digits", "--accelerator", "cpu", "--json")


def start(*arguments: object, launcher: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start a command of kernelfield."""
    hidden = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env |= {"PYTHONPATH": str(Path(kernelfield.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *launcher, *(["-m"] if launcher else []), "kernelfield", *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*arguments: object, launcher: tuple[str, ...] = ()) -> str:
    """Return what a command prints."""
    process = start(*arguments, launcher=launcher)
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err[-3000:]
    return out


def weights(folder: Path) -> dict[str, np.ndarray]:
    """Return the weights at the end of a run."""
    path = latest_checkpoint(folder / "checkpoints")
    assert path is not None
    tensors = load_file(path / "tensors.safetensors")
    return {name: t.double().numpy() for name, t in tensors.items() if name.startswith("network.")}


def difference(one: Path, other: Path) -> float:
    first, second = weights(one), weights(other)
    return max(float(np.abs(value - second[name]).max()) for name, value in first.items())


def assert_same_losses(one: Path, other: Path) -> None:
    """Compare losses: Adam moves weights whose gradient is zero, such as biases before norms, by rounding errors."""
    for a, b in zip(Run(one).read_rows("metrics.csv"), Run(other).read_rows("metrics.csv"), strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-4)
        assert a["val_loss"] == pytest.approx(b["val_loss"], rel=1e-3)


def workers(process: subprocess.Popen[str]) -> list[int]:
    """Return the processes that a launcher has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    found = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    return [pid for pid in found if b"kernelfield" in _command_line(pid)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_rendezvous_that_fails_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": "1",
        "WORLD_SIZE": "2",
        "KERNELFIELD_RENDEZVOUS_SECONDS": "0.1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConnectionError, match=f"MASTER_ADDR=127.0.0.1, MASTER_PORT={port}"):
        wait_for_rendezvous()
    monkeypatch.setenv("RANK", "0")
    wait_for_rendezvous()


def test_torchrun_says_how_many_processes_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert not is_launched()
    assert launched_sizes() is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert is_launched()
    assert launched_sizes() == (4, 2)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "run"
    run(*TRAIN, "--out", folder, *CHANGES)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "run"
    result = json.loads(run(*TRAIN, "--out", folder, *CHANGES, "--devices", 2, "--context", 2).splitlines()[-1])
    assert result["steps"] == 10
    return folder


@pytest.mark.slow
def test_two_processes_that_share_samples_train_as_one(one: Path, two: Path) -> None:
    """Dropout included."""
    assert_same_losses(one, two)
    scores = [Run(folder).result()["metrics"]["test"]["loss"] for folder in (one, two)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--devices", 4, "--context", 2, "--strategy", "fsdp")])
def test_a_run_resumes_on_another_number_of_processes(one: Path, tmp_path: Path, options: tuple[object, ...]) -> None:
    first, rest = tmp_path / "first", tmp_path / "rest"
    constant = ("--set", "schedule.name=constant", "--set", "schedule.warmup=0", "--set", "model.dropout=0")
    run(*TRAIN, "--out", first, *CHANGES, *constant, "--set", "training.epochs=1", "--devices", 2, "--context", 2)
    run(*TRAIN, "--out", tmp_path / "whole", *CHANGES, *constant)
    shutil.copytree(first / "checkpoints", rest / "checkpoints")
    run(*TRAIN, "--out", rest, *CHANGES, *constant, *options)
    assert_same_losses(tmp_path / "whole", rest)


@pytest.mark.slow
def test_tests_and_predictions_of_shared_samples(one: Path, tmp_path: Path) -> None:
    samples = tmp_path / "x.npy"
    np.save(samples, np.random.default_rng(0).normal(size=(3, 1, 64)).astype("float32"))
    for command in (("test", one), ("predict", one, samples)):
        alone, shared = (json.loads(run(*command, "--json", *how)) for how in ((), ("--context", 2)))
        flat = [json.dumps(found, sort_keys=True) for found in (alone, shared)]
        numbers = [[float(n) for n in _numbers(text)] for text in flat]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-4)


def _numbers(text: str) -> list[str]:
    words = text.replace(",", " ").replace("}", " ").replace("]", " ").split()
    return [word for word in words if word.lstrip("-")[:1].isdigit()]


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_others_and_is_named(tmp_path: Path) -> None:
    process = start(
        *TRAIN, "--out", tmp_path / "run", *CHANGES, "--set", "training.epochs=500", "--devices", 2, "--context", 2
    )
    while not list((tmp_path / "run").glob("checkpoints/step-*")):
        assert process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.2)
    pids = workers(process)
    assert len(pids) == 2
    os.kill(pids[1], signal.SIGKILL)
    begun = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - begun < 60
    assert process.returncode == 128 + signal.SIGKILL
    assert f"process 1 of 2 (pid {pids[1]}) was killed by SIGKILL" in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
def test_killed_workers_restart_and_lose_nothing(tmp_path: Path) -> None:
    """Ten kills at random moments; the weights are those of an uninterrupted run."""
    options = (
        *CHANGES,
        "--set",
        "training.epochs=60",
        "--set",
        "training.checkpoint_every=3",
        "--devices",
        2,
        "--context",
        2,
    )
    run(*TRAIN, "--out", tmp_path / "whole", *options)
    # More restarts than kills: a process that connects while the other one dies may fail once more.
    process = start(*TRAIN, "--out", tmp_path / "killed", *options, "--restarts", 20)
    rng, kills = random.Random(0), 0
    while kills < 10 and process.poll() is None:
        time.sleep(rng.uniform(3, 12))
        pids = workers(process)
        if pids:
            os.kill(rng.choice(pids), signal.SIGKILL)
            kills += 1
    _, err = process.communicate(timeout=500)
    assert process.returncode == 0, err[-3000:]
    assert kills == 10  # more epochs above if a machine is fast enough to end before
    assert difference(tmp_path / "whole", tmp_path / "killed") == 0


def torchrun(nodes: str) -> tuple[str, ...]:
    """Return the arguments of torchrun on one of several machines with one process each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return (
        *("torch.distributed.run", "--nnodes", nodes, "--nproc-per-node", "1", "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "test", "--max-restarts", "3"),
    )


@pytest.mark.slow
def test_a_run_continues_on_the_machines_that_remain(one: Path, tmp_path: Path) -> None:
    launcher, options = torchrun("1:2"), ("--context", 2, "--set", "training.checkpoint_every=2")
    first = start(*TRAIN, "--out", tmp_path / "run", *CHANGES, *options, launcher=launcher)
    time.sleep(3)  # the first one keeps the rendezvous
    second = start(*TRAIN, "--out", tmp_path / "run", *CHANGES, *options, launcher=launcher)
    while not list((tmp_path / "run").glob("checkpoints/step-*")):
        assert first.poll() is None, first.communicate()[1][-3000:]
        time.sleep(0.05)
    for pid in (second.pid, *workers(second)):
        os.kill(pid, signal.SIGKILL)
    second.communicate()
    _, err = first.communicate(timeout=400)
    assert first.returncode == 0, err[-3000:]
    assert_same_losses(one, tmp_path / "run")


@pytest.mark.slow
def test_two_launchers_as_two_machines(one: Path, tmp_path: Path) -> None:
    launcher = torchrun("2")
    both = [start(*TRAIN, "--out", tmp_path / "run", *CHANGES, "--context", 2, launcher=launcher) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err[-3000:]
    assert_same_losses(one, tmp_path / "run")
