"""Benchmarks keep to their budget and show each row when it is measured."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

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
