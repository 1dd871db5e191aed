"""The script for machines with a GPU goes on after failures, keeps to its time, and compares recorded rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.scripts import load_script

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[1]


@pytest.fixture
def gpu() -> ModuleType:
    return load_script(ROOT / "scripts" / "gpu.py")


def call(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
    code: int = gpu.main()
    return code


def test_every_step_has_a_line(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def steps(stage: str, _: bool) -> list[Any]:
        return {
            "tests": [gpu.Step("fails", ["-c", "raise SystemExit(3)"]), gpu.Step("works", ["-c", "print('done')"])],
            "loops": [gpu.Step("sleeps", ["-c", "import time; time.sleep(60)"]), gpu.Step("late", ["-c", ""])],
            "sizes": [gpu.Step("writes", ["-c", "open(r'{json}', 'w').write('{seconds}')"])],
        }[stage]

    monkeypatch.setattr(gpu, "steps_of", steps)
    stages = "--stages", "tests", "loops", "sizes"
    code = call(gpu, monkeypatch, str(tmp_path), *stages, "--limit", "30", "--limits", "loops=0.5")
    assert code == 1
    lines = capsys.readouterr().out.splitlines()
    names = ["tests fails: failed (3)", "tests works: ok", "loops sleeps: out of time", "loops late: out of time"]
    assert [line.rpartition(",")[0] for line in lines] == [*names, "sizes writes: ok"]
    assert (tmp_path / "works.log").read_text() == "done\n"
    assert float((tmp_path / "writes.json").read_text()) < 30


def test_short_calls_continue_until_all_steps_have_ended(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row of "rows" takes a call; finished steps do not run again, whether they failed or not."""
    text = "import pathlib, time; p = pathlib.Path(r'{json}'); n = len(p.read_text()) if p.exists() else 0; "
    rows = text + "p.write_text('x' * (n + 1)); time.sleep(60 * (n < 1))"
    steps = {"tests": [gpu.Step("fails", ["-c", "raise SystemExit(3)"])], "sizes": [gpu.Step("rows", ["-c", rows])]}
    monkeypatch.setattr(gpu, "steps_of", lambda stage, _: steps[stage])
    monkeypatch.setattr(gpu, "LEAST", 0.0)
    options = "--stages", "tests", "sizes", "--total", "3", "--resume"
    seen = []
    for _ in range(3):
        assert call(gpu, monkeypatch, str(tmp_path), *options) == 1
        seen.append([line.rpartition(",")[0] for line in capsys.readouterr().out.splitlines()])
    assert seen == [["tests fails: failed (3)", "sizes rows: out of time"], ["sizes rows: ok"], []]
    assert (tmp_path / "rows.json").read_text() == "xx"


def test_files_of_tests_run_side_by_side(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of the two steps waits for the file of the other."""
    wait = "import pathlib, time; pathlib.Path(r'{0}/{1}').touch(); p = pathlib.Path(r'{0}/{2}')\n"
    wait += "while not p.exists(): time.sleep(0.01)"
    steps = [gpu.Step(a, ["-c", wait.format(tmp_path, a, b)]) for a, b in (("one", "two"), ("two", "one"))]
    monkeypatch.setattr(gpu, "steps_of", lambda *_: steps)
    assert call(gpu, monkeypatch, str(tmp_path), "--stages", "tests", "--at-once", "2", "--limit", "60") == 0
    assert {line.partition(",")[0] for line in capsys.readouterr().out.splitlines()} == {
        "tests one: ok",
        "tests two: ok",
    }


@pytest.mark.parametrize(("factor", "slower"), [(1.02, 0), (1.05, 1), (0.5, 0)])
def test_recorded_rows_may_take_three_percent_longer(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, factor: float, slower: int
) -> None:
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    recorded = {"rows": [{"name": "a", "ms": {"auto": 2.0, "reference": 1.0}}, {"name": "b", "ms": {"auto": 1.0}}]}
    (tmp_path / "old.json").write_text(json.dumps(recorded))
    text = json.dumps({"rows": [{"name": "a", "ms": {"auto": 2.0 * factor, "reference": 9.0}}]})
    step = gpu.Step("new", ["-c", f"open(r'{{json}}', 'w').write({text!r})"], "old.json")
    ended, _ = gpu.run(step, tmp_path, 30)
    assert ended == ("failed (slower)" if slower else "ok")
    assert step.lines[0] == f"1 times compared with old.json, {slower} slower"
    assert len(step.lines) == 1 + slower


@pytest.mark.parametrize("name", ["long-conv-h200", "ccnn-step-h200", "group_attention-h200"])
def test_recorded_files_have_times(gpu: ModuleType, name: str) -> None:
    report = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    lines, compared = gpu.compare(report, report)
    assert lines == []
    assert compared >= len(report["rows"])


def test_eager_times_beside_those_of_a_graph_are_not_compared(gpu: ModuleType) -> None:
    old, new = (
        {"rows": [{"name": "a", "ms": {"auto": eager, "auto graphed": graphed}}]}
        for eager, graphed in ((1, 1), (2, 1.1))
    )
    assert gpu.compare(new, old) == (["  a, auto graphed: 1.1 instead of 1, +10.0 %"], 1)


def test_stages_name_scripts_that_exist(gpu: ModuleType) -> None:
    for quick in (False, True):
        for stage in gpu.LIMITS:
            steps = gpu.steps_of(stage, quick)
            assert steps
            for step in steps:
                script = ROOT / next(
                    part for part in step.command if part.startswith(("tests/", "benchmarks/", "scripts/"))
                )
                assert script.exists(), step
                options = [part for part in step.command if part.startswith("--")]
                assert all(f'"{option}"' in script.read_text() for option in options), step


def test_all_tests_of_folders_run_once(gpu: ModuleType) -> None:
    """A file whose tests are divided among several steps has no step of its own."""
    steps = gpu.steps_of("tests", quick=False)
    assert len({step.name for step in steps}) == len(steps)
    files = [part for step in steps for part in step.command if part.startswith("tests/cuda_graphs")]
    assert set(files) == {f"tests/cuda_graphs/{path.name}" for path in (ROOT / "tests/cuda_graphs").glob("test_*.py")}
    chosen = [step.command[-1] for step in steps if step.command[-2] == "-k"]
    assert files.count("tests/cuda_graphs/test_cuda.py") == len(chosen) == 4


def test_limits_must_name_a_stage(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        call(gpu, monkeypatch, str(tmp_path), "--limits", "sleep=3")
    assert "got 'sleep=3'" in capsys.readouterr().err
