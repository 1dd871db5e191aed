"""Benchmarks keep to their budget and show each row when it is measured."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from kernelfield import list_models
from kernelfield.models.registry import configuration

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = ("group_attention", "groups")


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs a benchmark and returns what it printed on both streams."""
    monkeypatch.syspath_prepend(FOLDER)

    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        importlib.import_module(script).main()
        return capsys.readouterr()

    return run


@pytest.mark.parametrize("script", SCRIPTS)
def test_nothing_begins_after_the_budget(run, script):
    printed = run(script, "--quick", "--budget", "0")
    assert "left out" in printed.err
    assert "first step" not in printed.err


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_rows_are_printed_and_saved_one_by_one(run, script, tmp_path):
    path = tmp_path / "rows.json"
    printed = run(script, "--quick", "--each", "0.01", "--json", str(path))
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) > 1
    for row in rows:
        assert f"{row['name']}: " in printed.err
        assert any(line.startswith(row["name"]) for line in printed.out.splitlines())


@pytest.mark.slow
def test_seeds_are_timed_alone_and_side_by_side(run, tmp_path):
    path = tmp_path / "seeds.json"
    run("seeds", "--quick", "--counts", "1", "2", "--steps", "30", "--compare", "2", "--out", str(path))
    (case,) = json.loads(path.read_text())["cases"].values()
    assert [row["difference"] for row in case["rows"].values()] == [0.0, 0.0]


def test_fine_tuning_continues_and_chooses_rates_by_validation(run, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(FOLDER)
    script = importlib.import_module("fine_tuning")
    trained = []

    def train(name, start, rate, seed, most):
        trained.append((start, rate, seed))
        good = (start == "weight") == (rate == 0.001)
        row = {
            "task": name,
            "start": start,
            "lr": rate,
            "seed": seed,
            "samples": 5,
            "steps": most,
            "metric": "accuracy",
        }
        return {**row, "validation": 0.9 if good else 0.2, "test": 0.8 if start == "weight" else 0.5, "seconds": 0.0}

    monkeypatch.setattr(script, "train", train)
    arguments = ("--tasks", "chirps", "--steps", "3", "--save", str(tmp_path / "rows.json"))
    printed = run("fine_tuning", *arguments, "--seeds", "2")
    assert trained == [
        *(("weight", 0.01, 0), ("weight", 0.001, 0), ("weight", 0.001, 1)),
        *(("scratch", 0.01, 0), ("scratch", 0.001, 0), ("scratch", 0.01, 1)),
    ]
    assert "**80.0 % (80.0 to 80.0; 0.001)**" in printed.out
    trained.clear()
    run("fine_tuning", *arguments, "--seeds", "3")
    assert trained == [("weight", 0.001, 2), ("scratch", 0.01, 2)]


def test_loops_measure_what_the_file_does_not_have(run, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(FOLDER)
    script, path, measured = importlib.import_module("loops"), tmp_path / "loops.json", []

    def measure(case, way, *_, **__):
        measured.append((case.name, way))
        if case.name == "p4-CNN" and way == "captured":
            raise RuntimeError("no graph today")
        return {"milliseconds": 3.25, "peak_bytes": 1 << 20}

    monkeypatch.setattr(script, "measure", measure)
    arguments = ("--kinds", "guide", "--limit", "1e6", "--out", str(path))
    run("loops", *arguments, "--only", "p4-CNN", "--ways", "eager,captured")
    assert measured == [(n, w) for n in ("p4-CNN", "attentive p4-CNN") for w in ("eager", "captured")]
    assert "no graph today" in path.read_text()
    measured.clear()
    printed = run("loops", *arguments, "--only", "p4-CNN")
    failed, *compiled = measured  # the failed one again, and compiled ones last
    assert failed == ("p4-CNN", "captured")
    assert compiled == [(n, "compiled") for n in ("p4-CNN", "attentive p4-CNN")]
    assert len(json.loads(path.read_text())["rows"]) == 6
    row = next(line for line in printed.out.splitlines() if line.startswith("| attentive"))
    assert [cell.strip() for cell in row.split("|")[3:9]] == ["3.25", "3.25", "3.25", "1.00", "1.00", "1.00"]
    measured.clear()
    run("loops", "--kinds", "guide", "--limit", "1e6", "--rows", "1:4:2", "--ways", "eager")
    assert measured == [("FlexTCN-2", "eager"), ("p4-CNN", "eager")]


def test_first_calls_measure_each_entry_in_a_process_of_its_own(run, tmp_path):
    path = tmp_path / "first.json"
    printed = run("first_calls", "--only", "FlexTCN", "--limit", "0", "--out", str(path))
    rows = json.loads(path.read_text())["rows"]
    assert rows == [{"network": "FlexTCN-2", "way": way} for way in ("eager", "compiled", "plain")]
    assert "| FlexTCN-2" in printed.out
    script = importlib.import_module("first_calls")
    rows = [
        {"network": "a", "way": way, "seconds": s} for way, s in (("eager", 1.0), ("compiled", 3.0), ("plain", 2.0))
    ]
    assert script.make_table(rows).splitlines()[-1].split("|")[5].strip() == "1.50"


@pytest.mark.slow
def test_first_calls_run_a_network(run, tmp_path):
    path = tmp_path / "first.json"
    run("first_calls", "--only", "FlexTCN", "--batch", "2", "--device", "cpu", "--out", str(path))
    assert all(row["seconds"] > 0 for row in json.loads(path.read_text())["rows"])


def test_loops_stop_at_their_limit_and_refuse_other_devices(run, monkeypatch, tmp_path):
    path = tmp_path / "loops.json"
    printed = run("loops", "--kinds", "guide", "--limit", "0", "--out", str(path))
    assert "eager: {" not in printed.err
    other = {"machine": {"device_name": "another"}, "bf16": False, "rows": []}
    path.write_text(json.dumps(other))
    with pytest.raises(SystemExit, match="--out"):
        run("loops", "--out", str(path))


def test_every_registered_network_has_a_case(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    cases = importlib.import_module("_training_cases").cases(("networks",))
    assert sorted(case.name for case in cases) == [name for name in list_models() if ":" not in name]
    builds = [configuration(case.name).build for case in cases]
    first = len(set(builds))
    assert len(set(builds[:first])) == first  # each family before the second network of any
    assert all(case.batch > 0 and case.recipe for case in cases)
    text = next(case for case in cases if case.name == "ckcnn_ptb").inputs(2)["x"]
    assert text.dim() == 2
    assert not text.is_floating_point()
    assert next(case for case in cases if case.name == "gridified_shapenet").inputs(2)["coords"].shape[2] == 3
