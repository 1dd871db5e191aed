"""``kernelfield train`` killed at drawn moments and resumed ends as an uninterrupted training does, bit for bit."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import kernelfield
from kernelfield.experiments.checkpoint import latest_checkpoint, read_checkpoint
from kernelfield.experiments.run import Run
from tests.fuzz.bounds import print_counts

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNTS: Counter[str] = Counter()
LONG = max(1, int(os.environ.get("KERNELFIELD_FUZZ", "2000")) // 20)
SETTINGS = (
    *("model.channels=4", "model.blocks=1", "model.hidden=8", "data.resolution=8", "shape.size=[64]", "test={}"),
    *("training.epochs=2", "training.batch=300", "training.checkpoint_every=1", "training.log_every=1"),
)
#: values that differ from run to run
TIMES = ("seconds", "seconds_per_epoch", "machine")


class Server:
    """Starts commands in processes that end themselves."""

    def __init__(self, empty: bool) -> None:
        self.empty = empty
        folders = (Path(kernelfield.__file__).parents[1], Path(__file__).parents[2])
        environment = {**os.environ, "PYTHONPATH": ":".join(map(str, folders)), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.train_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def train(self, folder: Path, **moment: float) -> dict[str, int]:
        """Train in a folder until a moment; return the exit code and how many moments there were."""
        options = [part for setting in SETTINGS for part in ("--set", setting)]
        arguments = ["train", "--out", str(folder), "--accelerator", "cpu", *options]
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"arguments": arguments, "folder": str(folder), "empty": self.empty, **moment}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    started = Server(empty=not request.config.getoption("--slow"))
    yield started
    started.process.communicate(timeout=60)
    print_counts(request, "kills", COUNTS)


@pytest.fixture(scope="module")
def uninterrupted(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, float]]:
    """Return a finished run, how many changes of files it made, and how many seconds it took."""
    folder = tmp_path_factory.mktemp("kills") / "run"
    start = time.monotonic()
    answer = server.train(folder)
    assert answer["code"] == 0
    return Run(folder), {"events": answer["events"], "seconds": time.monotonic() - start}


def outcome(run: Run) -> tuple[dict[str, Any], list[dict[str, torch.Tensor]]]:
    """Return all numbers and tensors of a run, without times."""
    found = [read_checkpoint(path) for path in sorted(run.checkpoints.iterdir())]
    numbers = {
        "result": run.result(),
        "rows": [run.read_rows("metrics.csv"), run.read_rows("masks.csv")],
        "states": [values for _, values in found],
        "files": sorted(path.name for path in run.folder.iterdir()),
    }
    return without_times(numbers), [tensors for tensors, _ in found]


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(part) for key, part in value.items() if key not in TIMES}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def kill(server: Server, whole: tuple[Run, dict[str, float]], folder: Path, moments: list[tuple[str, float]]) -> None:
    """Kill a training several times, resume it, and compare it with an uninterrupted one."""
    run, most = whole
    for kind, share in moments:
        moment = share * most[kind]
        answer = server.train(folder, **{kind: 1 + int(moment) if kind == "events" else moment})
        COUNTS["tried"] += 1
        if answer["code"] != -9:
            assert answer["code"] == 0
            COUNTS["after the end"] += 1
            break
        saved = latest_checkpoint(folder / "checkpoints")
        COUNTS["before the first checkpoint" if saved is None else "resumed from a checkpoint"] += 1
    assert server.train(folder)["code"] == 0
    numbers, tensors = outcome(Run(folder))
    expected, weights = outcome(run)
    assert numbers == expected
    for ours, theirs in zip(tensors, weights, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    COUNTS["runs equal to the uninterrupted one"] += 1


#: a failure is not reduced: every attempt takes seconds
HOW = {"phases": (Phase.generate,), "suppress_health_check": [HealthCheck.too_slow]}


@settings(max_examples=1, **HOW)
@given(seed=st.integers(10**6, 2**32))
def test_killed_and_resumed(
    server: Server, uninterrupted: tuple[Run, Any], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    source = random.Random(seed)
    moments = [("events", source.uniform(0, 0.4)) for _ in range(3)]
    kill(server, uninterrupted, tmp_path_factory.mktemp("kill") / "run", moments)


@pytest.mark.slow
@settings(max_examples=LONG, derandomize=False, database=None, **HOW)
@given(seed=st.integers(0, 2**32))
def test_killed_and_resumed_many_times(
    server: Server, uninterrupted: tuple[Run, Any], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    # Uniform moments; a strategy would draw the first one most of the time.
    source = random.Random(seed)
    kinds = ("events", "events", "seconds")
    moments = [(source.choice(kinds), source.random()) for _ in range(source.randint(1, 5))]
    kill(server, uninterrupted, tmp_path_factory.mktemp("kill") / "run", moments)
